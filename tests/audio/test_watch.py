"""Stalls of another process are told from stalls of our own."""

from __future__ import annotations

from audio.watch import StallWatch


def _ask(
    watch: StallWatch, values: list[int], *, step_s: float = 0.05, from_s: float = 100.0, **kind: bool
) -> list[bool]:
    return [watch.is_stalled(value, from_s + number * step_s, **kind) for number, value in enumerate(values)]


def test_a_counter_that_moves_is_no_stall() -> None:
    assert not any(_ask(StallWatch(1.0), list(range(100))))


def test_a_counter_that_stands_is_told_after_the_limit() -> None:
    told = _ask(StallWatch(1.0), [7] * 40)
    assert told.index(True) in (20, 21, 22)  # 50 ms apart: a second after the first look
    assert all(told[22:])


def test_nothing_is_told_where_nothing_should_move() -> None:
    assert not any(_ask(StallWatch(1.0), [7] * 100, should_move=False))


def test_whoever_was_held_up_itself_cannot_tell() -> None:
    watch = StallWatch(1.0)
    _ask(watch, [7] * 10)
    assert not watch.is_stalled(7, 160.0)  # a minute later: we were suspended, perhaps with everybody else
    assert not any(_ask(watch, [7] * 19, from_s=160.05))
    assert watch.is_stalled(7, 161.05)
