"""The sweep finds the echo that is there, and none that is not."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import Float32Array
from audio.meters.echo_path import MAX_DELAY_S, make_sweep, measure_echo_path
from audio.meters.level import level_db


def _far(rate_hz: int) -> Float32Array:
    silence = np.zeros(round(MAX_DELAY_S * rate_hz), np.float32)
    return np.concatenate([silence[: rate_hz // 10], make_sweep(rate_hz), silence])


@pytest.mark.parametrize("rate_hz", [16_000, 44_100, 48_000])
@pytest.mark.parametrize(("delay_ms", "erl_db"), [(35.0, 6.0), (410.0, 30.0)])
def test_delay_and_loss_of_a_direct_path_are_measured(rate_hz: int, delay_ms: float, erl_db: float) -> None:
    far = _far(rate_hz)
    delay = round(delay_ms * rate_hz / 1000)
    near = np.zeros_like(far)
    near[delay:] = far[: len(far) - delay] * 10 ** (-erl_db / 20)
    near += 1e-4 * np.random.default_rng(1).standard_normal(len(far)).astype(np.float32)
    path = measure_echo_path(near, far, rate_hz)
    assert path.round_trip_ms == pytest.approx(delay_ms, abs=0.1)
    assert path.erl_db == pytest.approx(erl_db, abs=0.5)


def test_the_loss_of_a_room_is_that_of_white_noise_through_it() -> None:
    rate_hz = 16_000
    random = np.random.default_rng(2)
    room = random.standard_normal(3200) * np.exp(-np.arange(3200) / 480)
    room *= 0.1 / np.sqrt(np.sum(room**2))
    far = _far(rate_hz)
    path = measure_echo_path(np.convolve(far, room)[: len(far)].astype(np.float32), far, rate_hz)
    assert path.erl_db == pytest.approx(20.0, abs=1.0)


@pytest.mark.parametrize("kind", ["zero", "noise", "hum", "offset"])
def test_no_echo_is_found_in_what_is_none(kind: str) -> None:
    far = _far(16_000)
    time_s = np.arange(len(far)) / 16_000
    near = {
        "zero": np.zeros(len(far)),
        "noise": 0.1 * np.random.default_rng(3).standard_normal(len(far)),
        "hum": 0.2 * np.sin(2 * np.pi * 440 * time_s),
        "offset": np.full(len(far), 0.3),
    }[kind].astype(np.float32)
    path = measure_echo_path(near, far, 16_000)
    assert (path.round_trip_ms, path.erl_db) == (None, None)


def test_the_sweep_is_no_louder_than_speech_and_a_missing_one_is_refused() -> None:
    sweep = make_sweep(48_000)
    assert level_db(sweep) == pytest.approx(-15.0, abs=0.5)
    assert np.abs(sweep).max() <= 0.25
    with pytest.raises(ValueError, match="no sweep"):
        measure_echo_path(sweep, np.zeros_like(sweep), 48_000)
