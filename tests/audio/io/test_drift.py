"""A stream's clock from the times of its callbacks."""

from __future__ import annotations

import numpy as np
import pytest

from audio.clock import BLOCK_NS
from audio.io.drift import StreamClock


def _times_ns(blocks: int, ppm: float, jitter_ms: float, seed: int = 1) -> np.ndarray:
    """When each block is seen: its due time by the true clock, and up to `jitter_ms` later."""
    due = 5e15 + np.arange(blocks) * BLOCK_NS / (1 + ppm * 1e-6)
    return due + np.random.default_rng(seed).uniform(0, jitter_ms * 1e6, blocks)


def _observe(clock: StreamClock, times_ns: np.ndarray) -> None:
    for time_ns in times_ns:
        clock.observe(int(time_ns))


@pytest.mark.parametrize("ppm", [-200, -100, 0, 100, 200])
@pytest.mark.parametrize(("jitter_ms", "ppm_limit", "place_limit_us"), [(0, 1, 15), (3, 4, 60), (8, 10, 150)])
def test_rate_and_place_are_found_within_40_s(
    ppm: float, jitter_ms: float, ppm_limit: float, place_limit_us: float
) -> None:
    clock = StreamClock()
    _observe(clock, _times_ns(4_000, ppm, jitter_ms))
    true_due_ns = 5e15 + 3_999 * BLOCK_NS / (1 + ppm * 1e-6)
    assert clock.drift_ppm == pytest.approx(ppm, abs=ppm_limit)
    assert abs(clock.due_ns - true_due_ns) / 1e3 < place_limit_us
    assert clock.place(true_due_ns + BLOCK_NS) == pytest.approx(4_001, abs=place_limit_us / 1e4)
    assert clock.jumps == 0


@pytest.mark.parametrize("step_ms", [60, -60, 12])
def test_a_jump_is_taken_within_a_quarter_of_a_second_and_the_rate_kept(step_ms: float) -> None:
    clock, times = StreamClock(), _times_ns(4_025, 120, 2)
    times[4_000:] += step_ms * 1e6
    _observe(clock, times)
    assert clock.jumps == 1
    assert clock.drift_ppm == pytest.approx(120, abs=5)
    assert clock.due_ns == pytest.approx(times[-1], abs=2.2e6)


def test_a_burst_that_catches_up_is_no_jump() -> None:
    clock, times = StreamClock(), _times_ns(4_100, 50, 1)
    times[4_000:4_012] = times[4_012]  # a dozen blocks at once, 120 ms late the first of them
    _observe(clock, times)
    assert clock.jumps == 0
    assert clock.drift_ppm == pytest.approx(50, abs=3)


def test_a_clock_that_warms_up_is_followed() -> None:
    ppm = 100 + 0.02 * np.arange(12_000) / 100
    clock = StreamClock()
    _observe(clock, np.cumsum(BLOCK_NS / (1 + ppm * 1e-6)) + np.random.default_rng(2).uniform(0, 2e6, 12_000))
    assert clock.drift_ppm == pytest.approx(ppm[-1], abs=2)
