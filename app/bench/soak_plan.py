"""What happens in a soak, drawn from a seed: users, devices and their clocks, and the faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.conversation.costs import KindCost
from audio.io.device import AudioSource, RoomSpec, ScriptSpec, SimulatedSpec, Utterance

RATE_HZ = 48_000
STATES = ("listening", "hearing", "thinking", "speaking")
PER_HOUR: Mapping[str, float] = {"engine": 40, "ear": 24, "slow": 8, "say": 20, "stop": 20}
"""Faults and commands of an hour."""
STALLS_PER_HOUR = 24
SLOW: Mapping[str, KindCost] = {
    "asr": KindCost(0.0, 1200.0),  # 1.2 s a second of audio
    "llm": KindCost(2000.0, 0.0, 500.0),  # two words a second, slower than they are said
    "tts": KindCost(0.0, 90.0),  # 1.5 s a second of speech
}
"""Costs of a model that cannot keep up."""
_LIFE_MEAN_S = 300.0
_LIFE_LEAST_S = 40.0
_TURN_LEAST_S = 4.0
"""No exchange of the script is shorter."""
_MOST_UTTERANCES = 120
_TYPED = "Typed question number {}."


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, or that the user does besides speaking."""

    at_s: float
    """On the sample clock; not before."""
    kind: str
    state: str = ""
    """It waits for the conversation to be in this state."""
    lasts_s: float = 0.0
    detail: str = ""
    """Which model is slow; what is typed."""


@dataclass(frozen=True, slots=True)
class Life:
    """One device from its opening to its end, and what its user says."""

    spec: SimulatedSpec
    texts: Sequence[str]
    """Of the script's utterances."""
    away_ms: float
    """How long there was no device before this one."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Something that a user can say."""

    source: AudioSource
    text: str


def plan_faults(seed: int, hours: float, density: float) -> list[Fault]:
    """Every fault of the run in order; `density` times as many as `PER_HOUR`."""
    draw = random.Random(f"faults {seed}")
    faults = []
    for kind, rate in PER_HOUR.items():
        for number in range(round(rate * hours * density)):
            at_s = draw.uniform(5.0, hours * 3600)
            match kind:
                case "engine":
                    faults.append(Fault(at_s, kind, STATES[number % len(STATES)], draw.uniform(0.2, 4.0)))
                case "ear":
                    faults.append(Fault(at_s, kind, lasts_s=draw.uniform(0.5, 3.0)))
                case "slow":
                    faults.append(Fault(at_s, kind, "", draw.uniform(20.0, 60.0), list(SLOW)[number % len(SLOW)]))
                case "say":
                    faults.append(Fault(at_s, kind, detail=_TYPED.format(number + 1)))
                case "stop":
                    faults.append(Fault(at_s, kind, ("speaking", "thinking")[number % 2]))
    return sorted(faults, key=lambda fault: fault.at_s)


class Lives:
    """One device after another."""

    def __init__(self, seed: int, clips: Sequence[Clip], density: float) -> None:
        self._draw = random.Random(f"devices {seed}")
        self._clips = clips
        self._density = density
        self._count = 0

    def next(self, left_s: float) -> Life:
        """A device that lives for `left_s` at most. The first is there at once."""
        draw = self._draw
        seed = self._count
        self._count += 1
        drawn_s = _LIFE_LEAST_S + draw.expovariate(1 / _LIFE_MEAN_S) / self._density
        life_s = max(1.0, min(drawn_s, left_s))
        chosen = [draw.choice(self._clips) for _ in range(min(_MOST_UTTERANCES, int(life_s / _TURN_LEAST_S) + 1))]
        script = ScriptSpec(
            tuple(
                Utterance(clip.source, interrupt_after_s=draw.uniform(0.3, 5.0) if draw.random() < 0.25 else None)
                for clip in chosen
            ),
            lead_s=1.0,
        )
        is_split = draw.random() < 0.5
        spec = SimulatedSpec(
            input=script,
            room=RoomSpec(rt60_ms=draw.uniform(150, 400), seed=seed, erl_db=draw.uniform(12, 30)),
            is_paced=False,
            rate_hz=RATE_HZ,
            drift_ppm=draw.uniform(-200, 200),
            jitter_ms=draw.uniform(0, 4),
            stalls=self._moments(life_s, STALLS_PER_HOUR, lambda: draw.uniform(0.03, 1.0)),
            disappears_at_s=life_s,
            output_drift_ppm=draw.uniform(-200, 200) if is_split else None,
            output_jitter_ms=draw.uniform(0, 4) if is_split else 0.0,
            output_jumps=self._moments(life_s, 6, lambda: draw.choice((-60.0, 60.0))) if is_split else (),
            seed=seed,
        )
        return Life(spec, [clip.text for clip in chosen], draw.uniform(300, 5000) if seed else 0.0)

    def _moments(self, life_s: float, per_hour: float, value: object) -> tuple[tuple[float, float], ...]:
        count = round(life_s / 3600 * per_hour * self._density + self._draw.random() - 0.5)
        assert callable(value)
        return tuple(sorted((self._draw.uniform(3.0, max(4.0, life_s - 2)), value()) for _ in range(count)))
