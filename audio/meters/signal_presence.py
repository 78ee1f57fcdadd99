"""Whether a microphone delivers anything at all: muted in hardware, unplugged inside, or barred by the system."""

from __future__ import annotations

from audio.block import HOPS_PER_SECOND, SILENCE_DB

ABSENT_AFTER_S = 5.0


class SignalPresence:
    """Push the microphone's level of every hop. Digital silence, or one value for ever, is no signal.

    A living microphone never has the same level twice for long: its own noise moves the last bits.
    """

    def __init__(self, after_s: float = ABSENT_AFTER_S) -> None:
        self._limit_hops = round(after_s * HOPS_PER_SECOND)
        self.reset()

    def reset(self) -> None:
        """For a new stream."""
        self.is_absent = False
        """No signal for so long."""
        self._still_hops = 0
        self._level_db: float | None = None

    def push(self, level_db: float) -> bool | None:
        """Level of one hop in dBFS; False once when the signal has been absent so long, True once when it is back."""
        is_still = level_db <= SILENCE_DB or level_db == self._level_db
        self._level_db = level_db
        if is_still:
            self._still_hops += 1
            if self._still_hops >= self._limit_hops and not self.is_absent:
                self.is_absent = True
                return False
            return None
        self._still_hops = 0
        if self.is_absent:
            self.is_absent = False
            return True
        return None
