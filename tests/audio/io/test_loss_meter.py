"""Lost audio is found by blocks against time, whatever the jitter, the start and the drift."""

from __future__ import annotations

import numpy as np
import pytest

from audio.clock import BLOCK_NS, LossMeter

_RATE_HZ = 48_000


def _feed(times_ns: np.ndarray) -> int:
    meter = LossMeter(_RATE_HZ)
    return sum(meter.observe(int(time_ns)) for time_ns in times_ns)


def _times(blocks: int, *, jitter_ms: float = 0.0, drift_ppm: float = 0.0, seed: int = 0) -> np.ndarray:
    due = np.arange(blocks) * BLOCK_NS * (1 + drift_ppm * 1e-6)
    return 10**12 + due + np.random.default_rng(seed).uniform(0, jitter_ms * 1e6, blocks)


@pytest.mark.parametrize("jitter_ms", [0.0, 5.0, 25.0])
@pytest.mark.parametrize("drift_ppm", [-300.0, 0.0, 300.0])
def test_jitter_and_drift_lose_nothing(jitter_ms: float, drift_ppm: float) -> None:
    assert _feed(_times(6000, jitter_ms=jitter_ms, drift_ppm=drift_ppm)) == 0


@pytest.mark.parametrize("start", ["burst", "gap", "late"])
def test_how_a_stream_starts_does_not_matter(start: str) -> None:
    times = _times(1000, jitter_ms=2.0)
    if start == "burst":  # the first blocks come at once, ahead of time
        times[:8] = times[0]
        times[8:] += 5e7
    elif start == "gap":
        times[3:] += 3e8
    else:  # a backlog that is worked off
        times[:10] = times[10]
    assert _feed(times) == 0


@pytest.mark.parametrize("lost_ms", [10.0, 35.0, 420.0, 2000.0])
def test_what_is_lost_is_counted(lost_ms: float) -> None:
    times = _times(2000, jitter_ms=3.0)
    times[700:] += lost_ms * 1e6
    assert _feed(times) == pytest.approx(lost_ms * _RATE_HZ / 1000, abs=0.5 * _RATE_HZ / 1000)


def test_several_losses_add_up() -> None:
    times = _times(3000, jitter_ms=3.0, drift_ppm=100)
    for at in (500, 900, 910, 2100):
        times[at:] += 20e6
    assert _feed(times) == pytest.approx(80 * 48, abs=150)


def test_a_pause_that_is_caught_up_lost_nothing() -> None:
    times = _times(1000)
    times[400:430] = times[430]
    assert _feed(times) == 0
