"""Says in a sentence when the models do not keep up: recognition behind the user, the voice behind the loudspeaker."""

from __future__ import annotations

from collections.abc import Callable

from app import events
from audio.block import HOP_MS

_BEHIND_MS = 2000.0
"""Said from here on, and again whenever it has doubled."""
_CAUGHT_UP_MS = 500.0
_GAP_MS = 100
"""A shorter gap between two clauses is a pause that speech has anyway; the callback counts it all the same."""


class Lag:
    """Told once a hop."""

    def __init__(self, emit: Callable[[events.Event], None]) -> None:
        self._emit = emit
        self._said_ms = 0.0
        self._gap_hops = 0

    def observe(self, now: int, behind_ms: float, is_starving: bool) -> None:
        """`behind_ms`: how long a text has been owed. `is_starving`: the loudspeaker waits inside a reply."""
        if behind_ms >= max(_BEHIND_MS, 2 * self._said_ms):
            self._said_ms = behind_ms
            self._emit(events.Notice(now, "warning", f"recognition is {behind_ms / 1000:.0f} s behind"))
        elif self._said_ms and behind_ms < _CAUGHT_UP_MS:
            self._said_ms = 0.0
            self._emit(events.Notice(now, "info", "recognition has caught up"))
        if is_starving:
            self._gap_hops += 1
            return
        gap_ms, self._gap_hops = self._gap_hops * HOP_MS, 0
        if gap_ms >= _GAP_MS:
            paused = f"the reply paused for {gap_ms / 1000:.1f} s: its next words were not ready"
            self._emit(events.Notice(now, "warning", paused))
