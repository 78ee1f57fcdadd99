"""A steady tone, and where a recording of it is broken. Knows nothing of devices.

Two measures find what the other cannot see. The residual of the sine's own recursion x[n] = 2 cos(w) x[n-1] - x[n-2]
is zero but where a sample does not follow from the two before it: jumps and clicks. The tone's envelope over
10 ms shows what is smooth: fades, and jumps that noise hides from the residual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from audio.block import Float32Array

TONE_HZ = 997.0
"""No whole number of periods in a block: a lost or repeated block shifts the phase by 0.19 rad."""
TONE_AMPLITUDE = 0.25
_HOPS_PER_SECOND = 400
_WINDOW_HOPS = 4
_EDGE_MS = 100.0
"""At both ends of the recording: fade-in, fade-out, and the windows that reach over the edge."""
_MERGE_MS = 50.0
"""Faults closer than this are one break."""
_RESIDUAL_LIMIT = 0.01
_ENVELOPE_LIMIT = 0.06
"""Both relative to the tone's amplitude; the least step that counts where there is no noise at all."""
_RESIDUAL_NOISE_FACTOR = 10.0
_ENVELOPE_NOISE_FACTOR = 5.0
"""Times the median: what white noise reaches less than once in an hour."""
_AUDIBLE_SHARE = 0.01
"""A tone that makes up less of the recording than this does not come back."""

_Float64Array = npt.NDArray[np.float64]
_Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Continuity:
    """What a recording says of the tone."""

    tone_s: float
    """From the first to the last sample of the tone; 0.0 where it is not heard."""
    breaks: int | None
    """Places where it is broken; None where it is not heard."""


def tone(first_frame: int, frames: int, rate_hz: int) -> Float32Array:
    """(frames,) of the tone, from `first_frame` on: pieces join without a seam."""
    # Whole seconds hold whole periods, so the phase stays small and exact however long the tone is.
    places = (first_frame + np.arange(frames)) % rate_hz
    return (TONE_AMPLITUDE * np.sin(2 * np.pi * TONE_HZ * places / rate_hz)).astype(np.float32)


def continuity(samples: Float32Array, rate_hz: int) -> Continuity:
    """(N,) of a recording that begins before the tone and ends after it."""
    envelope = _envelope(samples, rate_hz)
    hop = rate_hz // _HOPS_PER_SECOND
    if not len(envelope):
        return Continuity(0.0, None)
    level = float(np.quantile(np.abs(envelope), 0.9))
    power = float(np.mean(np.square(samples, dtype=np.float64)))
    if level**2 / 2 < _AUDIBLE_SHARE * power or level < 1e-5:
        return Continuity(0.0, None)
    sounding = np.flatnonzero(np.abs(envelope) > level / 2)
    first, last = int(sounding[0]) * hop, (int(sounding[-1]) + _WINDOW_HOPS) * hop
    edge = round(rate_hz * _EDGE_MS / 1000)
    faults = np.concatenate((_jumps(samples, rate_hz, level), _steps(envelope, level) * hop))
    inside = np.sort(faults[(faults > first + edge) & (faults < last - edge)])
    gaps = np.diff(inside) > rate_hz * _MERGE_MS / 1000
    return Continuity((last - first) / rate_hz, int(gaps.sum()) + 1 if len(inside) else 0)


def _envelope(samples: Float32Array, rate_hz: int) -> npt.NDArray[np.complex128]:
    """Complex amplitude over 10 ms windows, 2.5 ms apart."""
    hop = rate_hz // _HOPS_PER_SECOND
    hops = len(samples) // hop
    places = np.arange(hops * hop) % rate_hz
    turned = samples[: hops * hop] * np.exp(-2j * np.pi * TONE_HZ * places / rate_hz)
    sums = turned.reshape(hops, hop).mean(axis=1)
    return 2 * np.convolve(sums, np.full(_WINDOW_HOPS, 1 / _WINDOW_HOPS), "valid")


def _jumps(samples: Float32Array, rate_hz: int, level: float) -> _Places:
    """Samples that do not follow from the two before."""
    wide = samples.astype(np.float64)
    residual = np.abs(wide[2:] - 2 * np.cos(2 * np.pi * TONE_HZ / rate_hz) * wide[1:-1] + wide[:-2])
    return np.flatnonzero(residual > _limit(residual, _RESIDUAL_NOISE_FACTOR, _RESIDUAL_LIMIT * level)) + 2


def _steps(envelope: npt.NDArray[np.complex128], level: float) -> _Places:
    """Windows whose amplitude or phase is not that of the window before (which ends where this one begins)."""
    step = np.abs(envelope[_WINDOW_HOPS:] - envelope[:-_WINDOW_HOPS])
    return np.flatnonzero(step > _limit(step, _ENVELOPE_NOISE_FACTOR, _ENVELOPE_LIMIT * level)) + _WINDOW_HOPS


def _limit(values: _Float64Array, noise_factor: float, least: float) -> float:
    """What stands out of the noise that is there all the time."""
    return max(least, noise_factor * float(np.median(values)) if len(values) else 0.0)
