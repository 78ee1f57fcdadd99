"""Columns of a spectrogram on a logarithmic frequency axis, from blocks of samples as they come."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from audio.block import SILENCE_DB, Float32Array

COLUMNS_PER_S = 15
ROWS = 96
LOWEST_HZ, HIGHEST_HZ = 80.0, 8000.0
FLOOR_DB, TOP_DB = -100.0, -20.0
"""What the darkest and the brightest value stand for, in dBFS of a sine."""
_WINDOW_S = 0.032
_WINDOWS = 2
"""In each column, one behind the other: between them they see nearly every sample."""

Column = npt.NDArray[np.uint8]


def place_of_hz(hz: float) -> float:
    """Height of a frequency on the axis, 0 at the bottom and 1 at the top."""
    return math.log(hz / LOWEST_HZ) / math.log(HIGHEST_HZ / LOWEST_HZ)


class Spectrum:
    """Push (N,) samples at `rate_hz`; each fifteenth of a second makes a column of (ROWS,) values, lowest row first."""

    def __init__(self, rate_hz: int) -> None:
        self._step = rate_hz // COLUMNS_PER_S
        size = round(_WINDOW_S * rate_hz)
        self._window = np.hanning(size).astype(np.float32)
        self._bands = _bands(rate_hz, size) * (2.0 / float(self._window.sum())) ** 2
        self._waiting: Float32Array = np.zeros(0, np.float32)

    def push(self, samples: Float32Array) -> list[Column]:
        """Columns that are complete now, oldest first."""
        waiting = np.concatenate((self._waiting, samples))
        count = len(waiting) // self._step
        columns = [self._column(waiting[at * self._step : (at + 1) * self._step]) for at in range(count)]
        self._waiting = waiting[count * self._step :]
        return columns

    def _column(self, samples: Float32Array) -> Column:
        windows = samples[: _WINDOWS * len(self._window)].reshape(_WINDOWS, -1) * self._window
        power = (np.abs(np.fft.rfft(windows)) ** 2).mean(axis=0) @ self._bands
        level_db = 10 * np.log10(np.maximum(power, 10 ** (SILENCE_DB / 10)))
        value: Column = np.clip((level_db - FLOOR_DB) * (255 / (TOP_DB - FLOOR_DB)), 0, 255).astype(np.uint8)
        return value


def _bands(rate_hz: int, size: int) -> Float32Array:
    """(bins, ROWS): the mean of the bins in each row; between two bins where the rows are narrower than these."""
    bins = size // 2 + 1
    edges_hz = np.geomspace(LOWEST_HZ, HIGHEST_HZ, ROWS + 1)
    weights = np.zeros((bins, ROWS), np.float32)
    for row, (low, high) in enumerate(zip(edges_hz[:-1] * size / rate_hz, edges_hz[1:] * size / rate_hz, strict=True)):
        first, end = math.ceil(low), math.ceil(high)
        if high - low > 1.0 and first < end <= bins:
            weights[first:end, row] = 1.0 / (end - first)
            continue
        middle = math.sqrt(low * high)
        below = int(middle)
        if below + 1 < bins:
            weights[below, row], weights[below + 1, row] = 1.0 - (middle - below), middle - below
    return weights
