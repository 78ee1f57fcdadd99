"""The far end between two clocks, without any device: constant delay, flat queue, no crackle."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from audio.block import Float32Array
from audio.clock import BLOCK_NS
from audio.io.drift_mapper import DriftMapper

_TONE_HZ = 200.0


@dataclass
class _Pair:
    """A microphone and a loudspeaker whose true clocks are known."""

    from_hz: int = 16_000
    to_hz: int = 16_000
    microphone_ppm: float = 0.0
    loudspeaker_ppm: float = 0.0
    jitter_ms: float = 0.0
    played: list[Float32Array] = field(default_factory=list)
    fills_ms: list[float] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    """From the microphone's true clock to the far frame that is played, at the end of each block."""

    def __post_init__(self) -> None:
        self.mapper = DriftMapper(self.from_hz, self.to_hz)
        self.microphone_ns = BLOCK_NS / (1 + self.microphone_ppm * 1e-6)
        self.loudspeaker_ns = BLOCK_NS / (1 + self.loudspeaker_ppm * 1e-6)
        self.near_blocks = 0
        self.near_at = self.microphone_ns
        self.far_at = 3.3e6
        self._random = np.random.default_rng(4)
        self._out = np.zeros(self.to_hz // 100, np.float32)

    def run(self, duration_s: float) -> None:
        end_ns = max(self.near_at, self.far_at) + duration_s * 1e9
        while min(self.near_at, self.far_at) < end_ns:
            if self.near_at <= self.far_at:
                self.mapper.write(self._tone(), self._seen(self.near_at))
                self.near_blocks += 1
                self.near_at += self.microphone_ns
            else:
                self.mapper.read(self._out, self._seen(self.far_at))
                self.far_at += self.loudspeaker_ns
                self._note()

    def _seen(self, due_ns: float) -> int:
        return int(due_ns + self._random.uniform(0, self.jitter_ms) * 1e6)

    def _tone(self) -> Float32Array:
        count = self.from_hz // 100
        frames = self.near_blocks * count + np.arange(count)
        return (0.5 * np.sin(2 * np.pi * _TONE_HZ * frames / self.from_hz)).astype(np.float32)

    def _note(self) -> None:
        self.played.append(self._out.copy())
        fill_ms = self.mapper.stats.fill_ms
        counted_ms = 10 * (self.near_blocks + 1 - (self.near_at - self.far_at) / self.microphone_ns)
        self.fills_ms.append(fill_ms)
        self.delays_ms.append(counted_ms - (10 * self.near_blocks - fill_ms))

    def roughness(self, since_s: float) -> float:
        """Largest second difference over that of the tone: 1 is the tone itself, a click is much more."""
        played = np.concatenate(self.played[round(since_s * 100) :]).astype(np.float64)
        return float(np.abs(np.diff(played, 2)).max() / (0.5 * (2 * np.pi * _TONE_HZ / self.to_hz) ** 2))


@pytest.mark.parametrize(("microphone_ppm", "loudspeaker_ppm"), [(0, 200), (0, -200), (-100, 0), (150, -150)])
def test_the_delay_is_constant_to_a_fraction_of_a_sample(microphone_ppm: float, loudspeaker_ppm: float) -> None:
    pair = _Pair(microphone_ppm=microphone_ppm, loudspeaker_ppm=loudspeaker_ppm)
    pair.run(40)
    settled = np.array(pair.delays_ms[1_500:])
    assert np.ptp(settled) < 0.02, "a third of a sample"
    assert settled.mean() == pytest.approx(pair.mapper.depth_ms, abs=0.05)
    stats = pair.mapper.stats
    true_ppm = ((1 + loudspeaker_ppm * 1e-6) / (1 + microphone_ppm * 1e-6) - 1) * 1e6
    assert stats.drift_ppm == pytest.approx(true_ppm, abs=0.5)
    assert (stats.underruns, stats.jumps, stats.dropped_ms) == (0, 0, 0)
    assert pair.roughness(1.0) < 1.02


def test_late_callbacks_move_it_slowly_at_most() -> None:
    pair = _Pair(loudspeaker_ppm=200, jitter_ms=3)
    pair.run(60)
    delays = np.array(pair.delays_ms)
    assert np.ptp(delays[2_500:]) < 0.1
    assert np.abs(delays[2_600:] - delays[2_500:-100]).max() < 0.02, "20 ppm"
    assert pair.mapper.stats.underruns == 0


def test_no_crackle_grows_in_five_minutes_and_the_queue_stays_as_it_was() -> None:
    pair = _Pair(microphone_ppm=-200, loudspeaker_ppm=200, jitter_ms=2)
    pair.run(300)
    fills = np.array(pair.fills_ms)[: len(pair.fills_ms) // 5_000 * 5_000].reshape(-1, 5_000).mean(axis=1)
    assert np.ptp(fills[1:]) < 0.5
    assert np.ptp(np.array(pair.delays_ms[2_000:])) < 0.3
    assert pair.mapper.stats.underruns == 0
    assert pair.roughness(1.0) < 1.02


@pytest.mark.parametrize("to_hz", [44_100, 48_000])
def test_the_tone_keeps_its_pitch_at_another_rate(to_hz: int) -> None:
    pair = _Pair(from_hz=48_000, to_hz=to_hz, loudspeaker_ppm=100)
    pair.run(15)
    played = np.concatenate(pair.played[-100:]).astype(np.float64)
    true_hz = _TONE_HZ * 1e6 / (1e6 + 100)  # as the loudspeaker's fast clock counts it
    phase = 2 * np.pi * true_hz * np.arange(len(played)) / to_hz
    basis = np.stack((np.sin(phase), np.cos(phase)), axis=1)
    rest = played - basis @ np.linalg.lstsq(basis, played, rcond=None)[0]
    assert 10 * np.log10(np.mean(played**2) / np.mean(rest**2)) >= 60, "0.2 ms of a wandering delay would give 15"


@pytest.mark.parametrize("side", ["microphone", "loudspeaker"])
@pytest.mark.parametrize("step_ms", [60, -60])
def test_a_jump_of_either_clock_ends_at_the_same_delay_without_a_click(side: str, step_ms: float) -> None:
    pair = _Pair(loudspeaker_ppm=100)
    pair.run(15)
    before_ms = pair.delays_ms[-1]
    if side == "microphone":
        pair.near_at += step_ms * 1e6
    else:
        pair.far_at += step_ms * 1e6
    pair.run(2)
    assert pair.delays_ms[-1] == pytest.approx(before_ms, abs=0.3)
    stats = pair.mapper.stats
    assert stats.jumps >= 1
    is_starved = side == "microphone" and step_ms > 0
    assert stats.underruns == is_starved
    assert stats.depth_ms == 33.0, "no jump is taken for lateness"
    assert pair.roughness(14.0) < 16, "a cross-fade of half waves over 10 ms; a click of the tone's height has 160"


def test_a_far_end_that_comes_late_fades_out_and_then_gets_more_room() -> None:
    pair = _Pair()
    pair.run(5)
    late_at = pair.near_at + 70e6
    held, pair.near_at = pair.near_at, late_at
    for _ in range(8):  # the loudspeaker goes on, the microphone's blocks come at once
        pair.mapper.read(pair._out, int(pair.far_at))
        pair.played.append(pair._out.copy())
        pair.far_at += BLOCK_NS
    assert not pair._out.any()
    for _ in range(8):
        pair.mapper.write(pair._tone(), int(late_at))
        pair.near_blocks += 1
    pair.near_at = held + 8 * BLOCK_NS
    pair.run(1)
    stats = pair.mapper.stats
    assert stats.underruns == 1
    assert stats.depth_ms == 38.0
    assert pair.roughness(4.0) < 16


def test_nothing_is_played_before_both_clocks_are_known() -> None:
    mapper, out = DriftMapper(16_000, 48_000), np.ones(480, np.float32)
    mapper.read(out, 0)
    assert not out.any()
    for block in range(30):
        mapper.read(out, block * BLOCK_NS)
    assert not out.any()
