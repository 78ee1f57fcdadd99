"""`vivavoce bench soak`: does it hold for hours, in figures.

Four scenes. *soak*: hours of conversation faster than real time, on devices that drift, stall, jump and vanish, with
an ear and an engine that die, models that are slow, typed questions, stop keys and interruptions. *slow*: one model
cannot keep up for a minute. *session* and *live_session*: conversations opened and closed. The language model
recites, because only its time would matter, and that is charged; ear, recogniser, end-of-turn model and voice are
real. Sessions run on stub engines. Then what only real processes can show: *device_loss* on the sound server that is
there, and *kills* in live conversations.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from app.bench.document import Benchmark, Metrics, Row
from app.bench.kills import kill_metrics, kill_rows
from app.bench.losses import loss_rows
from app.bench.scenes import Voices
from app.bench.soak_plan import Clip
from app.bench.soak_sessions import left_over, live_rows, local_rows
from app.bench.soak_slow import slow_rows
from app.bench.soak_talk import soak_rows
from app.config.schema import Config
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import cost_table
from app.histogram import quantiles
from app.samples import sample_questions

_LIVE_SHARE = 20
"""One live session for so many local ones."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each scene."""

    hours: float = 1.0
    sessions: int = 200
    kills: int = 10
    """Of each process, in real time: a kill takes about 40 s."""
    keep: Callable[[Sequence[Row]], None] = lambda rows: None
    """Called with all rows so far behind every scene."""


def measure(config: Config, *, seed: int, size: Size) -> list[Row]:
    """All rows of one run; the sessions first, while this process is small."""
    where = places(config, os.environ)
    check_models(config, where)
    clips = [Clip(str(sample.path), sample.text) for sample in sample_questions()]
    question, ear, costs = (
        str(sample_questions()[0].path),
        ear_spec(config, model_files(config, where)),
        cost_table("fixed"),
    )
    rows: list[Row] = []

    def take(scene: Iterable[Row]) -> None:
        try:
            rows.extend(scene)
        finally:
            size.keep(rows)

    take(local_rows(config, ear, costs, question, size.sessions))
    take(live_rows(config, question, size.sessions // _LIVE_SHARE))
    engines, _ = open_engines(config, where)
    voices = Voices(config, ear, engines, costs, [str(clip.source) for clip in clips])
    take(slow_rows(voices, clips))
    take(soak_rows(voices, seed=seed, hours=size.hours))
    take(loss_rows(size.kills))
    take(kill_rows(config, seed=seed, kills=size.kills))
    return rows


def metrics(rows: Sequence[Row]) -> Metrics:
    """Every figure that the project states about long runs, from the rows alone."""
    return _talked(rows) | _slow(rows) | _sessions(rows) | _losses(rows) | kill_metrics(rows)


def _losses(rows: Sequence[Row]) -> dict[str, float]:
    losses = [row for row in rows if row["scene"] == "device_loss"]
    return {
        "device_losses": float(len(losses)),
        "device_detect_max_s": max((row["detect_s"] for row in losses), default=math.nan),
        "device_recover_max_s": max((row["recover_s"] for row in losses), default=math.nan),
    }


def _talked(rows: Sequence[Row]) -> dict[str, float]:
    """`lost_turns` and `hangs` are those of the slow scene too."""
    scene = [row for row in rows if row["scene"] == "soak"]
    both = [row for row in rows if row["scene"] in ("soak", "slow")]
    summary = [row for row in scene if row["kind"] == "summary"]
    gauges = [row for row in scene if row["kind"] == "gauge"]
    hung = sum(
        row["kind"] == "hang" or (row["kind"] == "arm" and row["hangs"] + (not row["is_idle_at_end"])) for row in both
    )
    return {
        "hours": sum(row["hours"] for row in summary),
        "turns": float(sum(row["turns"] for row in summary)),
        "faults": float(sum(row["kind"] in ("fault", "device") for row in scene)),
        "lost_turns": float(sum(row.get("outcome") == "lost" for row in both)),
        "hangs": float(hung),
        "misheard_turns": float(sum(row.get("outcome") == "misheard" for row in both)),
        "unheard_interruptions": float(sum(row.get("outcome") == "unheard" for row in both)),
        "spurious_turns": float(sum(row["kind"] == "spurious" for row in both)),
        "clean_turns": float(sum(row.get("is_clean", False) for row in scene)),
        "latency_creep_ms": _creep_ms([row for row in scene if row.get("is_clean")]),
        "rss_slope_mb_per_hour": _slope([(row["at_s"] / 3600, row["rss_kb"] / 1024) for row in _later(gauges)]),
        "jobs_max": max((row["jobs"] for row in gauges), default=math.nan),
        "jobs_slope_per_hour": _slope([(row["at_s"] / 3600, row["jobs"]) for row in gauges]),
        "mic_blocks_max": max((row["mic_blocks"] for row in gauges), default=math.nan),
        "split_slope_ms_per_hour": _slope([(r["at_s"] / 3600, r["split_ms"]) for r in gauges if r["split_ms"]]),
    }


def _creep_ms(clean: Sequence[Row]) -> float:
    """Median voice-to-voice of the last tenth of the clean turns minus that of the first.

    What the table charges for the first clause is taken off, and then each question's own median: both depend on
    the words alone, and with them the difference of two medians says little.
    """
    usual = {
        text: quantiles(r["uncharged_ms"] for r in clean if r["text"] == text).p50
        for text in {r["text"] for r in clean}
    }
    rest = [row["uncharged_ms"] - usual[row["text"]] for row in clean]
    tenth = max(1, len(rest) // 10)
    return quantiles(rest[-tenth:]).p50 - quantiles(rest[:tenth]).p50


def _slow(rows: Sequence[Row]) -> dict[str, float]:
    arms = [row for row in rows if row["scene"] == "slow" and row["kind"] == "arm"]
    heard = [row for row in arms if row["model"] == "asr"]
    words = sum(row["words"] for row in heard)
    return {
        "slow_behind_max_s": max((row["behind_max_s"] for row in heard), default=math.nan),
        "slow_jobs_max": max((row["jobs_max"] for row in arms), default=math.nan),
        "slow_caught_up_max_s": max(
            (math.inf if row["caught_up_s"] is None else row["caught_up_s"] for row in heard), default=math.nan
        ),
        "slow_wer": sum(row["word_errors"] for row in heard) / words if words else math.nan,
    }


def _sessions(rows: Sequence[Row]) -> dict[str, float]:
    """The slope over the sessions behind the first quarter: of 200, over 50 to 200."""
    local = [row for row in rows if row["scene"] == "session"]
    live = [row for row in rows if row["scene"] == "live_session"]
    return {
        "sessions": float(len(local)),
        "live_sessions": float(len(live)),
        "sessions_unanswered": float(sum(row["answered"] != 1 for row in [*local, *live])),
        "rss_slope_kb_per_session": _slope([(row["number"], row["rss_kb"]) for row in _later(local)]),
        "left_over": float(left_over(local) + left_over(live)),
    }


def _later(rows: Sequence[Row]) -> Sequence[Row]:
    """All but the first quarter, in which pools and caches fill."""
    return rows[len(rows) // 4 :]


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line; NaN where there is none."""
    if len(points) < 2:
        return math.nan
    x, y = np.array(points, np.float64).T
    return float(np.polyfit(x, y, 1)[0])


BENCHMARK = Benchmark("soak", measure, metrics)
