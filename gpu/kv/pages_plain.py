"""Pages of one plain allocation by torch, on any device. Without virtual memory sharing copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.kv.pages import OutOfPagesError, PageBackend, PageRange

if TYPE_CHECKING:
    import torch

PLAIN_GRANULARITY_BYTES = 2 << 20
"""As CUDA's own pages have it, so that a plan need not know which of the two it will be."""


@dataclass(slots=True)
class _Extent:
    """Where a range lies: `begin` in pages within `block`."""

    block: torch.Tensor
    begin: int


class PlainBackend(PageBackend):
    """With `capacity_pages` one allocation, from which ranges are cut first-fit; without, one allocation a range.

    All of it is taken at once, so `pages_in_use` says what is used of it, not what the device has left.
    """

    name = "plain"
    aliases = False
    keeps_addresses = False
    frees_ranges = False

    def __init__(self, page_bytes: int, device: str, capacity_pages: int | None = None) -> None:
        super().__init__(page_bytes, device)
        self.capacity_pages = capacity_pages
        self._block = None if capacity_pages is None else self._allocate(capacity_pages)
        self._rests = False

    def make_place(self, pages: int) -> _Extent:
        if self._block is None:
            return _Extent(self._allocate(pages), 0)
        taken = sorted((r.place.begin, r.pages) for r in self.ranges.values())
        begin = 0
        for other, length in taken:
            if other - begin >= pages:
                break
            begin = other + length
        if self.capacity_pages is None or begin + pages > self.capacity_pages:
            raise OutOfPagesError(
                f"KV pages: no {pages} neighbouring pages left of {self.capacity_pages}",
                fix="Close a session, shorten the context or raise the arena's budget",
            )
        return _Extent(self._block, begin)

    def tensor_over(self, range_: PageRange) -> torch.Tensor:
        extent: _Extent = range_.place
        return extent.block.narrow(0, extent.begin * self.page_bytes, range_.pages * self.page_bytes)

    def give_place_back(self, range_: PageRange) -> None:
        range_.place = None

    def make_page(self) -> int:
        self.rouse()
        return 0  # the range's own memory; there is nothing to find again

    def destroy_page(self, handle: int) -> None:
        """Its memory belongs to the range."""

    def map(self, range_: PageRange, slot: int, handles: Sequence[int]) -> None:
        """The memory is where it is shown."""

    def unmap(self, range_: PageRange, slot: int) -> None:
        """The memory stays with the range."""

    def resident_bytes(self) -> int:
        return sum(block.untyped_storage().nbytes() for block in self._blocks())

    def fence(self) -> None:
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)

    def rest(self) -> None:
        """Everything sleeps: the allocation itself goes back. Tensors over it stay, at addresses that may change."""
        if self.pages_in_use == 0:
            for block in self._blocks():
                if block.untyped_storage().resizable():  # not while numpy looks at it
                    block.untyped_storage().resize_(0)
            self._rests = True

    def rouse(self) -> None:
        if self._rests:
            for block in self._blocks():
                if block.untyped_storage().nbytes() == 0:
                    self._resize(block)
            self._rests = False

    def close(self) -> None:
        super().close()
        self._block = None

    def _blocks(self) -> list[torch.Tensor]:
        if self._block is not None:
            return [self._block]
        return [range_.place.block for range_ in self.ranges.values()]

    def _resize(self, block: torch.Tensor) -> None:
        try:
            block.untyped_storage().resize_(block.numel())
        except RuntimeError as error:
            raise OutOfPagesError(
                f"KV pages: {self.device} has no memory for {block.numel()} bytes", fix=_FIX
            ) from error

    def _allocate(self, pages: int) -> torch.Tensor:
        import torch

        size = pages * self.page_bytes
        try:
            with torch.inference_mode(False):
                return torch.empty(size, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            raise self._refusal(size) from error

    def _refusal(self, size: int) -> OutOfPagesError:
        return OutOfPagesError(f"KV pages: {self.device} has no memory for {size} bytes", fix=_FIX)


_FIX = "Lower the number of sessions or the context, or free memory on the device"
