"""Sample rate conversion: whole arrays, streams of any chunk size, and 10 ms blocks for the ear.

Two tools, because they want different things. Files and synthesised clauses go through soxr, which works in
large blocks: as a stream it holds back 36-42 ms. The ear cannot wait for that: `HopResampler` computes
each hop as one fixed matrix times the last 18 ms, lags by 4 ms and needs numpy only.
"""

from __future__ import annotations

import numpy as np

from audio.block import HOP_MS, SAMPLE_RATE_HZ, Float32Array

_QUALITY = "HQ"
"""The least soxr quality whose stop band is below -100 dB with a flat pass band up to 91 % of Nyquist."""


def resampled_length(count: int, from_hz: int, to_hz: int) -> int:
    """Samples at `to_hz` that `count` samples at `from_hz` become."""
    return round(count * to_hz / from_hz)


def resample(samples: Float32Array, from_hz: int, to_hz: int) -> Float32Array:
    """(N,) at `from_hz` to (`resampled_length`,) at `to_hz`; the same array where the rates are equal."""
    stream = StreamResampler(from_hz, to_hz)
    return stream.process(samples) if from_hz == to_hz else stream.finish(samples)


class StreamResampler:
    """soxr as a stream: the chunks, joined, are the whole-array result to the last sample.

    `process` holds samples back (36-42 ms of them at HQ, released in bursts) and `flush` returns them; so
    flush where the sound ends, such as after each clause, and the lag costs nothing.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self.from_hz = from_hz
        self.to_hz = to_hz
        self.latency = 0
        """Samples by which the output lags the input: none, held-back samples come unshifted."""
        self._stream = None
        if from_hz != to_hz:
            import soxr

            self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality=_QUALITY)
        self._taken = 0
        self._given = 0

    def process(self, samples: Float32Array) -> Float32Array:
        """(N,) to what is ready of it, any number of samples."""
        if self._stream is None:
            return samples
        return self._convert(samples, last=False)

    def finish(self, samples: Float32Array) -> Float32Array:
        """The last chunk: (N,) to everything that is left. The stream is new afterwards."""
        if self._stream is None:
            return samples
        rest = self._convert(samples, last=True)
        missing = resampled_length(self._taken, self.from_hz, self.to_hz) - self._given
        if missing > 0:
            rest = np.concatenate((rest, np.zeros(missing, np.float32)))
        elif missing < 0:
            rest = rest[:missing]
        self._stream.clear()
        self._taken = self._given = 0
        return rest

    def flush(self) -> Float32Array:
        """Everything held back. The stream is new afterwards."""
        return self.finish(np.zeros(0, np.float32))

    def _convert(self, samples: Float32Array, *, last: bool) -> Float32Array:
        assert self._stream is not None
        output: Float32Array = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32), last=last)
        self._taken += len(samples)
        self._given += len(output)
        return output


_HALF_MS = 4.0
"""Half the filter's length, and so its delay."""
_STOP_BAND_DB = 100.0


class HopResampler:
    """Every 10 ms block in gives exactly one hop out, late by the constant `latency_samples`.

    A linear-phase Kaiser-windowed sinc (Oppenheim & Schafer, Discrete-Time Signal Processing, 7.5): flat to
    7.2 kHz at 16 kHz, 100 dB down from 8 kHz on. Because 10 ms is a whole number of samples at both rates,
    every block meets the same phases, so the whole filter is one (hop, history + block) matrix. The product
    is einsum's, not the BLAS's: the same bits whatever the number of BLAS threads.

    Args:
        from_hz: device rate, a multiple of 100.
        to_hz: multiple of 100.
    """

    def __init__(self, from_hz: int, to_hz: int = SAMPLE_RATE_HZ) -> None:
        blocks_per_second = 1000 // HOP_MS
        if from_hz % blocks_per_second or to_hz % blocks_per_second:
            raise ValueError(f"10 ms of {from_hz} or {to_hz} Hz is no whole number of samples")
        self.block_frames = from_hz // blocks_per_second
        self.hop_samples = to_hz // blocks_per_second
        self.latency_samples = 0 if from_hz == to_hz else round(_HALF_MS * to_hz / 1000)
        """Output sample n is the input at output time n - latency_samples."""
        self._matrix: Float32Array | None = None
        if from_hz != to_hz:
            self._matrix = _hop_matrix(from_hz, to_hz, self.latency_samples)
            self._window = np.zeros(self._matrix.shape[1], np.float32)

    def process(self, block: Float32Array, out: Float32Array | None = None) -> Float32Array:
        """(block_frames,) to (hop_samples,), written to `out` if it is given."""
        hop = np.empty(self.hop_samples, np.float32) if out is None else out
        if self._matrix is None:
            hop[:] = block
            return hop
        window = self._window
        history = len(window) - self.block_frames
        window[:history] = window[self.block_frames :]
        window[history:] = block
        np.einsum("hw,w->h", self._matrix, window, out=hop)
        return hop

    def reset(self) -> None:
        """Forget the stream."""
        if self._matrix is not None:
            self._window.fill(0.0)

    def memory_bytes(self) -> int:
        """Bytes held."""
        return 0 if self._matrix is None else self._matrix.nbytes + self._window.nbytes


def _hop_matrix(from_hz: int, to_hz: int, latency_samples: int) -> Float32Array:
    """(hop, history + block): row j weighs the input around output time j - latency."""
    half_s = latency_samples / to_hz
    block_frames = from_hz * HOP_MS // 1000
    history = int(np.ceil(2 * half_s * from_hz))
    output_s = (np.arange(to_hz * HOP_MS // 1000) - latency_samples) / to_hz
    input_s = np.arange(-history, block_frames) / from_hz
    offset_s = output_s[:, None] - input_s[None, :]
    beta = 0.1102 * (_STOP_BAND_DB - 8.7)
    transition_hz = (_STOP_BAND_DB - 8.0) / (2.285 * 2 * np.pi) / (2 * half_s)
    cutoff_hz = min(from_hz, to_hz) / 2 - transition_hz / 2
    inside = np.clip(1 - (offset_s / half_s) ** 2, 0, None)
    window = np.where(np.abs(offset_s) <= half_s, np.i0(beta * np.sqrt(inside)), 0.0)
    taps = np.sinc(2 * cutoff_hz * offset_s) * window
    matrix: Float32Array = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return matrix
