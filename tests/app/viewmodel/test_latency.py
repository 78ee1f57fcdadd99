"""Where a turn's time went, as the panel shows it: from events alone."""

from __future__ import annotations

import dataclasses
import math

import pytest

from app import events
from app.histogram import quantiles
from app.viewmodel.latency import STEPS, Latency


def turn(number: int, *steps_ms: float) -> events.TurnLatency:
    return events.TurnLatency(number * 1000, number, *steps_ms, sum(steps_ms))  # type: ignore[call-arg]


def meters(at_samples: int, late_ms: float, lost_frames: int = 0) -> events.Meters:
    made = {field.name: 0 for field in dataclasses.fields(events.Meters)}
    return events.Meters(**made | {"at_samples": at_samples, "hop_late_ms": late_ms, "lost_frames": lost_frames})


STEPS_MS = (200.0, 60.0, 90.0, 200.0, 150.0, 20.0, 30.0)


def test_the_newest_turn_is_first_and_its_parts_are_its_sum() -> None:
    latency = Latency(1000)
    for number in range(1, 21):
        latency.take(turn(number, 50.0 * number, *STEPS_MS[1:]))
    assert [shown.turn for shown in latency.turns] == list(range(20, 8, -1))
    assert all(len(shown.steps_ms) == len(STEPS) and sum(shown.steps_ms) == shown.total_ms for shown in latency.turns)
    totals = [50.0 * number + sum(STEPS_MS[1:]) for number in range(1, 21)]
    assert latency.total() == quantiles(totals), "of all turns, not only of those that are listed"
    assert latency.steps()[0] == quantiles(50.0 * number for number in range(1, 21))
    assert latency.steps()[6].p99 == 30.0


def test_before_the_first_turn_nothing_is_claimed() -> None:
    latency = Latency(1000)
    assert (list(latency.turns), latency.total().count, latency.real_time().verdict) == ([], 0, "unknown")
    assert math.isnan(latency.stops().p50)


def test_an_interruption_is_told_beside_its_turn() -> None:
    latency = Latency(1000)
    latency.take(turn(1, *STEPS_MS))
    latency.take(turn(2, *STEPS_MS))
    latency.take(events.BargeIn(5, 1, 1, 3, 4, 210.0))
    latency.take(events.BargeIn(5, 9, 1, 3, 4, 400.0))
    assert [shown.stop_ms for shown in latency.turns] == [None, 210.0]
    assert (latency.stops().count, latency.stops().p50, latency.stops().p99) == (2, 210.0, 400.0)


@pytest.mark.parametrize(("late_ms", "lost_frames", "wanted"), [(3, 0, "good"), (45, 0, "warning"), (3, 480, "bad")])
def test_the_guard(late_ms: float, lost_frames: int, wanted: str) -> None:
    latency = Latency(1000)
    latency.take(events.DeviceOpened(0, "in", "out", 48_000, 10.0, "normal"))
    latency.take(meters(1600, late_ms, lost_frames))
    found = latency.real_time()
    assert (found.verdict, found.late.p99, found.lost_ms) == (wanted, late_ms, lost_frames / 48)


def test_late_results_count() -> None:
    latency = Latency(1000)
    latency.take(events.Arrival(1, 1, "asr", 0, 0.0))
    before = latency.revision
    latency.take(events.Arrival(1, 1, "asr", 1, 12.5))
    assert (latency.real_time().late_results, latency.revision) == (1, before + 1)


def test_meters_change_what_is_shown_once_a_second_and_at_a_loss() -> None:
    latency = Latency(1000)
    for hop in range(100):
        latency.take(meters(1600 * hop, 2.0))
    assert latency.revision == 10
    latency.take(meters(160_010, 2.0, 5))
    assert latency.revision == 11
    assert latency.real_time().late.count == 101


def test_a_new_session_begins_with_nothing() -> None:
    latency = Latency(1000)
    latency.take(events.DeviceOpened(0, "in", "out", 16_000, 10.0, "normal"))
    latency.take(turn(1, *STEPS_MS))
    latency.take(meters(99_000, 2.0, 160))
    latency.take(events.SessionStarted(0, "1", 0, "live", 16_000, 10.0, "default", "", []))
    assert (list(latency.turns), latency.real_time().late.count, latency.real_time().lost_ms) == ([], 0, 0.0)
    latency.take(meters(1600, 2.0, 160))
    assert latency.real_time().lost_ms == 10.0, "the device was opened before the session began"


def test_others_events_change_nothing() -> None:
    latency = Latency(1000)
    latency.take(events.StateChanged(0, "hearing"))
    latency.take(events.TurnEnded(0, 1, "complete", 5))
    assert latency.revision == 0


def test_a_reply_that_had_paused_was_silent_at_once() -> None:
    latency = Latency(1000)
    latency.take(turn(5, *STEPS_MS))
    latency.take(events.BargeIn(5, 5, 1, 3, 4, -1480.0))
    assert (latency.turns[0].stop_ms, latency.stops().p50) == (0.0, 0.0)
