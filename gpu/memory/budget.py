"""From a plan that fits to what this process may take on one GPU: a pool, the arena's share, and a hard cap."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.errors import GpuError
from gpu.memory.needs import small_blocks_bytes
from gpu.memory.preflight import Plan


@dataclass(frozen=True, slots=True)
class Budget:
    """All in bytes. `cap_bytes` is for torch's allocator: the CUDA context lies outside of it."""

    device: str
    total_bytes: int
    pool_bytes: int
    """Taken in one step before a model loads: weights, workspace, and the arena where torch allocates it."""
    small_bytes: int
    """What torch takes beside the pool: it never cuts tensors of up to 1 MiB from a large block."""
    cap_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.pool_bytes + self.small_bytes <= self.cap_bytes <= self.total_bytes:
            raise GpuError(
                f"A pool of {self.pool_bytes} bytes under a cap of {self.cap_bytes} leaves the models no room",
                fix="Plan again from the memory that is free now",
            )

    @property
    def fraction(self) -> float:
        """The cap as torch wants it: a share of the total."""
        return self.cap_bytes / self.total_bytes


def budget_of(plan: Plan, *, arena_is_torchs: bool = True) -> Budget:
    """The budget of a plan for a GPU. `arena_is_torchs`: its pages come from torch, not from the driver (vmm).

    The cap lies above what is planned by half of the reserve: an unforeseen request is served from there, and the other
    half stays with the rest of the machine.

    Raises:
        GpuError: the plan is for the CPU, or does not fit.
    """
    if plan.request.kind != "cuda" or not plan.fits:
        raise GpuError("Only a plan that fits on a GPU makes a budget", fix="See: vivavoce plan")
    ledger = plan.ledgers[0]
    arena = plan.arena_bytes if arena_is_torchs else 0
    planned = ledger.row("weights").size_bytes + ledger.row("workspace").size_bytes + arena
    request = plan.request
    small = small_blocks_bytes(request.shape, request.precision, request.positions)
    cap = planned + ledger.row("reserve").size_bytes // 2
    return Budget(ledger.place.device, ledger.place.total_bytes, planned - small, small, cap)
