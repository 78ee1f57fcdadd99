"""The one definition of a latency distribution that panels, logs and benchmarks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Nearest-rank quantiles: every figure is a value that was observed."""

    count: int
    p50: float
    p95: float
    p99: float
    maximum: float


def quantiles(values: Iterable[float]) -> Quantiles:
    """Summarise `values` (any unit) by nearest rank; NaN throughout where there are none."""
    ordered = np.sort(np.fromiter(values, dtype=np.float64))
    if ordered.size == 0:
        return Quantiles(0, *(float("nan"),) * 4)
    p50, p95, p99 = (float(ordered[max(0, int(np.ceil(q * ordered.size)) - 1)]) for q in (0.5, 0.95, 0.99))
    return Quantiles(int(ordered.size), p50, p95, p99, float(ordered[-1]))


class Rolling:
    """The last `capacity` values of one metric, for live display."""

    def __init__(self, capacity: int = 1000) -> None:
        self._values: list[float] = []
        self._capacity = capacity

    def add(self, value: float) -> None:
        """Take one more observation; the oldest falls out."""
        self._values.append(value)
        if len(self._values) > self._capacity:
            del self._values[0]

    def summary(self) -> Quantiles:
        """Quantiles of what is held."""
        return quantiles(self._values)
