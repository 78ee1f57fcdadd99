"""Sessions over every page backend: views equal what was appended, memory is what was said, nothing is copied."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gpu.errors import ArenaFullError, GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec, QuotaError  # noqa: E402
from gpu.kv.session import Session  # noqa: E402

# 192 bytes a row: 21 rows and a third in a page of 4 KiB.
SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=128)
PAGE = 4096

NewArena = Callable[..., Arena]


@pytest.fixture
def arenas(new_arena: NewArena, backend_name: str) -> Iterator[NewArena]:
    """`arenas(**options)`: an arena of SPEC on the backend under test, checked and closed at the end."""
    made: list[Arena] = []

    def build(**options: Any) -> Arena:
        made.append(new_arena(SPEC, backend=backend_name, **options))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()
        assert arena.backend.pages_in_use == 0


def tokens(count: int, seed: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all layers, each [count, layers, kv_heads, head_dim]."""
    shape = (2, count, SPEC.layers, SPEC.kv_heads, SPEC.head_dim)
    both = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32)).to(device)
    return both[0], both[1]


def append(session: Session, count: int, seed: int) -> None:
    session.append(*tokens(count, seed, session.spec.device))


def content(session: Session) -> torch.Tensor:
    """[length, layers, 2, kv_heads, head_dim] as attention sees it."""
    layers = range(session.spec.layers)
    parts = [torch.stack([view(n)[0].transpose(0, 1) for n in layers], 1) for view in (session.keys, session.values)]
    return torch.stack(parts, 2)


def expected(*parts: tuple[int, int]) -> torch.Tensor:
    """The same of (count, seed) appended one after the other."""
    return torch.cat([torch.stack(tokens(count, seed), 2) for count, seed in parts])


def test_whole_tokens_and_layer_by_layer_are_the_same(arenas: NewArena) -> None:
    session = arenas().session()
    append(session, 30, 1)
    keys, values = tokens(25, 2, session.spec.device)
    start = session.extend(25)
    for layer in range(SPEC.layers):
        session.write(layer, start, keys[:, layer], values[:, layer])
    assert torch.equal(content(session).cpu(), expected((30, 1), (25, 2)))
    assert torch.equal(session.rows().cpu(), expected((30, 1), (25, 2)))
    assert session.registers.tolist() == [55, 55, 0]


def test_no_allocation_and_no_copy_per_token(arenas: NewArena) -> None:
    session = arenas().session()
    append(session, 1, 0)
    address = session.keys(0).data_ptr()
    for seed in range(1, SPEC.positions):
        append(session, 1, seed)
        assert session.keys(0).data_ptr() == address
    assert session.keys(0).untyped_storage().data_ptr() == session.values(1).untyped_storage().data_ptr()
    assert torch.equal(content(session).cpu(), expected(*((1, seed) for seed in range(SPEC.positions))))


def test_an_idle_session_costs_one_page_and_pages_come_before_they_are_needed(arenas: NewArena) -> None:
    arena = arenas()
    rows_a_page = arena.backend.page_bytes // SPEC.row_bytes
    session = arena.session()
    assert arena.stats().pages_in_use == 1
    append(session, 1, 0)
    assert arena.stats().pages_in_use == 1
    if rows_a_page < SPEC.positions:
        for seed in range(SPEC.positions - 1):
            append(session, 1, seed)
        assert arena.stats().outruns == 0
        assert arena.stats().pages_in_use == session.pager.range.pages
        session.truncate_to(3)
        assert session.trim() > 0
        assert arena.stats().pages_in_use == 1


def test_attention_on_a_view_equals_attention_on_a_copy(arenas: NewArena) -> None:
    session = arenas().session()
    append(session, 9, 1)
    append(session, 8, 2)
    query = torch.randn(1, SPEC.kv_heads, 2, SPEC.head_dim, generator=torch.Generator().manual_seed(1))
    attend = torch.nn.functional.scaled_dot_product_attention
    query, keys, values = query.to(SPEC.device), session.keys(1), session.values(1)
    query = query.to(keys.device)
    torch.testing.assert_close(attend(query, keys, values), attend(query, keys.clone(), values.clone()))


def test_truncation_and_marks(arenas: NewArena) -> None:
    session = arenas().session()
    append(session, 40, 1)
    first = session.mark()
    append(session, 20, 2)
    second = session.mark()
    session.rollback(first)
    append(session, 10, 3)
    assert torch.equal(content(session).cpu(), expected((40, 1), (10, 3)))
    with pytest.raises(GpuError, match="stale"):
        session.rollback(second)
    session.truncate_to(0)
    assert session.registers.tolist() == [0, 0, 0]
    with pytest.raises(GpuError, match="stale"):
        session.rollback(first)


def test_a_fork_goes_its_own_way(arenas: NewArena) -> None:
    arena = arenas()
    parent = arena.session()
    append(parent, 100, 1)
    before = arena.stats().pages_in_use
    child = parent.fork()
    if arena.backend.aliases:
        assert arena.stats().pages_in_use == before + 1
        assert arena.stats().shared_pages == 100 * SPEC.row_bytes // arena.backend.page_bytes
    append(parent, 5, 2)
    append(child, 7, 3)
    assert torch.equal(content(parent).cpu(), expected((100, 1), (5, 2)))
    assert torch.equal(content(child).cpu(), expected((100, 1), (7, 3)))
    grandchild = child.fork(45)
    for session, seed in ((parent, 4), (child, 5), (grandchild, 6)):
        session.truncate_to(10)  # into pages that are shared
        append(session, 12, seed)
    base = tokens(100, 1)[0][:10]
    for session, seed in ((parent, 4), (child, 5), (grandchild, 6)):
        assert torch.equal(session.rows()[:10, :, 0].cpu(), base)
        assert torch.equal(content(session)[10:].cpu(), expected((12, seed)))
        session.check()
    child.close()
    arena.check()
    assert torch.equal(content(grandchild)[10:].cpu(), expected((12, 6)))


def test_sleep_and_wake_keep_views_and_content(arenas: NewArena) -> None:
    arena = arenas()
    session = arena.session()
    append(session, 100, 1)
    other = session.fork()
    append(other, 3, 2)
    address, used = session.keys(0).data_ptr(), arena.stats().pages_in_use
    assert arena.sleep() == used
    assert arena.stats().pages_in_use == 0
    for use in (lambda: session.extend(1), lambda: session.keys(0), session.fork, lambda: session.truncate_to(1)):
        with pytest.raises(GpuError, match="sleeps"):
            use()
    arena.check()
    assert arena.wake() == used
    assert torch.equal(content(other).cpu(), expected((100, 1), (3, 2)))
    if arena.backend.keeps_addresses:
        assert session.keys(0).data_ptr() == address
    append(session, 2, 3)
    assert torch.equal(content(session).cpu(), expected((100, 1), (2, 3)))


def test_a_parked_session_comes_back_by_itself(arenas: NewArena) -> None:
    arena = arenas()
    session, other = arena.session(), arena.session()
    append(session, 100, 1)
    append(other, 30, 2)
    used = arena.stats().pages_in_use
    view = session.keys(1)
    given = session.park()
    assert session.is_parked
    assert arena.stats().pages_in_use == used - given
    arena.check()
    assert torch.equal(content(other).cpu(), expected((30, 2)))
    arena.sleep()
    arena.wake()
    assert session.is_parked
    session.extend(0)
    assert torch.equal(content(session).cpu(), expected((100, 1)))
    assert torch.equal(view.cpu(), session.keys(1).cpu())
    assert arena.stats().pages_in_use == used


def test_compaction_stays_in_place(arenas: NewArena) -> None:
    arena = arenas()
    session = arena.session()
    append(session, 60, 1)
    sibling = session.fork()
    keep = torch.stack([torch.tensor([0, 1, 5 + layer, *range(50, 60)]) for layer in range(2)]).unsqueeze(1)
    keep = keep.expand(-1, SPEC.kv_heads, -1).to(session.spec.device)
    address = session.keys(0).data_ptr()
    session.compact(keep, tail=10)
    assert (session.length, session.position) == (13, 60)
    assert session.keys(0).data_ptr() == address
    everything = expected((60, 1))
    for layer in range(2):
        assert torch.equal(content(session)[:, layer].cpu(), everything[[0, 1, 5 + layer, *range(50, 60)], layer])
    assert torch.equal(content(sibling).cpu(), everything)
    append(session, 2, 2)
    session.truncate_to(52)
    assert session.length == 5
    with pytest.raises(GpuError, match="evicted"):
        session.truncate_to(49)
    with pytest.raises(GpuError, match="cannot fork"):
        session.fork(20)
    assert torch.equal(content(session.fork())[:, 1].cpu(), everything[[0, 1, 6, 50, 51], 1])
    session.truncate_to(0)
    assert session.position == 0


@pytest.mark.parametrize("position", [-1, 5])
def test_truncating_outside_the_live_length_is_refused(arenas: NewArena, position: int) -> None:
    session = arenas().session()
    append(session, 4, 0)
    with pytest.raises(GpuError, match="cannot truncate"):
        session.truncate_to(position)
    assert session.length == 4


def test_writing_past_the_live_length_is_refused(arenas: NewArena) -> None:
    session = arenas().session()
    start = session.extend(2)
    keys, values = tokens(3, 0, session.spec.device)
    with pytest.raises(GpuError, match="live length"):
        session.write(0, start, keys[:, 0], values[:, 0])


def test_what_does_not_fit_is_refused_and_changes_nothing(arenas: NewArena) -> None:
    session = arenas().session()
    append(session, 120, 0)
    with pytest.raises(ArenaFullError):
        session.extend(9)
    with pytest.raises(GpuError, match="shape"):
        session.append(torch.zeros(1, 2, 2, 5), torch.zeros(1, 2, 2, 5))
    with pytest.raises(GpuError, match="un-rotated"):
        session.unrotated_keys(0)
    assert session.length == 120


def test_budget_and_quota_are_kept(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", budget_bytes=8 * PAGE, ahead_bytes=0)
    first, second = arena.session(), arena.session(quota_bytes=2 * PAGE)
    append(first, 100, 1)  # five pages
    with pytest.raises(QuotaError, match="quota of 2") as caught:
        append(second, 60, 2)
    assert not caught.value.is_permanent
    assert second.length == 0
    append(second, 30, 2)
    third = arena.session()
    with pytest.raises(QuotaError, match="budget of 8 pages"):
        append(third, 40, 3)
    with pytest.raises(QuotaError):
        arena.session()
    assert arena.stats().sessions == 3
    arena.check()
    first.close()
    append(third, 40, 3)
    assert torch.equal(content(third), expected((40, 3)))
    arena.close()
    assert arena.memory_bytes() == 0
    with pytest.raises(GpuError, match="after close"):
        append(third, 1, 0)


def test_pages_ahead_cost_the_system_nothing_before_they_are_written(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", ahead_bytes=8 * 4096)
    session = arena.session()
    append(session, 1, 1)
    stats = arena.stats()
    assert 0 < stats.resident_bytes <= 4096 < 4 * 4096 < stats.used_bytes
    assert session.trim() >= 4
    assert arena.stats().resident_bytes == stats.resident_bytes
    arena.close()


def test_plain_takes_its_budget_at_once(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="plain", budget_bytes=13 * PAGE)
    first = arena.session()
    arena.session()
    with pytest.raises(GpuError, match="neighbouring"):
        arena.session()
    first.close()
    append(arena.session(), 128, 1)
    arena.check()
    arena.close()


def test_the_watermark_thread_keeps_ahead_and_ends(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", watermark="thread")
    names = [thread.name for thread in threading.enumerate()]
    assert "kv-watermark" in names
    session = arena.session()
    for seed in range(SPEC.positions):
        append(session, 1, seed)
        needed = session.written_bytes() + PAGE // 2
        deadline = time.monotonic() + 20
        while session.pager.lags(session.written_bytes(), PAGE // 2) and time.monotonic() < deadline:
            time.sleep(0.0005)
        assert session.pager.committed_bytes >= min(needed, SPEC.positions * SPEC.row_bytes)
    assert arena.stats().outruns == 0
    arena.check()
    arena.close()
    assert "kv-watermark" not in [thread.name for thread in threading.enumerate()]


def test_the_watermark_thread_ends_with_a_forgotten_arena(new_arena: NewArena) -> None:
    session = new_arena(SPEC, backend="host", watermark="thread").session()
    append(session, 30, 1)
    del session
    gc.collect()
    deadline = time.monotonic() + 20
    while any(thread.name == "kv-watermark" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "kv-watermark" not in [thread.name for thread in threading.enumerate()]


def test_outruns_are_counted(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host", ahead_bytes=0)
    append(arena.session(), 100, 1)
    assert arena.stats().outruns == 1


def test_a_graph_may_count_by_itself(arenas: NewArena) -> None:
    session = arenas().session()
    session.extend(3, registers=False)
    assert session.registers.tolist() == [0, 0, 0]
    session.registers[:2] += 3
    session.check()


def test_the_registers_lead_to_the_next_row(arenas: NewArena) -> None:
    """What a captured graph does: write the row that the register names, count, all without the host."""
    session = arenas().session()
    append(session, 5, 1)
    new = torch.stack(tokens(1, 2, session.spec.device), 2)
    session.extend(1, registers=False)
    session.buffer().index_copy_(0, session.registers[1:2].long(), new)
    session.registers[:2] += 1
    assert torch.equal(content(session).cpu(), expected((5, 1), (1, 2)))
    session.check()


def test_check_notices_what_is_broken(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    append(session, 3, 1)
    session._base_address += 64
    with pytest.raises(GpuError, match="buffer moved"):
        arena.check()
    session._base_address -= 64
    session.registers[0] = 9
    with pytest.raises(GpuError, match="registers"):
        arena.check()
    session.registers[0] = 3
    arena.backend.pages_in_use += 1
    with pytest.raises(GpuError, match="leak"):
        arena.check()
    arena.backend.pages_in_use -= 1
    arena.check()
    session.pager.range.slots[0] = None
    with pytest.raises(GpuError, match="holds no page"):
        arena.check()


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "positions"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(GpuError, match=field):
        ArenaSpec(**{"layers": 1, "kv_heads": 1, "head_dim": 1, "positions": 1, field: 0})


def test_a_dtype_that_torch_does_not_have_is_refused() -> None:
    with pytest.raises(GpuError, match="no dtype"):
        _ = ArenaSpec(1, 1, 1, 1, dtype="float31").row_bytes
