"""Any sequence of operations, against plain lists: every view equals its list, `check()` holds, no page leaks."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gpu.errors import GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec, QuotaError  # noqa: E402
from gpu.kv.pages import OutOfPagesError  # noqa: E402
from gpu.kv.policies import SinkWindow, evict  # noqa: E402
from gpu.kv.session import Mark, Session  # noqa: E402
from gpu.kv.snapshot import restore, save  # noqa: E402
from gpu.kv.window import WindowSession, WindowSpec  # noqa: E402

# 192 bytes a row: rows straddle the pages of 4 KiB, and a ring is a multiple of 64 rows. On the GPU the same with
# pages of 2 MiB.
SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=96)
SPEC_2MIB = ArenaSpec(layers=2, kv_heads=16, head_dim=384, positions=96)
SHAPE = WindowSpec(window=30, sinks=3, slack=12, chunk=10, step=4)
BUDGET_PAGES = {"plain": 64, "plain-gpu": 64}  # a range takes its pages at once there
MOST_SESSIONS = 6
NUMBER = st.integers(0, 1 << 20)


@dataclass
class Model:
    """What a session should be: every token that came, as a number of its own, and which are still seen."""

    ids: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    floor: int = 0
    """Plain sessions: positions below cannot be truncated to (but 0)."""
    window: int = 0
    """0: a plain session."""
    offset: int = 0
    saved_from: int = 0
    barrier: int = 0

    def append(self, new: list[int]) -> None:
        if self.window and new:
            self.move(max(self.offset, self.hidden(len(self.ids) + 1)))
        self.ids += new
        self.seen += new

    def hidden(self, count: int) -> int:
        over = count - SHAPE.sinks - self.window
        return max(0, -(-over // SHAPE.step) * SHAPE.step)

    def move(self, offset: int) -> None:
        if offset > self.offset:
            begin = SHAPE.sinks + offset
            before = SHAPE.sinks if self.offset == 0 else self.saved_from
            self.saved_from = max(before, begin - SHAPE.slack - SHAPE.step)
        self.offset = offset
        self.seen = self.ids[: SHAPE.sinks] + self.ids[SHAPE.sinks + offset :]

    def begin_after(self, position: int) -> int | None:
        """What the window's offset is after a truncation; None where that has been evicted."""
        offset = min(self.offset, self.hidden(position))
        if position <= SHAPE.sinks:
            return offset
        offset = max(offset, self.barrier)
        begin = SHAPE.sinks + offset
        needed = min(SHAPE.sinks + self.offset, position)
        return None if position < begin or (begin < needed and begin < self.saved_from) else offset

    def may_truncate(self, position: int) -> bool:
        if self.window:
            return position == len(self.ids) or self.begin_after(position) is not None
        return position in (0, len(self.ids)) or position >= self.floor

    def truncate(self, position: int) -> None:
        if position == len(self.ids):
            return
        if self.window:
            offset = self.begin_after(position)
            assert offset is not None
            del self.ids[position:]
            self.offset = offset
            self.seen = self.ids[: SHAPE.sinks] + self.ids[SHAPE.sinks + offset :]
            if position <= SHAPE.sinks:
                self.barrier = 0
            return
        keep = len(self.seen) - (len(self.ids) - position)
        del self.ids[position:]
        del self.seen[max(keep, 0) :]
        if position == 0:
            self.seen, self.floor = [], 0


@dataclass
class Pair:
    session: Session
    model: Model
    marks: list[tuple[Mark, list[int]]] = field(default_factory=list)


@functools.cache
def contents(spec: ArenaSpec) -> torch.Tensor:
    """What tokens leave behind, on the device: of token n row n, modulo the rows."""
    rows = 4099 if spec.row_bytes < 1000 else 257
    return torch.from_numpy(np.random.default_rng(1).standard_normal((rows, *spec.row_shape), np.float32)).to(
        spec.device
    )


class ArenaMachine(RuleBasedStateMachine):
    """Subclassed for each backend."""

    backend = "host"
    watermark = "inline"
    new_arena: Callable[..., Arena]
    folder: Path
    operations = 0
    happened: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        pages = BUDGET_PAGES.get(self.backend, 22)
        self.budget_bytes = pages * (2 << 20 if self.backend == "vmm" else 4096)
        self.arena = type(self).new_arena(
            SPEC, backend=self.backend, budget_bytes=self.budget_bytes, watermark=self.watermark
        )
        self.contents = contents(self.arena.spec)
        self.pairs: list[Pair] = []
        self.next_id = 0

    def teardown(self) -> None:
        for pair in sorted(self.pairs, key=lambda pair: pair.session.is_parked):  # who is awake makes room first
            self.compare(pair)
            pair.session.close()
        while self.arena.prefixes.drop_oldest():
            pass
        assert self.arena.backend.pages_in_use == 0
        self.arena.close()

    def pair(self, number: int) -> Pair:
        return self.pairs[number % len(self.pairs)]

    def attempt(self, act: Callable[[], Any]) -> Any:
        """What `act` returns, None where there is no room (and then nothing may have changed)."""
        type(self).operations += 1
        try:
            return act()
        except (QuotaError, OutOfPagesError):
            self.count("no room")
            return None

    def refused(self, act: Callable[[], Any], *reasons: str) -> None:
        """`act` must fail for one of `reasons`, or (who is parked needs room to come back) for want of room."""
        type(self).operations += 1
        with pytest.raises(GpuError) as caught:
            act()
        no_room = isinstance(caught.value, (QuotaError, OutOfPagesError))
        assert no_room or any(reason in str(caught.value) for reason in reasons)

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def expected(self, ids: list[int]) -> torch.Tensor:
        places = torch.tensor(ids, dtype=torch.int64).remainder_(self.contents.shape[0])
        return self.contents[places.to(self.contents.device)]

    def compare(self, pair: Pair) -> None:
        rows, want = pair.session.rows(), self.expected(pair.model.seen)
        assert pair.session.position == len(pair.model.ids)
        assert torch.equal(rows, want)
        for part, view in enumerate((pair.session.keys(1), pair.session.values(1))):
            assert torch.equal(view[0].transpose(0, 1), want[:, 1, part])

    @precondition(lambda self: len(self.pairs) < MOST_SESSIONS)
    @rule(endless=st.booleans(), tokens=st.integers(0, 9))
    def open(self, endless: bool, tokens: int) -> None:
        options = {"window": SHAPE} if endless else {}
        session = self.attempt(lambda: self.arena.session(**options))
        if session is not None:
            self.pairs.append(Pair(session, Model(window=SHAPE.window if endless else 0)))
            for _ in range(tokens):
                self.add(self.pairs[-1], 10, False)

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, tokens=st.integers(0, 10), by_layer=st.booleans())
    def append(self, number: int, tokens: int, by_layer: bool) -> None:
        self.add(self.pair(number), tokens, by_layer)

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, tokens=st.integers(20, 60))
    def append_many(self, number: int, tokens: int) -> None:
        pair = self.pair(number)
        room = SPEC.positions - len(pair.model.seen)
        for count in [10] * (tokens // 10) if pair.model.window else [min(tokens, room)]:
            self.add(pair, count, False)

    def add(self, pair: Pair, tokens: int, by_layer: bool) -> None:
        new = [self.next_id + step for step in range(tokens)]
        rows = self.expected(new)

        def write() -> int:
            if not by_layer:
                return pair.session.append(rows[:, :, 0], rows[:, :, 1])
            start = pair.session.extend(tokens)
            for layer in range(SPEC.layers):
                pair.session.write(layer, start, rows[:, layer, 0], rows[:, layer, 1])
            return start

        if not pair.model.window and len(pair.model.seen) + tokens > SPEC.positions:
            self.refused(write, f"of {SPEC.positions} tokens")
            return
        start = self.attempt(write)
        if start is not None:
            assert start == len(pair.model.ids)
            self.next_id += tokens
            pair.model.append(new)

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, back=st.integers(0, 25), far=st.booleans())
    def truncate(self, number: int, back: int, far: bool) -> None:
        pair = self.pair(number)
        position = max(0, back - 20) if far else max(0, len(pair.model.ids) - back)
        position = min(position, len(pair.model.ids))
        self.cut(pair, position, lambda: pair.session.truncate_to(position))

    def cut(self, pair: Pair, position: int, act: Callable[[], None]) -> None:
        if not pair.model.may_truncate(position):
            self.count("evicted")
            self.refused(act, "evicted")
        elif self.attempt(lambda: (act(), True)) is not None:
            pair.model.truncate(position)

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER)
    def mark(self, number: int) -> None:
        pair = self.pair(number)
        type(self).operations += 1
        pair.marks.append((pair.session.mark(), list(pair.model.ids)))

    @precondition(lambda self: any(pair.marks for pair in self.pairs))
    @rule(number=NUMBER)
    def rollback(self, number: int) -> None:
        marked = [(pair, mark) for pair in self.pairs for mark in pair.marks]
        pair, (mark, then) = marked[number % len(marked)]
        if pair.model.ids[: len(then)] != then:
            self.refused(lambda: pair.session.rollback(mark), "stale")
            return
        self.count("rollback")
        self.cut(pair, len(then), lambda: pair.session.rollback(mark))

    @precondition(lambda self: self.pairs and len(self.pairs) < MOST_SESSIONS)
    @rule(number=NUMBER, back=st.integers(0, 30))
    def fork(self, number: int, back: int) -> None:
        pair = self.pair(number)
        model = copy.deepcopy(pair.model)
        position = max(0, len(model.ids) - back)
        allowed = model.may_truncate(position) and (model.window or position >= model.floor)
        if not allowed:
            self.refused(lambda: pair.session.fork(position), "evicted", "cannot fork")
            return
        child = self.attempt(lambda: pair.session.fork(position))
        if child is not None:
            self.count("fork")
            model.truncate(position)
            self.pairs.append(Pair(child, model))

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, tokens=st.integers(1, 80))
    def keep_prefix(self, number: int, tokens: int) -> None:
        pair = self.pair(number)
        whole = len(pair.model.ids) == len(pair.model.seen)
        count = min(tokens, len(pair.model.ids))
        if whole and count:
            self.attempt(lambda: self.arena.prefixes.add(pair.model.ids[:count], pair.session))

    @precondition(lambda self: self.pairs and len(self.pairs) < MOST_SESSIONS)
    @rule(number=NUMBER, endless=st.booleans())
    def begin_with_prefix(self, number: int, endless: bool) -> None:
        entries = list(self.arena.prefixes.entries())
        ids = [*entries[number % len(entries)].ids, -1] if entries else self.pair(number).model.ids
        ids = ids[number % 3 * len(ids) // 4 :] if number % 5 == 0 else ids[: len(ids) - number % 7]
        prefix, common = self.arena.prefixes.find(ids)
        if prefix is None:
            assert common == 0
            return
        assert list(prefix.ids[:common]) == ids[:common]
        options = {"window": SHAPE} if endless else {}
        session = self.attempt(lambda: self.arena.session(prefix=prefix, tokens=common, **options))
        if session is not None:
            self.count("prefix")
            model = Model(window=SHAPE.window if endless else 0)
            model.ids = model.seen = ids[:common]
            model.ids = list(model.ids)
            if endless and model.hidden(common):
                model.move(model.hidden(common))
                model.barrier = model.offset
                model.saved_from = SHAPE.sinks + model.offset
            self.pairs.append(Pair(session, model))

    @precondition(lambda self: self.pairs and len(self.pairs) < MOST_SESSIONS)
    @rule(number=NUMBER)
    def snapshot_and_restore(self, number: int) -> None:
        pair = self.pair(number)
        path = self.folder / "talk.kv"
        if self.attempt(lambda: save(pair.session, path, model="m", ids=pair.model.ids)) is None:
            return
        restored = self.attempt(lambda: restore(self.arena, path, model="m"))
        if restored is not None:
            self.count("restore")
            assert list(restored.ids) == pair.model.ids
            self.pairs.append(Pair(restored.session, copy.deepcopy(pair.model)))

    @precondition(lambda self: any(not pair.model.window for pair in self.pairs))
    @rule(number=NUMBER, quarters=st.integers(1, 3), recent=st.integers(0, 6))
    def evict(self, number: int, quarters: int, recent: int) -> None:
        plain = [pair for pair in self.pairs if not pair.model.window]
        pair = max(plain, key=lambda pair: len(pair.model.seen)) if number % 2 else plain[number % len(plain)]
        model = pair.model
        keep = max(10, len(model.seen) * quarters // 4)
        gone = self.attempt(lambda: evict(pair.session, SinkWindow(), keep, sinks=4, recent=recent))
        if gone:
            self.count("evict")
            model.seen = model.seen[:4] + model.seen[len(model.seen) - (keep - 4) :]
            model.floor = len(model.ids) - min(recent, len(model.ids))

    @precondition(lambda self: any(pair.model.window for pair in self.pairs))
    @rule(number=NUMBER, window=st.integers(8, 30))
    def resize(self, number: int, window: int) -> None:
        endless = [pair for pair in self.pairs if pair.model.window]
        pair = endless[number % len(endless)]
        model = pair.model
        assert isinstance(pair.session, WindowSession)
        if self.attempt(lambda: (pair.session.resize(window), True)) is not None:  # type: ignore[attr-defined]
            model.window = window
            model.move(max(model.offset, model.hidden(len(model.ids))))
            model.barrier, model.saved_from = model.offset, SHAPE.sinks + model.offset

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, idle=st.booleans())
    def wait(self, number: int, idle: bool) -> None:
        type(self).operations += 1
        self.pair(number).session.idle = idle

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER)
    def park(self, number: int) -> None:
        if self.attempt(lambda: self.pair(number).session.park()) is not None:
            self.count("park")

    @rule()
    def sleep_and_wake(self) -> None:
        self.attempt(self.arena.sleep)
        assert self.arena.backend.pages_in_use == 0
        self.arena.check()
        self.arena.wake()

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER)
    def trim(self, number: int) -> None:
        self.attempt(lambda: self.pair(number).session.trim())

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER)
    def close(self, number: int) -> None:
        type(self).operations += 1
        self.pairs.pop(number % len(self.pairs)).session.close()

    @invariant()
    def everything_holds(self) -> None:
        self.arena.check()
        for pair in self.pairs:
            if not pair.session.is_parked:
                self.compare(pair)


def run(
    new_arena: Callable[..., Arena], backend: str, examples: int, *, watermark: str = "inline"
) -> type[ArenaMachine]:
    with tempfile.TemporaryDirectory() as folder:
        fields = {
            "backend": backend,
            "watermark": watermark,
            "new_arena": staticmethod(new_arena),
            "folder": Path(folder),
        }
        machine = type("Machine", (ArenaMachine,), {**fields, "operations": 0, "happened": {}})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"{backend}: {machine.operations} operations, {machine.happened}")
    return machine


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "backend",
    [
        "host",
        pytest.param("vmm", marks=pytest.mark.gpu),
        pytest.param("plain-gpu", marks=pytest.mark.gpu),
    ],
)
def test_ten_thousand_operations(new_arena: Callable[..., Arena], backend: str) -> None:
    machine = run(new_arena, backend, 400 if backend == "host" else 250)
    assert machine.operations >= 10_000
    assert set(machine.happened) >= {"fork", "restore", "evict", "park", "rollback", "evicted"}


@pytest.mark.parametrize("backend", ["host-copy", "plain", "fake-vmm"])
def test_a_thousand_operations(new_arena: Callable[..., Arena], backend: str) -> None:
    assert run(new_arena, backend, 60).operations >= 1000


@pytest.mark.parametrize("backend", ["host", pytest.param("vmm", marks=pytest.mark.gpu)])
def test_a_thousand_operations_beside_the_watermark_thread(new_arena: Callable[..., Arena], backend: str) -> None:
    assert run(new_arena, backend, 60, watermark="thread").operations >= 1000
