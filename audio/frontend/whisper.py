"""Whisper's log-mel matrix in NumPy."""

from __future__ import annotations

import numpy as np

from audio.block import Float32Array
from audio.frontend.spec import WHISPER_80, MelSpec, hann_periodic, mel_matrix

_VARIANCE_FLOOR = 1e-7


class WhisperFrontend:
    """`Frontend`: centred frames with mirrored edges, the last one dropped; log10, clamped, scaled to about +-1.

    The clamp looks at the maximum of the whole matrix, so features cannot be made piece by piece.
    """

    def __init__(self, spec: MelSpec = WHISPER_80, *, normalize: bool = False) -> None:
        """`normalize`: bring the samples to zero mean and unit variance first."""
        self._spec = spec
        self._normalize = normalize
        self._window = hann_periodic(spec.window_samples)
        self._mel = mel_matrix(spec)

    def features(self, samples: Float32Array) -> Float32Array:
        """(N,) at 16 kHz, N > half a window, to (bands, N // hop).

        Raises:
            ValueError: too short for the mirrored edge.
        """
        spec = self._spec
        edge = spec.window_samples // 2
        if samples.ndim != 1 or len(samples) <= edge:
            raise ValueError(f"need one channel of more than {edge} samples, not shape {samples.shape}")
        if self._normalize:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + np.float32(_VARIANCE_FLOOR))
        padded = np.pad(samples.astype(np.float64), edge, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, spec.window_samples)[:: spec.hop_samples]
        spectrum = np.fft.rfft(frames[: len(samples) // spec.hop_samples] * self._window)
        power = spectrum.real**2 + spectrum.imag**2
        decades = np.log10(np.maximum(self._mel @ power.T, spec.floor))
        clamped = np.maximum(decades, decades.max() - spec.range_decades)
        scaled: Float32Array = ((clamped + 4) / 4).astype(np.float32)
        return scaled

    def memory_bytes(self) -> int:
        """Bytes of window and mel matrix."""
        return int(self._window.nbytes + self._mel.nbytes)
