"""The conversation on stub engines: what is said, what is heard, what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from harness import RATE_HZ, Talk

from app import events
from app.bench.stubs import StubAsr, StubLanguageModel, StubTts, StubTurnModel
from app.commands import SayText, SetMuted, StopSpeaking
from app.conversation.agent import Engines
from app.conversation.desk import LiveRelease, ReplayRelease
from app.conversation.history import Exchange
from app.conversation.output import PlayedFrom
from app.conversation.resume import Pending
from audio.block import HOP_SAMPLES
from gpu.llm.protocol import Message, SamplingParams

ENGINES = Engines(
    asr=StubAsr(),
    turn=StubTurnModel(),
    llm=StubLanguageModel(reply="One two three four five six. Seven eight nine ten.", first_token_ms=0),
    tts=StubTts(delay_ms=0),
)


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    made: list[Talk] = []

    def make(engines: Engines = ENGINES, **options: object) -> Talk:
        made.append(Talk(engines, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


@dataclass
class SpyModel:
    """Keeps the prompts; answers from a list."""

    replies: list[str]
    context_tokens: int = 4096

    def __post_init__(self) -> None:
        self.prompts: list[list[Message]] = []

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterable[str]:
        self.prompts.append(list(messages))
        reply = self.replies[min(len(self.prompts), len(self.replies)) - 1]
        return iter([f"{word} " for word in reply.split()][:max_tokens])

    def warm(self, messages: Sequence[Message]) -> int:
        self.warmed = list(messages)
        return 0

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return sum(len(message.content.split()) for message in messages)

    def memory_bytes(self) -> int:
        return 0


def test_a_turn_is_heard_answered_and_remembered(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(800)
    said = one.until(events.AgentSaid)
    assert isinstance(said, events.AgentSaid)
    assert said.text == said.heard == "One two three four five six. Seven eight nine ten."
    assert one.history.exchanges == [Exchange("What time is it?", said.text)]
    one.silence(200)
    assert one.conversation.is_idle
    assert len(one.of(events.AgentText)) == 2
    played = np.flatnonzero(one.sound())
    assert abs((played[-1] - played[0]) / RATE_HZ - 10 * 0.2) < 0.05


def test_latency_stages_add_up_to_the_whole(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(800)
    event = one.until(events.TurnLatency)
    assert isinstance(event, events.TurnLatency)
    parts = (
        event.endpoint_ms
        + event.asr_ms
        + event.first_token_ms
        + event.first_clause_ms
        + event.tts_ms
        + event.playback_ms
        + event.output_ms
    )
    assert parts == pytest.approx(event.voice_to_voice_ms, abs=0.1)
    first_sample = int(np.flatnonzero(one.sound())[0])
    heard_from = one.of(events.UserSpeechEnded)[-1].offset_samples  # type: ignore[attr-defined]
    assert event.voice_to_voice_ms == pytest.approx((first_sample - heard_from) / 16, abs=11)


@pytest.mark.parametrize("after_ms", [0, 10, 30, 250, 700, 1290])
def test_bot_does_not_keep_talking_after_an_interruption_and_history_holds_the_heard_words(
    talk: Callable[..., Talk], after_ms: int
) -> None:
    one = talk()
    one.say(800)
    one.until(events.TurnLatency)
    one.silence(after_ms)
    onset = one.block
    one.say(600)
    one.until(events.TurnLatency)
    (barge,) = one.of(events.BargeIn)
    (said,) = one.of(events.AgentSaid)
    assert isinstance(barge, events.BargeIn)
    assert isinstance(said, events.AgentSaid)
    assert barge.onset_samples == onset * HOP_SAMPLES
    sound = np.abs(one.sound())
    silent_from = onset + 200 // 10 + 1
    answer = int(np.flatnonzero(sound[silent_from * HOP_SAMPLES :])[0]) + silent_from * HOP_SAMPLES
    assert barge.stop_ms <= 220
    assert answer > one.block * HOP_SAMPLES - 2 * HOP_SAMPLES
    # The stub voices 200 ms a word from the first played sample on; half of a word is enough.
    first = int(np.flatnonzero(sound)[0])
    played_ms = (silent_from * HOP_SAMPLES - HOP_SAMPLES - first) / 16
    words = "One two three four five six. Seven eight nine ten.".split()
    assert said.heard.split() == words[: int((played_ms + 99) // 200)]
    assert one.history.exchanges[0].heard == said.heard


def test_the_model_is_told_only_what_was_heard(talk: Callable[..., Talk]) -> None:
    model = SpyModel(["One two three four five six.", "Fine."])
    one = talk(replace(ENGINES, llm=model))
    one.say(800)
    one.until(events.TurnLatency)
    one.silence(250)
    one.say(600)
    one.until(events.TurnLatency)
    heard = one.of(events.AgentSaid)[0].heard  # type: ignore[attr-defined]
    assert [m.content for m in model.prompts[1]] == ["What time is it?", heard, "What time is it?"]
    assert 0 < len(heard.split()) < 6
    assert [m.content for m in model.warmed] == ["What time is it?", heard]


def test_no_sentence_is_spoken_twice_when_the_user_goes_on_before_the_answer(talk: Callable[..., Talk]) -> None:
    """Revised transcripts must not lead to duplicate replies."""
    model = SpyModel(["Good."])
    one = talk(replace(ENGINES, llm=model))
    for _ in range(7):
        one.say(600)
        one.until(events.TurnEnded)
    one.until(events.AgentSaid)
    one.silence(500)
    assert len(one.of(events.AgentSaid)) == 1
    assert {event.turn for event in one.of(events.TurnEnded)} == {1}  # type: ignore[attr-defined]
    assert one.history.exchanges == [Exchange("What time is it?", "Good.")]


def test_noise_without_words_makes_no_turn(talk: Callable[..., Talk]) -> None:
    one = talk(replace(ENGINES, asr=StubAsr(text="")))
    one.say(700)
    one.silence(2000)
    assert len(one.of(events.TurnDropped)) == 1
    assert not one.of(events.TurnEnded)
    assert not one.sound().any()
    assert one.conversation.is_idle


def test_thank_you_from_silence_is_no_turn(talk: Callable[..., Talk]) -> None:
    """ "You" and "Thank you for watching" are what noise decodes to."""
    for invention in ("You", "Thank you for watching."):
        one = talk(replace(ENGINES, asr=StubAsr(text=invention)))
        one.say(700)
        one.silence(2000)
        assert not one.of(events.TurnEnded)
        assert not one.sound().any()


def test_closing_keeps_what_was_heard(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say(800)
    one.until(events.TurnLatency)
    one.silence(450)
    one.conversation.close()
    (said,) = one.of(events.AgentSaid)
    assert said.heard == "One two"  # type: ignore[attr-defined]
    assert one.history.exchanges == [Exchange("What time is it?", "One two")]


def test_a_clause_without_voice_is_not_counted_as_heard(talk: Callable[..., Talk]) -> None:
    class Hoarse(StubTts):
        def synthesize(self, text: str) -> object:  # type: ignore[override]
            if text.startswith("Seven"):
                raise RuntimeError("hoarse")
            return super().synthesize(text)

    one = talk(replace(ENGINES, tts=Hoarse(delay_ms=0)))
    one.say(800)
    said = one.until(events.AgentSaid)
    assert said.heard == "One two three four five six."  # type: ignore[attr-defined]


def test_stop_command_silences_and_typed_text_is_answered(talk: Callable[..., Talk]) -> None:
    model = SpyModel(["One two three four five six.", "Typed answer."])
    one = talk(replace(ENGINES, llm=model))
    one.say(800)
    one.until(events.TurnLatency)
    one.silence(300)
    one.hop(command=StopSpeaking())
    assert not np.concatenate([one.out[-1]]).size == 0
    stopped_at = one.block
    one.silence(100)
    assert not one.sound()[(stopped_at + 1) * HOP_SAMPLES :].any()
    one.hop(command=SayText("typed"))
    said = one.until(events.AgentSaid)
    assert said.text == "Typed answer."  # type: ignore[attr-defined]
    assert model.prompts[1][-1].content == "typed"


def test_typed_text_during_a_reply_waits_for_the_heard_words(talk: Callable[..., Talk]) -> None:
    model = SpyModel(["One two three four five six.", "Typed answer."])
    one = talk(replace(ENGINES, llm=model))
    one.say(800)
    one.until(events.TurnLatency)
    one.silence(250)
    one.hop(command=SayText("typed"))
    one.until(events.TurnLatency)
    roles = [(m.role, m.content) for m in model.prompts[1]]
    assert roles[1][0] == "assistant"
    assert roles[1][1].startswith("One")
    assert roles[2] == ("user", "typed")


def test_muted_user_is_not_heard(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.hop(command=SetMuted(True))
    one.say(800)
    one.silence(1500)
    assert not one.of(events.UserSpeechStarted)


def test_failures_are_told_and_the_conversation_goes_on(talk: Callable[..., Talk]) -> None:
    class Broken(StubTts):
        def synthesize(self, text: str) -> object:  # type: ignore[override]
            raise RuntimeError("no voice")

    class Deaf(StubAsr):
        def transcribe(self, samples: object) -> str:
            raise RuntimeError("no ears")

    one = talk(replace(ENGINES, tts=Broken()))
    one.say(800)
    one.until(events.AgentSaid)
    assert "no voice" in one.of(events.Notice)[0].message  # type: ignore[attr-defined]
    one.silence(100)
    assert one.conversation.is_idle
    two = talk(replace(ENGINES, asr=Deaf()))
    two.say(800)
    two.until(events.TurnDropped)
    assert "no ears" in two.of(events.Notice)[0].message  # type: ignore[attr-defined]


def test_half_a_sentence_at_the_token_limit_is_not_spoken(talk: Callable[..., Talk]) -> None:
    one = talk(max_reply_tokens=8)
    one.say(800)
    said = one.until(events.AgentSaid)
    assert said.text == "One two three four five six."  # type: ignore[attr-defined]


def test_old_exchanges_leave_when_the_quota_is_full(talk: Callable[..., Talk]) -> None:
    model = SpyModel(["Fine."])
    old = [Exchange(f"question {n} " + "word " * 98, "answer") for n in range(20)]
    one = talk(replace(ENGINES, llm=model), exchanges=old)
    one.say(800)
    one.until(events.AgentSaid)
    (prompt,) = model.prompts
    assert model.count_tokens(prompt) <= 1000
    assert prompt[-1].content == "What time is it?"
    assert prompt[0].role == "user"
    assert prompt[-2].content == "answer"


def busy(one: Talk) -> None:
    """Questions, an interruption, a withdrawn reply, a stop, typed text."""
    one.say(800)
    one.until(events.TurnLatency)
    one.silence(330)
    one.say(500)
    one.until(events.TurnEnded)
    one.say(400)
    one.until(events.AgentSaid)
    one.say(300)
    one.until(events.TurnLatency)
    one.silence(200)
    one.hop(command=StopSpeaking())
    one.silence(300)
    one.hop(command=SayText("typed"))
    one.until(events.AgentSaid)
    one.silence(1000)


def test_same_input_gives_the_same_log_and_audio(talk: Callable[..., Talk]) -> None:
    first, second = talk(), talk()
    busy(first)
    busy(second)
    assert first.lines() == second.lines()
    np.testing.assert_array_equal(first.sound(), second.sound())


def test_a_log_replays_to_the_same_decisions_and_audio(talk: Callable[..., Talk]) -> None:
    """The log of a run whose results came when they came."""
    engines = replace(
        ENGINES,
        asr=StubAsr(delay_ms=1),
        llm=StubLanguageModel(reply="One two three four five six. Seven.", first_token_ms=3, token_ms=1),
        tts=StubTts(delay_ms=2),
    )
    live = talk(engines, release=LiveRelease())
    schedule: list[tuple[bool, object]] = []
    original = live.hop

    def record(voiced: bool = False, command: object = None) -> None:
        schedule.append((voiced, command))
        live.desk.wait(0.001)  # about the pace of the stubs
        original(voiced, command)  # type: ignore[arg-type]

    live.hop = record  # type: ignore[method-assign]
    busy(live)
    arrivals = [(e.at_samples, e.job, e.sequence) for e in live.log if isinstance(e, events.Arrival)]
    played = [
        PlayedFrom(e.at_samples // HOP_SAMPLES, e.generation, e.playing, e.faded)
        for e in live.log
        if isinstance(e, events.Playback)
    ]
    again = talk(engines, release=ReplayRelease(arrivals), played=played)
    for voiced, command in schedule:
        again.hop(voiced, command)  # type: ignore[arg-type]
    assert again.lines() == live.lines()
    np.testing.assert_array_equal(again.sound(), live.sound())


# -- after an accident --------------------------------------------------------------------------------------


def test_an_owed_answer_goes_on_behind_the_last_heard_word(talk: Callable[..., Talk]) -> None:
    model = SpyModel([" four five six."])
    one = talk(replace(ENGINES, llm=model), first_generation=7, last_turn=3)
    one.silence(500)
    one.conversation.go_on(Pending(3, "count", "One two three"))
    said = one.until(events.AgentSaid)
    whole = "One two three four five six."
    assert said == events.AgentSaid(said.at_samples, 3, whole, whole, False)
    assert model.prompts[0][-2:] == [Message("user", "count"), Message("assistant", "One two three")]
    assert [event.start_chars for event in one.of(events.AgentText)] == [len("One two three ")]
    assert one.control.generation == 8
    assert one.history.exchanges == [Exchange("count", "One two three four five six.")]
    assert [event.text for event in one.of(events.AgentText)] == ["four five six."]


def test_an_owed_answer_cut_off_again_keeps_what_was_heard_of_both(talk: Callable[..., Talk]) -> None:
    one = talk(replace(ENGINES, llm=SpyModel([" four five six seven eight."])), last_turn=1)
    one.silence(100)
    one.conversation.go_on(Pending(1, "count", "One two three"))
    one.until(events.AgentWord)
    one.hop(command=StopSpeaking())
    said = one.until(events.AgentSaid)
    assert said.heard.startswith("One two three four")
    assert said.text.startswith(said.heard)
    assert said.heard != said.text


def test_a_user_who_speaks_meanwhile_has_the_floor(talk: Callable[..., Talk]) -> None:
    one = talk(last_turn=1)
    one.say(300)
    one.conversation.go_on(Pending(1, "count", "One"))
    assert one.of(events.AgentText) == []
    assert one.history.exchanges == [Exchange("count", "One")]
    assert one.of(events.UserSpeechStarted)[0].turn == 2
    assert one.until(events.AgentSaid).turn == 2


def test_an_aside_sounds_and_is_nobodys_turn(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.silence(100)
    one.conversation.say_aside(StubTts(delay_ms=0).synthesize("One moment, please."))
    one.silence(3000)
    assert np.abs(one.sound()).max() > 0.01
    assert one.history.exchanges == []
    assert one.of(events.AgentSaid) == []
    one.say(300)
    assert one.until(events.AgentSaid).turn == 1


def test_an_aside_does_not_touch_a_reply(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.hop(command=SayText("hello"))
    one.until(events.AgentWord)
    generation = one.control.generation
    one.conversation.say_aside(StubTts(delay_ms=0).synthesize("One moment, please."))
    assert one.control.generation == generation
    assert one.until(events.AgentSaid).interrupted is False
