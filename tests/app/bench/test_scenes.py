"""The simulated scenes of `bench talk`, a few of them: no self-interruption, and a user who is heard."""

from __future__ import annotations

import os

import pytest

from app.bench.scenes import Voices, barge_in_rows, echo_rows
from app.bench.talk import metrics
from app.config.load import load_config
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import cost_table
from app.models.store import Store
from app.samples import sample_questions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def voices(model_store: Store) -> Voices:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    config = load_config(file=None, env=os.environ, overrides=[]).config
    where = places(config, os.environ)
    check_models(config, where)
    engines, _ = open_engines(config, where)
    questions = [str(sample.path) for sample in sample_questions()]
    return Voices(config, ear_spec(config, model_files(config, where)), engines, cost_table("fixed"), questions)


def test_the_agent_never_interrupts_itself_and_a_user_as_loud_as_the_echo_does(voices: Voices) -> None:
    found = metrics(echo_rows(voices, seed=3, rooms=2, erls=(6.0, 30.0)))
    assert found["agent_speech_min"] > 3
    assert found["self_interruptions"] == 0
    assert found["interruptions"] == 12
    assert found["interruptions_acted_on"] >= 0.95


def test_an_interruption_stops_the_reply_and_the_history_ends_where_the_sound_did(voices: Voices) -> None:
    rows = barge_in_rows(voices, cases=8)
    found = metrics(rows)
    assert found["barge_in_cases"] == 8
    assert found["barge_in_stop_p95_ms"] <= 450
    assert found["barge_in_heard_wer"] <= 0.25  # a word that was cut in the middle is heard as another
    for row in rows:
        if row["was_interrupted_by_user"]:
            assert abs(len(row["heard"].split()) - len(row["transcribed"].split())) <= 2
