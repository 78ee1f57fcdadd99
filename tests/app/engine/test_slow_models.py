"""Models slower than speech, on the sample clock: what piles up is bounded, shown and caught up; nothing is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness import COSTS, Talk

from app import events
from app.bench.stubs import StubLanguageModel, StubTts, StubTurnModel
from app.commands import SayText
from app.conversation.agent import Engines
from app.conversation.costs import CostTable, KindCost
from app.conversation.desk import ChargedRelease, Desk
from audio.block import SAMPLE_RATE_HZ, Float32Array

SLOW_ASR = KindCost(0.0, 1200.0)
WORDS_PER_S = 2


class CountingAsr:
    """Two words for every second of audio."""

    def transcribe(self, samples: Float32Array) -> str:
        return " ".join(f"w{number}" for number in range(round(len(samples) / SAMPLE_RATE_HZ * WORDS_PER_S)))

    def memory_bytes(self) -> int:
        return 0


ENGINES = Engines(
    CountingAsr(),
    StubTurnModel(),
    StubLanguageModel(reply="One two three four, five six seven eight, nine ten.", first_token_ms=0.0),
    StubTts(rate_hz=16_000, delay_ms=0.0),
)


@pytest.fixture
def slow_talk() -> Iterator[Callable[..., tuple[Talk, dict[str, KindCost]]]]:
    opened: list[Talk] = []

    def make(**slow: KindCost) -> tuple[Talk, dict[str, KindCost]]:
        rows = {**COSTS.rows, **slow}
        opened.append(Talk(ENGINES, costs=CostTable("slow", rows)))
        return opened[-1], rows

    yield make
    for one in opened:
        one.close()


def notices(talk: Talk) -> list[str]:
    return [event.message for event in talk.of(events.Notice)]  # type: ignore[attr-defined]


def finals(talk: Talk) -> list[events.UserTranscript]:
    return [event for event in talk.of(events.UserTranscript) if event.final]  # type: ignore[attr-defined]


def test_a_minute_of_talk_at_real_time_factor_1_2_is_transcribed_whole_and_caught_up(
    slow_talk: Callable[..., tuple[Talk, dict[str, KindCost]]],
) -> None:
    talk, rows = slow_talk(asr=SLOW_ASR)
    most_jobs, most_behind_ms, spoken_s = 0, 0.0, 0.0
    while talk.block < 6000:
        for hop in range(340):  # sentences of 3 s; the pauses are long enough to be examined
            talk.hop(voiced=hop < 300)
            most_jobs = max(most_jobs, talk.desk.outstanding)
            most_behind_ms = max(most_behind_ms, talk.conversation.behind_ms)
        spoken_s += 3
    assert finals(talk) == []
    assert 5_000 < most_behind_ms < 45_000
    assert most_jobs <= 6
    assert any("s behind" in message for message in notices(talk))
    rows["asr"] = COSTS.rows["asr"]
    ended = talk.block
    final = talk.until(events.TurnEnded, limit_ms=40_000)
    assert (talk.block - ended) * 0.01 < 40
    assert final.turn == 1  # type: ignore[attr-defined]
    words = len(finals(talk)[0].text.split())
    assert words >= spoken_s * WORDS_PER_S  # pauses between the sentences are in the audio too
    assert words <= spoken_s * WORDS_PER_S * 1.2
    talk.until(events.AgentSaid)
    assert talk.conversation.behind_ms == 0
    assert notices(talk)[-1] == "recognition has caught up"


def test_every_question_is_answered_by_a_slow_recogniser_one_after_the_other(
    slow_talk: Callable[..., tuple[Talk, dict[str, KindCost]]],
) -> None:
    talk, _ = slow_talk(asr=SLOW_ASR)
    waits_s = []
    for _ in range(8):
        talk.say(2000)
        asked = talk.block
        talk.until(events.TurnLatency)
        waits_s.append((talk.block - asked) / 100)
        talk.until(events.AgentSaid)
        talk.silence(500)
        assert talk.desk.is_idle()
    assert len(finals(talk)) == 8
    assert max(waits_s) < 8
    assert max(waits_s) - min(waits_s) < 0.5  # nothing is carried over from one to the next


def test_what_the_recogniser_need_not_read_any_more_does_not_keep_the_next_question(
    slow_talk: Callable[..., tuple[Talk, dict[str, KindCost]]],
) -> None:
    """Many pauses make many requests, each longer than the one before: only the last is of use."""
    talk, _ = slow_talk(asr=SLOW_ASR)
    for _ in range(5):
        talk.say(1000)
        talk.silence(300)
        assert sum(kind == "asr" for kind, _ in talk.conversation._jobs.values()) <= 1
    talk.until(events.TurnEnded)
    assert len(finals(talk)[0].text.split()) >= 5 * WORDS_PER_S


def test_typing_while_the_recogniser_is_behind_says_what_is_given_up(
    slow_talk: Callable[..., tuple[Talk, dict[str, KindCost]]],
) -> None:
    talk, _ = slow_talk(asr=SLOW_ASR)
    talk.say(3000)
    talk.silence(500)
    talk.hop(command=SayText("Never mind."))
    talk.until(events.AgentSaid)
    talk.silence(500)
    assert "what was being said gives way to what was typed" in notices(talk)
    assert [event.text for event in finals(talk)] == ["Never mind."]
    assert talk.desk.is_idle()


@pytest.mark.parametrize(
    "slow",
    [{"tts": KindCost(0.0, 110.0)}, {"llm": KindCost(80.0, 0.0, each_ms=900.0)}],
    ids=["voice", "language model"],
)
def test_a_reply_that_is_made_slower_than_it_is_said_comes_whole_and_its_gaps_are_counted_and_shown(
    slow_talk: Callable[..., tuple[Talk, dict[str, KindCost]]], slow: dict[str, KindCost]
) -> None:
    talk, _ = slow_talk(**slow)
    talk.say(1000)
    said = talk.until(events.AgentSaid, limit_ms=60_000)
    assert said.heard == ENGINES.llm.reply  # type: ignore[attr-defined]
    assert talk.control.underruns > 0
    assert sum("the reply paused for" in message for message in notices(talk)) == talk.control.underruns


def test_at_the_usual_costs_nothing_is_said_of_it(slow_talk: Callable[..., tuple[Talk, dict[str, KindCost]]]) -> None:
    talk, _ = slow_talk()
    for _ in range(3):
        talk.say(3000)
        talk.until(events.AgentSaid)
    assert notices(talk) == []
    assert talk.control.underruns == 0


def test_a_decode_that_has_begun_holds_its_worker_although_nobody_wants_it_any_more() -> None:
    table = CostTable("test", {kind: KindCost(100.0, 0.0) for kind in COSTS.rows})
    desk = Desk(ChargedRelease(table, is_paced=False), table)
    try:
        begun = desk.submit("asr", lambda _: ["void"], size=1, now_samples=0)
        assert desk.next_due(160) is None
        desk.cancel(begun, 160)
        desk.submit("asr", lambda _: ["wanted"], size=1, now_samples=160)
        assert desk.next_due(3199) is None
        delivery = desk.next_due(3200)  # 100 ms of the first, 100 ms of its own
        assert delivery is not None
        assert delivery.value == "wanted"
        desk.next_due(3200)
    finally:
        assert desk.close()
