"""Physical pages and virtual ranges: what every page backend offers, and the bookkeeping that all of them share.

A range is a run of virtual addresses cut into slots; a slot holds one page or nothing. Backends that alias can show
one page in several slots (a prefix in many sessions, both halves of a mirrored ring); for the others sharing copies,
and whoever writes into a mirrored range writes twice. Nothing here knows tokens, layers or sessions.

Not thread-safe: the arena's lock guards it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpu.errors import GpuError

if TYPE_CHECKING:
    import torch


class PagesError(GpuError):
    """A page operation was refused: a bug of the caller's, or the system's answer."""


class OutOfPagesError(PagesError):
    """The device (or the system) has no memory for another page or range. Temporary: others may give theirs back."""

    is_permanent = False


class Page:
    """One physical page. `handle` is the backend's name for it, None while its content sleeps on the host."""

    __slots__ = ("handle", "mappings", "saved")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.mappings: set[tuple[int, int]] = set()
        """(number of the range, slot) of every place where it shows."""
        self.saved: torch.Tensor | None = None

    @property
    def is_awake(self) -> bool:
        """Whether there is physical memory behind it now."""
        return self.handle is not None


class PageRange:
    """Virtual addresses for `pages` slots. Made by `PageBackend.reserve`; addresses stay for its whole life."""

    def __init__(self, backend: PageBackend, number: int, pages: int, place: Any) -> None:
        self.backend = backend
        self.number = number
        self.pages = pages
        self.place = place
        """What the backend needs to find it again."""
        self.slots: list[Page | None] = [None] * pages
        self._memory: torch.Tensor | None = None

    @property
    def memory(self) -> torch.Tensor:
        """uint8 [pages * page_bytes] over the whole range. Touching a slot without a page is a fault of the process.

        Slot 0 must have held a page before the first use (CUDA asks what an address is by its first byte).
        """
        import torch

        if self._memory is None:
            with torch.inference_mode(False):
                self._memory = self.backend.tensor_over(self)
        return self._memory

    def bytes_of(self, begin: int, end: int) -> torch.Tensor:
        """uint8 view of slots [begin, end)."""
        size = self.backend.page_bytes
        return self.memory.narrow(0, begin * size, (end - begin) * size)

    def page(self, slot: int) -> Page:
        """The page in `slot`; PagesError where there is none."""
        found = self.slots[slot]
        if found is None:
            raise PagesError(f"KV pages: slot {slot} holds no page", fix="Commit it first")
        return found

    def commit(self, begin: int, end: int) -> None:
        """Put new pages (content undefined) into the empty slots [begin, end): all of them, or none and an error."""
        if any(page is not None for page in self.slots[begin:end]):
            raise PagesError("KV pages: a slot to commit holds a page already", fix="Release it first")
        pages = self.backend.create(end - begin)
        self._show(begin, pages)

    def share(self, slot: int, source: PageRange, source_slot: int, count: int = 1) -> None:
        """Show the pages of `count` other slots in these empty ones too; without aliasing, copies of them.

        One call for many is much cheaper than many calls: the driver is asked for access once.
        """
        if any(page is not None for page in self.slots[slot : slot + count]):
            raise PagesError("KV pages: a slot to share into holds a page already", fix="Release it first")
        pages = [source.page(place) for place in range(source_slot, source_slot + count)]
        if self.backend.aliases:
            self._show(slot, pages)
        else:
            self.commit(slot, slot + count)
            self.bytes_of(slot, slot + count).copy_(source.bytes_of(source_slot, source_slot + count))

    def is_shared(self, slot: int) -> bool:
        """Whether the slot's page shows in another range too."""
        return any(number != self.number for number, _ in self.page(slot).mappings)

    def privatise(self, slot: int) -> None:
        """Replace a shared page by a copy, in every slot of this range that shows it. Waits for the device."""
        old = self.page(slot)
        mine = sorted(place for number, place in old.mappings if number == self.number)
        new = self.backend.create(1)[0]
        with_content = self.backend.scratch()
        with_content._show(0, [new])
        with_content.bytes_of(0, 1).copy_(self.bytes_of(slot, slot + 1))
        self.backend.fence()
        for place in mine:
            self._hide(place)
            self._show(place, [new])
        with_content._hide(0)

    def release(self, begin: int, end: int) -> None:
        """Empty the slots [begin, end) (empty ones are fine); pages that show nowhere else are given back."""
        held = [slot for slot in range(begin, end) if self.slots[slot] is not None]
        if held:
            self.backend.fence()
        for slot in held:
            self._hide(slot)

    def close(self) -> None:
        """Release every slot and forget the range. The addresses live as long as a tensor over them."""
        self.release(0, self.pages)
        self.backend.forget(self)
        self._memory = None

    def _show(self, slot: int, pages: Sequence[Page]) -> None:
        """Map `pages` into consecutive slots; where the system refuses, none of them."""
        if not pages:
            return
        try:
            self.backend.map(self, slot, [page.handle for page in pages])
        except PagesError:
            for page in pages:
                self.backend.drop_if_unused(page)
            raise
        for place, page in enumerate(pages, slot):
            self.slots[place] = page
            page.mappings.add((self.number, place))

    def _hide(self, slot: int) -> None:
        page = self.page(slot)
        if page.handle is not None:
            self.backend.unmap(self, slot)
        self.slots[slot] = None
        page.mappings.discard((self.number, slot))
        self.backend.drop_if_unused(page)


class PageBackend(ABC):
    """Where pages come from. Subclasses give the primitives below the line; the rest is the same for all."""

    name: str
    aliases: bool
    """Whether one page can show in several slots."""
    keeps_addresses: bool
    """Whether tensors have the same addresses after `sleep` and `wake` (captured graphs stay valid)."""
    frees_ranges: bool
    """Whether memory goes back to the system page by page (else: when everything sleeps)."""

    def __init__(self, page_bytes: int, device: str) -> None:
        if page_bytes < 1:
            raise PagesError(f"KV pages: page_bytes is {page_bytes}", fix="Give page_bytes >= 1")
        self.page_bytes = page_bytes
        self.device = device
        self.pages_in_use = 0
        """Physical pages that exist now."""
        self.ranges: dict[int, PageRange] = {}
        self._numbers = 0
        self._scratch: PageRange | None = None

    def reserve(self, pages: int) -> PageRange:
        """Addresses for `pages` slots, all empty. OutOfPagesError where there are none left."""
        if pages < 1:
            raise PagesError(f"KV pages: a range of {pages} pages", fix="Give pages >= 1")
        import torch

        self._numbers += 1
        with torch.inference_mode(False):  # what is made there cannot be written outside of it
            made = PageRange(self, self._numbers, pages, self.make_place(pages))
        self.ranges[made.number] = made
        return made

    def create(self, count: int) -> list[Page]:
        """New pages that show nowhere yet: `count` of them, or none and OutOfPagesError."""
        pages: list[Page] = []
        try:
            for _ in range(count):
                pages.append(Page(self.make_page()))
                self.pages_in_use += 1
        except OutOfPagesError:
            for page in pages:
                self.drop_if_unused(page)
            raise
        return pages

    def drop_if_unused(self, page: Page) -> None:
        """Give the page back where it shows nowhere."""
        if not page.mappings:
            if page.handle is not None:
                self.destroy_page(page.handle)
                self.pages_in_use -= 1
            page.handle, page.saved = None, None

    def forget(self, range_: PageRange) -> None:
        """Take a closed range out of the books."""
        if self.ranges.pop(range_.number, None) is not None:
            self.give_place_back(range_)

    def scratch(self) -> PageRange:
        """A range of one slot in which a page is filled before it replaces another."""
        if self._scratch is None:
            self._scratch = self.reserve(1)
        return self._scratch

    def sleep(self, ranges: Sequence[PageRange]) -> int:
        """Save to the host and give back every page that shows in `ranges` only; returns how many. Addresses stay."""
        self.fence()
        runs = list(self._runs(ranges, asleep=False))
        copies = [(run, self._to_host(owner.bytes_of(begin, begin + len(run)))) for owner, begin, run in runs]
        self.fence()
        for run, saved in copies:
            for number, page in enumerate(run):
                for owner, slot in sorted(page.mappings):
                    self.unmap(self.ranges[owner], slot)
                self.destroy_page(page.handle)
                self.pages_in_use -= 1
                page.handle, page.saved = None, saved.narrow(0, number * self.page_bytes, self.page_bytes)
        self.rest()
        return sum(len(run) for _, _, run in runs)

    def wake(self, ranges: Sequence[PageRange]) -> int:
        """Bring back what `sleep` saved, at the same addresses; returns how many pages.

        Raises OutOfPagesError, with everything still asleep, where the memory has gone elsewhere.
        """
        self.rouse()
        runs = list(self._runs(ranges, asleep=True))
        fresh = self.create(sum(len(run) for _, _, run in runs))
        sleeping = [page for _, _, run in runs for page in run]
        for page, new in zip(sleeping, fresh, strict=True):
            page.handle = new.handle
        for owner, begin, run in runs:
            self._map_again(owner, begin, run)
            saved = [page.saved for page in run if page.saved is not None]
            for number, content in enumerate(saved):
                owner.bytes_of(begin + number, begin + number + 1).copy_(content, non_blocking=True)
        self.fence()
        for page in sleeping:
            page.saved = None
        return len(sleeping)

    def resident_bytes(self) -> int:
        """What the device or the system holds for pages now; `pages_in_use` are what the arena may fill.

        The two are the same where a page is memory as soon as it exists.
        """
        return self.pages_in_use * self.page_bytes

    def check(self) -> list[str]:
        """What is wrong in the books: one sentence each."""
        broken: list[str] = []
        seen: dict[int, Page] = {}
        for range_ in self.ranges.values():
            for slot, page in enumerate(range_.slots):
                if page is None:
                    continue
                seen[id(page)] = page
                if (range_.number, slot) not in page.mappings:
                    broken.append(f"range {range_.number} slot {slot}: its page does not know of it")
                if (page.handle is None) == (page.saved is None):
                    broken.append(f"range {range_.number} slot {slot}: neither awake nor asleep")
        shown = sum(page is not None for range_ in self.ranges.values() for page in range_.slots)
        if shown != sum(len(page.mappings) for page in seen.values()):
            broken.append("a page believes to show in a slot that holds another")
        awake = [page for page in seen.values() if page.handle is not None]
        if len(awake) != self.pages_in_use:
            broken.append(f"{self.pages_in_use} pages exist, {len(awake)} show: pages leak")
        return broken

    def close(self) -> None:
        """Close every range."""
        for range_ in list(self.ranges.values()):
            range_.close()
        self._scratch = None

    def _runs(self, ranges: Sequence[PageRange], *, asleep: bool) -> Iterator[tuple[PageRange, int, list[Page]]]:
        """(range, first slot, pages): neighbouring slots to put to sleep or to wake, each page once.

        A page sleeps when it shows in `ranges` only, and wakes when it shows in one of them.
        """
        numbers = {range_.number for range_ in ranges}
        counts = any if asleep else all
        seen: set[int] = set()
        for range_ in ranges:
            run: list[Page] = []
            for slot, page in enumerate([*range_.slots, None]):
                if (
                    page is not None
                    and (page.handle is None) == asleep
                    and id(page) not in seen
                    and counts(number in numbers for number, _ in page.mappings)
                ):
                    seen.add(id(page))
                    run.append(page)
                elif run:
                    yield range_, slot - len(run), run
                    run = []

    def _to_host(self, content: torch.Tensor) -> torch.Tensor:
        import torch

        saved = torch.empty(content.shape, dtype=content.dtype, pin_memory=content.is_cuda)
        return saved.copy_(content, non_blocking=True)

    def _map_again(self, owner: PageRange, begin: int, run: list[Page]) -> None:
        self.map(owner, begin, [page.handle for page in run])
        for number, page in enumerate(run):
            for other, slot in sorted(page.mappings - {(owner.number, begin + number)}):
                self.map(self.ranges[other], slot, [page.handle])

    # Primitives.

    @abstractmethod
    def make_place(self, pages: int) -> Any:
        """Reserve addresses; what it returns becomes `PageRange.place`."""

    def give_place_back(self, range_: PageRange) -> None:  # noqa: B027  (most backends free it with the last tensor)
        """The range was closed."""

    @abstractmethod
    def tensor_over(self, range_: PageRange) -> torch.Tensor:
        """uint8 tensor over all slots."""

    @abstractmethod
    def make_page(self) -> Any:
        """A new physical page's handle; OutOfPagesError where there is none."""

    @abstractmethod
    def destroy_page(self, handle: Any) -> None:
        """Give a page that is mapped nowhere back."""

    @abstractmethod
    def map(self, range_: PageRange, slot: int, handles: Sequence[Any]) -> None:
        """Show pages in consecutive slots; all, or none and a PagesError."""

    @abstractmethod
    def unmap(self, range_: PageRange, slot: int) -> None:
        """Empty one slot. The caller has waited for the device."""

    def fence(self) -> None:  # noqa: B027  (a CPU has nothing queued)
        """Wait until no queued work can touch a page any more."""

    def enter_thread(self) -> None:  # noqa: B027  (only CUDA has something to do)
        """Called once by another thread before its first page."""

    def rest(self) -> None:  # noqa: B027
        """After `sleep`: give back what is not tied to single pages."""

    def rouse(self) -> None:  # noqa: B027
        """Before `wake`: undo `rest`."""
