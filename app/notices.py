"""Sentences of `Notice` that faces know again: written by one function and read by its neighbour."""

from __future__ import annotations

import re

NO_SIGNAL = "the microphone gave no signal for 5 s"
SIGNAL_BACK = "the microphone has a signal again"

_SOUND_LOST = re.compile(r"(\d+) ms of sound were lost: ")


def sound_lost(lost_ms: int) -> str:
    """Sound of the microphone that came to nobody, because the ear or the engine were seconds behind."""
    return f"{lost_ms} ms of sound were lost: this machine was too busy"


def sound_lost_ms(message: str) -> int:
    """The figure of `sound_lost`; 0 in any other sentence."""
    found = _SOUND_LOST.match(message)
    return int(found.group(1)) if found else 0
