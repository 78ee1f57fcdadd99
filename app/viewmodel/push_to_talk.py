"""A key that opens a muted microphone while it is held.

Muting drops the turn that is being heard, so after the key the microphone stays open until the turn is over.
"""

from __future__ import annotations

_TAIL_S = 0.5
"""The ear needs this long to notice that somebody has begun."""
_LIMIT_S = 4.0
"""Somebody else's voice does not keep the microphone open."""


class PushToTalk:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.is_held = False
        self._released_s: float | None = None

    @property
    def is_open(self) -> bool:
        """The key is held, or its turn is not over yet."""
        return self.is_held or self._released_s is not None

    def press(self, *, is_muted: bool) -> bool:
        """The key went down; whether the microphone is to be opened. It never closes one that was open before."""
        if not is_muted and not self.is_open:
            return False
        self.is_held, self._released_s = True, None
        return is_muted

    def release(self, now_s: float) -> None:
        """The key came up, or the window lost the keyboard."""
        if self.is_held:
            self.is_held, self._released_s = False, now_s

    def give_up(self) -> None:
        """The user chose otherwise: leave the microphone as it is."""
        self.is_held, self._released_s = False, None

    def must_mute(self, now_s: float, *, is_hearing: bool) -> bool:
        """Ask it about ten times a second: whether to close the microphone now."""
        if self._released_s is None:
            return False
        waited_s = now_s - self._released_s
        if waited_s < _TAIL_S or (is_hearing and waited_s < _LIMIT_S):
            return False
        self._released_s = None
        return True
