"""When a lost process gets a successor, and when it is enough."""

from __future__ import annotations

from app.engine.recovery import Outage, Restarts


def test_a_successor_is_started_once_and_patience_asked_for_once() -> None:
    outage = Outage(10.0)
    assert [outage.wants_start(10.0), outage.wants_start(10.1)] == [True, False]
    assert [outage.wants_word(t) for t in (10.0, 10.5, 10.7, 11.0)] == [False, False, True, False]
    assert outage.lasted_ms(11.5) == 1500


def test_a_failed_successor_is_followed_by_another_one_later() -> None:
    outage = Outage(10.0)
    assert outage.wants_start(10.0)
    outage.start_again_at(12.0)
    assert [outage.wants_start(t) for t in (11.9, 12.0, 12.1)] == [False, True, False]


def test_what_dies_young_three_times_in_a_row_is_given_up() -> None:
    restarts = Restarts()
    for now_s in (0.0, 10.0):
        restarts.began(now_s)
        assert restarts.allows(now_s + 1.0)
    restarts.began(20.0)
    assert not restarts.allows(21.0)


def test_fifty_deaths_in_old_age_are_no_reason() -> None:
    restarts = Restarts()
    for number in range(50):
        restarts.began(number * 10.0)
        assert restarts.allows(number * 10.0 + 6.0)
        assert restarts.quick_deaths == 0


def test_what_dies_again_and_again_while_it_loads_is_given_up() -> None:
    restarts = Restarts()
    restarts.began(0.0)
    assert restarts.allows(100.0)
    assert restarts.allows(160.0)  # it took a minute to load, and died then
    assert restarts.allows(220.0)
    assert not restarts.allows(280.0)
