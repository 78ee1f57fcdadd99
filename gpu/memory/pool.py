"""One pool per GPU, taken in one step before any model loads.

The step: cap the process, ask the driver for all of it as one block, give the block back *to torch's cache*. Whatever
loads afterwards is cut from that block, freed pieces join again (many sizes of activations never pile up as separate
segments), and if another program was faster the refusal comes here and not at second 30. See docs/memory.md.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from gpu.errors import GpuError
from gpu.memory.budget import Budget
from gpu.memory.fixes import text_of


class Allocator(Protocol):
    """torch's allocator of one process; another one in tests."""

    def free_bytes(self, device: str) -> int:
        """Free now, as the driver says."""
        ...

    def cap(self, device: str, fraction: float) -> None:
        """Refuse whatever would go above this share of the device's total."""
        ...

    def fill_cache(self, device: str, size_bytes: int) -> None:
        """Bring one block into the cache. Raises RuntimeError where there is none of that size."""
        ...

    def empty_cache(self) -> None:
        """Give the driver back whatever no tensor holds."""
        ...


class TorchAllocator:
    """The real one."""

    def free_bytes(self, device: str) -> int:
        """Free now, as the driver says."""
        import torch

        return int(torch.cuda.mem_get_info(device)[0])

    def cap(self, device: str, fraction: float) -> None:
        """Refuse whatever would go above this share of the device's total."""
        import torch

        torch.cuda.set_per_process_memory_fraction(fraction, device)

    def fill_cache(self, device: str, size_bytes: int) -> None:
        """Bring one block into the cache. Raises RuntimeError where there is none of that size."""
        import torch

        block = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        del block  # its memory stays with torch: that is the pool
        torch.cuda.reset_peak_memory_stats(device)  # what a run takes is counted from here on

    def empty_cache(self) -> None:
        """Give the driver back whatever no tensor holds."""
        import torch

        torch.cuda.empty_cache()


class Pools:
    """The pools of this process. Not thread-safe: the thread that makes the CUDA calls owns it."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self._allocator = allocator or TorchAllocator()
        self._budgets: dict[str, Budget] = {}

    def take(self, budget: Budget) -> None:
        """Take a GPU's pool; before its first model.

        Raises:
            GpuError: this GPU has one already, or the memory is gone since it was planned.
        """
        if budget.device in self._budgets:
            raise GpuError(f"{budget.device} has its memory pool already", fix="Plan all of its models together")
        self._allocator.cap(budget.device, budget.fraction)
        try:
            self._allocator.fill_cache(budget.device, budget.pool_bytes)
        except RuntimeError as error:  # torch's class for an out-of-memory as well
            free = self._allocator.free_bytes(budget.device)
            raise GpuError(
                f"{budget.device} has {text_of(free)} free now, {text_of(budget.pool_bytes)} were planned",
                fix="Another program was faster: close it, or start again",
            ) from error
        self._budgets[budget.device] = budget

    def give_back(self, device: str) -> None:
        """The pool that was taken on this GPU, or was to be, and its cap: nothing loads there after all.

        What tensors hold still stays. Raises nothing: who gives back has another error to tell.
        """
        self._budgets.pop(device, None)
        with suppress(RuntimeError):  # a GPU that failed may refuse this too
            self._allocator.empty_cache()
            self._allocator.cap(device, 1.0)

    def budget(self, device: str) -> Budget | None:
        """What was taken on this GPU, None where nothing was."""
        return self._budgets.get(device)
