"""What a user may tell the agent while it runs, from whatever face."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopSpeaking:
    """Be quiet now; keep listening."""


@dataclass(frozen=True, slots=True)
class SetMuted:
    """Stop or resume listening to the microphone."""

    muted: bool


@dataclass(frozen=True, slots=True)
class SayText:
    """Typed words, answered as if spoken."""

    text: str


@dataclass(frozen=True, slots=True)
class Quit:
    """End the session."""


Command = StopSpeaking | SetMuted | SayText | Quit
