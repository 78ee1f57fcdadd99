"""Engines that take a stated time and no computing: they leave the framework alone in the measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.conversation.agent import Engines
from audio.block import Float32Array
from audio.protocols import Speech, SpokenWord
from gpu.llm.protocol import Message, SamplingParams


@dataclass(frozen=True, slots=True)
class StubTurnModel:
    """Every pause ends the turn."""

    probability: float = 1.0

    def predict(self, samples: Float32Array) -> float:
        """See `audio.protocols.TurnModel`."""
        return self.probability

    def memory_bytes(self) -> int:
        """Nothing is held."""
        return 0


@dataclass(frozen=True, slots=True)
class StubAsr:
    """Hears the same sentence in everything."""

    text: str = "What time is it?"
    delay_ms: float = 0.0

    def transcribe(self, samples: Float32Array) -> str:
        """See `audio.protocols.Asr`."""
        time.sleep(self.delay_ms / 1000)
        return self.text if len(samples) else ""

    def memory_bytes(self) -> int:
        """Nothing is held."""
        return 0


@dataclass(frozen=True, slots=True)
class StubLanguageModel:
    """Says one sentence, word by word."""

    reply: str = "It is time to talk."
    first_token_ms: float = 100.0
    token_ms: float = 0.0
    context_tokens: int = 4096

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        """See `gpu.llm.protocol.LanguageModel`."""
        words = self.reply.split(" ")[:max_tokens]
        for position, word in enumerate(words):
            time.sleep((self.token_ms if position else self.first_token_ms) / 1000)
            if cancelled():
                return
            yield word if position == 0 else f" {word}"

    def warm(self, messages: Sequence[Message]) -> int:
        """Nothing is computed ahead."""
        return 0

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """One a word."""
        return sum(len(message.content.split()) for message in messages)

    def memory_bytes(self) -> int:
        """Nothing is held."""
        return 0


@dataclass(frozen=True, slots=True)
class StubTts:
    """A 220 Hz tone of 200 ms a word, words evenly spread."""

    rate_hz: int = 22_050
    delay_ms: float = 50.0
    word_ms: float = 200.0

    def synthesize(self, text: str) -> Speech:
        """See `audio.protocols.Tts`."""
        time.sleep(self.delay_ms / 1000)
        per_word = round(self.rate_hz * self.word_ms / 1000)
        words, place, count = [], 0, 0
        for word in text.split():
            start = text.index(word, place)
            place = start + len(word)
            words.append(SpokenWord(word, start, place, count * per_word, (count + 1) * per_word))
            count += 1
        time_s = np.arange(count * per_word) / self.rate_hz
        samples = (0.3 * np.sin(2 * np.pi * 220 * time_s)).astype(np.float32)
        return Speech(samples, self.rate_hz, tuple(words))

    def memory_bytes(self) -> int:
        """Nothing is held."""
        return 0


def stub_engines(first_token_ms: float, tts_ms: float) -> Engines:
    """A set in which only the model's first token and each clause's voice take time."""
    return Engines(
        asr=StubAsr(),
        turn=StubTurnModel(),
        llm=StubLanguageModel(first_token_ms=first_token_ms),
        tts=StubTts(delay_ms=tts_ms),
    )
