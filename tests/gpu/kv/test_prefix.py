"""Prefixes: found by their tokens, shared page by page, counted, and independent of who computed them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu.errors import GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=400)  # 192 bytes a row
PAGE = 4096
NewArena = Callable[..., Arena]


@pytest.fixture
def arenas(new_arena: NewArena, backend_name: str) -> Iterator[NewArena]:
    made: list[Arena] = []

    def build(**options: Any) -> Arena:
        made.append(new_arena(SPEC, backend=backend_name, **options))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()
        assert arena.backend.pages_in_use == 0


def rows(ids: list[int]) -> np.ndarray:
    """What a model would leave behind: of a token, its place and what came before only."""
    out = np.zeros((len(ids), *SPEC.row_shape), np.float32)
    mixed = 0
    for place, token in enumerate(ids):
        mixed = (mixed * 31 + token + 1) % 100_003
        out[place] = _row(mixed)
    return out


@functools.cache
def _row(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SPEC.row_shape, np.float32)


def append(session: Session, ids: list[int]) -> None:
    """Append the tokens of `ids` that the session does not hold yet."""
    new = torch.from_numpy(rows(ids)[session.position :]).to(session.spec.device)
    session.append(new[:, :, 0], new[:, :, 1])


def holds(session: Session, ids: list[int]) -> None:
    np.testing.assert_array_equal(session.rows().cpu().numpy(), rows(ids))


def test_eight_sessions_cost_one_prefix_and_eight_tails(arenas: NewArena) -> None:
    arena = arenas(ahead_bytes=0)
    ids = list(range(300))
    first = arena.session()
    append(first, ids)
    prefix = arena.prefixes.add(ids, first)
    first.close()
    whole, rest = divmod(300 * SPEC.row_bytes, arena.backend.page_bytes)
    alone = arena.stats().pages_in_use
    assert alone == whole + (rest > 0)
    sessions = [arena.session(prefix=prefix) for _ in range(8)]
    assert prefix.users == 8
    for number, session in enumerate(sessions):
        append(session, [*ids, 1000 + number])
    if arena.backend.aliases:
        assert arena.stats().pages_in_use == alone + 8
        assert arena.stats().shared_pages == whole
    for number, session in enumerate(sessions):
        holds(session, [*ids, 1000 + number])
    arena.prefixes.drop(prefix)
    for number, session in enumerate(sessions):
        holds(session, [*ids, 1000 + number])
        session.truncate_to(50)
        append(session, [*ids[:50], *range(2000 + number, 2010 + number)])
    arena.check()
    for number, session in enumerate(sessions):
        holds(session, [*ids[:50], *range(2000 + number, 2010 + number)])


def test_a_session_may_begin_with_part_of_a_prefix(arenas: NewArena) -> None:
    arena = arenas()
    ids = list(range(200))
    first = arena.session()
    append(first, [*ids, 7, 7, 7])
    arena.prefixes.add(ids, first)
    asked = [*ids[:130], 5, 6]
    prefix, common = arena.prefixes.find(asked)
    assert prefix is not None
    assert common == 130
    session = arena.session(prefix=prefix, tokens=common)
    append(session, asked)
    holds(session, asked)
    append(first, [*ids, 7, 7, 7, 8])
    holds(first, [*ids, 7, 7, 7, 8])


@pytest.mark.parametrize("window", [40, 250])
def test_endless_sessions_begin_with_a_prefix_too(arenas: NewArena, window: int) -> None:
    shape = WindowSpec(window=window, sinks=4, slack=10, chunk=8, step=4)
    arena = arenas(ahead_bytes=0)
    ids = list(range(220))
    first = arena.session()
    append(first, ids)
    prefix = arena.prefixes.add(ids, first)
    before = arena.stats().pages_in_use
    sessions = [arena.session(window=shape, prefix=prefix) for _ in range(3)]
    if arena.backend.aliases and window == 250:
        assert arena.stats().pages_in_use == before + 3
    told = [list(ids) for _ in sessions]
    for turn in range(60):
        for number, (session, said) in enumerate(zip(sessions, told, strict=True)):
            said += [turn * 10 + number + step for step in range(5)]
            append(session, said)
            recent = session.length - 4
            if session.length < len(said):
                expected = rows(said)[[0, 1, 2, 3, *range(len(said) - recent, len(said))]]
                assert window - 3 <= recent <= window + 4
                np.testing.assert_array_equal(session.rows().cpu().numpy(), expected)
            else:
                holds(session, said)
    arena.check()
    holds(arena.session(prefix=prefix), ids)


def test_the_tree_finds_what_a_search_finds(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    arena.prefixes.limit = 1000
    rng = random.Random(3)
    source = arena.session()
    append(source, [0])
    known: dict[tuple[int, ...], Any] = {}
    for _ in range(400):
        ids = [rng.randint(0, 2) for _ in range(rng.randint(1, 9))]
        if known and rng.random() < 0.35:
            key = rng.choice(list(known))
            arena.prefixes.drop(known.pop(key))
        else:
            source.truncate_to(0)
            append(source, ids)
            known[tuple(ids)] = arena.prefixes.add(ids, source)
        asked = [rng.randint(0, 2) for _ in range(rng.randint(0, 10))]
        found, common = arena.prefixes.find(asked)
        longest = max((_shared(asked, key) for key in known), default=0)
        assert common == longest
        assert longest == 0 or (found is not None and _shared(asked, list(found.ids)) == longest)
        whole = max((len(key) for key in known if list(key) == asked[: len(key)]), default=0)
        exact = arena.prefixes.exact(asked)
        assert (0 if exact is None else len(exact.ids)) == whole
        assert {prefix.ids for prefix in arena.prefixes.entries()} == set(known)
    arena.check()
    for prefix in known.values():
        holds(prefix.session, list(prefix.ids))
    arena.close()


def _shared(ours: list[int], theirs: Any) -> int:
    return next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def test_the_oldest_unused_entry_goes_first(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    arena.prefixes.limit = 3
    source = arena.session()
    append(source, list(range(30)))
    entries = [arena.prefixes.add(range(length), source) for length in (10, 20, 30)]
    user = arena.session(prefix=entries[0])
    assert arena.prefixes.add(range(20), source) is entries[1]
    source.truncate_to(0)
    append(source, [99])
    arena.prefixes.add([99], source)
    assert [len(prefix.ids) for prefix in arena.prefixes.entries()].count(20) == 0
    user.close()
    assert entries[0].users == 0
    while arena.prefixes.drop_oldest():
        pass
    assert arena.stats().prefixes == 0
    assert arena.stats().sessions == 1
    arena.check()
    arena.close()


def test_what_cannot_be_a_prefix_is_refused(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    append(session, [1, 2, 3])
    with pytest.raises(GpuError, match="no tokens"):
        arena.prefixes.add([], session)
    with pytest.raises(GpuError, match="holds 3"):
        arena.prefixes.add([1, 2, 3, 4], session)
    session.compact(torch.tensor([0, 2]).expand(2, 2, 2), 1)
    with pytest.raises(GpuError, match="holds 2 of 3"):
        arena.prefixes.add([1, 3], session)
    session.truncate_to(0)
    append(session, [5])
    prefix = arena.prefixes.add([5], session)
    arena.prefixes.drop(prefix)
    with pytest.raises(GpuError, match="twice"):
        arena.prefixes.drop(prefix)
    arena.sleep()
    with pytest.raises(GpuError, match="sleeps"):
        arena.session()
    arena.close()
