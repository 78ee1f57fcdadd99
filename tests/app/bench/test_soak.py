"""The soak, minutes with as many faults as half an hour has: nothing lost, nothing hangs, and it would be seen."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from app import events
from app.bench.scenes import Voices
from app.bench.soak import metrics
from app.bench.soak_ledger import Ledger, Said, placed, utterance_rows
from app.bench.soak_plan import STATES, plan_faults
from app.bench.soak_sessions import left_over, local_rows
from app.bench.soak_talk import Soak
from app.config.load import load_config
from app.config.schema import Config
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import cost_table
from app.models.store import Store
from app.samples import sample_questions
from audio.block import SAMPLE_RATE_HZ
from audio.io.device import SpokenUtterance

S = SAMPLE_RATE_HZ
SAID = [Said("What is the capital of France?", 1 * S, 3 * S, True)]


@pytest.fixture(scope="module")
def config(model_store: Store) -> Config:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    return load_config(file=None, env=os.environ, overrides=[]).config


def turn(ledger: Ledger, number: int, text: str, onset_s: float, at_s: float, *, is_answered: bool = True) -> None:
    """One spoken question, as the conversation tells it."""
    at = int(at_s * S)
    ledger.take(events.UserSpeechStarted(int(onset_s * S) + 3200, number, int(onset_s * S)))
    ledger.take(events.StateChanged(int(onset_s * S) + 3200, "hearing"))
    ledger.take(events.TurnEnded(at, number, "complete", at - 3200))
    ledger.take(events.UserTranscript(at, number, text, True, len(text)))
    ledger.take(events.StateChanged(at, "thinking"))
    if is_answered:
        ledger.take(events.StateChanged(at + S, "speaking"))
        ledger.take(events.AgentSaid(at + 2 * S, number, "It is.", "It is.", False))
        ledger.take(events.StateChanged(at + 2 * S, "listening"))


def outcomes(ledger: Ledger, said: list[Said] = SAID, kept: list[str] | None = None) -> list[str]:
    kept = [final.text for final in ledger.finals] if kept is None else kept
    return [row["outcome"] for row in utterance_rows(ledger, said, [], kept) if "outcome" in row]


def test_a_question_that_is_transcribed_kept_and_answered_is_not_lost() -> None:
    ledger = Ledger()
    turn(ledger, 1, "What is the capital of France?", 1.0, 3.3)
    assert outcomes(ledger) == ["answered"]


def test_a_swallowed_turn_is_lost() -> None:
    assert outcomes(Ledger()) == ["lost"]
    unanswered, not_kept, other_words = Ledger(), Ledger(), Ledger()
    turn(unanswered, 1, "What is the capital of France?", 1.0, 3.3, is_answered=False)
    turn(not_kept, 1, "What is the capital of France?", 1.0, 3.3)
    turn(other_words, 1, "And so on", -2.0, 3.3)  # a turn that had begun long before
    assert outcomes(unanswered) == ["lost"]
    assert outcomes(not_kept, kept=[]) == ["lost"]
    assert outcomes(other_words) == ["lost"]


def test_what_never_reached_the_microphone_or_was_typed_over_is_not_lost() -> None:
    hurt = [Said("What is the capital of France?", 1 * S, 3 * S, False)]
    assert outcomes(Ledger(), hurt) == ["not delivered"]
    typed = Ledger()
    typed.take(events.UserSpeechStarted(1 * S, 1, 1 * S))
    typed.take(events.StateChanged(1 * S, "hearing"))
    typed.take(events.CommandTaken(4 * S, "say", "Stop that."))
    assert outcomes(typed) == ["typed over", "lost"]  # and the typed words came to nothing here


def test_a_user_whom_the_agents_voice_hid_is_counted_apart_but_only_if_it_talked_all_the_time() -> None:
    for until_s, outcome in ((3.5, "unheard"), (2.5, "lost")):
        ledger = Ledger()
        ledger.take(events.StateChanged(S // 2, "speaking"))
        ledger.take(events.StateChanged(int(until_s * S), "listening"))
        assert outcomes(ledger) == [outcome]


def test_a_turn_that_goes_on_counts_with_its_last_transcript_and_one_that_nobody_began_is_spurious() -> None:
    ledger = Ledger()
    turn(ledger, 1, "What is", 1.0, 2.0, is_answered=False)
    ledger.take(events.StateChanged(int(2.2 * S), "hearing"))
    ledger.take(events.TurnEnded(int(3.3 * S), 1, "complete", 3 * S))
    ledger.take(events.UserTranscript(int(3.3 * S), 1, "What is the capital of France?", True, 30))
    ledger.take(events.StateChanged(int(3.3 * S), "thinking"))
    ledger.take(events.StateChanged(4 * S, "speaking"))
    ledger.take(events.UserSpeechStarted(5 * S, 2, 5 * S))
    turn(ledger, 2, "Its own echo", 5.0, 6.0)
    rows = utterance_rows(ledger, SAID, [], [final.text for final in ledger.finals])
    assert [row.get("outcome", row["kind"]) for row in rows] == ["interrupted", "spurious"]


def test_a_state_that_does_not_move_is_a_hang_once() -> None:
    ledger = Ledger()
    turn(ledger, 1, "What?", 1.0, 3.0, is_answered=False)
    for now_s in range(3, 30):
        ledger.watch(now_s * S, is_slow=False)
    assert [hang["state"] for hang in ledger.hangs] == ["thinking", "thinking"]  # told again after as long again
    idle = Ledger()
    idle.watch(10_000 * S, is_slow=False)
    assert idle.hangs == []


def test_utterances_are_placed_behind_what_stalls_swallowed() -> None:
    spoken = [
        SpokenUtterance("a", 0, 48_000, 96_000, False),  # 1 to 2 s of the device's time
        SpokenUtterance("b", 0, 240_000, 288_000, False),  # 5 to 6 s, behind a stall of 1 s
        SpokenUtterance("c", 0, 384_000, 432_000, False),  # 8 to 9 s, with a stall inside
    ]
    rows = placed(
        spoken, ["a", "b", "c"], rate_hz=48_000, first_block=100, end_block=10_000, stalls=[(3.0, 1.0), (8.5, 0.2)]
    )
    assert [(row.onset_samples / S, row.end_samples / S) for row in rows[:2]] == [(2.0, 3.0), (5.0, 6.0)]
    assert [row.is_delivered for row in rows] == [True, True, False]
    cut = placed(spoken[:1], ["a"], rate_hz=48_000, first_block=0, end_block=150, stalls=[])
    assert not cut[0].is_delivered


def test_a_plan_is_its_seeds_and_kills_in_every_state() -> None:
    assert plan_faults(3, 1.0, 1.0) == plan_faults(3, 1.0, 1.0)
    assert plan_faults(3, 1.0, 1.0) != plan_faults(4, 1.0, 1.0)
    assert {fault.state for fault in plan_faults(3, 1.0, 1.0) if fault.kind == "engine"} == set(STATES)


def test_figures_of_real_processes_are_null_until_their_rows_are_there() -> None:
    found = metrics([])
    assert math.isnan(found["device_detect_max_s"])
    assert math.isnan(found["engine_restart_p95_s"])
    rows = [
        {"scene": "device_loss", "detect_s": 0.6, "recover_s": 1.2},
        {"scene": "kills", "kind": "kill", "process": "engine", "back_ms": 3000.0, "word_ms": None},
        {"scene": "kills", "kind": "kill", "process": "engine", "back_ms": 5000.0, "word_ms": 700.0},
    ]
    found = metrics(rows)
    names = ("device_detect_max_s", "device_recover_max_s", "engine_restart_p95_s")
    assert [found[name] for name in names] == [0.6, 1.2, 5.0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_minutes_with_the_faults_of_half_an_hour_lose_nothing_and_hang_nowhere(
    config: Config, tmp_path: Path
) -> None:
    where = places(config, os.environ)
    check_models(config, where)
    engines, _ = open_engines(config, where)
    voices = Voices(config, ear_spec(config, model_files(config, where)), engines, cost_table("fixed"), [])
    soak = Soak(voices, seed=5, hours=2 / 60, density=8, journal=tmp_path / "journal.jsonl")
    rows = soak.rows()
    found = metrics(rows)
    lost = [row for row in rows if row.get("outcome") == "lost" or row["kind"] == "hang"]
    assert (found["lost_turns"], found["hangs"]) == (0, 0), lost
    assert found["turns"] >= 8
    assert found["unheard_interruptions"] <= 2
    assert {row["fault"] for row in rows if row["kind"] == "fault"} == {"engine", "ear", "slow", "say", "stop"}
    assert {row["state"] for row in rows if row.get("fault") == "engine"} == set(STATES)
    assert found["jobs_max"] <= 8
    # The same conversation with one turn less in it.
    good = next(row for row in rows if row.get("outcome") in ("answered", "interrupted") and row["kind"] == "utterance")
    soak.ledger.finals = [final for final in soak.ledger.finals if final.text != good["heard_as"]]
    assert "lost" in outcomes(soak.ledger, soak.said)


@pytest.mark.slow
def test_conversations_that_are_closed_leave_nothing(config: Config) -> None:
    ear = ear_spec(config, model_files(config, places(config, os.environ)))
    rows = local_rows(config, ear, cost_table("fixed"), str(sample_questions()[0].path), 6)
    assert [row["answered"] for row in rows] == [1] * 6
    assert left_over(rows) == 0
    assert rows[-1]["rss_kb"] - rows[0]["rss_kb"] < 30_000
    rows[-1]["threads"] += 1
    assert left_over(rows) == 1
