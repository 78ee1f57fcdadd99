"""What an engine does beside the conversation, and what it learns of its own memory for the next plan."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import events
from app.config.load import load_config
from app.engine.peak_recorder import PeakRecorder
from app.engine.upkeep import Upkeep
from gpu.llm.protocol import Message
from gpu.memory.host_peak import HostPeak
from gpu.memory.peaks import Peaks
from gpu.memory.places import Machine, Place
from gpu.memory.preflight import Plan, Request, StageNeed, plan, stage_key, workspace_key
from gpu.memory.shapes import known_shape

_LIMIT_S = 20.0
_GIB = 1 << 30


def _until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_tasks_run_in_a_thread_and_one_that_fails_takes_nobody_with_it(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    upkeep = Upkeep(interval_s=0.01)

    def broken() -> None:
        done.append("broken")
        raise ValueError("a bug")

    def good() -> None:
        done.append(threading.current_thread().name)
        upkeep.tell(lambda now: events.MemoryDegraded(now, "tight", "window", 5))

    upkeep.start([broken, good], begin=[lambda: done.append("begin")], end=[broken, lambda: done.append("end")])
    _until(lambda: done.count("upkeep") >= 3)
    assert upkeep.take_events(16)[0] == events.MemoryDegraded(16, "tight", "window", 5)
    upkeep.close(_LIMIT_S)
    assert (done[0], done[-1]) == ("begin", "end")
    assert done.count("broken") == 2  # once as a task, once at the end
    assert "failed and is not tried again" in caplog.text
    upkeep.take_events(0)
    assert upkeep.take_events(0) == []


def test_what_is_done_once_at_the_beginning_is_not_held_for_life() -> None:
    class Large:
        def work(self) -> None:
            done.set()

    done, ticked, upkeep, large = threading.Event(), threading.Event(), Upkeep(interval_s=0.01), Large()
    gone = weakref.ref(large)
    upkeep.start([ticked.set], begin=[large.work])
    del large
    assert ticked.wait(_LIMIT_S)
    gc.collect()
    assert done.is_set()
    assert gone() is None
    upkeep.close(_LIMIT_S)


def test_one_that_never_began_ends_at_once() -> None:
    upkeep = Upkeep()
    upkeep.is_idle = True
    upkeep.close(_LIMIT_S)
    assert not upkeep.is_idle


class Model:
    """As much of a `TendedModel` as is asked for figures."""

    def __init__(self) -> None:
        self.replies, self.pages = 0, 0

    def page_bytes(self, device: str) -> int:
        return self.pages


def plan_of(kind: Any = "cpu") -> Plan:
    shape = known_shape("llama-3.2-1b")
    assert shape is not None
    stages = (StageNeed("asr", 10, "estimate", "moonshine"), StageNeed("tts", 10, "estimate", "joe"))
    card = Place("cuda", "GPU 0", 24 * _GIB, 24 * _GIB, "cuda:0", "8.9", "Card")
    machine = Machine(Place("cpu", "memory", 64 * _GIB, 64 * _GIB), (card,))
    return plan(Request(shape, "int8" if kind == "cpu" else "bf16", kind, stages=stages, version="torch 2"), machine)


def test_peaks_of_a_session_are_in_the_next_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, peaks, model = plan_of(), Peaks(tmp_path / "peaks.sqlite"), Model()
    recorder = PeakRecorder(model, peaks, made, "cpu", {"asr": 7_000_000, "tts": 0, "turn": 5})  # type: ignore[arg-type]
    assert recorder.begin() == 1
    grown, huge = HostPeak.look, 3 * _GIB
    monkeypatch.setattr(HostPeak, "look", lambda self: grown(self) + huge + 1_000_000)
    model.pages = 1_000_000
    model.replies = 2
    assert not recorder.look()
    model.replies = 3
    assert recorder.look()
    assert not recorder.look()
    assert not recorder.close(), "once a session"
    known = peaks.peak(workspace_key(made.request, made.ledgers[0].place))
    assert known is not None
    assert known >= huge
    again = plan(made.request, made.machine, peaks.peak).ledgers[0]
    assert (again.row("workspace").size_bytes, again.row("workspace").origin) == (known, "measured")
    assert (again.row("asr").size_bytes, again.row("asr").origin) == (7_000_000, "measured")
    assert again.row("tts").origin == "estimate"
    assert peaks.peak(stage_key(made.request.stages[1])) is None


def test_a_short_session_is_recorded_at_its_end_and_a_silent_one_never(tmp_path: Path) -> None:
    made, peaks = plan_of(), Peaks(tmp_path / "peaks.sqlite")
    silent, short = Model(), Model()
    short.replies = 1
    assert not PeakRecorder(silent, peaks, made, "cpu", {}).close()  # type: ignore[arg-type]
    recorder = PeakRecorder(short, peaks, made, "cpu", {})  # type: ignore[arg-type]
    kept = bytearray(64 << 20)
    assert not recorder.look()
    assert recorder.close()
    assert len(kept) <= (peaks.peak(workspace_key(made.request, made.ledgers[0].place)) or 0)


def test_a_gpu_that_did_not_start_leaves_no_record(tmp_path: Path) -> None:
    model, peaks = Model(), Peaks(tmp_path / "peaks.sqlite")
    model.replies = 5
    assert not PeakRecorder(model, peaks, plan_of("cuda"), "cpu", {}).look()  # type: ignore[arg-type]
    assert not peaks.path.exists()


def test_a_peak_that_is_over_is_remembered() -> None:
    peak = HostPeak()
    before = peak.look()
    kept = bytearray(48 << 20)
    peak.look()
    del kept
    assert peak.look() - before >= 40 << 20


def test_an_engine_guards_keeps_and_records_by_its_configuration(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the decoder is torch")
    pytest.importorskip("tokenizers", reason="makes the tokenizer")
    from tiny_model import tiny_prepared

    from app.engine.builder import Loaded, open_upkeep, places
    from app.engine.tended_model import TendedModel
    from gpu.llm.model import LocalLanguageModel

    overrides = [f"paths.data={tmp_path}", "memory.tight_mb=1048576", "memory.least_context_tokens=256"]
    config = load_config(file=None, env={}, overrides=overrides).config
    where, snapshot = places(config, {}), tmp_path / "talk.kv"
    llm = LocalLanguageModel(tiny_prepared(), context_tokens=2048)
    model = TendedModel(llm)
    model.warm([Message("user", "word " * 250), Message("assistant", "yes")])
    loaded = Loaded(None, llm, [], plan_of(), {"asr": 7_000_000})  # type: ignore[arg-type]
    told: list[events.Event] = []
    upkeep = open_upkeep(config, where, loaded, model, snapshot)
    try:
        upkeep.is_idle = True

        def is_done() -> bool:
            told.extend(upkeep.take_events(3))
            return model.window_tokens == 1024 and snapshot.exists() and len(told) > 0

        _until(is_done)
    finally:
        upkeep.close(_LIMIT_S)
    told.extend(upkeep.take_events(3))
    assert [event.rung for event in told if isinstance(event, events.MemoryDegraded)][-1] in ("window", "kv int8")
    assert Peaks(tmp_path / "peaks.sqlite").peak(stage_key(loaded.plan.request.stages[0])) == 7_000_000


def test_a_model_that_was_replaced_is_freed(tmp_path: Path) -> None:
    """Nothing that an engine keeps up holds the weights with which it began."""
    pytest.importorskip("torch", reason="the decoder is torch")
    pytest.importorskip("tokenizers", reason="makes the tokenizer")
    from tiny_model import tiny_prepared

    from app.engine.builder import Loaded, open_upkeep, places
    from app.engine.relocation import Relocation
    from app.engine.tended_model import TendedModel
    from gpu.llm.model import LocalLanguageModel

    def load(_: str) -> LocalLanguageModel:
        return LocalLanguageModel(tiny_prepared(), context_tokens=512)

    config = load_config(file=None, env={}, overrides=[f"paths.data={tmp_path}"]).config
    loaded = Loaded(None, load("cpu"), [], plan_of(), {"asr": 7_000_000})  # type: ignore[arg-type]
    model, gone = TendedModel(loaded.llm), weakref.ref(loaded.llm)
    model.warm([Message("user", "hello"), Message("assistant", "yes")])
    upkeep = open_upkeep(config, places(config, {}), loaded, model, tmp_path / "talk.kv")
    del loaded
    try:
        upkeep.is_idle = True
        _until((tmp_path / "talk.kv").exists)
        Relocation(model, "cuda:0", load, lambda: 0).move("cpu")
        gc.collect()
        assert gone() is None
    finally:
        upkeep.close(_LIMIT_S)


def test_a_gpu_that_fails_while_it_loads_gets_its_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pool and cap go when nothing of what was loaded is held any more, by the error neither."""
    pytest.importorskip("torch", reason="the decoder is torch")
    import gpu.device
    import gpu.kv.pages_vmm
    from app.engine import builder
    from gpu.memory.pool import Pools

    calls: list[str] = []

    class Weights:
        pass

    class Card:
        held: weakref.ref[Weights] | None = None

        def free_bytes(self, device: str) -> int:
            return 20 * _GIB

        def cap(self, device: str, fraction: float) -> None:
            calls.append(f"cap {device} {fraction == 1.0}")

        def fill_cache(self, device: str, size_bytes: int) -> None:
            calls.append("fill")

        def empty_cache(self) -> None:
            assert self.held is not None
            calls.append(f"empty, held: {self.held() is not None}")

    card = Card()

    def load(config: object, path: Path, where: object, device: str) -> str:
        weights = Weights()
        if device == "cpu":
            return "a model on the cpu"
        card.held = weakref.ref(weights)
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(builder, "_load_llm", load)
    monkeypatch.setattr(gpu.device, "choose_device", lambda _: ("cuda:0", ""))
    monkeypatch.setattr(gpu.kv.pages_vmm, "open_vmm", lambda _: (None, "none here"))
    monkeypatch.setattr("gpu.memory.pool.Pools", lambda: Pools(card))
    config = load_config(file=None, env={}, overrides=[f"paths.data={tmp_path}"]).config
    notices: list[str] = []
    where = builder.places(config, {})
    made = builder._open_llm(config, tmp_path, where, notices.append, plan_of("cuda"), avoids_gpu=False)
    assert made == "a model on the cpu"  # type: ignore[comparison-overlap]
    assert notices == ["the language model runs on the CPU: CUDA out of memory"]
    assert calls == ["cap cuda:0 False", "fill", "empty, held: False", "cap cuda:0 True"]


@pytest.mark.gpu
def test_the_workspace_on_a_gpu_is_recorded(tmp_path: Path) -> None:
    """The pool that was taken at the start is not part of it."""
    import torch

    from gpu.memory.pool import TorchAllocator

    made, peaks, model = plan_of("cuda"), Peaks(tmp_path / "peaks.sqlite"), Model()
    made = replace(made, ledgers=(replace(made.ledgers[0], rows=_small(made)), *made.ledgers[1:]))
    TorchAllocator().fill_cache("cuda:0", 512 << 20)
    work = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda:0")
    del work
    model.replies, model.pages = 3, 1
    assert PeakRecorder(model, peaks, made, "cuda:0", {}).look()  # type: ignore[arg-type]
    found = peaks.peak(workspace_key(made.request, made.ledgers[0].place)) or 0
    assert 60 << 20 <= found < 400 << 20


def _small(made: Plan) -> Any:
    rows = made.ledgers[0].rows
    return tuple(replace(row, size_bytes=10 << 20) if row.name == "weights" else row for row in rows)
