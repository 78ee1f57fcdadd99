"""`vivavoce bench talk`: does the conversation hold, in figures.

Four scenes. *voice*: live processes, starter models, a user who asks; *framework*: the same on stub engines;
*headset*: interruptions without echo, simulated; *echo*: long replies through rooms, with and without a user
who interrupts, simulated. Simulated scenes charge the committed cost table and score the audio.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.document import Benchmark, Metrics, Row
from app.bench.live_scenes import STUB, framework_rows, hop_rows, talk_live, voice_rows
from app.bench.scenes import ERL_DB, ROOMS, Voices, barge_in_rows, echo_rows
from app.config.schema import Config
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import cost_table
from app.histogram import quantiles
from app.samples import sample_questions

ACT_LIMIT_MS = 1000.0
"""An interruption was acted on if the old reply had ended this long after its onset."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each scene."""

    turns: int = 20
    barge_ins: int = 50
    rooms: int = ROOMS
    erls: Sequence[float] = ERL_DB
    is_live: bool = True


def measure(config: Config, *, seed: int, size: Size) -> list[Row]:
    """All rows of one run; the live scenes first, while the machine is quiet."""
    questions = [str(sample.path) for sample in sample_questions()]
    rows: list[dict[str, Any]] = []
    if size.is_live:
        voice = talk_live(config, questions, size.turns)
        rows += voice_rows(voice) + hop_rows(voice)
        rows += framework_rows(talk_live(config, questions, size.turns, stub=STUB), STUB)
    where = places(config, os.environ)
    check_models(config, where)
    engines, _ = open_engines(config, where)
    ear = ear_spec(config, model_files(config, where))
    voices = Voices(config, ear, engines, cost_table("fixed"), questions)
    rows += barge_in_rows(voices, cases=size.barge_ins)
    rows += echo_rows(voices, seed=seed, rooms=size.rooms, erls=size.erls)
    return rows


def metrics(rows: Sequence[Row]) -> Metrics:
    """Every figure that the project states about a conversation, from the rows alone."""
    voice = [row for row in rows if row["scene"] == "voice"]
    answered = quantiles(row["voice_to_voice_ms"] for row in voice if row["voice_to_voice_ms"] is not None)
    framework = quantiles(row["since_decision_ms"] - row["stub_ms"] for row in rows if row["scene"] == "framework")
    found: dict[str, float] = {
        "voice_to_voice_p50_ms": answered.p50,
        "voice_to_voice_p95_ms": answered.p95,
        "questions_unanswered": float(sum(row["voice_to_voice_ms"] is None for row in voice)),
        "framework_p50_ms": framework.p50,
        "framework_p95_ms": framework.p95,
    }
    for stage in ("endpoint_ms", "asr_ms", "first_token_ms", "first_clause_ms", "tts_ms", "playback_ms"):
        found[stage.replace("_ms", "_p50_ms")] = quantiles(row[stage] for row in voice if stage in row).p50
    return found | _lateness(rows) | _headset(rows) | _echo(rows)


def _lateness(rows: Sequence[Row]) -> dict[str, float]:
    hops = [row for row in rows if row["scene"] == "hops"]
    late = [value for row in hops for value in row["late_ms"]]
    busy = [value for row in hops for value, flag in zip(row["late_ms"], row["is_busy"], strict=True) if flag]
    return {
        "hop_late_p99_ms": quantiles(late).p99,
        "hop_late_busy_p99_ms": quantiles(busy).p99,
        "hop_backlog_max": max((row["backlog_max"] for row in hops), default=math.nan),
        "callback_late_p99_ms": quantiles(value for row in hops for value in row["callback_late_ms"]).p99,
    }


def _headset(rows: Sequence[Row]) -> dict[str, float]:
    scene = [row for row in rows if row["scene"] == "headset"]
    stopped = [row for row in scene if row["was_interrupted_by_user"]]
    words = sum(row.get("heard_words", 0) for row in stopped)
    return {
        "barge_in_cases": float(len(stopped)),
        "barge_in_stop_p50_ms": quantiles(row["stop_ms"] for row in stopped).p50,
        "barge_in_stop_p95_ms": quantiles(row["stop_ms"] for row in stopped).p95,
        "barge_in_heard_wer": sum(row.get("heard_errors", 0) for row in stopped) / words if words else math.nan,
    }


def _echo(rows: Sequence[Row]) -> dict[str, float]:
    scene = [row for row in rows if row["scene"] == "echo"]
    minutes = sum(row["sounded_s"] for row in scene) / 60
    false = [row for row in scene if (row["gave_way"] and not row["was_interrupted_by_user"]) or not row["is_prompted"]]
    real = [row for row in scene if row["was_interrupted_by_user"]]
    acted = [row for row in real if row["gave_way"] and 0 <= row["stop_ms"] <= ACT_LIMIT_MS]
    return {
        "agent_speech_min": minutes,
        "self_interruptions": float(len(false)),
        "self_interruptions_per_10min": len(false) * 10 / minutes if minutes else math.nan,
        "interruptions": float(len(real)),
        "interruptions_acted_on": len(acted) / len(real) if real else math.nan,
        "interruption_stop_p50_ms": quantiles(row["stop_ms"] for row in acted).p50,
        "interruption_stop_p95_ms": quantiles(row["stop_ms"] for row in acted).p95,
    }


BENCHMARK = Benchmark("talk", measure, metrics)
