"""What every page backend must do, with and without aliasing."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="pages are shown as tensors")

from gpu.kv.pages import OutOfPagesError, PageBackend, PageRange, PagesError  # noqa: E402


def fill(range_: PageRange, slot: int, value: int) -> None:
    range_.bytes_of(slot, slot + 1).fill_(value)


def values(range_: PageRange, *slots: int) -> list[int]:
    found = []
    for slot in slots:
        content = range_.bytes_of(slot, slot + 1)
        assert int(content.min()) == int(content.max())
        found.append(int(content[0]))
    return found


def filled(backend: PageBackend, pages: int) -> PageRange:
    made = backend.reserve(pages)
    made.commit(0, pages)
    for slot in range(pages):
        fill(made, slot, slot + 1)
    return made


def test_reserving_takes_no_page_and_committing_takes_what_it_says(backend: PageBackend) -> None:
    made = backend.reserve(64)
    assert backend.pages_in_use == 0
    made.commit(0, 1)
    made.commit(1, 4)
    assert backend.pages_in_use == 4
    assert made.memory.shape == (64 * backend.page_bytes,)
    for slot in range(4):
        fill(made, slot, slot + 1)
    assert values(made, 0, 1, 2, 3) == [1, 2, 3, 4]
    made.release(1, 64)
    assert backend.pages_in_use == 1
    assert values(made, 0) == [1]
    made.commit(1, 2)
    fill(made, 1, 9)
    assert values(made, 0, 1) == [1, 9]


def test_addresses_stay_while_pages_come_and_go(backend: PageBackend) -> None:
    made = filled(backend, 3)
    address = made.memory.data_ptr()
    view = made.bytes_of(2, 3)
    made.release(1, 3)
    made.commit(1, 3)
    fill(made, 2, 77)
    assert made.memory.data_ptr() == address
    assert int(view[5]) == 77


def test_a_shared_page_has_the_content_and_costs_one_page_where_pages_alias(backend: PageBackend) -> None:
    first = filled(backend, 3)
    second = backend.reserve(3)
    second.share(0, first, 2)
    second.share(1, first, 0)
    assert values(second, 0, 1) == [3, 1]
    assert backend.pages_in_use == (3 if backend.aliases else 5)
    assert first.is_shared(2) == backend.aliases
    assert not first.is_shared(1)
    first.close()
    assert values(second, 0, 1) == [3, 1]
    assert backend.pages_in_use == 2
    assert not second.is_shared(0)


def test_a_private_copy_leaves_the_others_page_alone(backend: PageBackend) -> None:
    first, second = filled(backend, 2), backend.reserve(2)
    second.share(0, first, 0)
    if second.is_shared(0):
        second.privatise(0)
    fill(second, 0, 99)
    assert values(first, 0) == [1]
    assert values(second, 0) == [99]
    assert not first.is_shared(0)
    assert not second.is_shared(0)
    assert backend.pages_in_use == 3


def test_mirrored_slots_are_one_page_where_pages_alias(backend: PageBackend) -> None:
    ring = backend.reserve(4)
    ring.commit(0, 2)
    fill(ring, 0, 1)
    fill(ring, 1, 2)
    ring.share(2, ring, 0)
    ring.share(3, ring, 1)
    assert values(ring, 0, 1, 2, 3) == [1, 2, 1, 2]
    assert not ring.is_shared(0)
    if backend.aliases:
        fill(ring, 2, 5)
        assert values(ring, 0) == [5]
        assert backend.pages_in_use == 2
        other = backend.reserve(2)
        other.share(0, ring, 0)
        ring.privatise(0)
        fill(ring, 0, 6)
        assert values(ring, 0, 2) == [6, 6]
        assert values(other, 0) == [5]


def test_sleep_gives_the_pages_back_and_wake_brings_the_content_to_the_same_tensors(backend: PageBackend) -> None:
    first, second = filled(backend, 3), backend.reserve(4)
    second.share(0, first, 1)
    second.commit(1, 2)
    fill(second, 1, 50)
    second.share(3, second, 1)
    views, address, before = [first.memory, second.memory], first.memory.data_ptr(), backend.pages_in_use
    assert backend.sleep([first, second]) == before
    assert backend.pages_in_use == 0
    assert backend.check() == []
    assert backend.wake([first, second]) == before
    assert backend.pages_in_use == before
    assert values(first, 0, 1, 2) == [1, 2, 3]
    assert values(second, 0, 1, 3) == [2, 50, 50]
    if backend.keeps_addresses:
        assert first.memory.data_ptr() == address
    assert views[0].data_ptr() == first.memory.data_ptr()
    assert int(views[1][backend.page_bytes]) == 50


def test_one_range_sleeps_without_what_it_shares(backend: PageBackend) -> None:
    first, second = filled(backend, 3), backend.reserve(2)
    second.share(0, first, 0)
    second.commit(1, 2)
    fill(second, 1, 8)
    backend.sleep([second])
    assert backend.pages_in_use == 3
    assert values(first, 0, 1, 2) == [1, 2, 3]
    backend.wake([second])
    assert values(second, 0, 1) == [1, 8]


def test_a_sleeping_range_can_be_closed(backend: PageBackend) -> None:
    first = filled(backend, 2)
    backend.sleep([first])
    first.close()
    assert backend.pages_in_use == 0
    assert backend.wake([]) == 0


@pytest.mark.parametrize(
    "misuse",
    [
        lambda backend, first: first.commit(1, 2),
        lambda backend, first: first.share(1, first, 0),
        lambda backend, first: backend.reserve(1).share(0, backend.reserve(1), 0),
        lambda backend, first: backend.reserve(0),
    ],
    ids=["commit twice", "share into a full slot", "share nothing", "no slots"],
)
def test_misuse_is_refused_and_changes_nothing(backend: PageBackend, misuse: Callable[..., object]) -> None:
    first = filled(backend, 2)
    before = backend.pages_in_use
    with pytest.raises(PagesError):
        misuse(backend, first)
    assert backend.pages_in_use == before
    assert values(first, 0, 1) == [1, 2]


def test_tensors_outlive_a_forgotten_backend(backend: PageBackend, new_backend: Callable[..., PageBackend]) -> None:
    other = new_backend("host")
    made = filled(other, 2)
    view = made.memory
    del made, other
    gc.collect()
    assert [int(view[0]), int(view[-1])] == [1, 2]


def test_resident_bytes_are_what_the_system_holds(backend: PageBackend) -> None:
    """Where that is not what the arena counts, a page that nobody touched costs nothing and frees nothing."""
    size, touched = backend.page_bytes, type(backend).__name__ == "HostBackend"
    range_ = backend.reserve(6)
    committed = {"plain": 6 * size}.get(backend.name, 4 * size)
    range_.commit(0, 4)
    assert backend.resident_bytes() == (0 if touched else committed)
    for slot in range(3):
        fill(range_, slot, 1)
    assert backend.resident_bytes() == (3 * size if touched else committed)
    before = backend.resident_bytes()
    range_.release(3, 4)
    assert before - backend.resident_bytes() == (size if committed == 4 * size and not touched else 0)
    backend.sleep([range_])
    assert backend.resident_bytes() == 0
    backend.wake([range_])
    assert backend.resident_bytes() == (6 if backend.name == "plain" else 3) * size
    range_.close()
    assert backend.resident_bytes() == 0


def test_plain_cuts_ranges_from_one_allocation(new_backend: Callable[..., PageBackend]) -> None:
    backend = new_backend("plain", capacity_pages=8)
    first, second, third = filled(backend, 3), filled(backend, 2), filled(backend, 3)
    with pytest.raises(OutOfPagesError, match="neighbouring"):
        backend.reserve(1)
    second.close()
    fourth = filled(backend, 2)
    with pytest.raises(OutOfPagesError):
        backend.reserve(1)
    assert values(first, 0, 2) + values(fourth, 0, 1) + values(third, 0, 2) == [1, 3, 1, 2, 1, 3]


def test_plain_wakes_for_a_page_of_somebody_else(new_backend: Callable[..., PageBackend]) -> None:
    backend = new_backend("plain", capacity_pages=8)
    first, second = filled(backend, 2), backend.reserve(2)
    backend.sleep([first])
    second.commit(0, 1)
    fill(second, 0, 4)
    backend.wake([first])
    assert values(first, 0, 1) + values(second, 0) == [1, 2, 4]
