"""A question that was asked stays in the conversation, whatever the user says before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness import Talk

from app import events
from app.bench.stubs import StubAsr, StubLanguageModel, StubTts, StubTurnModel
from app.commands import SayText
from app.conversation.agent import Engines
from app.conversation.history import Exchange
from app.conversation.resume import Pending, Progress

ENGINES = Engines(StubAsr(), StubTurnModel(), StubLanguageModel(), StubTts(rate_hz=16_000, delay_ms=0.0))


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    opened: list[Talk] = []

    def make(**options: object) -> Talk:
        opened.append(Talk(ENGINES, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def finals(one: Talk) -> list[tuple[int, str]]:
    return [(event.turn, event.text) for event in one.of(events.UserTranscript) if event.final]  # type: ignore[attr-defined]


def test_speech_behind_a_typed_question_is_a_turn_of_its_own(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.hop(command=SayText("First this?"))
    one.say(800)  # before the answer is heard
    one.until(events.AgentSaid)
    assert finals(one) == [(1, "First this?"), (2, "What time is it?")]
    assert [exchange.user for exchange in one.history.exchanges] == ["First this?", "What time is it?"]
    progress = Progress(())
    for event in one.log:
        progress.take(event)
    assert [exchange.user for exchange in progress.point().exchanges] == ["First this?", "What time is it?"]


def test_speech_before_an_owed_answer_is_a_turn_of_its_own_and_what_was_heard_of_the_answer_stays(
    talk: Callable[..., Talk],
) -> None:
    one = talk(last_turn=7)
    one.hop()
    one.conversation.go_on(Pending(7, "Why?", "Because of"))
    one.say(800)
    one.until(events.AgentSaid)
    assert finals(one) == [(8, "What time is it?")]
    assert one.history.exchanges[0] == Exchange("Why?", "Because of")


def test_speech_behind_a_spoken_question_still_continues_it(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(800)
    one.until(events.TurnEnded)
    one.say(800)
    one.until(events.AgentSaid)
    assert [turn for turn, _ in finals(one)] == [1, 1]
    assert len(one.history.exchanges) == 1
