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
from app.config.load import load_config  # noqa: E402
from app.conversation.history import History  # noqa: E402
from app.engine.builder import _least_window_tokens  # noqa: E402
from app.engine.pressure_guard import GpuMemory, HostMemory, PressureGuard, limits  # noqa: E402
from app.engine.relocation import Relocation  # noqa: E402
from app.engine.tended_model import TendedModel  # noqa: E402
from gpu.errors import GpuError  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402
from gpu.memory.rungs import CpuRung, KvRung, SpareRung, WindowRung  # noqa: E402

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
    assert held - model.memory_bytes() >= 900 * ROW_BYTES  # whole pages
    assert sum(event.freed_bytes for event in told) == pages - model.page_bytes("cpu") > 0  # type: ignore[attr-defined]
    before = len(told)
    looks(guard, room, 20)
    assert len(told) == before, "what was given up once is not given up again"
    room.others = 0
    looks(guard, room, 20)
    assert model.window_tokens == 2048
    back = [event.rung for event in told[before:] if isinstance(event, events.MemoryRestored)]
    assert back == ["window"]
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
    model.warm([Message("user", "hello"), Message("assistant", "yes")])
    room.others = room.total - (10 << 20)
    looks(guard_of(room, told), room, 5)
    assert model.window_tokens == 2048
    assert not any(event.rung == "window" for event in told)  # type: ignore[attr-defined]


def _fresh() -> LocalLanguageModel:
    return LocalLanguageModel(tiny_prepared(), context_tokens=2048)


def _answer(model: TendedModel, seen: list[int]) -> Iterator[str]:
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
    is_started = threading.Event()

    def ask() -> None:
        is_started.set()
        list(_answer(model, []))

    with model.tend(wait=False) as free:
        assert free is not None
        asked = threading.Thread(target=ask)
        asked.start()
        assert is_started.wait(_LIMIT_S)
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


def test_the_guard_waits_for_no_reply_and_measures_nothing_across_one(model: TendedModel) -> None:
    room, told = Room(model), list[events.Event]()
    guard = guard_of(room, told)
    model.warm(TALK)
    room.others = room.total - (10 << 20)
    reply = _answer(model, [])
    next(reply)
    looks(guard, room, 5)  # in this thread: it would wait for ever
    assert told == []
    assert guard._ladder.applied() == []
    list(reply)
    model.warm(TALK)
    looks(guard, room, 5)
    assert model.window_tokens == 1024
    assert told[-1].rung == "window"  # type: ignore[attr-defined]


def test_spare_pages_of_every_reply_come_free_and_are_told_of_once(model: TendedModel) -> None:
    room, told = Room(model), list[events.Event]()
    guard = PressureGuard(
        room, limits(100, room.total), [SpareRung(model)], lambda n: told.append(n(7)), lambda: room.now_s
    )
    room.others = room.total - (10 << 20)
    for _ in range(3):
        model.warm(TALK)
        model.warm([Message("user", "hello"), Message("assistant", "yes")])
        assert model.spare_bytes() > 4 << 20
        looks(guard, room, 3)
        assert model.spare_bytes() == 0
    assert [event.rung for event in told] == ["spare pages"]  # type: ignore[attr-defined]
    room.others = 0
    looks(guard, room, 20)
    room.others = room.total - (10 << 20)
    model.warm(TALK)
    model.warm([Message("user", "hello"), Message("assistant", "yes")])
    looks(guard, room, 3)
    assert len(told) == 2, "another time of scarcity is told of again"


def test_after_a_bug_in_one_rung_the_others_are_taken_back(model: TendedModel) -> None:
    room, told = Room(model), list[events.Event]()

    class Broken(KvRung):
        def frees_bytes(self) -> int:
            return 1

        def takes_bytes(self) -> int:
            return 0

        def apply(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    rungs = [WindowRung(model, least_tokens=512), Broken(model)]
    guard = PressureGuard(room, limits(100, room.total), rungs, lambda n: told.append(n(7)), lambda: room.now_s)
    model.warm(TALK)
    room.others = room.total - (80 << 20)
    looks(guard, room, 10)
    assert model.window_tokens == 1024
    room.others = 0
    looks(guard, room, 20)
    assert model.window_tokens == 2048
    assert [type(event).__name__ for event in told] == ["MemoryDegraded", "MemoryRestored"]


@pytest.mark.parametrize("persona_words", [10, 190, 250])
def test_no_step_of_the_guard_ends_the_conversation(model: TendedModel, persona_words: int) -> None:
    """However long the persona's prompt is, what could be asked before can be asked afterwards."""
    room, told = Room(model), list[events.Event]()
    rungs = [SpareRung(model), WindowRung(model, least_tokens=512, reply_tokens=64), KvRung(model)]
    guard = PressureGuard(room, limits(100, room.total), rungs, lambda n: told.append(n(7)), lambda: room.now_s)
    history = History("word " * persona_words)

    def ask() -> str:
        prompt = history.fit("And now?", model, reserve_tokens=64, limit_tokens=4096)
        return "".join(model.generate(prompt, SamplingParams(), max_tokens=8, cancelled=lambda: False))

    said = ask()
    for turn in range(9):
        history.add(f"Question {turn} " * 10, "Yes.")
        model.warm(history.fit("", model, reserve_tokens=64, limit_tokens=4096)[:-1])
    room.others = room.total - (10 << 20)
    looks(guard, room, 20)
    assert model.window_tokens < 2048 or persona_words == 250
    history.exchanges.clear()
    assert len(ask()) == len(said) > 0


def test_the_least_window_holds_the_persona_a_question_and_a_reply(model: TendedModel) -> None:
    def least(prompt: str, tokens: int) -> int:
        persona = {"prompt": prompt, "max_reply_tokens": 100}
        config = load_config(file=None, env={}, overrides=[f"memory.least_context_tokens={tokens}"]).config
        changed = config.active_persona().model_copy(update=persona)
        named = {**config.personas, config.persona: changed}
        return _least_window_tokens(config.model_copy(update={"personas": named}), model)

    assert least("", 512) == 512
    assert least("word " * 200, 512) >= 1000 + 100 + 256


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


def test_a_successor_holds_the_conversation_as_it_was_held(model: TendedModel) -> None:
    there = Relocation(model, "cuda:1", lambda _: _fresh(), lambda: 0)
    model.hold_as("int8")
    model.resize_window(1024)
    there.move("cpu")
    assert (model.kv_dtype, model.window_tokens) == ("int8", 1024)
    model.hold_as("auto")
    model.resize_window(2048)
    there.move("cuda")
    assert (model.kv_dtype, model.window_tokens) == ("auto", 2048)


@pytest.mark.parametrize("error", [GpuError("no memory"), torch.OutOfMemoryError("no memory\nmore")])
@pytest.mark.parametrize("where", ["hold_as", "resize_window"])
def test_a_successor_that_fails_is_closed_and_nothing_moves(
    model: TendedModel, where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.warm(TALK)
    successor, pages = _fresh(), model.page_bytes("cpu")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(successor, where, refuse)
    with pytest.raises(GpuError, match=r"^no memory\. Close"):
        Relocation(model, "cuda:1", lambda _: successor, lambda: 0).move("cpu")
    assert successor.page_bytes() == 0
    assert model.page_bytes("cpu") == pages
    assert len("".join(_answer(model, []))) > 0


def test_on_the_cpu_nothing_is_given_up_for_the_gpu_and_all_comes_home(model: TendedModel) -> None:
    """A model that has left a GPU holds nothing there, however long the conversation grows on the CPU."""

    def load(device: str) -> LocalLanguageModel:
        made = _fresh()
        made.device = device
        return made

    class Card(Room):
        def held_bytes(self) -> int:
            return self.model.memory_bytes_on("cuda:0")

    before = model.replace(load("cuda:0"))
    before.close()
    card, told = Card(model), list[events.Event]()
    there = Relocation(model, "cuda:0", load, lambda: 0)
    cpu = CpuRung(lambda: model.memory_bytes_on("cuda:0"), there.move)
    rungs = [SpareRung(model), WindowRung(model, least_tokens=512), KvRung(model), cpu]
    guard = PressureGuard(card, limits(100, card.total), rungs, lambda n: told.append(n(7)), lambda: card.now_s)
    card.others = card.total - (60 << 20)
    looks(guard, card, 10)
    assert [event.rung for event in told] == ["llm on the cpu"]  # type: ignore[attr-defined]
    assert model.device == "cpu"
    model.warm(TALK)
    with model.tend(wait=False) as there_now:
        assert there_now is not None
        held = there_now.held_ids
        looks(guard, card, 20)
        assert there_now.held_ids == held
    assert guard._ladder.listed() == []
    card.others = 0
    looks(guard, card, 20)
    assert model.device == "cuda:0"
    model.warm(TALK)
    card.others = card.total - (60 << 20)
    looks(guard, card, 10)
    assert "window" in [event.rung for event in told[2:]]  # type: ignore[attr-defined]


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
