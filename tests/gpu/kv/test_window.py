"""Endless sessions: what is seen is sinks and window in order, at one address, whatever was appended and taken back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu.errors import ArenaFullError, GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec, QuotaError  # noqa: E402
from gpu.kv.rebase import rebase  # noqa: E402
from gpu.kv.window import WindowSession, WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=16)  # 192 bytes a row: a ring is a multiple of 64 rows
SHAPE = WindowSpec(window=40, sinks=3, slack=20, chunk=12, step=5)
NewArena = Callable[..., Arena]


@pytest.fixture
def arenas(new_arena: NewArena, backend_name: str) -> Iterator[NewArena]:
    made: list[Arena] = []

    def build(spec: ArenaSpec = SPEC, **options: Any) -> Arena:
        made.append(new_arena(spec, backend=backend_name, **options))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()
        assert arena.backend.pages_in_use == 0


class Talk:
    """A session and the plain list of what was appended to it."""

    def __init__(self, session: WindowSession, shape: WindowSpec = SHAPE) -> None:
        self.session = session
        self.shape = shape
        self.tokens: list[np.ndarray] = []
        self._made = 0

    def append(self, count: int) -> None:
        """Through the layers or at once, in turns."""
        spec = self.session.spec
        rng = np.random.default_rng(1000 * len(self.tokens) + self._made)
        self._made += 1
        new = rng.standard_normal((count, *spec.row_shape), np.float32)
        parts = [torch.from_numpy(new[:, :, part]).to(spec.device) for part in range(spec.parts)]
        if self._made % 2:
            self.session.append(*parts)
        else:
            start = self.session.extend(count)
            assert start == len(self.tokens)
            for layer in range(spec.layers):
                self.session.write(layer, start, *(part[:, layer] for part in parts))
        self.tokens += list(new)

    def truncate(self, position: int) -> None:
        self.session.truncate_to(position)
        del self.tokens[position:]

    def holds(self, lag: int = 0) -> None:
        """Sinks, then the last tokens: all, or `window - step + 1` to `window`, and the last chunk's `lag` more."""
        session, shape, count = self.session, self.shape, len(self.tokens)
        assert session.position == count
        recent = session.length - shape.sinks
        if count > shape.sinks + shape.window + lag:
            assert shape.window - shape.step + 1 <= recent <= shape.window + lag
            seen = self.tokens[: shape.sinks] + self.tokens[count - recent :]
        else:
            seen = self.tokens[: shape.sinks] + self.tokens[shape.sinks :][-max(recent, 0) or count :]
            assert len(seen) == session.length
        expected = np.stack(seen) if seen else np.zeros((0, *session.spec.row_shape), np.float32)
        np.testing.assert_array_equal(session.rows().cpu().numpy(), expected)
        for layer in range(session.spec.layers):
            for part, view in enumerate((session.keys(layer), session.values(layer))):
                np.testing.assert_array_equal(view[0].transpose(0, 1).cpu().numpy(), expected[:, layer, part])


def test_a_long_stream_of_chunks_and_rollbacks(arenas: NewArena) -> None:
    arena = arenas()
    talk = Talk(arena.session(window=SHAPE))
    rng, longest = random.Random(7), 0
    for _ in range(200):
        longest = max(longest, len(talk.tokens))
        if rng.random() < 0.3:
            talk.truncate(max(0, min(len(talk.tokens), longest - rng.randint(0, SHAPE.slack))))
            talk.holds(lag=SHAPE.chunk - 1)
        count = rng.choice([0, 1, 1, 1, 2, 7, 12])
        talk.append(count)
        talk.holds(lag=count - 1 if count else SHAPE.chunk - 1)
        talk.session.check()
    assert len(talk.tokens) > 5 * SHAPE.window


def test_every_rollback_within_the_slack_is_exact(arenas: NewArena) -> None:
    arena = arenas()
    for back in range(SHAPE.slack + 1):
        talk = Talk(arena.session(window=SHAPE))
        for count in [12] * 8 + [1] * 31:
            talk.append(count)
        mark = talk.session.mark()
        for count in (1, 1, 1, 12, 12)[: max(1, back // 5)]:
            talk.append(count)
        if len(talk.tokens) - mark.position <= SHAPE.slack:
            talk.session.rollback(mark)
            del talk.tokens[mark.position :]
            talk.holds()
        talk.truncate(len(talk.tokens) - back)
        talk.holds()
        talk.append(6)
        talk.holds(lag=5)
        talk.session.close()


def test_what_is_behind_the_slack_is_refused_and_nothing_changes(arenas: NewArena) -> None:
    talk = Talk(arenas().session(window=SHAPE))
    for _ in range(30):
        talk.append(10)
    before = talk.session.rows().clone()
    with pytest.raises(GpuError, match="evicted"):
        talk.session.truncate_to(300 - SHAPE.window - SHAPE.slack)
    assert torch.equal(talk.session.rows(), before)
    for position in (2, 0):
        talk.truncate(position)
        talk.holds()
    talk.append(9)
    talk.holds()


def test_memory_and_addresses_stop_growing(arenas: NewArena) -> None:
    arena = arenas()
    talk = Talk(arena.session(window=SHAPE))
    storage = talk.session.keys(0).untyped_storage().data_ptr()
    while len(talk.tokens) < 2 * SHAPE.window:
        talk.append(1)
    pages = arena.stats().pages_in_use
    for _ in range(10 * SHAPE.window):
        talk.append(1)
        assert talk.session.keys(0).untyped_storage().data_ptr() == storage
    talk.holds()
    assert arena.stats().pages_in_use == pages
    session = talk.session
    assert session.registers.tolist() == [session.length, session.position, session.keys(0).storage_offset() // 48]
    if arena.backend.page_bytes > 4096:
        return  # the ring of such tiny rows is hardly begun
    rows = SHAPE.ring_rows(SPEC, arena.backend.page_bytes) * (1 if arena.backend.aliases else 2)
    store = -(-(SHAPE.sinks + SHAPE.undo_rows) * SPEC.row_bytes // arena.backend.page_bytes)
    assert pages == rows * SPEC.row_bytes // arena.backend.page_bytes + store


def test_attention_equals_an_explicit_mask(arenas: NewArena) -> None:
    arena = arenas()
    full = Talk(arena.session(window=WindowSpec(window=512, chunk=1)), WindowSpec(window=512, chunk=1))
    talk = Talk(arena.session(window=SHAPE))
    attend = torch.nn.functional.scaled_dot_product_attention
    query = torch.randn(1, SPEC.kv_heads, 1, SPEC.head_dim, generator=torch.Generator().manual_seed(1))
    query = query.to(talk.session.registers.device)
    for count in range(1, 301):
        full.append(1)
        new = torch.from_numpy(full.tokens[-1]).to(query.device).unsqueeze(0)
        talk.session.append(new[:, :, 0], new[:, :, 1])
        recent = talk.session.length - SHAPE.sinks
        mask = torch.zeros(1, count, dtype=torch.bool, device=query.device)
        mask[:, : SHAPE.sinks] = True
        mask[:, max(0, count - recent) :] = True
        ours = attend(query, talk.session.keys(1), talk.session.values(1))
        theirs = attend(query, full.session.keys(1), full.session.values(1), attn_mask=mask)
        assert float((ours - theirs).abs().max()) <= 1e-5


def test_forks_of_a_ring_go_their_own_ways(arenas: NewArena) -> None:
    arena = arenas()
    talk = Talk(arena.session(window=SHAPE))
    for _ in range(25):
        talk.append(7)
    before = arena.stats().pages_in_use
    child = Talk(talk.session.fork(170))  # type: ignore[arg-type]
    child.tokens = talk.tokens[:170]
    if arena.backend.aliases:
        assert arena.stats().pages_in_use < before + child.session.pager.range.pages // 2
    child.holds()
    for count in (5, 12, 1, 12, 12, 12, 12, 12, 12, 12):
        child.append(count)
        talk.append(count)
        child.holds(lag=count - 1)
        talk.holds(lag=count - 1)
        arena.check()
    child.truncate(len(child.tokens) - 15)
    child.holds()
    talk.session.close()
    child.append(3)
    child.holds(lag=2)
    with pytest.raises(GpuError, match="evicted"):
        child.session.fork(20)


def test_a_window_shrinks_and_grows_again(arenas: NewArena) -> None:
    shape = WindowSpec(window=200, sinks=3, slack=20, chunk=12, step=5)
    arena = arenas()
    talk = Talk(arena.session(window=shape), shape)
    for _ in range(60):
        talk.append(9)
    before = arena.stats().pages_in_use
    talk.session.resize(40)
    talk.shape = SHAPE
    talk.holds()
    if arena.backend.page_bytes == 4096:
        assert arena.stats().pages_in_use < before
    with pytest.raises(GpuError, match="evicted"):
        talk.session.truncate_to(len(talk.tokens) - 50)
    talk.truncate(len(talk.tokens) - 1)
    for _ in range(40):
        talk.append(6)
        talk.holds(lag=5)
    talk.session.resize(200)
    address = talk.session.keys(0).untyped_storage().data_ptr()
    for _ in range(40):
        talk.append(6)
        talk.session.check()
    talk.truncate(len(talk.tokens) - 20)
    talk.shape = shape
    talk.holds()
    assert talk.session.keys(0).untyped_storage().data_ptr() == address
    with pytest.raises(GpuError, match="opened with"):
        talk.session.resize(100_000)


def test_a_grown_window_forgets_before_the_growth(arenas: NewArena) -> None:
    shape = WindowSpec(window=200, sinks=3, slack=20, chunk=12, step=5)
    talk = Talk(arenas().session(window=shape))
    for _ in range(30):
        talk.append(10)
    talk.session.resize(40)
    talk.session.resize(200)
    length = talk.session.length
    talk.append(5)
    talk.truncate(302)
    assert talk.session.length == length + 2
    np.testing.assert_array_equal(
        talk.session.rows()[-length - 2 + 3 :].cpu().numpy(), np.stack(talk.tokens[-length + 1 :])
    )


def test_growth_that_the_budget_has_not_is_refused_with_everything_kept(new_arena: NewArena) -> None:
    shape = WindowSpec(window=200, sinks=3, slack=20, chunk=12, step=5)
    arena = new_arena(SPEC, backend="host", budget_bytes=16 * 4096)
    talk = Talk(arena.session(window=shape))
    for _ in range(30):
        talk.append(10)
    talk.session.resize(40)
    hoard = [arena.session() for _ in range(16 - arena.stats().pages_in_use)]
    before = talk.session.rows().clone()
    with pytest.raises(QuotaError):
        talk.session.resize(200)
    assert torch.equal(talk.session.rows(), before)
    hoard[0].close()
    arena.check()
    arena.close()


def test_what_a_window_does_not_do_is_refused(arenas: NewArena) -> None:
    session = arenas().session(window=SHAPE)
    with pytest.raises(ArenaFullError, match="at once"):
        session.extend(10_000_000)
    with pytest.raises(GpuError, match="window"):
        session.compact(torch.zeros(2, 2, 0, dtype=torch.int64), 0)
    assert session.trim() == 0
    for wrong in ({"window": 0}, {"window": 4, "step": 5}, {"window": 4, "sinks": -1}, {"window": 4, "chunk": 0}):
        with pytest.raises(GpuError):
            WindowSpec(**wrong)


def test_no_sinks_and_no_slack(arenas: NewArena) -> None:
    shape = WindowSpec(window=30, sinks=0, slack=0, chunk=4, step=1)
    talk = Talk(arenas().session(window=shape), shape)
    for _ in range(150):
        talk.append(1)
        talk.holds()
    with pytest.raises(GpuError, match="evicted"):
        talk.session.truncate_to(149)


FREQUENCIES = [1.0 / 10000 ** (n / 3) for n in range(3)]


def rotated(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Su et al. 2021 in fp64: keys [n, ..., head_dim] at positions [n]."""
    angles = torch.outer(positions.double(), torch.tensor(FREQUENCIES, dtype=torch.float64))
    angles = angles.view(len(positions), *[1] * (keys.dim() - 2), -1)
    low, high = keys.double().chunk(2, -1)
    return torch.cat((low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()), -1)


@pytest.mark.parametrize(("dtype", "unrotated"), [("float32", False), ("float32", True), ("bfloat16", True)])
def test_a_hundred_rebases_do_not_drift(arenas: NewArena, dtype: str, unrotated: bool) -> None:
    """Against keys rotated once, in fp64, by the positions that count now; relative, all layers."""
    spec = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=16, dtype=dtype, unrotated_keys=unrotated)
    arena = arenas(spec)
    session, limit = arena.session(window=SHAPE), 128
    device, number = session.registers.device, torch.float32 if dtype == "float32" else torch.bfloat16
    generator = torch.Generator().manual_seed(3)
    plain: list[torch.Tensor] = []
    rebases = 0
    while rebases < 100:
        turned_back = rebase(session, FREQUENCIES, limit=limit, room=4) > 0
        rebases += turned_back
        assert session.rope_position + 4 <= limit
        for _ in range(4):
            raw = torch.randn(1, 2, 2, 6, generator=generator).to(number)
            turned = rotated(raw, torch.tensor([session.rope_position])).to(number)
            plain.append(raw)
            extra = (raw.to(device),) if unrotated else ()
            session.append(turned.to(device), raw.to(device), *extra)
        if turned_back and rebases % 10 == 0:
            session.truncate_to(session.position - 11)
            del plain[session.position :]
    count, recent = session.position, session.length - SHAPE.sinks
    raw = torch.cat(plain[: SHAPE.sinks] + plain[count - recent :])
    assert torch.equal(session.rows()[:, :, 1].cpu(), raw)
    positions = torch.cat((torch.arange(SHAPE.sinks), torch.arange(count - recent, count) - session.shift))
    assert int(positions.max()) < limit
    exact = rotated(raw, positions)
    ours = session.rows()[:, :, 0].cpu().double()
    drift = float((ours - exact).norm() / exact.norm())
    once = float((exact.to(number).double() - exact).norm() / exact.norm())  # what one rounding costs
    print(f"{dtype} unrotated={unrotated}: {drift:.2e} after {rebases} re-bases, one rounding {once:.2e}")
    assert drift - once <= 1e-3
    assert session.registers.tolist()[:2] == [session.length, session.rope_position]


def test_a_rebase_that_would_lose_precision_or_has_no_room_is_refused(arenas: NewArena) -> None:
    spec = ArenaSpec(layers=1, kv_heads=1, head_dim=6, positions=16, dtype="bfloat16")
    session = arenas(spec).session(window=SHAPE)
    for _ in range(10):
        session.append(torch.ones(10, 1, 1, 6), torch.ones(10, 1, 1, 6))
    assert rebase(session, FREQUENCIES, limit=101, room=1) == 0
    with pytest.raises(GpuError, match="without loss"):
        rebase(session, FREQUENCIES, limit=100, room=1)
    with pytest.raises(GpuError, match="exceed"):
        rebase(session, FREQUENCIES, limit=60, room=1)
    assert session.shift == 0
