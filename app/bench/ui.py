"""`vivavoce bench ui`: what the window costs. Conversations with it and without it take turns, on the same questions.

The measuring in the window is `app.ui`'s, which this package does not know: who starts the program hands it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from app import events
from app.bench.document import Benchmark, Metrics, Row
from app.bench.live_scenes import talk_live
from app.config.schema import Config
from app.errors import AgentError
from app.samples import sample_questions
from audio.block import SAMPLE_RATE_HZ

TURNS_EACH = 4
"""Questions in one conversation."""
_MIN_TOKENS = 8
"""An answer that is shorter says nothing about speed."""

WindowArm = Callable[[Config, Sequence[str], int], list[dict[str, Any]]]
"""(configuration, WAV files of the questions, how many are asked) to rows of one conversation in the window."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much, and where the window comes from."""

    turns: int
    """Questions to each of the two faces, in conversations of `TURNS_EACH`; at least one conversation."""
    window: WindowArm | None


def measure(config: Config, *, seed: int, size: Size) -> list[Row]:
    """Rows of every pair: a conversation in the window and one without, the first of them in turn.

    Raises:
        AgentError: nobody has handed a window in.
    """
    if size.window is None:
        raise AgentError("bench ui opens a window, which this command has not", fix="Run: vivavoce bench ui")
    questions = [str(sample.path) for sample in sample_questions()]
    rows: list[Row] = []
    for pair in range(max(1, size.turns // TURNS_EACH)):
        for has_window in (True, False) if pair % 2 == 0 else (False, True):
            if has_window:
                made = size.window(config, questions, TURNS_EACH)
            else:
                made = token_rows(talk_live(config, questions, TURNS_EACH).of(events.Arrival))
            rows += [{"pair": pair, "window": has_window, **row} for row in made]
    return rows


def token_rows(arrivals: Sequence[events.Arrival]) -> list[dict[str, Any]]:
    """A row for each answer of the language model: pieces after the first, and the time they took."""
    jobs: dict[int, list[events.Arrival]] = {}
    for arrival in arrivals:
        if arrival.kind == "llm":
            jobs.setdefault(arrival.job, []).append(arrival)
    return [
        {
            "scene": "tokens",
            "tokens": len(pieces) - 1,
            "seconds": (pieces[-1].at_samples - pieces[0].at_samples) / SAMPLE_RATE_HZ,
        }
        for pieces in jobs.values()
        if len(pieces) >= _MIN_TOKENS
    ]


def metrics(rows: Sequence[Row]) -> Metrics:
    """From the rows alone. The window's figures are of the conversation, not of the time in which it loads."""
    starts = [row["up_s"] for row in rows if row["scene"] == "start"]
    seconds = [row for row in rows if row["scene"] == "second" and not row["is_loading"]]
    wall_s = sum(row["wall_s"] for row in seconds)
    ratios = _ratios(rows)
    return {
        "window_up_s": median(starts) if starts else math.nan,
        "ui_seconds": wall_s,
        "ui_stall_max_ms": max((row["stall_ms"] for row in seconds), default=math.nan),
        "ui_cpu_core_fraction": sum(row["cpu_s"] for row in seconds) / wall_s if wall_s else math.nan,
        "pairs": float(len(ratios)),
        "tokens_with_ui_over_without": median(ratios) if ratios else math.nan,
        "tokens_ratio_min": min(ratios, default=math.nan),
        "tokens_ratio_max": max(ratios, default=math.nan),
    }


def _ratios(rows: Sequence[Row]) -> list[float]:
    """Of each pair that has both: tokens a second with the window over those without."""
    ratios = []
    for pair in sorted({row["pair"] for row in rows}):
        with_ui, without = (_per_second(rows, pair, has_window) for has_window in (True, False))
        if with_ui and without:
            ratios.append(with_ui / without)
    return ratios


def _per_second(rows: Sequence[Row], pair: int, has_window: bool) -> float:
    answers = [r for r in rows if r["scene"] == "tokens" and r["pair"] == pair and r["window"] is has_window]
    seconds = sum(row["seconds"] for row in answers)
    return float(sum(row["tokens"] for row in answers) / seconds) if seconds else 0.0


BENCHMARK = Benchmark("ui", measure, metrics)
