"""Levels against their definition."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import SILENCE_DB
from audio.meters.level import level_db


@pytest.mark.parametrize("gain_db", [0, -6, -40, -90])
def test_a_sine_is_three_db_under_its_peak(gain_db: float) -> None:
    sine = np.sin(2 * np.pi * 1000 * np.arange(1600) / 16000) * 10 ** (gain_db / 20)
    assert level_db(sine.astype(np.float32)) == pytest.approx(gain_db - 3.0103, abs=0.01)


def test_full_scale_square_is_zero_db() -> None:
    assert level_db(np.ones(160, np.float32)) == pytest.approx(0.0, abs=1e-6)


def test_nothing_is_silence() -> None:
    assert level_db(np.zeros(160, np.float32)) == SILENCE_DB
    assert level_db(np.zeros(0, np.float32)) == SILENCE_DB
    assert level_db(np.full(160, 1e-9, np.float32)) == SILENCE_DB
