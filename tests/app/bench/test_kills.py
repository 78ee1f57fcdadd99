"""`kill -9` of every process in a live conversation: nothing finished and nothing heard is lost."""

from __future__ import annotations

import os
from typing import Any

import pytest

from app.bench import kills
from app.config.load import load_config
from app.models.store import Store


def _kill(process: str, back_ms: float | None, word_ms: float | None = None) -> dict[str, Any]:
    return {
        "scene": "kills",
        "kind": "kill",
        "process": process,
        "state": "hearing",
        "back_ms": back_ms,
        "word_ms": word_ms,
    }


def test_metrics_count_what_was_lost() -> None:
    rows = [
        _kill("engine", 3000.0, 700.0),
        _kill("engine", 4000.0, 800.0),
        _kill("ear", 400.0),
        _kill("audio", None),  # never came back
        {"kind": "face", "after_s": 1.0},
        {"kind": "question", "text": "a", "is_heard": True, "is_cut": False},
        {"kind": "question", "text": "b", "is_heard": False, "is_cut": True},  # the microphone was away
        {"kind": "question", "text": "c", "is_heard": False, "is_cut": False},
        {"kind": "reply", "heard_words": 5, "missing_words": 2, "unheard_words": 0},
        {"kind": "reply", "heard_words": 5, "missing_words": 0, "unheard_words": 1},
    ]
    found = kills.kill_metrics([{"scene": "kills", **row} for row in rows] + [{"scene": "soak", "kind": "kill"}])
    assert (found["kills"], found["kill_questions"], found["kill_lost_turns"]) == (5, 3, 1)
    assert (found["kill_lost_words"], found["kill_invented_words"]) == (2, 1)
    assert found["engine_back_max_ms"] == 4000
    assert found["engine_restart_p95_s"] == pytest.approx(4.0, abs=0.1)
    assert found["audio_back_max_ms"] == float("inf")
    assert found["one_moment_max_ms"] == 800


def test_words_are_found_in_their_own_round() -> None:
    rounds = "what is the capital how many days what color".split()
    asked = rounds * 6
    heard = asked[:9] + asked[13:30] + asked[36:]  # a cut in the second round, another over the third and fourth
    places = kills.common_places(asked, heard)
    assert len(places) == len(heard)
    assert [asked[place] for place in places] == heard
    assert set(places[:9]) == set(range(9))
    assert set(places[-9:]) == set(range(len(asked) - 9, len(asked)))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_processes_lose_no_turn_and_no_heard_word(model_store: Store) -> None:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    config = load_config(file=None, env=os.environ).config
    found = kills.kill_metrics(list(kills.kill_rows(config, seed=5, kills=1)))
    print(found)
    assert found["kills"] == 4
    assert found["kill_questions"] == 3
    assert found["kill_lost_turns"] == 0
    assert found["kill_replies"] >= 3
    assert (found["kill_lost_words"], found["kill_invented_words"]) == (0, 0)
    assert found["engine_back_max_ms"] <= 8000
    assert found["ear_back_max_ms"] <= 8000
    assert found["audio_back_max_ms"] <= 8000
    assert found["one_moment_max_ms"] <= 1000
