"""The pool is taken before anything loads and leaves the models room; nothing is given out twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.errors import GpuError
from gpu.memory.budget import Budget, budget_of
from gpu.memory.places import Machine
from gpu.memory.pool import Pools
from gpu.memory.preflight import Request, plan
from gpu.memory.shapes import KNOWN_SHAPES, known_shape

MachineOf = Callable[..., Machine]
GIB = 1 << 30


class Card:
    """An allocator with torch's rules: a cap on all that it took from the driver, a cache that gives out pieces."""

    def __init__(self, total_bytes: int, free_bytes: int) -> None:
        self.total_bytes, self._free_bytes = total_bytes, free_bytes
        self.reserved_bytes = self.cached_bytes = self.cap_bytes = 0
        self.calls: list[str] = []

    def free_bytes(self, device: str) -> int:
        return self._free_bytes - self.reserved_bytes

    def cap(self, device: str, fraction: float) -> None:
        self.calls.append("cap")
        self.cap_bytes = round(fraction * self.total_bytes)

    def fill_cache(self, device: str, size_bytes: int) -> None:
        self.calls.append("fill")
        self._reserve(size_bytes)
        self.cached_bytes += size_bytes

    def empty_cache(self) -> None:
        self.calls.append("empty")
        self.reserved_bytes -= self.cached_bytes
        self.cached_bytes = 0

    def load(self, size_bytes: int) -> None:
        """A model: from the cache, then from the driver under the cap."""
        from_cache = min(size_bytes, self.cached_bytes)
        self._reserve(size_bytes - from_cache)
        self.cached_bytes -= from_cache

    def _reserve(self, size_bytes: int) -> None:
        if self.reserved_bytes + size_bytes > min(self.cap_bytes, self._free_bytes):
            raise RuntimeError("CUDA out of memory")
        self.reserved_bytes += size_bytes


def budget(machine_of: MachineOf, card_gib: float = 12, name: str = "llama-3.2-3b") -> Budget:
    shape = known_shape(name)
    assert shape is not None
    return budget_of(plan(Request(shape, "bf16", "cuda", 1, 4096), machine_of(card_gib, 0.6)))


def test_the_models_have_room_after_the_pool_is_taken(machine_of: MachineOf) -> None:
    planned = budget(machine_of)
    card = Card(12 * GIB, int(11.4 * GIB))
    pools = Pools(card)
    pools.take(planned)
    assert card.calls == ["cap", "fill"]
    card.load(planned.pool_bytes)
    assert card.reserved_bytes == planned.pool_bytes  # all of it out of the pool
    card.load(planned.cap_bytes - planned.pool_bytes)  # the unforeseen: up to the cap
    with pytest.raises(RuntimeError):
        card.load(1)
    assert pools.budget("cuda:0") == planned
    assert pools.budget("cuda:1") is None


def test_the_published_recipe_starves_itself(machine_of: MachineOf) -> None:
    """Linly-Talker: keep a tensor of 80 % of the total alive and cap the process at 80 % of it. Then load."""
    card = Card(12 * GIB, int(11.4 * GIB))
    card.cap("cuda:0", 0.8)
    card._reserve(int(0.8 * 12 * GIB))  # held, not cached
    with pytest.raises(RuntimeError, match="out of memory"):
        card.load(64 << 20)


def test_a_pool_is_taken_once(machine_of: MachineOf) -> None:
    pools = Pools(Card(40 * GIB, 40 * GIB))
    pools.take(budget(machine_of))
    with pytest.raises(GpuError, match="has its memory pool already"):
        pools.take(budget(machine_of))
    pools.take(replace(budget(machine_of), device="cuda:1"))  # each GPU has its own


def test_a_pool_that_nobody_uses_is_given_back(machine_of: MachineOf) -> None:
    card = Card(12 * GIB, 11 * GIB)
    pools = Pools(card)
    pools.take(budget(machine_of))
    card.load(1 << 30)
    pools.give_back("cuda:0")
    assert (card.reserved_bytes, card.cap_bytes) == (1 << 30, 12 * GIB)
    assert pools.budget("cuda:0") is None

    class Dead(Card):
        def empty_cache(self) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

    Pools(Dead(12 * GIB, 11 * GIB)).give_back("cuda:0")  # whoever gives back has another error to tell


def test_memory_that_went_since_it_was_planned_is_one_sentence(machine_of: MachineOf) -> None:
    pools = Pools(Card(12 * GIB, 3 * GIB))
    with pytest.raises(GpuError, match=r"cuda:0 has 3.00 GiB free now, 6.\d\d GiB were planned. Another program"):
        pools.take(budget(machine_of))
    assert pools.budget("cuda:0") is None


@given(
    shape=st.sampled_from(KNOWN_SHAPES),
    card=st.floats(2, 140),
    sessions=st.integers(1, 20),
    window=st.integers(1, 32768),
    arena_is_torchs=st.booleans(),
)
def test_every_plan_that_fits_has_a_budget_below_what_is_free(
    machine_of: MachineOf, shape: object, card: float, sessions: int, window: int, arena_is_torchs: bool
) -> None:
    made = plan(Request(shape, "bf16", "cuda", sessions, window), machine_of(card, 0.3))  # type: ignore[arg-type]
    if not made.fits:
        with pytest.raises(GpuError, match="Only a plan that fits"):
            budget_of(made)
        return
    planned, ledger = budget_of(made, arena_is_torchs=arena_is_torchs), made.ledgers[0]
    outside = 0 if arena_is_torchs else made.arena_bytes
    assert 0 < planned.pool_bytes < planned.cap_bytes < planned.total_bytes
    assert planned.cap_bytes + outside + ledger.row("cuda context").size_bytes <= ledger.place.free_bytes
    ours = planned.pool_bytes + planned.small_bytes
    assert ours + outside + ledger.row("cuda context").size_bytes == ledger.peak_bytes
    assert 0 < planned.fraction < 1


def test_a_cap_that_starves_is_refused() -> None:
    with pytest.raises(GpuError, match="no room"):
        Budget("cuda:0", total_bytes=10, pool_bytes=7, small_bytes=1, cap_bytes=7)


def test_the_cpu_has_no_pool(machine_of: MachineOf) -> None:
    shape = known_shape("smollm2-135m")
    assert shape is not None
    with pytest.raises(GpuError, match="Only a plan that fits on a GPU"):
        budget_of(plan(Request(shape, "int8", "cpu"), machine_of()))
