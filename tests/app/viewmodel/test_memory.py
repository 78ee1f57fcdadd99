"""Who holds the memory, as the panel shows it: from the engine's reports and a reading of the machine."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from typing import Any

import pytest

from app import events
from app.viewmodel.machine_memory import MachineMemory, read_machine_memory
from app.viewmodel.memory import PARTS, Holder, Memory, RungRow
from gpu.memory.ladder import ORDER
from gpu.memory.places import Place
from gpu.telemetry import GpuProcess

MB = 1_000_000
RAM = Place("cpu", "memory", 16_000 * MB, 9_000 * MB, note="a container limits it")
CARD = Place(
    "cuda",
    "GPU 0 (A card)",
    24_000 * MB,
    12_000 * MB,
    "cuda:0",
    processes=(GpuProcess(10, 4_000 * MB), GpuProcess(77, None), GpuProcess(78, 6_000 * MB)),
)
MACHINE = MachineMemory(RAM, (), "", frozenset({10, 11}), 1_500 * MB)


def state(**changes: Any) -> events.MemoryState:
    made = events.MemoryState(
        at_samples=0,
        device="cpu",
        total_bytes=16_000 * MB,
        free_bytes=10_000 * MB,
        engine_bytes=900 * MB,
        weights_bytes=140 * MB,
        page_bytes=8 * MB,
        pages=4,
        shared_pages=1,
        parked_sessions=0,
        live_tokens=400,
        window_tokens=2048,
        sessions=[[3, 1, 12, 400]],
        prefixes=[[2, 1, 2, 24]],
        level="calm",
        rungs_given=[],
        rungs_open={"window": 16 * MB},
    )
    return dataclasses.replace(made, **changes)


def memory_of(*taken: events.Event, machine: MachineMemory | None = None) -> Memory:
    memory = Memory(read=lambda: machine or MACHINE)
    for event in taken:
        memory.take(event)
    memory.machine = machine
    return memory


def test_before_anything_is_known_nothing_is_claimed() -> None:
    memory = memory_of()
    assert (memory.parts(), memory.holders(), memory.total_bytes, memory.level) == ({}, [], 0, "")
    assert memory.ladder() == [RungRow(name, "nothing", None) for name in ORDER]


def test_parts_are_the_whole() -> None:
    stages = [events.StageBackend(0, "llm", "torch", 240 * MB), events.StageBackend(0, "asr", "moonshine", 44 * MB)]
    memory = memory_of(*stages, state(), machine=MACHINE)
    parts = memory.parts()
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == memory.total_bytes == 16_000 * MB
    assert (parts["weights"], parts["arena"], parts["speech"]) == (140 * MB, 32 * MB, 44 * MB)
    assert parts["rest"] == (1_500 - 140 - 32 - 44) * MB
    assert (parts["others"], parts["free"]) == ((6_000 - 1_500) * MB, 10_000 * MB)
    assert (memory.is_gpu, memory.place_name, memory.note) == (False, "", "a container limits it")
    assert memory.other_processes() == []


def test_without_an_engine_there_is_the_machine() -> None:
    parts = memory_of(machine=MACHINE).parts()
    assert (parts["free"], parts["rest"], parts["weights"]) == (9_000 * MB, 1_500 * MB, 0)


def test_figures_that_do_not_agree_still_add_up() -> None:
    """Libraries that several processes share count in each: we cannot hold more than is held."""
    parts = memory_of(state(free_bytes=15_900 * MB), machine=MACHINE).parts()
    assert sum(parts.values()) == 16_000 * MB
    assert parts == {"weights": 100 * MB, "arena": 0, "speech": 0, "rest": 0, "others": 0, "free": 15_900 * MB}


def test_on_a_gpu_the_driver_says_who_we_are_and_who_else_there_is() -> None:
    machine = dataclasses.replace(MACHINE, gpus=(CARD,), note="figures leave something out")
    on_card = state(device="cuda:0", total_bytes=24_000 * MB, free_bytes=12_000 * MB, engine_bytes=3_500 * MB)
    memory = memory_of(events.StageBackend(0, "asr", "moonshine", 44 * MB), on_card, machine=machine)
    parts = memory.parts()
    assert (memory.is_gpu, memory.place_name, memory.note) == (True, "GPU 0 (A card)", "figures leave something out")
    assert parts["speech"] == 0, "the speech models are in RAM"
    assert parts["rest"] == (4_000 - 140 - 32) * MB, "with the CUDA context, which only the driver sees"
    assert parts["others"] == 8_000 * MB
    assert [(other.pid, other.used_bytes) for other in memory.other_processes()] == [(78, 6_000 * MB), (77, None)]
    memory.machine = None
    assert (memory.place_name, memory.parts()["others"]) == ("cuda:0", 8_500 * MB)


def test_the_arena_by_holders() -> None:
    memory = memory_of(state(sessions=[[3, 1, 12, 400], [1, 0, 12, 7]]))
    assert memory.holders() == [
        Holder("conversation", 1, 3, 1, 12, 400),
        Holder("session", 2, 1, 0, 12, 7),
        Holder("prefix", 1, 2, 1, 2, 24),
    ]


def test_the_ladder_step_by_step() -> None:
    memory = memory_of(state())
    assert memory.ladder()[1] == RungRow("window", "open", 16 * MB)
    memory.take(events.MemoryDegraded(1, "tight", "spare pages", 8 * MB))
    memory.take(events.MemoryDegraded(2, "critical", "window", 12 * MB))
    assert memory.level == "critical"
    memory.take(state(level="critical", rungs_given=["spare pages", "window"], rungs_open={"kv int8": MB}))
    assert [(row.state, row.size_bytes) for row in memory.ladder()[:4]] == [
        ("given", 8 * MB),
        ("given", 12 * MB),
        ("open", MB),
        ("nothing", None),
    ]
    memory.take(events.MemoryRestored(3, "calm", "window", 12 * MB))
    assert (memory.level, memory.ladder()[1].state) == ("calm", "nothing")
    memory.take(state(rungs_given=["spare pages", "kv int8"]))
    assert memory.ladder()[2] == RungRow("kv int8", "given", None), "what it freed was said before anybody listened"


@pytest.mark.parametrize("end", [events.ProcessLost(5, "engine", "killed"), events.SessionEnded(5, "quit")])
def test_an_engine_that_is_gone_holds_nothing(end: events.Event) -> None:
    memory = memory_of(state(level="tight", rungs_given=["window"]))
    memory.take(events.ProcessLost(4, "ear", "killed"))
    assert memory.state is not None
    memory.take(end)
    assert (memory.state, memory.level, memory.holders()) == (None, "", [])
    assert {row.state for row in memory.ladder()} == {"nothing"}


def test_a_log_without_reports_still_shows_the_ladder() -> None:
    memory = memory_of(events.MemoryDegraded(1, "tight", "window", 5))
    assert (memory.level, memory.ladder()[1]) == ("tight", RungRow("window", "given", 5))


def test_the_machine_is_read_in_a_thread_every_two_seconds() -> None:
    now_s, readers = [100.0], list[str]()

    def read() -> MachineMemory:
        readers.append(threading.current_thread().name)
        return MACHINE

    memory = Memory(read, lambda: now_s[0])
    until_s = time.monotonic() + 20.0
    while memory.machine is None:
        memory.poll()
        assert time.monotonic() < until_s
    assert (readers, memory.revision) == (["memory"], 1)
    now_s[0] += 1.9
    memory.poll()
    assert len(readers) == 1
    now_s[0] += 0.2
    while memory.revision < 2:
        memory.poll()
        assert time.monotonic() < until_s
    assert len(readers) == 2


def test_this_machine() -> None:
    found = read_machine_memory()
    assert os.getpid() in found.pids
    assert 0 < found.own_bytes < found.host.total_bytes
    assert 0 < found.host.free_bytes < found.host.total_bytes
    assert found.place("cpu") == found.host
