"""A linear echo canceller: what it cannot predict from the loudspeaker, it leaves untouched.

Partitioned-block frequency-domain Kalman filter with diagonal covariance (Enzner and Vary, "Frequency-domain
adaptive Kalman filter for acoustic echo control in hands-free telephones", Signal Processing 86(6), 2006;
partitioned: Kuech, Mabande and Enzner, "State-space architecture of the partitioned-block-based acoustic
echo controller", ICASSP 2014). The Kalman gain is the step size, so a user who talks over the echo needs
no detector to stop the adaptation. It knows no delay: give it a loudspeaker signal that is aligned.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from audio.block import HOP_SAMPLES, Float32Array

_PARTITIONS = 24
"""Of one hop each: 240 ms of room."""
_SIZE = 2 * HOP_SAMPLES
_BINS = HOP_SAMPLES + 1
_TRANSITION = np.float32(0.9999)
"""How much of the room is still true after a hop."""
_SMOOTHING = np.float32(0.8)
_DECAY = 0.85
"""Of the room's energy from one partition to the next, before anything is known."""
_SPREAD = np.float32(0.2)
"""Share of the process noise that follows the decay instead of the present taps: or empty taps stay empty."""
_START_VARIANCE = 8.0
_NEAR_FLOOR = np.float32(0.3)
_CAUTION = np.float32(1.5)
_TINY = np.float32(1e-6)
_AUDIBLE_POWER = 1e-4
_DIVERGED = 4.0


class KalmanEchoFilter:
    """`process` gives the microphone less the predicted echo, without delay."""

    def __init__(self) -> None:
        decay = np.power(_DECAY, np.arange(_PARTITIONS))[:, None]
        self._decay: Float32Array = (decay / decay.sum()).astype(np.float32)
        self._taps: npt.NDArray[np.complex64]
        self._variance: Float32Array
        self._near_mean: float
        self._residual_mean: float
        self.reset()

    def reset(self) -> None:
        """Forget the room and the stream."""
        self._far: Float32Array = np.zeros(_SIZE, np.float32)
        self._spectra: npt.NDArray[np.complex64] = np.zeros((_PARTITIONS, _BINS), np.complex64)
        self._error_power: Float32Array = np.full(_BINS, 1e-4, np.float32)
        self._forget_room()

    def process(self, near: Float32Array, far: Float32Array) -> Float32Array:
        """(HOP_SAMPLES,) microphone and (HOP_SAMPLES,) aligned loudspeaker to (HOP_SAMPLES,) residual."""
        self._far = np.concatenate((self._far[HOP_SAMPLES:], far))
        self._spectra[1:] = self._spectra[:-1].copy()
        self._spectra[0] = np.fft.rfft(self._far)
        echo = np.fft.irfft((self._spectra * self._taps).sum(0), _SIZE)[HOP_SAMPLES:]
        residual: Float32Array = (near - echo).astype(np.float32)
        power = self._spectra.real**2 + self._spectra.imag**2
        if power.max() > _AUDIBLE_POWER:
            self._adapt(residual, power)
            self._watch(near, residual)
        return residual

    def memory_bytes(self) -> int:
        """Bytes of filter, covariance and history."""
        arrays = (self._taps, self._variance, self._spectra, self._far, self._error_power, self._decay)
        return sum(int(array.nbytes) for array in arrays)

    def _adapt(self, residual: Float32Array, power: Float32Array) -> None:
        error = np.fft.rfft(np.concatenate((np.zeros(HOP_SAMPLES, np.float32), residual)))
        error_power = error.real**2 + error.imag**2
        self._error_power *= _SMOOTHING
        self._error_power += np.float32(1 - _SMOOTHING) * error_power
        half = np.float32(0.5)  # new samples over transform length
        expected = (power * self._variance).sum(0)
        near_power = np.maximum(self._error_power - half * expected, _NEAR_FLOOR * self._error_power)
        gain = self._variance / (expected + _CAUTION / half * near_power + _TINY)
        step = np.fft.irfft(gain * self._spectra.conj() * error, _SIZE)
        step[:, HOP_SAMPLES:] = 0.0  # gradient constraint: a partition has one hop of taps
        self._taps += np.fft.rfft(step)
        self._taps *= _TRANSITION
        tap_power = self._taps.real**2 + self._taps.imag**2
        drift = (1 - _SPREAD) * tap_power + _SPREAD * tap_power.sum(0) * self._decay
        kept = _TRANSITION**2
        self._variance = kept * (1 - half * gain * power) * self._variance + (1 - kept) * drift + np.float32(1e-9)

    def _watch(self, near: Float32Array, residual: Float32Array) -> None:
        """A residual that stays far louder than the microphone is worse than knowing nothing."""
        self._near_mean = 0.9 * self._near_mean + 0.1 * float(near @ near)
        self._residual_mean = 0.9 * self._residual_mean + 0.1 * float(residual @ residual)
        if self._residual_mean > _DIVERGED * self._near_mean + 1e-6:
            self._forget_room()

    def _forget_room(self) -> None:
        self._taps = np.zeros((_PARTITIONS, _BINS), np.complex64)
        self._variance = np.float32(_START_VARIANCE) * self._decay * np.ones(_BINS, np.float32)
        self._near_mean = self._residual_mean = 0.0
