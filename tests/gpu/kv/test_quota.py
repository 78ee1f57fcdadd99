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
from gpu.kv.window import WindowSession, WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=8, positions=640)  # 256 bytes a row, 16 rows a page
PAGE = 4096
WINDOW = WindowSpec(window=256, sinks=4, slack=0, chunk=13, step=16)
KINDS = ["plain", "policed", "endless", "fork", "policed fork", "endless fork"]
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


def idle_ones(arena: Arena) -> dict[str, Session]:
    """One session of every kind that may wait, each longer than its smallest window."""
    plain, policed, endless = arena.session(), arena.session(), arena.session(window=WINDOW)
    for session in (plain, policed):
        append(session, 320, 1)
    for _ in range(24):
        append(endless, 13, 2)
    policed.policy = SinkWindow()
    forks = {"fork": plain.fork(), "policed fork": policed.fork(), "endless fork": endless.fork()}
    forks["policed fork"].policy = SinkWindow()
    return {"plain": plain, "policed": policed, "endless": endless, **forks}


@pytest.mark.parametrize("first", KINDS)
def test_who_cannot_shrink_does_not_save_the_others(new_arena: NewArena, first: str) -> None:
    """Shrinking what is shared takes pages before it frees some: where they are not there, the next one's turn comes.

    Whoever is refused was refused after all that could go to the host had gone, wherever the eviction began.
    """
    arena = new_arena(SPEC, backend="host", ahead_bytes=0)
    found = idle_ones(arena)
    last = arena.session()
    append(last, 320, 3)
    arena.quota.budget_pages = arena.backend.pages_in_use + 1
    worker = arena.session()
    found[first].last_used = -1  # the eviction begins here
    everyone = [*found.values(), last]
    for session in everyone:
        session.idle = True
    before = last.rows().clone()
    for _ in range(20):
        append(worker, 16)
        arena.check()
    with pytest.raises(QuotaError):
        append(worker, 640 - worker.length)
    assert all(session.is_parked for session in everyone)
    arena.check()
    worker.close()
    for session in everyone[:-1]:
        session.close()
    assert torch.equal(last.rows(), before)
    arena.close()


def test_a_window_is_not_halved_for_nothing(new_arena: NewArena) -> None:
    """Where the smaller ring has as many pages as the session has now, it goes to the host whole."""
    arena = new_arena(SPEC, backend="host", ahead_bytes=0)
    young = arena.session(window=WindowSpec(window=512, sinks=4, slack=0, chunk=13, step=16))
    for _ in range(20):
        append(young, 13, 1)  # 17 pages of a ring of 33: half of it has 17
    seen = young.rows().clone()
    arena.quota.budget_pages = arena.backend.pages_in_use + 1
    worker = arena.session()
    young.idle = True
    append(worker, 17)
    assert young.is_parked
    assert young.shape.window == 512
    worker.close()
    assert torch.equal(young.rows(), seen)
    arena.check()
    arena.close()


@pytest.mark.parametrize(("count", "shrinks"), [(1, 0), (5, 0), (12, 0), (21, 0), (25, 3), (60, 3)])
def test_every_window_that_was_shrunk_gave_pages(
    new_arena: NewArena, count: int, shrinks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However full its ring was, and whoever shares it; what had not evicted yet needs a store of 3 pages as well."""
    arena = new_arena(SPEC, backend="host", ahead_bytes=0)
    endless = arena.session(window=WindowSpec(window=512, sinks=4, slack=20, chunk=13, step=16))
    for _ in range(count):
        append(endless, 13)
    arena.quota.budget_pages = arena.backend.pages_in_use + 1
    worker, gains = arena.session(), []
    resize = WindowSession.resize

    def watched(session: WindowSession, window: int) -> None:
        held = session.pager.charged_pages
        resize(session, window)
        gains.append(held - session.pager.charged_pages)

    monkeypatch.setattr(WindowSession, "resize", watched)
    endless.idle = True
    while not endless.is_parked:
        append(worker, 16)
    assert all(gain > 0 for gain in gains)
    assert arena.stats().shrunk_sessions == len(gains) == shrinks
    arena.check()
    arena.close()
