"""Pressure with hysteresis, and the ladder that answers it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.errors import ArenaFullError, GpuError
from gpu.kv.arena import ArenaSpec
from gpu.memory.ladder import ORDER, Ladder, LadderStep
from gpu.memory.pressure import Level, PressureLimits, PressureMeter, limits_of
from gpu.memory.rungs import QUESTION_TOKENS, CpuRung, KvRung, SpareRung, WindowRung

LIMITS = limits_of(1000)


class World:
    """A clock and free memory that the test sets."""

    def __init__(self, free: int = 10_000) -> None:
        self.now_s, self.free = 0.0, free

    def meter(self, limits: PressureLimits = LIMITS) -> PressureMeter:
        return PressureMeter(limits, lambda: self.free, lambda: self.now_s)


def test_up_at_once_down_slowly_and_by_one() -> None:
    world = World()
    meter = world.meter()
    assert meter.read() is Level.CALM
    world.free = 499
    assert meter.read() is Level.CRITICAL
    world.free = 10_000
    seen = []
    for _ in range(14):
        world.now_s += 1.0
        seen.append(meter.read().name)
    assert seen == ["CRITICAL"] * 5 + ["TIGHT"] * 5 + ["CALM"] * 4


def test_between_the_limits_nothing_moves() -> None:
    world = World(999)
    meter = world.meter()
    assert meter.read() is Level.TIGHT
    for free in (1000, 1499, 1200, 999, 1499):
        world.free = free
        world.now_s += 100.0
        assert meter.read() is Level.TIGHT
    world.free = 1500
    meter.read()
    world.now_s += 4.9
    assert meter.read() is Level.TIGHT
    world.free = 1499  # the wait begins again
    meter.read()
    world.free = 1500
    meter.read()
    world.now_s += 4.9
    assert meter.read() is Level.TIGHT
    world.now_s += 0.1
    assert meter.read() is Level.CALM


@given(st.lists(st.tuples(st.integers(0, 4000), st.floats(0, 3)), max_size=60))
def test_laws_of_the_meter(steps: list[tuple[int, float]]) -> None:
    world = World()
    meter = world.meter()
    before, lowered_s = Level.CALM, 0.0
    for free, wait_s in steps:
        world.free = free
        world.now_s += wait_s
        level = meter.read()
        assert level >= Level.CRITICAL or free >= 500
        assert level >= Level.TIGHT or free >= 1000
        assert level >= before - 1
        if level < before:
            assert free >= (750 if before is Level.CRITICAL else 1500)
            assert world.now_s - lowered_s >= LIMITS.calm_s
            lowered_s = world.now_s
        before = level


@pytest.mark.parametrize("limits", [(5, 5, 1.5), (5, 0, 1.5), (5, 2, 1.0)])
def test_limits_without_sense(limits: tuple[int, int, float]) -> None:
    with pytest.raises(GpuError, match="without sense"):
        PressureLimits(*limits)


class Thing:
    """A rung over the world's memory, which fails where `error` says: of itself, and with whatever is raised."""

    def __init__(
        self, world: World, name: str, promises: int, frees: int | None = None, error: str = "", takes: int = 0
    ) -> None:
        self.world, self.name, self.promises, self.error, self.takes = world, name, promises, error, takes
        self.frees = promises if frees is None else frees
        self.given = self.is_used = self.is_repeatable = False
        self.problem: Exception = GpuError("it does not work")
        self.tries = 0

    def frees_bytes(self) -> int:
        self._fail("frees_bytes")
        return 0 if self.given and not self.is_repeatable else self.promises

    def takes_bytes(self) -> int:
        self._fail("takes_bytes")
        return self.takes

    @contextmanager
    def hold(self) -> Iterator[bool]:
        yield not self.is_used

    def apply(self) -> None:
        assert not self.is_used
        self.tries += 1
        self._fail("apply")
        self.given = True
        self.world.free += self.frees

    def undo(self) -> None:
        assert not self.is_used
        self.tries += 1
        self._fail("undo")
        self.given = False
        self.world.free -= self.frees

    def _fail(self, where: str) -> None:
        if self.error == where:
            raise self.problem


def ladder(world: World, *rungs: Thing) -> tuple[Ladder, list[LadderStep]]:
    events: list[LadderStep] = []
    made = Ladder(lambda: world.free, events.append, lambda: world.now_s, calm_bytes=LIMITS.calm_bytes)
    for rung in rungs:
        made.register(rung)
    return made, events


def test_mildest_first_one_at_a_time_and_back_in_reverse() -> None:
    world = World(800)
    rungs = [Thing(world, "llm on the cpu", 5000), Thing(world, "window", 300), Thing(world, "weights", 900)]
    made, events = ladder(world, *rungs)
    assert made.listed() == [("window", 300), ("weights", 900), ("llm on the cpu", 5000)]
    made.step(Level.TIGHT)
    assert made.step(Level.TIGHT) is None  # memory needs time to come free
    world.now_s += 2.0
    made.step(Level.TIGHT)
    assert made.applied() == ["window", "weights"]
    assert made.listed() == [("llm on the cpu", 5000)]
    world.now_s += 2.0
    assert made.step(Level.CALM) is None  # 2000 free: 1100 after it, and it would be given up again
    world.free += 3000
    made.step(Level.CALM)
    world.now_s += 2.0
    made.step(Level.CALM)
    assert made.applied() == []
    assert world.free == 3800
    assert [(event.rung, event.action, event.freed_bytes) for event in events] == [
        ("window", "applied", 300),
        ("weights", "applied", 900),
        ("weights", "undone", -900),
        ("window", "undone", -300),
    ]


def test_critical_does_not_wait() -> None:
    world = World(100)
    made, _ = ladder(world, Thing(world, "window", 10), Thing(world, "weights", 10))
    made.step(Level.CRITICAL)
    made.step(Level.CRITICAL)
    assert made.applied() == ["window", "weights"]
    assert made.step(Level.CRITICAL) is None  # nothing is left


def test_a_rung_that_frees_nothing_is_not_listed() -> None:
    world = World(100)
    made, _ = ladder(world, Thing(world, "window", 0), Thing(world, "weights", 10))
    assert made.listed() == [("weights", 10)]


def test_a_rung_that_only_promised_is_undone_and_dropped() -> None:
    world = World(100)
    liar = Thing(world, "window", 500, frees=0)
    made, events = ladder(world, liar, Thing(world, "weights", 10))
    assert made.step(Level.TIGHT) == LadderStep("window", "failed", 0, "it freed nothing")
    assert not liar.given
    world.now_s += 2.0
    made.step(Level.TIGHT)
    assert made.applied() == ["weights"]
    assert [event.rung for event in events] == ["window", "weights"]


@pytest.mark.parametrize("error", ["apply", "undo"])
def test_a_rung_that_fails_is_told_and_nothing_breaks(error: str) -> None:
    world = World(100)
    made, events = ladder(world, Thing(world, "window", 50, error=error))
    made.step(Level.TIGHT)
    world.free += 10_000
    world.now_s += 2.0
    made.step(Level.CALM)
    assert events[-1].action == "failed"
    assert made.applied() == ([] if error == "apply" else ["window"])
    world.now_s += 2.0
    assert made.step(Level.CALM) is None  # told once


@pytest.mark.parametrize("where", ["frees_bytes", "takes_bytes", "apply", "undo"])
@pytest.mark.parametrize("problem", [GpuError("no room"), RuntimeError("CUDA out of memory"), KeyError("a bug")])
def test_nothing_that_a_rung_raises_gets_through_and_none_is_lost_for_ever(where: str, problem: Exception) -> None:
    """What stands in the way may pass: it is tried again, and not in between."""
    world = World(100)
    rung = Thing(world, "window", 5_000, error=where)
    rung.problem = problem
    made, events = ladder(world, rung)

    def steps(level: Level, seconds: float) -> None:
        for _ in range(10):
            world.now_s += seconds / 10
            made.step(level)

    steps(Level.CRITICAL, 20.0)
    if where == "undo":
        world.free += 10_000
        steps(Level.CALM, 20.0)
    assert rung.tries == {"apply": 1, "undo": 2}.get(where, 0)
    rung.error = ""
    steps(Level.CALM if where == "undo" else Level.CRITICAL, 80.0)
    assert events[-1].action == ("undone" if where == "undo" else "applied")
    assert made.applied() == ([] if where == "undo" else ["window"])


def test_a_rung_that_freed_nothing_and_cannot_be_undone_is_undone_later() -> None:
    world = World(100)
    rung = Thing(world, "window", 500, frees=0, error="undo")
    made, events = ladder(world, rung)
    made.step(Level.TIGHT)
    assert (events[-1].reason, made.applied()) == ("it freed nothing and stays: it does not work", ["window"])
    rung.error = ""
    world.free, world.now_s = 10_000, 61.0
    made.step(Level.CALM)
    assert (events[-1].action, made.applied(), rung.given) == ("undone", [], False)


def test_what_is_in_use_is_neither_given_up_nor_taken_back_and_comes_again() -> None:
    world = World(100)
    rung = Thing(world, "window", 5_000)
    made, events = ladder(world, rung, Thing(world, "weights", 5_000))
    rung.is_used = True
    assert [made.step(Level.CRITICAL) for _ in range(3)] == [None] * 3, "nor is a harsher one"
    rung.is_used = False
    made.step(Level.CRITICAL)
    rung.is_used, world.free, world.now_s = True, 10_000, 2.0
    assert made.step(Level.CALM) is None
    rung.is_used = False
    made.step(Level.CALM)
    assert [(event.rung, event.action) for event in events] == [("window", "applied"), ("window", "undone")]


def test_what_comes_again_is_given_again_and_stands_in_nobodys_way() -> None:
    world = World(100)
    spare = Thing(world, "spare pages", 10)
    spare.is_repeatable = True
    made, events = ladder(world, spare, Thing(world, "window", 10), Thing(world, "weights", 10))
    for _ in range(6):
        made.step(Level.CRITICAL)
    given = [event.rung for event in events]
    assert given == ["spare pages", "window", "spare pages", "weights", "spare pages", "spare pages"]
    assert made.applied() == ["window", "weights"], "there is nothing to take back"


def test_a_rung_that_takes_more_than_is_free_before_it_frees_any_is_left_out() -> None:
    world = World(100)
    large = Thing(world, "window", 5_000, takes=101)
    made, _ = ladder(world, large, Thing(world, "weights", 10))
    assert made.listed() == [("weights", 10)]
    world.free = 101
    assert made.listed() == [("window", 5_000), ("weights", 10)]


@given(st.lists(st.tuples(st.integers(-3000, 3000), st.floats(0, 4)), max_size=60))
def test_it_never_flaps(changes: list[tuple[int, float]]) -> None:
    """Whatever others do: directly after a step back, memory is calm; so the next step is not the same one again."""
    world = World()
    meter = world.meter()
    made, events = ladder(world, *(Thing(world, name, 400) for name in ORDER))
    for change, wait_s in changes:
        world.free = max(0, world.free + change)
        world.now_s += wait_s
        done = made.step(meter.read())
        if done is not None and done.action == "undone":
            assert world.free >= LIMITS.calm_bytes
            assert meter.read() is Level.CALM
            assert made.step(meter.read()) is None
    applied = [event.rung for event in events if event.action == "applied"]
    undone = [event.rung for event in events if event.action == "undone"]
    assert len(applied) - len(undone) == len(made.applied())


def test_only_known_rungs_once() -> None:
    world = World()
    made, _ = ladder(world, Thing(world, "window", 1))
    for name in ("window", "prayer"):
        with pytest.raises(GpuError, match="no free place on the ladder"):
            made.register(Thing(world, name, 1))


class Model:
    """A model's window over a real arena."""

    device = "cpu"
    prompt_tokens = 0

    def __init__(self, positions: int) -> None:
        pytest.importorskip("torch", reason="the arena's tensors are torch's")
        self._open(positions)

    def _open(self, positions: int) -> None:
        from gpu.kv.arena import Arena

        self._arena = Arena.open(ArenaSpec(4, 4, 64, positions))
        self._session = self._arena.session()

    @property
    def window_tokens(self) -> int:
        return self._session.capacity

    def window_bytes(self, context_tokens: int) -> int:
        return context_tokens * self._arena.spec.row_elements * 4

    def resize_window(self, context_tokens: int) -> None:
        if context_tokens > 4096:
            raise ArenaFullError("there is no room", wanted=context_tokens, capacity=4096)
        self._arena.close()
        self._open(context_tokens)

    def held_bytes(self) -> int:
        return self._arena.memory_bytes()

    def hold(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def spare_bytes(self) -> int:
        return 5

    def give_spare_back(self) -> None:
        raise AssertionError

    def int8_frees_bytes(self) -> int:
        return 5

    def int8_takes_bytes(self) -> int:
        return 3

    def hold_as(self, kv_dtype: str) -> None:
        raise AssertionError


def test_the_window_rung_frees_what_it_says() -> None:
    model = Model(4096)
    rung = WindowRung(model, least_tokens=1500)
    before, promised = model.held_bytes(), rung.frees_bytes()
    rung.apply()
    assert model.window_tokens == 2048
    assert before - model.held_bytes() == pytest.approx(promised, rel=0.05)
    assert promised > 0
    rung.undo()
    assert model.window_tokens == 4096
    assert WindowRung(Model(1500), least_tokens=1500).frees_bytes() == 0


def test_no_window_is_smaller_than_the_prompt_and_its_reply() -> None:
    model = Model(4096)
    model.prompt_tokens = 2048
    rung = WindowRung(model, least_tokens=1500, reply_tokens=700)
    rung.apply()
    assert model.window_tokens == 2048 + 700 + QUESTION_TOKENS
    model.prompt_tokens = 4000
    assert rung.frees_bytes() == 0
    model.prompt_tokens = 0
    assert rung.frees_bytes() > 0


def test_no_rung_counts_memory_of_another_device() -> None:
    """What a model on the CPU holds frees nothing on a GPU."""
    model = Model(4096)
    rungs = [SpareRung(model), WindowRung(model, least_tokens=512), KvRung(model)]
    assert all(rung.frees_bytes() > 0 for rung in rungs)
    model.device = "cuda:0"
    assert [rung.frees_bytes() for rung in rungs] == [0, 0, 0]
    for rung in rungs:
        with rung.hold() as is_held:
            assert not is_held


def test_the_cpu_rung_moves_the_model() -> None:
    held, moves = [700], list[str]()
    rung = CpuRung(lambda: held[0], moves.append)
    assert rung.frees_bytes() == 700
    rung.apply()
    held[0] = 0
    assert rung.frees_bytes() == 0
    rung.undo()
    assert moves == ["cpu", "cuda"]
    assert rung.name in ORDER
