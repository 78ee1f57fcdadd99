"""`bench kv`: its figures follow from made-up rows, one scene's failure stays its own, and every scene runs here.

The scenes of a GPU run too, with stand-ins for CUDA's graphs, events and driver: what is checked is their
book-keeping (lengths, registers, pages), not their times.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from app.bench import kv, kv_driver, kv_graph  # noqa: E402
from app.bench.document import check_document  # noqa: E402
from app.bench.kv_bed import Bed, Clock, Shape, gpu_bed, host_bed  # noqa: E402
from app.bench.kv_table import table  # noqa: E402
from app.cli.main import main  # noqa: E402
from gpu.kv.pages import OutOfPagesError, PagesError  # noqa: E402

MIB = 1 << 20
MACHINE = {"scene": "machine", "device": "cuda:0"}
PROMISED = (
    "append_32k_over_128",
    "cat_over_append_1k_8b",
    "cat_over_append_32k_8b",
    "graph_append_us_per_token",
    "allocations_per_token",
    "syncs_per_token",
    "p99_with_growth_over_without",
    "persona_switch_ms",
    "fork_ms",
    "rollback_1000_us",
    "sleep_512mib_ms",
    "wake_512mib_ms",
    "prefix_bytes_8_sessions_over_ideal",
)


def append(tokens: int, arm: str, wall_us: list[float], scene: str = "append") -> dict[str, Any]:
    return {"scene": scene, "shape": "8b", "tokens": tokens, "arm": arm, "wall_us": wall_us, "gpu_us": wall_us}


def growth(arm: str, *slow_us: float) -> dict[str, Any]:
    """10,000 steps, the 100 longest of 900 us, then those."""
    return {"scene": "growth", "arm": arm, "steps": 10_000, "tail_us": [900.0] * 100 + [*slow_us]}


GPU_ROWS: list[dict[str, Any]] = [
    MACHINE,
    *(append(n, "ours_eager", [10.0, us, 99.0], "flat") for n, us in ((128, 50.0), (32768, 55.0))),
    *(append(n, "ours_graph", [us], "flat") for n, us in ((128, 10.0), (32768, 12.0))),
    append(1024, "cat_warm", [400.0, 500.0, 9000.0]),
    append(1024, "ours_graph", [9.0, 10.0, 11.0]),
    append(1024, "ours_eager", [50.0]),
    append(32768, "cat_warm", [2400.0]),
    append(32768, "ours_graph", [12.0]),
    append(32768, "ours_eager", [60.0]),
    *(
        {"scene": "replay", "shape": "8b", "arm": arm, "gpu_us": [us]}
        for arm, us in (("append", 5.5), ("append_x16", 20.5), ("empty_memset", 4.5), ("empty_fill", 4.25))
    ),
    {"scene": "counts", "arm": "ours_eager", "tokens": 1000, "syncs": 0, "allocations": 0, "alloc_retries": 0},
    {"scene": "counts", "arm": "ours_graph", "tokens": 1000, "syncs": 1, "allocations": 2, "alloc_retries": 1},
    growth("growing", 303.0),
    growth("growing", 330.0),
    growth("growing", 306.0),
    growth("committed", 300.0),
    growth("committed", 290.0),
    growth("committed", 310.0),
    {"scene": "persona", "shape": "1b", "open_ms": [1.0, 2.0, 3.0], "is_exact": True},
    {"scene": "persona", "shape": "8b", "open_ms": [4.0], "is_exact": True},
    {"scene": "fork", "shape": "8b", "tokens": 2000, "ms": [0.5, 0.75, 5.0]},
    {"scene": "fork", "shape": "8b", "tokens": 32768, "ms": [15.0]},
    {"scene": "rollback", "call_us": [20.0], "done_us": [35.0]},
    {"scene": "sleep", "sleep_ms": [11.0, 12.0, 90.0], "wake_ms": [13.0], "is_exact": True},
    {"scene": "sharing", "used_bytes": 77 * MIB, "ideal_bytes": 70 * MIB},
    {"scene": "window", "first_tenth_us": [50.0], "last_tenth_us": [51.0], "pages_first": 9, "pages_last": 9},
    {"scene": "policy", "ms": [2.0]},
    {"scene": "snapshot", "bytes": 10**9, "write_ms": [500.0], "restore_ms": [1000.0], "is_exact": True},
]


def test_the_promised_figures_follow_from_the_rows() -> None:
    found = kv.metrics(GPU_ROWS)
    expected = (1.2, 50.0, 200.0, 1.25, 0.003, 0.001, 1.1, 4.0, 0.75, 20.0, 12.0, 13.0, 1.1)
    assert {name: found[name] for name in PROMISED} == pytest.approx(dict(zip(PROMISED, expected, strict=True)))
    assert found["graph_append_us_per_node"] == pytest.approx(1.0)
    assert found["cat_over_eager_append_1k_8b"] == pytest.approx(10.0)
    assert found["snapshot_restore_gb_per_s"] == pytest.approx(1.0)
    assert (found["scenes_failed"], found["inexact_rows"]) == (0, 0)
    assert "p99_us 330.0" in next(table([growth("growing", 330.0)]))


def test_a_figure_without_its_rows_is_none_and_a_failure_is_counted() -> None:
    found = kv.metrics([MACHINE, {"scene": "append", "shape": "8b", "left_out": "no kernel"}])
    assert set(PROMISED) <= found.keys()
    assert all(math.isnan(found[name]) for name in PROMISED)
    one_empty_graph = [row for row in GPU_ROWS if row.get("arm") != "empty_memset"]
    assert kv.metrics(one_empty_graph)["graph_append_us_per_token"] == pytest.approx(1.25)
    eager_only = [row for row in GPU_ROWS if row.get("arm") != "ours_graph"]
    broken = [*eager_only, {"scene": "replay", "error": "x"}, {"scene": "sleep", "sleep_ms": [], "wake_ms": []}]
    found = kv.metrics([*broken, {"scene": "persona", "shape": "1b", "open_ms": [1.0], "is_exact": False}])
    for name in ("append_32k_over_128", "cat_over_append_1k_8b", "allocations_per_token", "syncs_per_token"):
        assert math.isnan(found[name]), name
    assert math.isnan(found["sleep_512mib_ms"])  # one shape's is missing
    assert (found["scenes_failed"], found["inexact_rows"]) == (1, 1)


def test_a_scene_that_fails_keeps_its_rows_and_lets_the_others_go_on() -> None:
    def half(bed: Bed) -> Iterator[dict[str, Any]]:
        yield {"scene": "half", "ms": [1.0]}
        raise RuntimeError("CUDA error")

    kept: list[int] = []
    scenes: dict[str, kv.Scene] = {"half": half, "whole": lambda bed: iter([{"scene": "whole"}])}
    rows = kv.run_scenes(host_bed(), scenes, keep=lambda rows: kept.append(len(rows)))
    names = [row["scene"] for row in rows]
    assert names == ["machine", "half", "half", "clock", "whole", "clock"]
    assert rows[2]["error"] == "RuntimeError: CUDA error"
    assert kept == [4, 6]
    assert any("CUDA error" in line for line in table(rows))


def test_without_a_gpu_the_same_scenes_run_on_the_host_and_their_figures_bear_other_names() -> None:
    bed = dataclasses.replace(host_bed(), batches=2, lengths=(128, 1024), window=64, policy_tokens=256)
    rows = kv.run_scenes(bed, kv._EVERYWHERE)
    assert [row for row in rows if "error" in row or "left_out" in row] == []
    found = kv.metrics(rows)
    assert set(PROMISED).isdisjoint(found)
    assert [name for name, value in found.items() if math.isnan(value)] == []
    assert found["inexact_rows"] == 0
    assert found["host_window_pages_grown"] == 0
    arms = {row["arm"] for row in rows if row["scene"] == "append"}
    assert arms == {"cat_warm", "slices", "index_copy", "static_layer", "sliding_layer", "ours_eager"}
    assert sum("GB/s" in line for line in table(rows)) == sum("wall_us" in row for row in rows)


def test_an_arm_whose_library_is_missing_is_left_out_with_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)  # type: ignore[arg-type]
    bed = dataclasses.replace(host_bed(), batches=1, lengths=(128,))
    rows = kv.run_scenes(bed, {"append": kv._EVERYWHERE["append"]})
    remarks = [row["left_out"] for row in rows if "left_out" in row]
    assert len(remarks) == 2
    assert all("transformers" in text for text in remarks)
    assert "ours_eager" in {row.get("arm") for row in rows}


def test_the_command_ends_with_its_document_and_keeps_the_rows_so_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, found_before = tmp_path / "kv.json", []

    def second(bed: Bed) -> Iterator[dict[str, Any]]:
        found_before.extend(json.loads(path.read_text())["rows"])
        yield {"scene": "second"}

    monkeypatch.setattr(kv, "_EVERYWHERE", {"rollback": kv._EVERYWHERE["rollback"], "second": second})
    monkeypatch.setattr(kv, "choose_device", lambda wanted: ("cpu", ""))
    assert main(["bench", "kv", "--json", str(path)]) == 0
    assert [row["scene"] for row in found_before] == ["machine", "rollback", "clock"]
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["metrics"]["host_rollback_1000_us"] > 0
    assert document["rows"] == json.loads(path.read_text())["rows"]
    assert check_document(path, {"kv": kv.BENCHMARK}) == []


class GpuBed(Bed):
    """The host's memory in the part of a GPU's."""

    @property
    def on_gpu(self) -> bool:
        return True


class FakeGraph:
    """Does on `replay` what was captured."""

    def __init__(self, work: Callable[[], object], nodes: int = 1) -> None:
        self._work, self._nodes = work, nodes

    def replay(self) -> None:
        for _ in range(self._nodes):
            self._work()


class FakeDriver:
    """Counts what is out; memory that nobody touches."""

    def __init__(self, maps_parts: bool) -> None:
        self.handles: dict[int, int] = {}
        self.ranges: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self._maps_parts = maps_parts
        self._next = 1 << 40

    def granularity(self) -> int:
        return 2 * MIB

    def reserve(self, size: int) -> int:
        self._next += 1 << 33
        self.ranges[self._next] = size
        return self._next

    def free(self, address: int, size: int) -> None:
        assert self.ranges.pop(address) == size
        assert not [place for place in self.mapped if address <= place < address + size]

    def create(self, size: int) -> int:
        if sum(self.handles.values()) + size > 1 << 30:
            raise OutOfPagesError("more than a GiB")
        self._next += 1
        self.handles[self._next] = size
        return self._next

    def release(self, handle: int) -> None:
        del self.handles[handle]

    def map(self, address: int, size: int, handle: int) -> None:
        assert address not in self.mapped
        if size != self.handles[handle] and not self._maps_parts:
            raise PagesError("KV pages: cuMemMap says CUDA_ERROR_INVALID_VALUE")
        self.mapped[address] = size

    def set_access(self, address: int, size: int) -> None:
        end = address + size
        assert sum(held for place, held in self.mapped.items() if address <= place < end) == size

    def unmap(self, address: int, size: int) -> None:
        assert self.mapped.pop(address) == size

    def synchronize(self) -> None:
        """Nothing is queued."""


@pytest.mark.parametrize("maps_parts", [True, False])
def test_driver_rows_say_what_each_call_takes_and_give_everything_back(maps_parts: bool) -> None:
    driver = FakeDriver(maps_parts)
    rows = list(kv_driver.call_rows(driver))
    assert (driver.handles, driver.mapped, driver.ranges) == ({}, {}, {})
    calls = {(row["call"], row["handle_mib"]) for row in rows if "calls" in row}
    names = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")
    assert calls == {(name, size) for name in names for size in (2, 4, 8, 16, 32, 64)}
    assert {row["call"] for row in rows if row.get("handles") == 32} == {
        "cuMemSetAccess, one call",
        "cuMemSetAccess, 32 calls",
    }
    assert rows[-1]["works"] is maps_parts


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("synchronize", "empty_cache", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    stream = types.SimpleNamespace(synchronize=lambda: None, cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 10**9))
    monkeypatch.setattr(gc, "collect", lambda *arguments: 0)  # slow here, and nothing waits for it
    stats = {"allocation.all.allocated": 7, "num_alloc_retries": 0}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: stats)
    event = types.SimpleNamespace(record=lambda: None, elapsed_time=lambda other: 1.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(kv_graph, "graph_of", FakeGraph)
    bindings = types.SimpleNamespace(driver=types.SimpleNamespace(cuMemsetD32Async=lambda *arguments: (0,)))
    monkeypatch.setitem(sys.modules, "cuda", types.SimpleNamespace(bindings=bindings))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)  # type: ignore[arg-type]


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few repeats of everything."""
    for name, value in (("_REPLAYS", 20), ("_ROUNDS", 2), ("_COUNTED", 50), ("_GROWTH_RUNS", 1)):
        monkeypatch.setattr(kv_graph, name, value)
    monkeypatch.setattr("app.bench.kv_scenes._SLEEP_BYTES", 8 * MIB)
    monkeypatch.setattr("app.bench.kv_bed._BATCH_US", 500.0)


def small(bed: Bed) -> Bed:
    """The bed with shapes of a MiB or two for 2,000 tokens of float32."""
    shapes = (Shape("1b", 2, 2, 16, 4), Shape("8b", 2, 2, 32, 4))
    sizes: dict[str, Any] = {"window": 64, "policy_tokens": 256, "snapshot_tokens": 256, "fork_tokens": (2000,)}
    more: dict[str, Any] = {"lengths": (128, 256), "batches": 2, "cold_batches": 1, "growth_steps": 200}
    return dataclasses.replace(bed, shapes=shapes, weights=(2, 8, 8), **sizes, **more)


@pytest.mark.gpu
@pytest.mark.usefixtures("brief")
def test_every_scene_runs_on_a_gpu() -> None:
    rows = kv.run_scenes(small(gpu_bed("cuda:0")), kv._GPU)
    assert [row for row in rows if "error" in row] == []
    found = kv.metrics(rows)
    assert found["inexact_rows"] == 0
    assert (found["allocations_per_token"], found["syncs_per_token"]) == (0, 0)
    assert {row["way"] for row in rows if "way" in row} <= {"pycuda", "cuda.bindings"}
    # Its lengths end before 1k and 32k.
    unmeasured = {"append_32k_over_128", "cat_over_append_1k_8b", "cat_over_append_32k_8b"}
    assert [name for name in PROMISED if math.isnan(found[name]) and name not in unmeasured] == []


@pytest.mark.usefixtures("fake_cuda", "brief")
def test_the_scenes_of_a_gpu_keep_their_books() -> None:
    bed = small(GpuBed("cpu", "float32", (), (), 0, 0, clock=Clock(on_gpu=True)))
    scenes = {name: scene for name, scene in kv._GPU.items() if name != "driver"}
    rows = kv.run_scenes(bed, scenes)
    assert [row for row in rows if "error" in row or "left_out" in row] == []
    found = kv.metrics([MACHINE, *rows[1:]])
    assert found["inexact_rows"] == 0
    assert found["wake_512mib_ms"] > 0
    assert math.isnan(found["graph_append_us_per_token"])  # it was the twin that was captured, not the kernel
    exact = {row["scene"] for row in rows if row.get("is_exact")}
    assert exact == {"persona", "sleep", "snapshot", "replay", "growth"}
    assert {row["arm"] for row in rows if row["scene"] == "flat"} == {"ours_eager", "ours_graph"}
    assert {"cat_cold", "omni_vram", "index_copy_graph"} <= {row["arm"] for row in rows if row["scene"] == "append"}
    one, other = (row for row in rows if row["scene"] == "sharing")
    for row, token_bytes in ((one, 512), (other, 1024)):  # 13 pages of 160 tokens, and 8 tails
        assert row["in_books_bytes"] == row["ideal_bytes"] == (13 + 8) * 160 * token_bytes
