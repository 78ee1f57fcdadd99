"""Who holds the arena's pages: the counts add up, whatever is shared, quantised, parked or closed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.census import Holder, census  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.spec import body_for  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=8, positions=400)  # 256 bytes a row, 16 to a page
PAGE = 4096


def fill(session: Session, tokens: int) -> None:
    rows = torch.zeros(tokens, session.spec.layers, session.spec.kv_heads, session.spec.head_dim)
    session.append(rows, rows)


@pytest.mark.parametrize("backend", ["host", "host-copy", "plain"])
def test_counts_are_the_arenas_own(backend: Any) -> None:
    arena = Arena.open(SPEC, backend=backend, page_bytes=PAGE, watermark="inline")
    talk = arena.session()
    fill(talk, 40)
    prefix = arena.prefixes.add(range(35), talk)
    other = arena.session(prefix=prefix)
    fill(other, 2)
    found, stats = census(arena, other), arena.stats()
    assert (found.pages, found.shared_pages, found.page_bytes) == (stats.pages_in_use, stats.shared_pages, PAGE)
    assert found.shared_pages == (2 if arena.backend.aliases else 0), "two whole pages of the prefix"
    assert [holder.tokens for holder in found.sessions] == [37, 40], "the one that was asked for comes first"
    assert [holder.tokens for holder in found.prefixes] == [35]
    assert found.sessions[0].room_pages == 25
    assert {holder.shared_pages for holder in (*found.sessions, *found.prefixes)} == {found.shared_pages}
    own = sum(holder.pages - holder.shared_pages for holder in (*found.sessions, *found.prefixes))
    assert own + found.shared_pages == found.pages
    other.close()
    assert len(census(arena, other).sessions) == 1
    arena.close()


def test_a_quantised_session_is_one_holder_and_a_parked_one_holds_nothing() -> None:
    body = body_for("int8")
    spec = ArenaSpec(layers=2, kv_heads=2, head_dim=64, positions=2048, body=body)
    arena = Arena.open(spec, backend="host", page_bytes=PAGE, watermark="inline")
    talk = arena.session()
    for _ in range(1500 // 100):
        fill(talk, 100)
    found = census(arena, talk)
    (holder,) = found.sessions
    assert isinstance(holder, Holder)
    assert (holder.tokens, holder.pages, found.prefixes) == (1500, arena.stats().pages_in_use, ())
    plain = Arena.open(SPEC, backend="host", page_bytes=PAGE, watermark="inline")
    session = plain.session()
    fill(session, 100)
    session.park()
    parked = census(plain, session)
    assert (parked.parked_sessions, parked.sessions[0].pages, parked.sessions[0].tokens) == (1, 0, 100)
    arena.close()
    plain.close()


def test_windows_count_each_page_once() -> None:
    from gpu.kv.window import WindowSpec

    arena = Arena.open(SPEC, backend="host", page_bytes=PAGE, watermark="inline")
    session = arena.session(window=WindowSpec(window=64, chunk=32))
    for _ in range(10):
        fill(session, 32)
    found = census(arena, session)
    assert found.sessions[0].pages == found.pages == arena.stats().pages_in_use
    assert found.sessions[0].shared_pages == 0, "the two halves of a ring are one session's"
    arena.close()
