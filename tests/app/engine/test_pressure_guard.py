"""Memory that becomes scarce under a talking engine: the model's window shrinks, it is said, and it comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
pytest.importorskip("tokenizers", reason="makes the tokenizer")

from tiny_model import ROW_BYTES, tiny_prepared  # noqa: E402

from app import events  # noqa: E402
from app.engine.pressure_guard import GpuMemory, HostMemory, PressureGuard, limits  # noqa: E402
from app.engine.relocation import Relocation  # noqa: E402
from app.engine.tended_model import TendedModel  # noqa: E402
from gpu.errors import GpuError  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402
from gpu.memory.rungs import CpuRung, SpareRung, WindowRung  # noqa: E402

TALK = [Message("user", "word " * 250), Message("assistant", "yes")]  # some 1,300 tokens
_LIMIT_S = 20.0


@pytest.fixture
def model() -> Iterator[TendedModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    inner = LocalLanguageModel(tiny_prepared(), context_tokens=2048)
    yield TendedModel(inner)
    torch.set_num_threads(before)


class Room:
    """Memory of which others take what the test says."""

    def __init__(self, model: TendedModel, total_bytes: int = 1 << 30) -> None:
        self.model, self.total, self.others, self.now_s = model, total_bytes, 0, 0.0

    def total_bytes(self) -> int:
        return self.total

    def free_bytes(self) -> int:
        return self.total - self.others - self.held_bytes()

    def held_bytes(self) -> int:
        return self.model.page_bytes("cpu")


def guard_of(room: Room, told: list[events.Event]) -> PressureGuard:
    rungs = [SpareRung(room.model), WindowRung(room.model, least_tokens=512)]
    made = limits(100, room.total)
    return PressureGuard(room, made, rungs, lambda news: told.append(news(7)), lambda: room.now_s)


def looks(guard: PressureGuard, room: Room, count: int) -> None:
    for _ in range(count):
        room.now_s += 1.0
        guard.look()


def test_the_window_shrinks_under_pressure_and_comes_back(model: TendedModel) -> None:
    room, told = Room(model), list[events.Event]()
    guard = guard_of(room, told)
    model.warm(TALK)
    pages, held = model.page_bytes("cpu"), model.memory_bytes()
    looks(guard, room, 5)
    assert told == []
    room.others = room.total - (80 << 20)
    looks(guard, room, 5)
    *_, last = told
    assert isinstance(last, events.MemoryDegraded)
    assert (last.at_samples, last.level, last.rung) == (7, "tight", "window")
    assert model.window_tokens == 1024
    assert held - model.memory_bytes() >= 1024 * ROW_BYTES
    assert sum(event.freed_bytes for event in told) == pages - model.page_bytes("cpu") > 0  # type: ignore[attr-defined]
    before = len(told)
    looks(guard, room, 20)
    assert len(told) == before, "what was given up once is not given up again"
    room.others = 0
    looks(guard, room, 20)
    assert model.window_tokens == 2048
    back = [event for event in told[before:] if isinstance(event, events.MemoryRestored)]
    assert next(event.rung for event in back) == "window"
    assert len(back) == before
    assert "".join(_answer(model, [])) == "".join(_answer(TendedModel(_fresh()), []))


def test_a_little_more_room_restores_nothing(model: TendedModel) -> None:
    room, told = Room(model), list[events.Event]()
    guard = guard_of(room, told)
    model.warm(TALK)
    room.others = room.total - (80 << 20)
    looks(guard, room, 5)
    room.others = room.total - (110 << 20) - room.held_bytes()  # above the figure, below one and a half of it
    looks(guard, room, 30)
    assert model.window_tokens == 1024
    assert not any(isinstance(event, events.MemoryRestored) for event in told)


def test_a_window_that_nobody_filled_frees_nothing_and_stays(model: TendedModel) -> None:
    room, told = Room(model), list[events.Event]()
    model.warm(TALK[:1] and [Message("user", "hello"), Message("assistant", "yes")])
    room.others = room.total - (10 << 20)
    looks(guard_of(room, told), room, 5)
    assert model.window_tokens == 2048
    assert not any(event.rung == "window" for event in told)  # type: ignore[attr-defined]


def _fresh() -> LocalLanguageModel:
    return LocalLanguageModel(tiny_prepared(), context_tokens=2048)


def _answer(model: TendedModel, seen: list[int]) -> Iterator[str]:
    assert model.context_tokens
    messages = [Message("user", "And now?")]
    for piece in model.generate(messages, SamplingParams(), max_tokens=12, cancelled=lambda: False):
        seen.append(model.window_tokens)
        yield piece


def _until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_no_window_shrinks_under_a_prompt_or_a_reply(model: TendedModel) -> None:
    """From the look at the room that a prompt has, to the reply's last piece."""
    seen: list[int] = []
    reply = _answer(model, seen)
    next(reply)
    with model.tend(wait=False) as free:
        assert free is None
    second = threading.Thread(target=model.resize_window, args=(1024,))
    second.start()
    said = list(reply)
    second.join(_LIMIT_S)
    assert not second.is_alive()
    assert said
    assert set(seen) == {2048}
    assert model.window_tokens == 1024


def test_whoever_asks_waits_until_the_model_is_whole(model: TendedModel) -> None:
    with model.tend(wait=False) as free:
        assert free is not None
        asked = threading.Thread(target=lambda: list(_answer(model, [])))
        asked.start()
        time.sleep(0.05)
        assert model.replies == 0
    asked.join(_LIMIT_S)
    assert model.replies == 1


def test_a_reply_that_nobody_reads_to_its_end_frees_the_model(model: TendedModel) -> None:
    reply = _answer(model, [])
    next(reply)
    reply.close()
    with model.tend(wait=False) as free:
        assert free is not None


def test_the_real_reading_takes_less_than_a_millisecond(model: TendedModel) -> None:
    memory = HostMemory(model)
    told: list[events.Event] = []
    made = PressureGuard(memory, limits(1, memory.total_bytes()), [SpareRung(model)], lambda news: told.append(news(0)))
    best_s = float("inf")
    for _ in range(50):
        begun_s = time.perf_counter()
        made.look()
        best_s = min(best_s, time.perf_counter() - begun_s)
    assert best_s < 1e-3
    assert told == []
    assert 0 < memory.free_bytes() < memory.total_bytes()


def test_the_reserve_of_the_plan_is_the_figure_unless_one_is_given() -> None:
    assert limits(0, 64 << 30).tight_bytes == 1 << 30
    assert limits(0, 1 << 30).tight_bytes == 256 << 20
    assert limits(300, 64 << 30).tight_bytes == 300_000_000


def test_a_model_does_not_move_where_it_finds_no_room(model: TendedModel) -> None:
    def load(device: str) -> LocalLanguageModel:
        raise RuntimeError("CUDA out of memory\nmore")

    there = Relocation(model, "cuda:0", load, lambda: 5 << 20)
    with pytest.raises(GpuError, match="RAM lacks 5 MiB"):
        there.move("cpu")
    with pytest.raises(GpuError, match="CUDA out of memory"):
        there.move("cuda")
    assert model.window_tokens == 2048


def test_a_successor_takes_over_with_the_window_of_the_moment(model: TendedModel) -> None:
    model.warm(TALK)
    said = "".join(_answer(model, []))
    model.resize_window(1024)
    with model.tend(wait=False) as before:
        assert before is not None
    wanted: list[str] = []

    def load(device: str) -> LocalLanguageModel:
        wanted.append(device)
        return _fresh()

    there = Relocation(model, "cuda:1", load, lambda: 0)
    there.move("cpu")
    assert model.window_tokens == 1024
    assert before.page_bytes() == 0
    assert "".join(_answer(model, [])) == said
    there.move("cuda")
    assert wanted == ["cpu", "cuda:1"]


@pytest.mark.gpu
def test_under_pressure_the_model_leaves_the_gpu_and_comes_back() -> None:
    def load(device: str) -> LocalLanguageModel:
        return LocalLanguageModel(tiny_prepared(), device=device, context_tokens=2048)

    model = TendedModel(load("cuda:0"))
    memory, told = GpuMemory(model, "cuda:0"), list[events.Event]()
    relocation = Relocation(model, "cuda:0", load, lambda: 0)
    rungs = [WindowRung(model, least_tokens=512), CpuRung(lambda: model.memory_bytes_on("cuda:0"), relocation.move)]
    model.warm(TALK)
    taken, free = 0, memory.free_bytes

    class Shared(GpuMemory):
        def free_bytes(self) -> int:
            return free() - taken

    shared, now_s = Shared(model, "cuda:0"), [0.0]
    guard = PressureGuard(
        shared, limits(100, memory.total_bytes()), rungs, lambda n: told.append(n(0)), lambda: now_s[0]
    )

    def look(count: int) -> None:
        for _ in range(count):
            now_s[0] += 3.0
            guard.look()

    said = "".join(_answer(model, []))
    taken = free() - (10 << 20)
    look(4)
    assert [event.rung for event in told] == ["window", "llm on the cpu"]  # type: ignore[attr-defined]
    assert all(event.freed_bytes > 0 for event in told)  # type: ignore[attr-defined]
    assert model.page_bytes("cuda:0") == 0
    assert len("".join(_answer(model, []))) > 0
    taken = 0
    look(10)
    assert [event.rung for event in told[2:]] == ["llm on the cpu", "window"]  # type: ignore[attr-defined]
    assert model.window_tokens == 2048
    assert "".join(_answer(model, [])) == said
