"""Pressure with hysteresis, and the ladder that answers it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.errors import ArenaFullError, GpuError
from gpu.kv.arena import ArenaSpec
from gpu.memory.ladder import ORDER, Ladder, LadderStep
from gpu.memory.pressure import Level, PressureLimits, PressureMeter, limits_of
from gpu.memory.rungs import CpuRung, WindowRung

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
    """A rung over the world's memory."""

    def __init__(self, world: World, name: str, promises: int, frees: int | None = None, error: str = "") -> None:
        self.world, self.name, self.promises, self.error = world, name, promises, error
        self.frees = promises if frees is None else frees
        self.given = False

    def frees_bytes(self) -> int:
        return 0 if self.given else self.promises

    def apply(self) -> None:
        if self.error == "apply":
            raise GpuError("it does not let go")
        self.given = True
        self.world.free += self.frees

    def undo(self) -> None:
        if self.error == "undo":
            raise GpuError("no way back")
        self.given = False
        self.world.free -= self.frees


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
    assert made.step(Level.TIGHT) == LadderStep("window", "failed", 500, 0, "it freed nothing")
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
