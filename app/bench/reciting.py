"""A language model that recites prose: long replies of known words, for scenes where what is said does not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from audio.protocols import Speech, Tts
from gpu.llm.protocol import Message, SamplingParams

PROSE = (
    "The harbour was quiet in the early morning. A few small boats moved slowly with the tide, and the air smelled "
    "of salt and wet wood. An old man walked along the pier with a dog at his side. He stopped at every bench, looked "
    "out over the water, and then went on. Behind him the town began to wake up. Somebody opened a window, a baker "
    "carried bread across the square, and the first bus of the day rolled down the hill. By nine o'clock the fog had "
    "lifted, and you could see the islands on the other side of the bay. Children ran to school with their bags on "
    "their backs. Nobody was in a hurry, because the summer had been long, and the winter was still far away."
)


@dataclass(frozen=True, slots=True)
class RecitingModel:
    """`sentences` sentences of `PROSE`, starting elsewhere for every question; its tokens are words."""

    sentences: int = 8
    context_tokens: int = 100_000

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        """See `gpu.llm.protocol.LanguageModel`."""
        parts = [part.strip() + "." for part in PROSE.split(".") if part.strip()]
        first = sum(message.role == "user" for message in messages) + sampling.seed
        text = " ".join(parts[(first + offset) % len(parts)] for offset in range(self.sentences))
        if messages[-1].role == "assistant":  # an answer that goes on
            text = text.removeprefix(messages[-1].content).lstrip()
        for position, word in enumerate(text.split()[:max_tokens]):
            if cancelled():
                return
            yield word if position == 0 else f" {word}"

    def warm(self, messages: Sequence[Message]) -> int:
        """Nothing is computed ahead."""
        return 0

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Words."""
        return sum(len(message.content.split()) for message in messages)

    def memory_bytes(self) -> int:
        """Nothing is held."""
        return 0


class RememberingTts:
    """Any voice, each text synthesised once. A voice is a pure function of its text, so nobody hears a difference."""

    def __init__(self, voice: Tts) -> None:
        self._voice = voice
        self._known: dict[str, Speech] = {}
        self.rate_hz = voice.rate_hz

    def synthesize(self, text: str) -> Speech:
        """See `audio.protocols.Tts`."""
        if text not in self._known:
            self._known[text] = self._voice.synthesize(text)
        return self._known[text]

    def memory_bytes(self) -> int:
        """The voice and what it remembers."""
        return self._voice.memory_bytes() + sum(speech.samples.nbytes for speech in self._known.values())
