"""Messages that are longer than the model's window, typed and spoken: they are answered all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from harness import Talk

from app import events
from app.bench.stubs import StubAsr, StubLanguageModel, StubTts, StubTurnModel
from app.commands import SayText
from app.conversation.agent import Engines
from gpu.errors import ArenaFullError
from gpu.llm.protocol import Message, SamplingParams

LONG = " ".join(f"word{number}" for number in range(3_000))
SPOKEN = " ".join(LONG.split()[:30])


@dataclass(frozen=True, slots=True)
class SmallModel(StubLanguageModel):
    """Refuses a prompt that is longer than its window, as ours does."""

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        wanted = self.count_tokens(messages)
        if wanted >= self.context_tokens:
            raise ArenaFullError(f"The prompt has {wanted} tokens", wanted=wanted, capacity=self.context_tokens)
        return StubLanguageModel.generate(self, messages, sampling, max_tokens=max_tokens, cancelled=cancelled)


ENGINES = Engines(
    asr=StubAsr(),
    turn=StubTurnModel(),
    llm=SmallModel(reply="One two three.", first_token_ms=0, context_tokens=120),
    tts=StubTts(delay_ms=0),
)


@pytest.mark.parametrize("kind", ["typed", "spoken"])
def test_a_message_that_is_longer_than_the_window_is_answered_and_so_is_the_next_one(kind: str) -> None:
    talk = Talk(ENGINES if kind == "typed" else replace(ENGINES, asr=StubAsr(text=SPOKEN)))
    try:
        for _ in range(2):
            if kind == "typed":
                talk.hop(command=SayText(LONG))
            else:
                talk.say(12_000)
            said = talk.until(events.AgentSaid)
            assert isinstance(said, events.AgentSaid)
            assert said.heard == "One two three."
            talk.silence(500)
        talk.hop(command=SayText("and now?"))
        talk.until(events.AgentSaid)
        notices = [event for event in talk.log if isinstance(event, events.Notice)]
        assert [notice.severity for notice in notices] == ["warning"] * 2
        assert all(
            "words were left out" in notice.message and "llm.context_tokens" in notice.message for notice in notices
        )
    finally:
        talk.close()
