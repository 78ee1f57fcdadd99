"""How long a sample takes from leaving the callback to coming back in the microphone.

Generalised cross-correlation with phase transform (Knapp and Carter, "The generalized correlation method
for estimation of time delay", IEEE TASSP 24(4), 1976), averaged over blocks while the loudspeaker speaks.
A first estimate for the start of a stream, one per open; it does not follow changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audio.block import HOP_SAMPLES, Float32Array, samples_to_ms
from audio.meters.level import level_db

MAX_DELAY_SAMPLES = 8000
_BLOCK = 16384
_HALF = _BLOCK // 2
_STEP_HOPS = 20
_MIN_FAR_DB = -50.0
_WINDOW_SAMPLES = 160
_MIN_CONFIDENCE = 10.0
"""Unrelated speech reaches 4, noise 1.4; a room, 16 and more within a second, even one without a direct path,
which spreads its echo so thin that no single lag stands out: hence energy over 10 ms, not a peak."""
_ONSET_SHARE = 0.3
_AGREE_SAMPLES = 80
_EDGE_HZ = (200.0, 7000.0)
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The estimate."""

    delay_samples: int
    """Far to near, at 16 kHz, of the strongest arrival."""
    onset_samples: int
    """Where the echo begins, at most 10 ms early; at or before `delay_samples`."""
    confidence: float
    """Energy of the strongest 10 ms of correlation over the median 10 ms; 10 and more are accepted."""

    @property
    def delay_ms(self) -> float:
        """The delay in milliseconds."""
        return samples_to_ms(self.delay_samples)


class RoundTripEstimator:
    """Push aligned hops until it answers; from then on it costs nothing.

    Every 200 ms of audible loudspeaker it correlates the older half of the last 1.02 s of loudspeaker with
    all of the microphone (so that no lag up to 500 ms wraps around) and adds the whitened cross-spectrum
    to the sum. Two successive sums with the same clear peak make the answer. Work per hop is a copy, and
    in every 20th hop three transforms of 16384 points (0.6 ms).
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again, for a new open."""
        self._near = np.zeros(_BLOCK, np.float32)
        self._far = np.zeros(_BLOCK, np.float32)
        self._cross = np.zeros(_BLOCK // 2 + 1, np.complex128)
        self._band = _band_mask()
        self._fresh_hops = 0
        self._audible_hops = 0
        self._last_pick: int | None = None
        self._answered = False

    def push(self, near: Float32Array, far: Float32Array) -> RoundTrip | None:
        """Take (HOP_SAMPLES,) of microphone and loudspeaker; the answer once, None before and after."""
        if self._answered:
            return None
        self._near = _shifted(self._near, near)
        self._far = _shifted(self._far, far)
        self._fresh_hops += 1
        self._audible_hops += level_db(far) > _MIN_FAR_DB
        if self._fresh_hops < _STEP_HOPS or self._audible_hops < _STEP_HOPS // 2:
            return None
        self._fresh_hops = self._audible_hops = 0
        return self._correlate()

    def memory_bytes(self) -> int:
        """Bytes of the two histories and the averaged spectrum."""
        return int(self._near.nbytes + self._far.nbytes + self._cross.nbytes + self._band.nbytes)

    def _correlate(self) -> RoundTrip | None:
        older_far = np.zeros(_BLOCK, np.float32)
        older_far[:_HALF] = self._far[:_HALF]
        if level_db(older_far[:_HALF]) < _MIN_FAR_DB:
            return None
        cross = np.fft.rfft(self._near) * np.conj(np.fft.rfft(older_far))
        self._cross += self._band * cross / (np.abs(cross) + _TINY)
        correlation = np.fft.irfft(self._cross, _BLOCK)[:MAX_DELAY_SAMPLES]
        energy = np.convolve(correlation**2, np.ones(_WINDOW_SAMPLES))[:MAX_DELAY_SAMPLES]
        # energy[n] is that of the 10 ms up to lag n
        strongest = int(np.argmax(energy))
        confidence = float(energy[strongest]) / max(float(np.median(energy)), _TINY)
        first = max(0, strongest - _WINDOW_SAMPLES + 1)
        pick = first + int(np.argmax(np.abs(correlation[first : strongest + 1])))
        previous, self._last_pick = self._last_pick, strongest
        agrees = previous is not None and abs(strongest - previous) <= _AGREE_SAMPLES
        if confidence < _MIN_CONFIDENCE or not agrees:
            return None
        self._answered = True
        onset = int(np.argmax(energy > _ONSET_SHARE * energy[strongest]))
        return RoundTrip(pick, max(0, min(pick, onset - _WINDOW_SAMPLES // 4)), confidence)


def _shifted(history: Float32Array, hop: Float32Array) -> Float32Array:
    history[:-HOP_SAMPLES] = history[HOP_SAMPLES:]
    history[-HOP_SAMPLES:] = hop
    return history


def _band_mask() -> Float32Array:
    """1 in the band where speech excites the room, 0 where whitening would only raise noise."""
    hz = np.fft.rfftfreq(_BLOCK, 1 / (HOP_SAMPLES * 100))
    return ((hz >= _EDGE_HZ[0]) & (hz <= _EDGE_HZ[1])).astype(np.float32)
