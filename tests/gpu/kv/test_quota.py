"""Budgets are kept, and whoever waits gives up pages in the order that was promised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec, QuotaError  # noqa: E402
from gpu.kv.pages import OutOfPagesError  # noqa: E402
from gpu.kv.pages_vmm import VmmBackend  # noqa: E402
from gpu.kv.policies import SinkWindow  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=8, positions=640)  # 256 bytes a row, 16 rows a page
PAGE = 4096
NewArena = Callable[..., Arena]


def append(session: Session, count: int, seed: int = 0) -> None:
    shape = (2, count, session.spec.layers, session.spec.kv_heads, session.spec.head_dim)
    session.append(*torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32)))


def test_a_persona_has_a_budget_of_its_own(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", budget_bytes=100 * PAGE, ahead_bytes=0)
    arena.set_quota("anna", 4 * PAGE)
    first, second, other = (arena.session(owner=owner) for owner in ("anna", "anna", "bert"))
    append(first, 48)
    with pytest.raises(QuotaError, match="anna"):
        append(second, 17)
    append(second, 16)
    append(other, 200)
    first.idle = True
    append(second, 17)  # the idle one goes to the host
    assert first.is_parked
    assert arena.quota.owner_pages("anna") == 3
    second.close()
    assert float(first.keys(0).abs().sum()) > 0
    arena.set_quota("anna", None)
    append(first, 300)
    arena.check()
    arena.close()


def test_who_waits_gives_up_pages_in_order(new_arena: NewArena) -> None:
    """Ahead first, then windows and what a policy allows, then the host, then unused prefixes; then no."""
    arena = new_arena(SPEC, backend="host", budget_bytes=110 * PAGE, ahead_bytes=4 * PAGE)
    source = arena.session()
    append(source, 80)
    arena.prefixes.add(range(80), source)
    source.close()
    endless = arena.session(window=WindowSpec(window=512, sinks=4, slack=0, chunk=13, step=16))
    for _ in range(60):
        append(endless, 13)
    plain, policed = arena.session(), arena.session()
    append(plain, 320, 1)
    policed.policy = SinkWindow()
    append(policed, 400, 2)
    kept = plain.rows().clone()
    seen = endless.rows().clone()
    for session in (endless, plain, policed):
        session.idle = True
    order: list[str] = []

    def watched(session: Session, count: int, seed: int) -> None:
        before = arena.stats()
        try:
            append(session, count, seed)
        finally:
            after = arena.stats()
            names = ("trimmed_pages", "shrunk_sessions", "sent_to_host", "dropped_prefixes")
            order.extend(name for name in names if getattr(after, name) > getattr(before, name))
            arena.check()

    worker = arena.session()
    for turn in range(1, 41):
        watched(worker, 16, turn)
    assert list(dict.fromkeys(order)) == ["trimmed_pages", "shrunk_sessions"]
    assert endless.shape.window < 512
    assert not plain.is_parked
    others = [arena.session() for _ in range(3)]
    watched(others[0], 320, 1)
    watched(others[1], 640, 2)
    with pytest.raises(QuotaError):
        watched(others[2], 640, 3)
    assert list(dict.fromkeys(order)) == ["trimmed_pages", "shrunk_sessions", "sent_to_host", "dropped_prefixes"]
    assert arena.stats().sessions == 7
    for session in (*others, worker):
        session.close()
    assert torch.equal(plain.rows(), kept)
    assert torch.equal(endless.rows()[4:], seen[-endless.length + 4 :])
    assert torch.equal(endless.rows()[:4], seen[:4])
    assert policed.length < 400
    arena.check()
    arena.close()


def test_nobody_who_works_is_evicted(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", budget_bytes=10 * PAGE, ahead_bytes=0)
    first, second = arena.session(), arena.session()
    append(first, 100)
    first.idle = True
    append(first, 1)  # works again
    with pytest.raises(QuotaError, match="budget of 10 pages"):
        append(second, 100)
    assert not first.is_parked
    assert first.length == 101
    assert second.length == 0
    arena.close()


def test_a_parked_session_needs_room_to_come_back(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", budget_bytes=10 * PAGE, ahead_bytes=0)
    first, second = arena.session(), arena.session()
    append(first, 90)
    first.idle = True
    append(second, 100)
    with pytest.raises(QuotaError):
        first.extend(1)
    assert first.is_parked
    second.idle = True
    append(first, 1)
    assert second.is_parked
    assert first.length == 91
    arena.check()
    arena.close()


def test_memory_that_other_programs_took_is_found_by_evicting(fake_driver: type) -> None:
    driver = fake_driver(physical_pages=12)
    arena = Arena(SPEC, VmmBackend(driver, "cpu"), budget_bytes=None, ahead_bytes=0, threaded=False)
    first, second = arena.session(), arena.session()
    append(first, 120, 1)
    kept = first.rows().clone()
    with pytest.raises(OutOfPagesError):
        append(second, 120, 2)
    assert second.length == 0
    first.idle = True
    append(second, 120, 2)
    assert first.is_parked
    second.close()
    assert torch.equal(first.rows(), kept)
    arena.check()
    arena.close()
    assert not driver.live
