"""Where the time of the last turns went, how it is distributed, and whether the machine keeps up with the sound."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from app import events
from app.histogram import Quantiles, Rolling
from app.viewmodel.base import ViewModel
from audio.block import HOP_MS, SAMPLE_RATE_HZ

STEPS = ("endpoint", "asr", "first_token", "first_clause", "tts", "playback", "output")
"""The parts of a turn's time in order, as `events.TurnLatency` names them."""
_MOST_TURNS = 12
_LATE_CAPACITY = 3000
"""Meters come ten times a second: five minutes."""
_GUARD_SAMPLES = SAMPLE_RATE_HZ
_LATE_HOPS = 3
Guard = Literal["unknown", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn's time in ms, from the user's last sound to the loudspeaker."""

    turn: int
    steps_ms: tuple[float, ...]
    """In the order of `STEPS`."""
    total_ms: float
    stop_ms: float | None = None
    """From the onset of an interruption to the last sample of the reply; None: nobody interrupted."""


@dataclass(frozen=True, slots=True)
class RealTime:
    """How the ear keeps up. `late`: when its work on a hop ended, in ms after the callback that brought it."""

    late: Quantiles
    lost_ms: float
    """Sound that the device lost since the conversation began."""
    late_results: int
    """Results that came behind the index at which they were due (runs with a cost table only)."""

    @property
    def verdict(self) -> Guard:
        """`bad` where sound was lost, `warning` where one hop in a hundred was later than three hops."""
        if self.lost_ms > 0:
            return "bad"
        if not self.late.count:
            return "unknown"
        return "warning" if self.late.p99 > _LATE_HOPS * HOP_MS else "good"


class Latency(ViewModel):
    """The newest turn is the first of `turns`."""

    def __init__(self, budget_ms: float) -> None:
        """`budget_ms`: what a turn may take."""
        super().__init__()
        self.budget_ms = budget_ms
        self.turns: deque[Turn] = deque(maxlen=_MOST_TURNS)
        self._rate_hz = 0
        self._begin()

    def _begin(self) -> None:
        self.turns.clear()
        self._total, self._steps = Rolling(), [Rolling() for _ in STEPS]
        self._late, self._stops = Rolling(_LATE_CAPACITY), Rolling()
        self._lost_frames = self._late_results = 0
        self._guard_due_samples = 0

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.SessionStarted():
                self._begin()
            case events.DeviceOpened(rate_hz=rate_hz):
                self._rate_hz = rate_hz
            case events.TurnLatency():
                self._add(event)
            case events.BargeIn(turn=turn, stop_ms=stop_ms):
                silent_ms = max(0.0, stop_ms)  # below 0: the reply had paused before the user began
                self._stops.add(silent_ms)
                self._mark_stop(turn, silent_ms)
            case events.Meters():
                if not self._measure(event):
                    return
            case events.Arrival(late_ms=late_ms) if late_ms > 0:
                self._late_results += 1
            case _:
                return
        self.changed()

    def total(self) -> Quantiles:
        """Of end of speech to loudspeaker, ms."""
        return self._total.summary()

    def steps(self) -> list[Quantiles]:
        """Of each of `STEPS`, ms."""
        return [step.summary() for step in self._steps]

    def stops(self) -> Quantiles:
        """Of the time that an interrupted reply goes on, ms."""
        return self._stops.summary()

    def real_time(self) -> RealTime:
        """How the ear keeps up."""
        lost_ms = self._lost_frames * 1000 / self._rate_hz if self._rate_hz else 0.0
        return RealTime(self._late.summary(), lost_ms, self._late_results)

    def over_budget(self) -> int:
        """How many of `turns` took longer than the budget."""
        return sum(turn.total_ms > self.budget_ms for turn in self.turns)

    def _add(self, event: events.TurnLatency) -> None:
        steps_ms = tuple(float(getattr(event, f"{step}_ms")) for step in STEPS)
        self.turns.appendleft(Turn(event.turn, steps_ms, event.voice_to_voice_ms))
        self._total.add(event.voice_to_voice_ms)
        for rolling, step_ms in zip(self._steps, steps_ms, strict=True):
            rolling.add(step_ms)

    def _mark_stop(self, turn: int, stop_ms: float) -> None:
        for place, known in enumerate(self.turns):
            if known.turn == turn:
                self.turns[place] = Turn(turn, known.steps_ms, known.total_ms, stop_ms)

    def _measure(self, event: events.Meters) -> bool:
        """Whether it is time to show it: once a second, and at once where sound was lost."""
        self._late.add(event.hop_late_ms)
        is_loss = event.lost_frames != self._lost_frames
        self._lost_frames = event.lost_frames
        if not is_loss and event.at_samples < self._guard_due_samples:
            return False
        self._guard_due_samples = event.at_samples + _GUARD_SAMPLES
        return True
