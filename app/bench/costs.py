"""`vivavoce bench costs`: what the models take on this machine, and the cost table fitted to it.

For each kind: least squares of time over size, the line then raised until nine of ten measured jobs cost no
more than it says: a charge is what a user must expect, not a lucky run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.document import Benchmark, Metrics, Row
from app.bench.reciting import PROSE
from app.config.schema import Config
from app.conversation.costs import UNITS
from app.engine.builder import check_models, open_engines, places
from app.samples import sample_questions
from audio.block import SAMPLE_RATE_HZ
from audio.files import read_audio
from audio.resample import resample
from gpu.llm.protocol import Message, SamplingParams

_REPEATS = 5
_REPLY_TOKENS = 24
_RAISE_TO = 0.9


def measure(config: Config, *, seed: int, size: object = None) -> list[Row]:
    """Time every kind of job over the sizes that conversations have, kinds in turn."""
    where = places(config, os.environ)
    check_models(config, where)
    engines, _ = open_engines(config, where)
    clips = [resample(*read_audio(sample.path), SAMPLE_RATE_HZ) for sample in sample_questions()]
    clips += [np.concatenate(clips[:count]) for count in (2, 3, 4)]
    sentences = [part.strip() + "." for part in PROSE.split(".") if part.strip()]
    rows: list[dict[str, Any]] = []
    for repeat in range(_REPEATS + 1):
        for clip in clips:
            seconds = len(clip) / SAMPLE_RATE_HZ
            rows.append(_timed("asr", seconds, repeat, lambda clip=clip: engines.asr.transcribe(clip)))
            rows.append(_timed("turn", 0.0, repeat, lambda clip=clip: engines.turn.predict(clip)))
        for sentence in sentences:
            rows.append(_timed("tts", len(sentence), repeat, lambda s=sentence: engines.tts.synthesize(s)))
            rows.append(_reply(engines.llm, sentence, repeat, seed))
    return [row for row in rows if row["repeat"] > 0]


def _timed(kind: str, size: float, repeat: int, work: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    work()
    return {"kind": kind, "size": size, "repeat": repeat, "first_ms": (time.perf_counter() - begun) * 1000}


def _reply(llm: Any, question: str, repeat: int, seed: int) -> dict[str, Any]:
    begun = time.perf_counter()
    stamps = []
    messages = [Message("user", f"{repeat}. {question}")]
    for _ in llm.generate(messages, SamplingParams(seed=seed), max_tokens=_REPLY_TOKENS, cancelled=lambda: False):
        stamps.append((time.perf_counter() - begun) * 1000)
    each = [b - a for a, b in pairwise(stamps)]
    return {"kind": "llm", "size": len(question), "repeat": repeat, "first_ms": stamps[0], "each_ms": each}


def metrics(rows: Sequence[Row]) -> Metrics:
    """The table: `KIND_base_ms`, `KIND_per_unit_ms`, and `llm_each_ms`."""
    found: dict[str, float] = {}
    for kind in UNITS:
        mine = [row for row in rows if row["kind"] == kind]
        sizes = np.array([row["size"] for row in mine])
        times_ms = np.array([row["first_ms"] for row in mine])
        slope = 0.0 if np.ptp(sizes) == 0 else max(0.0, float(np.polyfit(sizes, times_ms, 1)[0]))
        found[f"{kind}_base_ms"] = float(np.quantile(times_ms - slope * sizes, _RAISE_TO))
        found[f"{kind}_per_unit_ms"] = slope
    each = [value for row in rows if row["kind"] == "llm" for value in row["each_ms"]]
    found["llm_each_ms"] = float(np.quantile(each, _RAISE_TO))
    return found


def write_table(found: Metrics, path: Path) -> None:
    """The cost table as a TOML file."""
    lines = ["# What a job costs when it is charged; made by `vivavoce bench costs`, see docs/benchmarks/costs.json."]
    for kind, unit in UNITS.items():
        lines += ["", f"[{kind}]  # unit: {unit}"]
        lines += [f"base_ms = {found[f'{kind}_base_ms']:.1f}", f"per_unit_ms = {found[f'{kind}_per_unit_ms']:.3f}"]
        if kind == "llm":
            lines.append(f"each_ms = {found['llm_each_ms']:.1f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


BENCHMARK = Benchmark("costs", measure, metrics)
