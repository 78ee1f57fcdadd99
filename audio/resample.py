"""Sample rate conversion: whole arrays, streams of any chunk size, and 10 ms blocks for the ear.

Two tools, because they want different things. Files and synthesised clauses go through soxr, which works in
large blocks: as a stream it holds back 36-42 ms. The ear cannot wait for that: `HopResampler` computes
each hop as one fixed matrix times the last 18 ms, lags by 4 ms and needs numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    return _sinc_taps(offset_s, half_s, min(from_hz, to_hz) / 2, _STOP_BAND_DB)


def _sinc_taps(offset_s: npt.NDArray[np.float64], half_s: float, edge_hz: float, stop_band_db: float) -> Float32Array:
    """(rows, taps) of distances to a Kaiser-windowed sinc whose stop band begins at `edge_hz`; each row sums to 1."""
    beta = 0.1102 * (stop_band_db - 8.7)
    transition_hz = (stop_band_db - 8.0) / (2.285 * 2 * np.pi) / (2 * half_s)
    cutoff_hz = edge_hz - transition_hz / 2
    inside = np.clip(1 - (offset_s / half_s) ** 2, 0, None)
    window = np.where(np.abs(offset_s) <= half_s, np.i0(beta * np.sqrt(inside)), 0.0)
    taps = np.sinc(2 * cutoff_hz * offset_s) * window
    matrix: Float32Array = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return matrix


_HALF_TAPS = 48
"""Half the length of the fractional filter, in samples of the lower rate."""
_FRACTIONS = 512
"""Places between two samples for which there are taps; linear between them: an error of -106 dB."""
_FRACTIONAL_STOP_BAND_DB = 92.0


class FractionalResampler:
    """A stream's samples at evenly spaced places that may lie anywhere between them, at any ratio near the nominal.

    A Kaiser-windowed sinc (as `HopResampler`) in a table of 512 fractions: 92 dB down from half the lower rate on,
    flat to 0.87 of that. Everything is allocated beforehand.

    Args:
        from_hz: rate of the stream.
        to_hz: nominal rate of the places.
        count: how many places each call computes.
    """

    def __init__(self, from_hz: int, to_hz: int, count: int) -> None:
        lower_hz = min(from_hz, to_hz)
        self.half_width = -(-_HALF_TAPS * from_hz // lower_hz)
        """A place needs so many samples before it and after it."""
        taps = np.arange(1 - self.half_width, self.half_width + 1)
        places = np.arange(_FRACTIONS + 1) / _FRACTIONS
        half_s = _HALF_TAPS / lower_hz
        self._table = _sinc_taps((places[:, None] - taps) / from_hz, half_s, lower_hz / 2, _FRACTIONAL_STOP_BAND_DB)
        self._taps = taps
        self._order = np.arange(count, dtype=np.float64)
        self._places = np.empty(count, np.float64)
        self._whole = np.empty(count, np.int64)
        self._indices = np.empty((count, len(taps)), np.int64)
        self._window = np.empty((count, len(taps)), np.float32)
        self._weights = np.empty((count, len(taps)), np.float32)
        self._lower, self._upper = np.empty(count, np.float32), np.empty(count, np.float32)

    def read(self, samples: Float32Array, start: float, step: float, out: Float32Array) -> None:
        """Fill `out` (count,) with the signal at `start + j * step`, counted in `samples` (N,)."""
        places, whole = self._places, self._whole
        np.multiply(self._order, step, out=places)
        places += start
        np.floor(places, out=places)
        whole[:] = places
        np.add(whole[:, None], self._taps, out=self._indices)
        np.take(samples, self._indices, out=self._window, mode="clip")
        np.multiply(self._order, step, out=self._places)
        places += start
        places -= whole
        places *= _FRACTIONS
        whole[:] = places  # now the row of the table, and `places` what is left
        places -= whole
        np.take(self._table, whole, axis=0, out=self._weights, mode="clip")
        np.einsum("nt,nt->n", self._weights, self._window, out=self._lower)
        whole += 1
        np.take(self._table, whole, axis=0, out=self._weights, mode="clip")
        np.einsum("nt,nt->n", self._weights, self._window, out=self._upper)
        self._upper -= self._lower
        np.multiply(self._upper, places, out=out, casting="same_kind")
        out += self._lower

    def memory_bytes(self) -> int:
        """Bytes held."""
        arrays = (self._table, self._indices, self._window, self._weights)
        return sum(int(array.nbytes) for array in arrays)
