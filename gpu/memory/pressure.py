"""How tight memory is, from the free bytes alone, with hysteresis: a level that was reached is not left in a hurry.

Pure: the clock and the reading come from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gpu.errors import GpuError


class Level(IntEnum):
    """From plenty to none."""

    CALM = 0
    TIGHT = 1
    """Less than the reserve is free: give something back."""
    CRITICAL = 2
    """Less than half of it: give back at once."""


@dataclass(frozen=True, slots=True)
class PressureLimits:
    """`tight_bytes` and `critical_bytes`: a level holds below its figure. To leave it, free memory must stand
    `leave_factor` above the figure for `calm_s`."""

    tight_bytes: int
    critical_bytes: int
    leave_factor: float = 1.5
    calm_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.critical_bytes < self.tight_bytes or self.leave_factor <= 1.0 or self.calm_s < 0:
            raise GpuError(f"Pressure limits without sense: {self}", fix="Give 0 < critical < tight, leave_factor > 1")

    @property
    def calm_bytes(self) -> int:
        """Free memory from which on it is calm again."""
        return int(self.tight_bytes * self.leave_factor)


def limits_of(reserve_bytes: int) -> PressureLimits:
    """The reserve is what should be free while everything runs as planned."""
    return PressureLimits(tight_bytes=reserve_bytes, critical_bytes=reserve_bytes // 2)


class PressureMeter:
    """Ask it again and again; it goes up at once and down one level at a time."""

    def __init__(self, limits: PressureLimits, free_bytes: Callable[[], int], clock_s: Callable[[], float]) -> None:
        self.limits = limits
        self._free_bytes = free_bytes
        self._clock_s = clock_s
        self._level = Level.CALM
        self._relaxed_since_s: float | None = None

    @property
    def level(self) -> Level:
        """At the last reading."""
        return self._level

    def read(self) -> Level:
        """The level now."""
        free, now_s = self._free_bytes(), self._clock_s()
        entered = self._entered(free)
        if entered > self._level:
            self._level, self._relaxed_since_s = entered, None
        elif self._level is Level.CALM or not self._may_leave(free):
            self._relaxed_since_s = None
        elif self._relaxed_since_s is None:
            self._relaxed_since_s = now_s
        elif now_s - self._relaxed_since_s >= self.limits.calm_s:
            self._level, self._relaxed_since_s = Level(self._level - 1), now_s
        return self._level

    def _entered(self, free: int) -> Level:
        if free < self.limits.critical_bytes:
            return Level.CRITICAL
        return Level.TIGHT if free < self.limits.tight_bytes else Level.CALM

    def _may_leave(self, free: int) -> bool:
        figure = self.limits.critical_bytes if self._level is Level.CRITICAL else self.limits.tight_bytes
        return free >= figure * self.limits.leave_factor
