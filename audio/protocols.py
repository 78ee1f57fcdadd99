"""The interfaces of the signal path. Each engine says what it holds in memory and how late it is.

All audio is mono float32 with full scale 1.0. A hop is `HOP_SAMPLES` samples at 16 kHz (10 ms).
Implementations keep all mutable state in the object; `reset()` makes it equal to a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from audio.block import Float32Array


class Frontend(Protocol):
    """Turns a run of samples into the feature matrix that a model was trained on."""

    def features(self, samples: Float32Array) -> Float32Array:
        """(N,) at 16 kHz to (bands, frames)."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of tables and buffers held."""
        ...


class Stage(Protocol):
    """One link of the ear's chain, called once a hop in order."""

    name: str
    latency_samples: int
    """By how many 16 kHz samples the output lags the input."""

    def process(self, near: Float32Array, far: Float32Array) -> Float32Array:
        """(HOP_SAMPLES,) microphone and (HOP_SAMPLES,) loudspeaker to (HOP_SAMPLES,) cleaned microphone."""
        ...

    def reset(self) -> None:
        """Forget the stream."""
        ...

    def memory_bytes(self) -> int:
        """Bytes held by the stage, weights included."""
        ...


class Vad(Protocol):
    """Voice activity, one value a hop (an engine with longer frames repeats its last answer)."""

    latency_samples: int

    def process(self, hop: Float32Array) -> float:
        """(HOP_SAMPLES,) to the probability of speech, 0 to 1."""
        ...

    def reset(self) -> None:
        """Forget the stream."""
        ...

    def memory_bytes(self) -> int:
        """Bytes held, weights included."""
        ...


class TurnModel(Protocol):
    """Acoustic end-of-turn: does this sound like a finished thought?"""

    def predict(self, samples: Float32Array) -> float:
        """(N,) at 16 kHz, the user's turn up to now, to the probability that it is complete."""
        ...

    def memory_bytes(self) -> int:
        """Bytes held, weights included."""
        ...


class Asr(Protocol):
    """Offline speech recognition of one segment; partials come from decoding a growing one again."""

    def transcribe(self, samples: Float32Array) -> str:
        """(N,) at 16 kHz to text, "" where there is no speech."""
        ...

    def memory_bytes(self) -> int:
        """Bytes held, weights included."""
        ...


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word of the text that was given to the voice, with the place of its sound."""

    text: str
    text_start: int
    text_end: int
    """Character range in the synthesised text; trailing punctuation belongs to the word."""
    start_samples: int
    end_samples: int
    """Sample range in `Speech.samples`, at `Speech.rate_hz`."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Synthesised audio with true word times."""

    samples: Float32Array
    rate_hz: int
    words: tuple[SpokenWord, ...]


class Tts(Protocol):
    """A voice. The same text gives the same samples."""

    rate_hz: int

    def synthesize(self, text: str) -> Speech:
        """One clause of plain text (already sanitised) to speech; "" gives no samples."""
        ...

    def memory_bytes(self) -> int:
        """Bytes held, weights included."""
        ...
