"""Quantiles by nearest rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.histogram import Rolling, quantiles


def test_of_one_to_hundred() -> None:
    q = quantiles(range(100, 0, -1))
    assert (q.count, q.p50, q.p95, q.p99, q.maximum) == (100, 50, 95, 99, 100)


def test_of_nothing_is_nan() -> None:
    q = quantiles([])
    assert q.count == 0
    assert math.isnan(q.p50)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_every_figure_was_observed_and_they_are_ordered(values: list[float]) -> None:
    q = quantiles(values)
    assert {q.p50, q.p95, q.p99, q.maximum} <= set(values)
    assert q.p50 <= q.p95 <= q.p99 <= q.maximum
    assert sum(v <= q.p95 for v in values) >= 0.95 * len(values)


def test_rolling_forgets_the_oldest() -> None:
    rolling = Rolling(capacity=3)
    for value in (1.0, 2.0, 3.0, 4.0):
        rolling.add(value)
    assert rolling.summary().count == 3
    assert rolling.summary().p50 == pytest.approx(3.0)
