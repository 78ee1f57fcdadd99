"""From probabilities to voiced runs: a pure state machine, no audio in it.

Two thresholds, so that a voice at the edge does not flicker: a run starts at `on` and lasts until the
probability falls below `off`. The gap of 0.15 is the one that Silero's own iterator uses.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HysteresisSpec:
    """When a voiced run starts and ends."""

    on: float = 0.5
    """Probability at or above which a run starts."""
    off: float = 0.35
    """Probability below which it ends."""
    minimum_on_samples: int = 0
    """A run lasts at least so long, whatever the probability does."""

    def __post_init__(self) -> None:
        if not 0.0 < self.off <= self.on <= 1.0:
            raise ValueError(f"need 0 < off <= on <= 1, not off {self.off}, on {self.on}")
        if self.minimum_on_samples < 0:
            raise ValueError("minimum_on_samples must not be negative")


class Hysteresis:
    """Follows one stream. `onset_samples` is where the present run began, None outside of runs."""

    def __init__(self, spec: HysteresisSpec) -> None:
        self._spec = spec
        self.onset_samples: int | None = None

    def push(self, probability: float, start_samples: int, end_samples: int) -> bool:
        """Take the probability for [start, end) and say whether `end` lies in a voiced run."""
        if self.onset_samples is None:
            if probability >= self._spec.on:
                self.onset_samples = start_samples
        elif probability < self._spec.off and end_samples - self.onset_samples > self._spec.minimum_on_samples:
            self.onset_samples = None
        return self.onset_samples is not None

    def reset(self) -> None:
        """Forget the stream."""
        self.onset_samples = None
