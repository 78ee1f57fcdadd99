"""The resampler between two clocks: any ratio near the nominal one, chunked without a seam."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import Float32Array
from audio.resample import FractionalResampler

_RATES = [(48_000, 48_000), (48_000, 44_100), (44_100, 48_000), (16_000, 48_000), (48_000, 16_000)]


def _through(from_hz: int, to_hz: int, frequency_hz: float, ppm: float) -> tuple[Float32Array, Float32Array]:
    """(expected, got) of a tone, read block by block at a ratio off by `ppm`."""
    count, step = to_hz // 100, from_hz / to_hz * (1 + ppm * 1e-6)
    resampler = FractionalResampler(from_hz, to_hz, count)
    tone = (0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(from_hz // 4) / from_hz)).astype(np.float32)
    first, block = resampler.half_width + 0.3, np.empty(count, np.float32)
    got = []
    for number in range(20):
        resampler.read(tone, first + number * count * step, step, block)
        got.append(block.copy())
    places = first + step * np.arange(20 * count)
    return (0.5 * np.sin(2 * np.pi * frequency_hz * places / from_hz)).astype(np.float32), np.concatenate(got)


def _snr_db(expected: Float32Array, got: Float32Array) -> float:
    error = expected.astype(np.float64) - got
    return float(10 * np.log10(np.mean(expected.astype(np.float64) ** 2) / np.mean(error**2)))


@pytest.mark.parametrize(("from_hz", "to_hz"), _RATES)
@pytest.mark.parametrize("ppm", [-200, 0, 137.3])
def test_tones_of_the_pass_band_come_through_in_place(from_hz: int, to_hz: int, ppm: float) -> None:
    for share in (0.02, 0.2, 0.4):
        assert _snr_db(*_through(from_hz, to_hz, share * min(from_hz, to_hz), ppm)) >= 90


@pytest.mark.parametrize("frequency_hz", [8_200, 12_000, 23_000])
def test_what_the_lower_rate_cannot_carry_is_gone(frequency_hz: float) -> None:
    _, got = _through(48_000, 16_000, frequency_hz, 50)
    assert 20 * np.log10(np.abs(got).max() / 0.5) <= -85
