"""The way from the loudspeaker back to the microphone, measured with a sweep: how late, how loud, or none.

The impulse response is the regularised quotient of the two spectra (a sweep fills its band evenly, so the
quotient is well behaved in it); the echo is its strongest 10 ms, if they stand out of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audio.block import HOP_MS, Float32Array

SWEEP_S = 1.0
"""Length of a sweep."""
MAX_DELAY_S = 1.0
"""Record so long behind the sweep."""
_BAND_HZ = (200.0, 6500.0)
_SWEEP_PEAK = 0.25
_FADE_S = 0.02
_ECHO_S = 0.3
"""From the strongest arrival on, this much counts as its echo."""
_MIN_CONFIDENCE = 10.0
"""Noise and hum alone stay below 2; a room reaches thousands."""
_REGULARISATION = 1e-3


@dataclass(frozen=True, slots=True)
class EchoPath:
    """What one sweep showed."""

    round_trip_ms: float | None
    """Of the strongest arrival; None where no echo stands out of the noise."""
    erl_db: float | None
    """Echo return loss: how much weaker the echo is at the microphone than the loudspeaker signal."""
    confidence: float
    """Energy of the strongest 10 ms of the response over the median 10 ms."""


def make_sweep(rate_hz: int) -> Float32Array:
    """(N,) exponential sweep over the band of speech at -15 dBFS rms, faded in and out."""
    low, high = _BAND_HZ[0] / 2, min(_BAND_HZ[1] * 1.1, 0.45 * rate_hz)
    time_s = np.arange(round(SWEEP_S * rate_hz)) / rate_hz
    growth = np.log(high / low)
    phase = 2 * np.pi * low * SWEEP_S / growth * (np.exp(time_s / SWEEP_S * growth) - 1)
    fade = np.minimum(1.0, np.minimum(time_s, SWEEP_S - time_s) / _FADE_S)
    sweep: Float32Array = (_SWEEP_PEAK * fade * np.sin(phase)).astype(np.float32)
    return sweep


def measure_echo_path(near: Float32Array, far: Float32Array, rate_hz: int) -> EchoPath:
    """(N,) microphone and (N,) loudspeaker of the same time, with one sweep and `MAX_DELAY_S` of silence behind it."""
    size = 1 << (2 * len(far) - 1).bit_length()
    hz = np.fft.rfftfreq(size, 1 / rate_hz)
    band = (hz >= _BAND_HZ[0]) & (hz <= min(_BAND_HZ[1], 0.4 * rate_hz))
    spoken = np.fft.rfft(far.astype(np.float64), size)
    power = np.abs(spoken) ** 2
    loudest = float(power[band].max())
    if loudest <= 0.0:
        raise ValueError("there is no sweep in the loudspeaker signal")
    heard = np.fft.rfft(near.astype(np.float64) - float(near.mean()), size)
    response = np.fft.irfft(np.where(band, heard * np.conj(spoken) / (power + _REGULARISATION * loudest), 0.0), size)
    response = response[: round(MAX_DELAY_S * rate_hz)]
    window = rate_hz * HOP_MS // 1000
    energy = np.convolve(response**2, np.ones(window))[: len(response)]
    strongest = int(np.argmax(energy))
    floor = float(np.median(energy))
    confidence = float(energy[strongest]) / max(floor, 1e-30)
    if confidence < _MIN_CONFIDENCE:
        return EchoPath(None, None, confidence)
    first = max(0, strongest - window + 1)
    peak = first + int(np.argmax(np.abs(response[first : strongest + 1])))
    echo = response[first : first + round(_ECHO_S * rate_hz)]
    gain = float(np.dot(echo, echo)) - floor / window * len(echo)
    gain /= 2 * np.count_nonzero(band) / size  # white over the whole spectrum, as the loudspeaker would be
    erl_db = -10 * float(np.log10(max(gain, 1e-15)))
    return EchoPath(peak * 1000 / rate_hz, erl_db, confidence)
