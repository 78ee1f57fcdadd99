"""A meter's bar and tick, and how far speech stands above the noise: figures over levels in dBFS."""

from __future__ import annotations

import math
from collections import deque

from audio.block import SILENCE_DB

_FALL_DB_PER_S = 40.0
_HOLD_S = 1.5
_PEAK_FALL_DB_PER_S = 20.0
_LONGEST_STEP_S = 1.0


class HeldLevel:
    """Rises at once, falls by 40 dB a second; the peak stays for 1.5 s and then falls by 20."""

    def __init__(self) -> None:
        self.level_db = SILENCE_DB
        self.peak_db = SILENCE_DB
        self._target_db = SILENCE_DB
        self._now_s = 0.0
        self._held_until_s = 0.0

    def push(self, level_db: float) -> None:
        """The level from now on."""
        self._target_db = max(SILENCE_DB, level_db)

    def advance(self, now_s: float) -> bool:
        """Move to monotonic `now_s`; whether anything that can be seen has moved."""
        step_s = min(max(0.0, now_s - self._now_s), _LONGEST_STEP_S)
        self._now_s = now_s
        before = (self.level_db, self.peak_db)
        self.level_db = max(self._target_db, self.level_db - _FALL_DB_PER_S * step_s)
        if self.level_db >= self.peak_db:
            self.peak_db, self._held_until_s = self.level_db, now_s + _HOLD_S
        elif now_s > self._held_until_s:
            self.peak_db = max(self.level_db, self.peak_db - _PEAK_FALL_DB_PER_S * step_s)
        return before != (self.level_db, self.peak_db)


class SnrEstimate:
    """Power of the microphone while the user speaks, over its power while nobody does, of the last half minute of each.

    Levels while a reply plays are left out: the loudspeaker is neither.
    """

    _KEPT = 300
    """Levels of each kind; there are ten a second."""
    _FEWEST = 10

    def __init__(self) -> None:
        self._speech: deque[float] = deque(maxlen=self._KEPT)
        self._noise: deque[float] = deque(maxlen=self._KEPT)

    def push(self, level_db: float, *, is_speech: bool, is_noise: bool) -> None:
        """One level; where neither is sure it counts for nothing."""
        if is_speech:
            self._speech.append(10 ** (level_db / 10))
        elif is_noise:
            self._noise.append(10 ** (level_db / 10))

    @property
    def snr_db(self) -> float | None:
        """None until there is a second of each, or where the speech does not stand above the noise."""
        if min(len(self._speech), len(self._noise)) < self._FEWEST:
            return None
        noise = max(sum(self._noise) / len(self._noise), 10 ** (SILENCE_DB / 10))
        speech = sum(self._speech) / len(self._speech) - noise
        return 10 * math.log10(speech / noise) if speech > 0.0 else None
