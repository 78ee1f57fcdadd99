"""Sessions with a quantised body: what reads back is predicted by plain lists, is close to what came, and small."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gpu.errors import ArenaFullError, GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec, QuotaError  # noqa: E402
from gpu.kv.pages import OutOfPagesError  # noqa: E402
from gpu.kv.policies import SinkWindow, evict  # noqa: E402
from gpu.kv.quantised import QuantisedSession  # noqa: E402
from gpu.kv.session import Mark  # noqa: E402
from gpu.kv.snapshot import SnapshotError, restore, save  # noqa: E402
from gpu.kv.spec import BodySpec  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402

# At most 48 rows of 192 bytes as they came and 23 blocks of 10 rows of 64 bytes: both straddle pages of 4 KiB.
SINKS, BLOCK, RECENT, SLACK, CHUNK, EXACT_ROWS = 3, 8, 10, 9, 12, 48
BODY = BodySpec("int8", block=BLOCK, sinks=SINKS, recent=RECENT, slack=SLACK, chunk=CHUNK)
SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=200, body=BODY)
SPEC_2MIB = ArenaSpec(layers=6, kv_heads=16, head_dim=128, positions=200, dtype="bfloat16", body=BODY)
MOST_SESSIONS = 5
NUMBER = st.integers(0, 1 << 20)
E4M3 = [(code & 7) * 2**-9 if code < 8 else (8 + (code & 7)) * 2.0 ** ((code >> 3) - 10) for code in range(127)]
"""What fp8 can say, by its definition; the sign is a bit of its own."""

NewArena = Callable[..., Arena]


def rounded(quotients: np.ndarray, code: str) -> np.ndarray:
    """The codes' values nearest to `quotients`, of two as near the even code's."""
    if code == "int8":
        return np.clip(np.rint(quotients), -127, 127)
    table, sizes = np.array(E4M3, np.float64), np.abs(quotients).astype(np.float64)
    above = np.clip(np.searchsorted(table, sizes), 1, len(table) - 1)
    low, high = sizes - table[above - 1], table[above] - sizes
    nearer = (high < low) | ((high == low) & (above % 2 == 0))
    return (np.sign(quotients) * table[np.where(nearer, above, above - 1)]).astype(np.float32)


def read_back(rows: list[torch.Tensor], code: str) -> list[torch.Tensor]:
    """A block's rows, each [layers, 2, kv_heads, head_dim], after quantising: keys by channel, values by token."""
    numbers = torch.stack(rows).float().numpy()
    largest = np.float32(1.0 / (127 if code == "int8" else 448))
    keys, values = numbers[:, :, 0], numbers[:, :, 1]
    centres = in_bfloat16((keys.max(axis=0) + keys.min(axis=0)) * np.float32(0.5))
    both = []
    for part, centre, axis in ((keys, centres, 0), (values, np.float32(0), -1)):
        part = part - centre
        scales = in_bfloat16(np.abs(part).max(axis=axis, keepdims=True) * largest)
        both.append(centre + rounded(part / np.where(scales == 0, np.float32(1), scales), code) * scales)
    return list(torch.from_numpy(np.stack(both, axis=2)).to(rows[0].dtype))


def in_bfloat16(numbers: np.ndarray) -> np.ndarray:
    return torch.from_numpy(numbers).to(torch.bfloat16).float().numpy()


@dataclass
class Model:
    """A session as lists: `rows` of every token as it came, None once that is forgotten; `codes` as they read back."""

    code: str
    rows: list[torch.Tensor | None] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    codes: list[torch.Tensor] = field(default_factory=list)
    offset: int = 0

    def copy(self) -> Model:
        return Model(self.code, list(self.rows), list(self.ids), list(self.codes), self.offset)

    def append(self, ids: list[int], new: list[torch.Tensor]) -> None:
        if not new:
            return
        while len(self.codes) + BLOCK <= len(self.rows) - SINKS - RECENT:
            begin = SINKS + len(self.codes)
            self.codes += read_back([self.known(place) for place in range(begin, begin + BLOCK)], self.code)
        if len(self.rows) - self.offset + len(new) > EXACT_ROWS:
            self.offset = max(self.offset, max(0, len(self.codes) - SLACK) // BLOCK * BLOCK)
            self.rows[SINKS : SINKS + self.offset] = [None] * self.offset
        self.rows += new
        self.ids += ids

    def known(self, place: int) -> torch.Tensor:
        row = self.rows[place]
        assert row is not None
        return row

    def truncate(self, position: int) -> None:
        if position == len(self.rows):
            return
        behind = position - SINKS
        fresh = max(0, behind - RECENT) // BLOCK * BLOCK
        if behind <= 0:
            self.codes, self.offset = [], 0
        elif min(len(self.codes), fresh) >= self.offset:
            self.codes = self.codes[:fresh]
        else:  # further back than what is kept: whole blocks stay, the rest is kept as it reads back
            whole = min(self.offset, behind // BLOCK * BLOCK)
            for place in range(whole, min(behind, self.offset)):
                self.rows[SINKS + place] = self.codes[place]
            self.codes, self.offset = self.codes[:whole], whole
        del self.rows[position:], self.ids[position:]

    def seen(self) -> list[torch.Tensor]:
        begin = SINKS + len(self.codes)
        places = [*range(min(SINKS, len(self.rows))), *range(begin, len(self.rows))]
        exact = [self.known(place) for place in places]
        return exact[:SINKS] + self.codes + exact[SINKS:]


@dataclass
class Pair:
    session: QuantisedSession
    model: Model
    marks: list[tuple[Mark, list[int]]] = field(default_factory=list)


def contents(spec: ArenaSpec) -> torch.Tensor:
    """What tokens leave behind, of token n row n modulo the rows; some channels are large in every token."""
    generator = np.random.default_rng(1)
    numbers = generator.standard_normal((257, *spec.row_shape), np.float32)
    numbers *= np.where(generator.random(spec.row_shape) < 0.1, 40, 1).astype(np.float32)
    numbers[::16] = 0
    return torch.from_numpy(numbers).to(torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32)


class QuantisedMachine(RuleBasedStateMachine):
    """Subclassed for each backend and code."""

    backend = "host"
    code = "int8"
    spec = SPEC
    page_bytes = 4096
    new_arena: NewArena
    contents: torch.Tensor
    folder: Path
    operations = 0
    happened: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        pages = {"plain": 40, "vmm": 12}.get(self.backend, 17)  # a plain range takes all its pages at once
        self.arena = type(self).new_arena(self.spec, backend=self.backend, budget_bytes=pages * self.page_bytes)
        self.pairs: list[Pair] = []
        self.prefixes: dict[tuple[int, ...], Model] = {}
        self.next_id = 0

    def teardown(self) -> None:
        for pair in sorted(self.pairs, key=lambda pair: pair.session.is_parked):
            self.compare(pair)
            pair.session.close()
        while self.arena.prefixes.drop_oldest():
            pass
        assert self.arena.backend.pages_in_use == 0
        assert self.arena.stats().sessions == 0
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

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def compare(self, pair: Pair) -> None:
        session, seen = pair.session, pair.model.seen()
        assert (session.position, session.length) == (len(seen), len(seen))
        assert session.coded == len(pair.model.codes)
        if seen:
            want, layer = torch.stack(seen), len(seen) % self.spec.layers
            assert torch.equal(session.rows().cpu(), want)
            both = session.keys(layer), session.values(layer)
            for part, view in enumerate(both):
                assert torch.equal(view[0].transpose(0, 1).cpu(), want[:, layer, part])

    @precondition(lambda self: len(self.pairs) < MOST_SESSIONS)
    @rule(tokens=st.integers(0, 14))
    def open(self, tokens: int) -> None:
        session = self.attempt(self.arena.session)
        if session is not None:
            self.pairs.append(Pair(session, Model(self.code)))
            for _ in range(tokens):
                self.add(self.pairs[-1], CHUNK, False)

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, tokens=st.integers(0, CHUNK), by_layer=st.booleans())
    def append(self, number: int, tokens: int, by_layer: bool) -> None:
        self.add(self.pair(number), tokens, by_layer)

    def add(self, pair: Pair, tokens: int, by_layer: bool) -> None:
        new = list(range(self.next_id, self.next_id + tokens))
        rows = [self.contents[number % len(self.contents)] for number in new]
        block = torch.stack(rows) if rows else self.contents[:0]
        block = block.to(self.arena.spec.device)

        def write() -> int:
            if not by_layer:
                return pair.session.append(block[:, :, 0], block[:, :, 1])
            start = pair.session.extend(tokens)
            for layer in range(self.spec.layers):
                pair.session.write(layer, start, block[:, layer, 0], block[:, layer, 1])
            return start

        if len(pair.model.rows) + tokens > self.spec.positions:
            with pytest.raises(ArenaFullError):
                write()
            return
        start = self.attempt(write)
        if start is not None:
            assert start == len(pair.model.rows)
            self.next_id += tokens
            pair.model.append(new, rows)

    @precondition(lambda self: self.pairs)
    @rule(number=NUMBER, back=st.integers(0, 60), far=st.booleans())
    def truncate(self, number: int, back: int, far: bool) -> None:
        pair = self.pair(number)
        length = len(pair.model.rows)
        position = min(back, length) if far else max(0, length - back)
        self.cut(pair, position, lambda: pair.session.truncate_to(position))

    def cut(self, pair: Pair, position: int, act: Callable[[], None]) -> None:
        if self.attempt(lambda: (act(), True)) is not None:
            reached = min(len(pair.model.codes), max(0, position - SINKS - RECENT) // BLOCK * BLOCK)
            if position != len(pair.model.rows) and pair.model.codes:
                self.count("into the body" if reached < pair.model.offset else "within the slack")
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
            with pytest.raises(GpuError, match="stale"):
                pair.session.rollback(mark)
            return
        self.count("rollback")
        self.cut(pair, len(then), lambda: pair.session.rollback(mark))

    @precondition(lambda self: self.pairs and len(self.pairs) < MOST_SESSIONS)
    @rule(number=NUMBER, back=st.integers(0, 60))
    def fork(self, number: int, back: int) -> None:
        pair = self.pair(number)
        model = pair.model.copy()
        position = max(0, len(model.rows) - back)
        child = self.attempt(lambda: pair.session.fork(position))
        if child is not None:
            self.count("fork")
            model.truncate(position)
            self.pairs.append(Pair(child, model))

    @precondition(lambda self: self.pairs and len(self.pairs) < MOST_SESSIONS)
    @rule(number=NUMBER, back=st.integers(0, 60), fewer=st.integers(0, 20))
    def begin_with_a_prefix(self, number: int, back: int, fewer: int) -> None:
        pair = self.pair(number)
        ids = tuple(pair.model.ids[: len(pair.model.ids) - back] if back < len(pair.model.ids) else pair.model.ids[:1])
        if not ids:
            return
        known = any(prefix.ids == ids for prefix in self.arena.prefixes.entries())
        prefix = self.attempt(lambda: self.arena.prefixes.add(ids, pair.session))
        if prefix is None:
            return
        if not known:
            self.prefixes[ids] = pair.model.copy()
            self.prefixes[ids].truncate(len(ids))
        tokens = max(1, len(ids) - fewer)
        session = self.attempt(lambda: self.arena.session(prefix=prefix, tokens=tokens))
        if session is not None:
            self.count("prefix")
            model = self.prefixes[ids].copy()
            model.truncate(tokens)
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
            self.pairs.append(Pair(restored.session, pair.model.copy()))

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


def run(new_arena: NewArena, backend: str, code: Any, examples: int) -> type[QuantisedMachine]:
    on_gpu = backend == "vmm"
    spec = SPEC_2MIB if on_gpu else SPEC
    with tempfile.TemporaryDirectory() as folder:
        fields = {
            "backend": backend,
            "code": code,
            "spec": replace(spec, body=replace(BODY, code=code)),
            "page_bytes": 2 << 20 if on_gpu else 4096,
            "new_arena": staticmethod(new_arena),
            "contents": contents(spec),
            "folder": Path(folder),
        }
        machine = type("Machine", (QuantisedMachine,), {**fields, "operations": 0, "happened": {}})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"{backend} {code}: {machine.operations} operations, {machine.happened}")
    return machine


@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", ["int8", "fp8"])
@pytest.mark.parametrize("backend", ["host", pytest.param("vmm", marks=pytest.mark.gpu)])
def test_two_thousand_operations(new_arena: NewArena, backend: str, code: str) -> None:
    machine = run(new_arena, backend, code, 90 if backend == "host" else 50)
    assert machine.operations >= 2000
    seen = {"fork", "prefix", "restore", "park", "rollback", "into the body", "within the slack", "no room"}
    assert set(machine.happened) >= seen


@pytest.mark.parametrize("backend", ["host-copy", "plain", "fake-vmm"])
def test_some_operations_elsewhere(new_arena: NewArena, backend: str) -> None:
    assert run(new_arena, backend, "int8", 15).operations >= 250


# What it is worth: a shape as real models have it, 4 layers of it.
REAL = ArenaSpec(layers=4, kv_heads=4, head_dim=64, positions=4096, dtype="bfloat16")


def real(code: Any) -> ArenaSpec:
    return replace(REAL, body=BodySpec(code))


def realistic(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 keys and values [tokens, layers, kv_heads, head_dim]; keys have channels that are large throughout.

    As measured in Llama models before and after rotation (KIVI, KVQuant): one channel in 16 some 10 times as large,
    with a mean of its own; values have no such channels.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (tokens, REAL.layers, REAL.kv_heads, REAL.head_dim)
    large = torch.rand(shape[1:], generator=generator) < 1 / 16
    keys = torch.randn(shape, generator=generator) + large * 8 * torch.randn(shape[1:], generator=generator).sign()
    keys = torch.where(large, keys * 1.5, keys)
    values = torch.randn(shape, generator=generator)
    return keys.to(torch.bfloat16), values.to(torch.bfloat16)


def fill(session: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    for begin in range(0, keys.shape[0], 256):
        session.append(keys[begin : begin + 256], values[begin : begin + 256])


def attention_error(session: Any, keys: torch.Tensor, values: torch.Tensor) -> float:
    """Of what 64 queries a head read, over all layers: |ours - exact| / |exact|, both computed in float32."""
    generator, attend = torch.Generator().manual_seed(9), torch.nn.functional.scaled_dot_product_attention
    off = size = 0.0
    for layer in range(REAL.layers):
        mine = [view.float().clone() for view in (session.keys(layer), session.values(layer))]
        exact = [part[:, layer].transpose(0, 1).unsqueeze(0).float() for part in (keys, values)]
        # Queries that look for some of the keys: with random ones every softmax is flat and hides what keys lose.
        picked = torch.randint(keys.shape[0], (64,), generator=generator)
        query = exact[0][:, :, picked] * 0.1 + torch.randn(1, REAL.kv_heads, 64, REAL.head_dim, generator=generator)
        want = attend(query, *exact)
        off += float((attend(query, *mine) - want).square().sum())
        size += float(want.square().sum())
    return (off / size) ** 0.5


class OneScaleAToken:
    """What the keys would be with a scale for each token and head, as values have: the large channels set it."""

    def __init__(self, session: Any, keys: torch.Tensor, code: str) -> None:
        numbers = keys.float()
        scales = numbers.abs().amax(-1, keepdim=True) / (127 if code == "int8" else 448)
        codes = (numbers / scales).round() if code == "int8" else (numbers / scales).to(torch.float8_e4m3fn).float()
        self._keys, self.values = codes * scales, session.values

    def keys(self, layer: int) -> torch.Tensor:
        return self._keys[:, layer].transpose(0, 1).unsqueeze(0)


@pytest.mark.parametrize(("code", "limit"), [("int8", 0.01), ("fp8", 0.04)])
def test_attention_stays_close_although_some_channels_are_large(code: str, limit: float) -> None:
    session = Arena.open(real(code)).session()
    keys, values = realistic(2000, 1)
    fill(session, keys, values)
    assert session.coded == 1600  # type: ignore[attr-defined]
    error = attention_error(session, keys, values)
    naive = attention_error(OneScaleAToken(session, keys, code), keys, values)
    print(f"{code}: error of attention {error:.4f}, with one scale a token {naive:.4f}")
    assert 1e-4 < error <= limit
    assert naive > 2 * error


@pytest.mark.parametrize("code", ["int8", "fp8"])
def test_a_token_of_the_body_takes_half_the_pages(code: str, new_arena: NewArena) -> None:
    used = {}
    for spec in (REAL, real(code)):
        arena = new_arena(spec, backend="host", ahead_bytes=0)
        session, (keys, values) = arena.session(), realistic(512, 2)
        for _ in range(2):
            fill(session, keys, values)
        before = arena.stats().used_bytes
        for _ in range(5):
            fill(session, keys, values)
        used[spec.body] = (arena.stats().used_bytes - before) / 2560, arena.stats().used_bytes
        session.close()
    (plain, all_plain), (coded, all_coded) = used[None], used[real(code).body]
    print(f"{code}: {coded / plain:.3f} of the bytes a token, {all_coded / all_plain:.3f} of 3584 tokens' pages")
    assert coded <= 0.56 * plain
    assert all_coded <= 0.72 * all_plain


@pytest.mark.parametrize("code", ["int8", "fp8"])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(dtype, size) for dtype in ("float32", "bfloat16") for size in (1e-30, 1e-6, 1.0, 1e38)]
    + [("float16", size) for size in (1e-5, 1e-3, 1.0, 6e4, 65504.0)],
)
def test_numbers_of_every_size_come_back(new_arena: NewArena, dtype: str, size: float, code: str) -> None:
    """The largest and the smallest that a dtype has: finite, and as near as the codes allow."""
    spec = replace(SPEC, dtype=dtype, body=replace(BODY, code=code))
    arena = new_arena(spec, backend="host")
    session, rows = arena.session(), contents(SPEC)[:120]
    rows = (rows / rows.abs().max() * 0.98).float()
    rows[:, :, 0] = 0.999 + 0.001 * rows[:, :, 0].sign()  # keys far from 0: their centre is nearly the largest number
    rows = (rows * size).to(getattr(torch, dtype))
    for begin in range(0, 120, CHUNK):
        session.append(rows[begin : begin + CHUNK, :, 0], rows[begin : begin + CHUNK, :, 1])
    assert session.coded > 80  # type: ignore[attr-defined]
    error = (session.rows().double() - rows.double()).abs().max()
    smallest = torch.finfo(getattr(torch, dtype)).tiny * torch.finfo(getattr(torch, dtype)).eps
    assert float(error) <= (0.01 if code == "int8" else 0.05) * size + 2 * smallest
    cut = SINKS + 5
    session.truncate_to(cut)  # the last of these are kept as they read back
    assert float((session.rows().double() - rows[:cut].double()).abs().max()) <= float(error)
    arena.check()


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_channel_of_its_block(new_arena: NewArena, broken: float) -> None:
    """As gpu/kv/codes.py says: nobody looks for it, and it goes no further."""
    arena = new_arena(SPEC, backend="host")
    session, rows = arena.session(), contents(SPEC)[:120].clone()
    rows[SINKS + 2 * BLOCK + 3, 1, 0, 1, 4] = broken  # a key
    rows[SINKS + 5 * BLOCK + 3, 0, 1, 1, 4] = broken  # a value
    for begin in range(0, 120, CHUNK):
        session.append(rows[begin : begin + CHUNK, :, 0], rows[begin : begin + CHUNK, :, 1])
    lost = ~torch.isfinite(session.rows())
    expected = torch.zeros_like(lost)
    expected[SINKS + 2 * BLOCK : SINKS + 3 * BLOCK, 1, 0, 1, 4] = True
    expected[SINKS + 5 * BLOCK + 3, 0, 1, 1] = True
    assert lost.any()
    assert not (lost & ~expected).any()


def test_check_notices_more_tokens_than_positions(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    session.restore_state({"length": 16, "offset": 192, "coded": 192})
    with pytest.raises(GpuError, match="208 tokens in a session of 200"):
        arena.check()


def test_only_the_recent_rows_are_kept_as_they_came(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", ahead_bytes=0)
    session, rows = arena.session(), contents(SPEC)[:200]
    for begin in range(0, 200, CHUNK):
        piece = rows[begin : begin + CHUNK]
        session.append(piece[:, :, 0], piece[:, :, 1])
    own, codes = EXACT_ROWS * SPEC.row_bytes, 22 * (BLOCK + 2) * 64
    assert arena.stats().used_bytes <= own + codes + 2 * 4096
    assert session.memory_bytes() + 2 * 200 * 2 * 6 * 4 == arena.memory_bytes()
    session.truncate_to(0)
    assert session.trim() > 0
    assert arena.stats().pages_in_use == 2
    assert arena.stats().sessions == 1
    session.close()
    assert arena.backend.pages_in_use == 0


def test_a_rollback_within_the_slack_is_as_if_nothing_had_come(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    used, fresh, rows = arena.session(), arena.session(), contents(SPEC)
    for session, extra in ((used, SLACK), (fresh, 0)):
        for begin in range(0, 96, CHUNK):
            piece = rows[begin : begin + CHUNK]
            session.append(piece[:, :, 0], piece[:, :, 1])
        mark = session.mark()
        for other in rows[200 : 200 + extra].unsqueeze(1):
            session.append(other[:, :, 0], other[:, :, 1])
        session.rollback(mark)
        session.append(rows[100:110, :, 0], rows[100:110, :, 1])
    assert torch.equal(used.rows(), fresh.rows())
    assert torch.equal(used.rows()[-20:], torch.cat((rows[86:96], rows[100:110])))


def test_one_quota_for_both_runs_of_rows(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", ahead_bytes=0)
    session, rows = arena.session(quota_bytes=4 * 4096), contents(SPEC)[:CHUNK]

    def fill_up() -> None:
        while True:
            session.append(rows[:, :, 0], rows[:, :, 1])

    with pytest.raises(QuotaError, match="session's quota of 4 pages"):
        fill_up()
    assert arena.stats().pages_in_use == 4
    before = session.rows()
    session.check()
    with pytest.raises(QuotaError):
        session.append(rows[:, :, 0], rows[:, :, 1])
    assert torch.equal(session.rows(), before)


def test_an_idle_session_goes_to_the_host_as_a_whole_and_never_for_itself(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", ahead_bytes=0, budget_bytes=8 * 4096)
    first, second, rows = arena.session(), arena.session(), contents(SPEC)
    for session in (first, second):
        for begin in range(0, 180, CHUNK):
            session.idle = True  # before its own appends too
            session.append(rows[begin : begin + CHUNK, :, 0], rows[begin : begin + CHUNK, :, 1])
        session.idle = True
    assert first.is_parked
    assert arena.stats().parked_sessions == 1
    assert arena.stats().sent_to_host == 1
    held = second.rows()
    assert first.rows().shape == held.shape
    assert torch.equal(first.rows(), held)
    arena.check()


def test_what_a_quantised_body_does_not_do(new_arena: NewArena, tmp_path: Path) -> None:
    arena = new_arena(SPEC, backend="host")
    session, rows = arena.session(), contents(SPEC)
    with pytest.raises(ArenaFullError, match="takes 12 tokens at once, not 13"):
        session.extend(CHUNK + 1)
    for begin in range(0, 48, CHUNK):
        session.append(rows[begin : begin + CHUNK, :, 0], rows[begin : begin + CHUNK, :, 1])
    with pytest.raises(GpuError, match="does not evict"):
        evict(session, SinkWindow(), 30, sinks=4, recent=8)
    with pytest.raises(GpuError, match="cannot fork at 49"):
        session.fork(49)
    with pytest.raises(GpuError, match="endless session has no quantised body"):
        arena.session(window=WindowSpec(window=20))
    with pytest.raises(GpuError, match="un-rotated"):
        replace(SPEC, unrotated_keys=True)
    for wrong in ({"code": "int4"}, {"block": 0}, {"recent": -1}):
        with pytest.raises(GpuError):
            replace(BODY, **wrong)
    save(session, tmp_path / "talk.kv", model="m")
    other = new_arena(replace(SPEC, body=replace(BODY, code="fp8")), backend="host")
    with pytest.raises(SnapshotError, match="'code': 'int8'"):
        restore(other, tmp_path / "talk.kv", model="m")
    arena.check()
