"""`vivavoce bench kv`: what the KV arena costs, beside the ways in which others keep keys and values.

On a GPU: Llama-1B and 8B shapes in bfloat16, all arms in one run and in turn. Without one: a small shape in memory
pages, fewer arms, and figures of other names (`host_...`), for they are not those of a GPU. A scene that fails
leaves a row that says so, and the others go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.document import Benchmark, Metrics, Row
from app.bench.kv_arms import append_rows, flat_rows
from app.bench.kv_bed import Bed, gpu_bed, host_bed
from app.bench.kv_driver import driver_rows
from app.bench.kv_graph import count_rows, growth_rows, replay_rows, tail_p99
from app.bench.kv_scenes import (
    fork_rows,
    persona_rows,
    policy_rows,
    rollback_rows,
    sharing_rows,
    sleep_rows,
    snapshot_rows,
    window_rows,
)
from app.config.schema import Config
from app.histogram import quantiles
from gpu.device import choose_device

Scene = Callable[[Bed], Iterator[dict[str, Any]]]
_LENGTHS = (1024, 32768)
_LAST_START_S = 135.0
"""No scene begins later than this."""
_EVERYWHERE: dict[str, Scene] = {
    "rollback": rollback_rows,
    "fork": fork_rows,
    "persona": persona_rows,
    "window": window_rows,
    "policy": policy_rows,
    "snapshot": snapshot_rows,
    "append": append_rows,
    "flat": flat_rows,
}
# A fault of a kernel ends CUDA for the whole process: scenes with graphs come last.
_GPU: dict[str, Scene] = {
    "driver": driver_rows,
    "sleep": sleep_rows,
    "sharing": sharing_rows,
    **_EVERYWHERE,
    "counts": count_rows,
    "replay": replay_rows,
    "growth": growth_rows,
}


@dataclass(frozen=True, slots=True)
class Size:
    """Who wants the rows as they come."""

    keep: Callable[[Sequence[Row]], None] = lambda rows: None
    """Called with all rows so far behind every scene."""


def measure(config: Config, *, seed: int, size: Size) -> list[Row]:
    """Every scene that the machine has a device for."""
    import torch

    device, remark = choose_device("auto")
    bed = gpu_bed(device) if device != "cpu" else host_bed()
    torch.manual_seed(seed)
    return run_scenes(bed, _GPU if bed.on_gpu else _EVERYWHERE, remark=remark, keep=size.keep)


def run_scenes(
    bed: Bed, scenes: dict[str, Scene], *, remark: str = "", keep: Callable[[Sequence[Row]], None] = lambda rows: None
) -> list[Row]:
    """One scene after the other, whatever becomes of each."""
    rows: list[Row] = [_machine(bed, remark)]
    begun = time.perf_counter()
    for name, scene in scenes.items():
        started = time.perf_counter()
        if started - begun > _LAST_START_S:
            rows.append({"scene": name, "error": "no time was left for it"})
            continue
        try:
            for row in scene(bed):  # kept at once: what was measured before a failure stays
                rows.append(row)
        except Exception as error:  # a bug of ours, of a library or of a driver: the other scenes go on
            rows.append({"scene": name, "error": f"{type(error).__name__}: {error}"})
        bed.tidy()
        rows.append({"scene": "clock", "of": name, "wall_s": round(time.perf_counter() - started, 2)})
        keep(rows)
    return rows


def _machine(bed: Bed, remark: str) -> Row:
    with bed.arena(bed.shapes[0], 16) as arena:
        backend, reason, page_bytes = arena.backend.name, arena.reason, arena.backend.page_bytes
    row = {"scene": "machine", "device": bed.device, "dtype": bed.dtype, "backend": backend, "page_bytes": page_bytes}
    shapes = {s.name: [s.layers, s.kv_heads, s.head_dim] for s in bed.shapes}
    return {**row, "remarks": [text for text in (remark, reason) if text], "shapes": shapes}


def metrics(rows: Sequence[Row]) -> Metrics:
    """Every figure that the project states about its arena, from the rows alone; those of a GPU only from one.

    Medians; of several shapes the worst. `append_32k_over_128`: wall time of an append, eager and in the graph.
    `cat_over_append_...`: wall time of warm `torch.cat` over ours in the graph (`cat_over_eager_append_...`: over
    ours eager). `graph_append_us_per_token`: a replay's GPU time less that of the cheaper of two graphs with next to
    nothing in them. `p99_with_growth_over_without`: the worst run with growth over the median run without.
    `persona_switch_ms`: from the call to views of all layers. `rollback_1000_us`: until the next append may come
    (`rollback_1000_done_us`: until the device is idle).
    """
    whole = [row for row in rows if not {"error", "left_out"} & row.keys() and row.get("way") != "torch"]
    on_gpu = any(row["scene"] == "machine" and row["device"] != "cpu" for row in rows)
    found = _gpu(whole) if on_gpu else _host(whole)
    return found | {
        "scenes_failed": float(sum("error" in row for row in rows)),
        "inexact_rows": float(sum(row.get("is_exact") is False for row in rows)),
    }


def _gpu(rows: Sequence[Row]) -> dict[str, float]:
    cat_1k, cat_32k = (_p50(rows, "wall_us", scene="append", shape="8b", tokens=n, arm="cat_warm") for n in _LENGTHS)
    found = {"append_32k_over_128": _flatness(rows, 32768, "ours_eager", "ours_graph")}
    for prefix, arm in (("cat_over_append", "ours_graph"), ("cat_over_eager_append", "ours_eager")):
        for name, tokens, cat_us in (("1k", 1024, cat_1k), ("32k", 32768, cat_32k)):
            ours_us = _p50(rows, "wall_us", scene="append", shape="8b", tokens=tokens, arm=arm)
            found[f"{prefix}_{name}_8b"] = cat_us / ours_us
    return (
        found
        | _replays(rows)
        | _counts(rows)
        | _growth(rows)
        | _moments(rows)
        | {
            "sleep_512mib_ms": _worst_p50(rows, "sleep_ms", scene="sleep"),
            "wake_512mib_ms": _worst_p50(rows, "wake_ms", scene="sleep"),
            "prefix_bytes_8_sessions_over_ideal": _worst(
                row["used_bytes"] / row["ideal_bytes"] for row in rows if row["scene"] == "sharing"
            ),
        }
    )


def _host(rows: Sequence[Row]) -> dict[str, float]:
    cat_us, ours_us = (
        _p50(rows, "wall_us", scene="append", tokens=1024, arm=arm) for arm in ("cat_warm", "ours_eager")
    )
    found = {
        "append_1k_over_128": _flatness(rows, 1024, "ours_eager"),
        "cat_over_append_1k": cat_us / ours_us,
    } | _moments(rows)
    return {f"host_{name}": value for name, value in found.items()}


def _flatness(rows: Sequence[Row], longest: int, *arms: str) -> float:
    """Wall time of an append at `longest` over that at 128, of the worst arm and shape."""
    flat = [row for row in rows if row["scene"] == "flat"]
    return _worst(
        _p50(flat, "wall_us", shape=shape, arm=arm, tokens=longest)
        / _p50(flat, "wall_us", shape=shape, arm=arm, tokens=128)
        for shape in sorted({row["shape"] for row in flat})
        for arm in arms
    )


def _replays(rows: Sequence[Row]) -> dict[str, float]:
    more, each = [], []
    for shape in sorted({row["shape"] for row in rows if row["scene"] == "replay"}):
        one, many, *empty = (
            _p50(rows, "gpu_us", scene="replay", shape=shape, arm=arm)
            for arm in ("append", "append_x16", "empty_fill", "empty_memset")
        )
        more.append(one - min((us for us in empty if not math.isnan(us)), default=math.nan))
        each.append((many - one) / 15)
    return {"graph_append_us_per_token": _worst(more), "graph_append_us_per_node": _worst(each)}


def _counts(rows: Sequence[Row]) -> dict[str, float]:
    counts = [row for row in rows if row["scene"] == "counts"]
    if {row["arm"] for row in counts} != {"ours_eager", "ours_graph"}:
        counts = []
    return {
        "allocations_per_token": _worst((r["allocations"] + r["alloc_retries"]) / r["tokens"] for r in counts),
        "syncs_per_token": _worst(row["syncs"] / row["tokens"] for row in counts),
    }


def _growth(rows: Sequence[Row]) -> dict[str, float]:
    growth = [row for row in rows if row["scene"] == "growth"]
    with_us, without_us = ([tail_p99(row) for row in growth if row["arm"] == arm] for arm in ("growing", "committed"))
    return {
        "p99_with_growth_over_without": _worst(with_us) / quantiles(without_us).p50,
        "growth_runs": float(len(with_us)),
    }


def _moments(rows: Sequence[Row]) -> dict[str, float]:
    """What there is on every machine."""
    window = [row for row in rows if row["scene"] == "window"]
    snapshot = [row for row in rows if row["scene"] == "snapshot"]
    return {
        "persona_switch_ms": _worst_p50(rows, "open_ms", scene="persona"),
        "fork_ms": _worst_p50(rows, "ms", scene="fork", tokens=2000),
        "rollback_1000_us": _worst_p50(rows, "call_us", scene="rollback"),
        "rollback_1000_done_us": _worst_p50(rows, "done_us", scene="rollback"),
        "window_step_last_over_first": _p50(window, "last_tenth_us") / _p50(window, "first_tenth_us"),
        "window_pages_grown": _worst(row["pages_last"] - row["pages_first"] for row in window),
        "policy_evict_half_ms": _worst_p50(rows, "ms", scene="policy"),
        "snapshot_write_gb_per_s": _gb_per_s(snapshot, "write_ms"),
        "snapshot_restore_gb_per_s": _gb_per_s(snapshot, "restore_ms"),
    }


def _gb_per_s(rows: Sequence[Row], key: str) -> float:
    return min((row["bytes"] / 1e6 / quantiles(row[key]).p50 for row in rows), default=math.nan)


def _p50(rows: Sequence[Row], key: str, **where: object) -> float:
    """Median of all values that the rows of that kind list under `key`; NaN where there are none."""
    return quantiles(value for row in _of(rows, where) for value in row[key]).p50


def _worst_p50(rows: Sequence[Row], key: str, **where: object) -> float:
    """The largest of the rows' medians."""
    return _worst(quantiles(row[key]).p50 for row in _of(rows, where))


def _of(rows: Sequence[Row], where: dict[str, object]) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in where.items())]


def _worst(values: Iterable[float]) -> float:
    """The largest; NaN where there is none, or where one is missing."""
    found = [float(value) for value in values]
    return math.nan if any(map(math.isnan, found)) else max(found, default=math.nan)


BENCHMARK = Benchmark("kv", measure, metrics)
