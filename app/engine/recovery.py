"""When a lost process is started again, when patience is asked for, and when it is enough."""

from __future__ import annotations

from dataclasses import dataclass

_WORD_AFTER_S = 0.6
"""A shorter outage passes without a word; with the way to the loudspeaker it is said within a second."""
_QUICK_DEATH_S = 5.0
_MOST_QUICK_DEATHS = 3


@dataclass(slots=True)
class Outage:
    """One loss, from when it was noticed."""

    since_s: float
    start_at_s: float = 0.0
    """Not before this time is a successor started."""
    _is_started: bool = False
    _is_said: bool = False

    def wants_start(self, now_s: float) -> bool:
        """Once: a successor is due."""
        if self._is_started or now_s < self.start_at_s:
            return False
        self._is_started = True
        return True

    def start_again_at(self, at_s: float) -> None:
        """The successor failed too; another one at this time."""
        self.start_at_s, self._is_started = at_s, False

    def wants_word(self, now_s: float) -> bool:
        """Once: it takes so long that the user should know."""
        if self._is_said or now_s - self.since_s < _WORD_AFTER_S:
            return False
        self._is_said = True
        return True

    def lasted_ms(self, now_s: float) -> float:
        """How long it has lasted."""
        return (now_s - self.since_s) * 1000


class Restarts:
    """Counts how often one process died young: what does so again and again is not mended by another try."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self.quick_deaths = 0
        """In a row."""

    def began(self, now_s: float) -> None:
        """It is at work."""
        self._began_s = now_s

    def allows(self, now_s: float) -> bool:
        """It died, perhaps before it was at work at all; whether another try is sensible."""
        is_young = self._began_s is None or now_s - self._began_s < _QUICK_DEATH_S
        self.quick_deaths = self.quick_deaths + 1 if is_young else 0
        self._began_s = None
        return self.quick_deaths < _MOST_QUICK_DEATHS
