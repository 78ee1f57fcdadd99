"""Is another process still moving? A counter of its own tells, where the process itself says nothing."""

from __future__ import annotations


class StallWatch:
    """Asked often; says when a counter that should move has stood still for `limit_s`.

    Where the asker itself was held up (a suspended group of processes, a laptop that slept), it cannot tell who
    stood still, and begins to count anew.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._value = 0
        self._moved_s = self._asked_s = 0.0

    def is_stalled(self, value: int, now_s: float, *, should_move: bool = True) -> bool:
        """`value` is the counter now, at the monotonic time `now_s`."""
        was_held_up = now_s - self._asked_s > self._limit_s / 2
        self._asked_s = now_s
        if value != self._value or not should_move or was_held_up:
            self._value, self._moved_s = value, now_s
        return now_s - self._moved_s > self._limit_s
