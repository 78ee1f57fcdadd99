"""The tables of mel front ends: one source for the CPU and for every GPU twin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from audio.block import SAMPLE_RATE_HZ

Float64Array = npt.NDArray[np.float64]

_LINEAR_HZ_PER_MEL = 200 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


@dataclass(frozen=True, slots=True)
class MelSpec:
    """How a model wants its log-mel matrix."""

    bands: int
    window_samples: int
    hop_samples: int
    low_hz: float
    high_hz: float
    floor: float
    """Mel power below this counts as this."""
    range_decades: float
    """Everything more than so many decades under the matrix's maximum is raised to that."""


WHISPER_80 = MelSpec(
    bands=80,
    window_samples=400,
    hop_samples=160,
    low_hz=0.0,
    high_hz=SAMPLE_RATE_HZ / 2,
    floor=1e-10,
    range_decades=8.0,
)
"""Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (Whisper), arXiv 2212.04356."""


def hann_periodic(length: int) -> Float64Array:
    """(length,) Hann window whose period is `length`."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)


def mel_of_hz(hz: npt.ArrayLike) -> Float64Array:
    """Slaney's Auditory Toolbox scale (1998): linear up to 1 kHz, 27 mel for each factor of 6.4 above."""
    hz = np.asarray(hz, np.float64)
    above = _BREAK_MEL + np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(hz < _BREAK_HZ, hz / _LINEAR_HZ_PER_MEL, above)


def hz_of_mel(mel: npt.ArrayLike) -> Float64Array:
    """Inverse of `mel_of_hz`."""
    mel = np.asarray(mel, np.float64)
    above = _BREAK_HZ * np.exp((np.maximum(mel, _BREAK_MEL) - _BREAK_MEL) * _LOG_STEP)
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_HZ_PER_MEL, above)


def mel_matrix(spec: MelSpec) -> Float64Array:
    """(bands, window_samples // 2 + 1) triangles with equal area (Slaney's normalisation)."""
    edges_hz = hz_of_mel(np.linspace(mel_of_hz(spec.low_hz), mel_of_hz(spec.high_hz), spec.bands + 2))
    bins_hz = np.fft.rfftfreq(spec.window_samples, 1 / SAMPLE_RATE_HZ)
    low, centre, high = (edges_hz[k : k + spec.bands, None] for k in range(3))
    rising = (bins_hz - low) / (centre - low)
    falling = (high - bins_hz) / (high - centre)
    return np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
