"""The pages under one session's rows: committed ahead of the writer, private where written, shared where not.

A body of slots holds the rows; a mirrored body (a ring) shows every page a second time, `ring_pages` further on, so
that a run of rows that wraps is contiguous; a store behind both holds what a window session keeps beside its ring.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from gpu.kv.pages import OutOfPagesError, PageBackend, PagesError


class PageGate(Protocol):
    """What a pager asks of its arena."""

    lock: threading.RLock
    outruns: int
    copies: int

    def admit(self, pager: Pager, pages: int) -> None:
        """Make room for `pages` more, evicting others where that is needed; QuotaError where there is none."""

    def relieve(self, pager: Pager, pages: int) -> bool:
        """Give `pages` back to the device, which has none left; False where that is not possible."""

    def admits(self, pager: Pager, pages: int) -> bool:
        """Whether there is room for `pages` more as things are."""


class Pager:
    """Byte addresses are relative to the body's begin. `owner` and `quota_pages` are for the gate."""

    def __init__(
        self,
        gate: PageGate,
        backend: PageBackend,
        body_pages: int,
        *,
        mirrored: bool = False,
        store_pages: int = 0,
        owner: str = "",
        quota_pages: int | None = None,
    ) -> None:
        self.backend = backend
        self.body_pages = body_pages
        self.ring_pages = body_pages
        """Distance of the two copies of a mirrored body, `body_pages` or less (`shrink_ring`)."""
        self.mirrored = mirrored
        self.store_pages = store_pages
        self.owner = owner
        self.quota_pages = quota_pages
        self.beside: Pager | None = None
        """Another pager of the same session: one quota for both."""
        self.committed = 0
        """Slots of the body that hold pages: always the first ones."""
        self.committed_bytes = 0
        self._gate = gate
        self._shared_below = 0  # only bytes below may lie in shared pages; 0 when there are none
        self._own: set[int] = set()
        self.has_store = False
        """Whether the store holds pages."""
        self.range = backend.reserve(body_pages * (2 if mirrored else 1) + store_pages)

    @property
    def store_slot(self) -> int:
        """First slot of the store."""
        return self.body_pages * (2 if self.mirrored else 1)

    @property
    def charged_pages(self) -> int:
        """Pages that this pager asked for and that are not asleep (not those that it was given to share)."""
        slots = self.range.slots
        return sum(self._cost(slot) for slot in self._own if (page := slots[slot]) is not None and page.is_awake)

    def like(self) -> Pager:
        """A pager of the same shape, owner and quota, without pages."""
        with self._gate.lock:
            return Pager(
                self._gate,
                self.backend,
                self.body_pages,
                mirrored=self.mirrored,
                store_pages=self.store_pages,
                owner=self.owner,
                quota_pages=self.quota_pages,
            )

    def ensure(self, begin: int, end: int) -> None:
        """Make bytes [begin, end) writable: there, and nobody else's. Two comparisons where they are already.

        Raises QuotaError or OutOfPagesError, with nothing changed.
        """
        if end > self.committed_bytes and self.committed < self.ring_pages:
            with self._gate.lock:
                if end > self.committed_bytes:
                    self._gate.outruns += self.committed > 0
                    self.commit_to(self._slots(end))
        if begin < self._shared_below or (self.mirrored and self._shared_below):
            self._privatise(begin, end)

    def ahead(self, end: int, ahead_bytes: int) -> None:
        """Commit pages until `ahead_bytes` behind `end` are there, where the budget has them without evicting."""
        with self._gate.lock:
            wanted = self._slots(end + ahead_bytes)
            missing = wanted - self.committed
            if missing > 0 and self._gate.admits(self, missing * self._cost(0)):
                self.commit_to(wanted, evict=False)

    def lags(self, end: int, ahead_bytes: int) -> bool:
        """Whether `ahead` has something to do."""
        return end + ahead_bytes > self.committed_bytes and self.committed < self.ring_pages

    def commit_to(self, slots: int, *, evict: bool = True) -> None:
        """Let the first `slots` of the body hold pages; `evict` says whether others may have to give some up."""
        with self._gate.lock:
            begin, end = self.committed, min(slots, self.ring_pages)
            if end <= begin:
                return
            cost = (end - begin) * self._cost(0)
            if evict:
                self._gate.admit(self, cost)
            try:
                self._commit(begin, end)
            except OutOfPagesError:
                if not evict or not self._gate.relieve(self, cost):
                    raise
                self._commit(begin, end)
            self._own.update(range(begin, end))
            self._set_committed(end)

    def ensure_store(self, begin: int, end: int) -> None:
        """Make bytes [begin, end) of the store writable; the whole store comes at the first call."""
        with self._gate.lock:
            if not self.has_store and self.store_pages:
                self._gate.admit(self, self.store_pages)
                self.range.commit(self.store_slot, self.store_slot + self.store_pages)
                self._own.update(range(self.store_slot, self.store_slot + self.store_pages))
                self.has_store = True
            size = self.backend.page_bytes
            for slot in range(self.store_slot + begin // size, self.store_slot + -(-end // size)):
                self._make_own(slot)

    def share_from(self, other: Pager, end: int) -> None:
        """Show the whole pages below byte `end` of another pager's body and copy what remains of the last one."""
        size = self.backend.page_bytes
        whole, rest = divmod(end, size)
        with self._gate.lock:
            copied = 0 if self.backend.aliases else whole * self._cost(0)
            self._gate.admit(self, copied + (self._cost(0) if rest or not whole else 0))
            self._share_slots(0, whole, other)
            self._mirror(0, whole, copied=True)
            self._set_committed(whole)
            if self.backend.aliases:
                self._shared_below = whole * size
                other._shared_below = max(other._shared_below, whole * size)
            if rest or not whole:
                self.commit_to(whole + 1)
                source = other.range.memory.narrow(0, whole * size, rest)
                self.range.memory.narrow(0, whole * size, rest).copy_(source)
                self._copy_mirror(whole, whole + 1)

    def share_ring_from(self, other: Pager) -> None:
        """Show every page of another ring of the same shape, store included; whoever writes first copies."""
        with self._gate.lock:
            self.ring_pages = other.ring_pages
            self._gate.admit(self, 0 if self.backend.aliases else other.charged_pages)
            self._share_slots(0, other.committed, other)
            self._mirror(0, other.committed, copied=True)
            self._set_committed(other.committed)
            if other.has_store:
                self._share_slots(self.store_slot, self.store_pages, other)
                self.has_store = True
            if self.backend.aliases:
                self._shared_below = other._shared_below = self.ring_pages * self.backend.page_bytes

    def charged_with(self, ring_pages: int) -> int:
        """What `charged_pages` would be with a full ring of that size, and its store."""
        return ring_pages * self._cost(0) + self.store_pages

    def admit_ring(self, pages: int) -> None:
        """Make sure that `shrink_ring` finds room for what it makes of this ring; QuotaError where it does not."""
        with self._gate.lock:
            held = {id(page): slot for slot, page in enumerate(self.range.slots) if page is not None}
            freed = sum(not self.range.is_shared(slot) for slot in held.values())
            more = self.charged_with(pages) - freed
            if more > 0:
                self._gate.admit(self, more)

    def shrink_ring(self, pages: int) -> None:
        """Give everything back and start again with a ring of `pages`; addresses stay, the content is gone."""
        with self._gate.lock:
            self.range.release(0, self.range.pages)
            self._own.clear()
            self._shared_below, self.has_store = 0, False
            self.ring_pages = pages
            self._set_committed(0)
            self.commit_to(1)

    def trim(self, end: int) -> int:
        """Give back the pages behind byte `end`; returns how many. Waits for the device."""
        with self._gate.lock:
            keep = max(1, self._slots(end))
            dropped = self.committed - keep
            if dropped <= 0 or self.mirrored:
                return 0
            self.range.release(keep, self.committed)
            self._own.difference_update(range(keep, self.committed))
            self._set_committed(keep)
            return dropped

    def park(self) -> int:
        """Move the content of pages that are nobody else's to the host and give them back; returns how many."""
        with self._gate.lock:
            return self.backend.sleep([self.range])

    def unpark(self) -> None:
        """Bring back what `park` moved, at the same addresses."""
        with self._gate.lock:
            asleep = {id(page) for page in self.range.slots if page is not None and page.handle is None}
            self._gate.admit(self, len(asleep))
            self.backend.wake([self.range])

    def close(self) -> None:
        """Give every page back."""
        with self._gate.lock:
            self.range.close()
            self._own.clear()
            self._shared_below = 0
            self._set_committed(0)

    def check(self) -> list[str]:
        """What is wrong: one sentence each."""
        slots, broken = self.range.slots, []
        if any(page is None for page in slots[: self.committed]):
            broken.append("a committed slot holds no page")
        if any(page is not None for page in slots[self.committed : self.ring_pages]):
            broken.append("a slot beyond the committed ones holds a page")
        if self.mirrored:
            for slot in range(self.committed):
                twin = slots[slot + self.ring_pages]
                if twin is None or (self.backend.aliases and twin is not slots[slot]):
                    broken.append(f"slot {slot} is not mirrored")
        for slot in range(self.committed):
            if slots[slot] is not None and self.range.is_shared(slot):
                if slot * self.backend.page_bytes >= self._shared_below:
                    broken.append(f"slot {slot} is shared and counts as private")
        held = {slot for slot, page in enumerate(slots) if page is not None}
        if not self._own <= held:
            broken.append("charged for a slot that holds no page")
        return broken

    def _commit(self, begin: int, end: int) -> None:
        self.range.commit(begin, end)
        try:
            self._mirror(begin, end)
        except PagesError:
            self.range.release(begin, end)
            raise

    def _slots(self, end: int) -> int:
        return min(self.ring_pages, -(-end // self.backend.page_bytes))

    def _cost(self, slot: int) -> int:
        return 2 if self.mirrored and not self.backend.aliases and slot < self.store_slot else 1

    def _set_committed(self, slots: int) -> None:
        self.committed = slots
        self.committed_bytes = slots * self.backend.page_bytes

    def _mirror(self, begin: int, end: int, *, copied: bool = False) -> None:
        """Show slots [begin, end) a second time; without aliasing with new pages, `copied` ones where asked."""
        if not self.mirrored:
            return
        if self.backend.aliases or copied:
            self.range.share(self.ring_pages + begin, self.range, begin, end - begin)
        else:
            self.range.commit(self.ring_pages + begin, self.ring_pages + end)

    def _copy_mirror(self, begin: int, end: int) -> None:
        """Make the second copy of slots [begin, end) equal the first, where they are not the same pages."""
        if self.mirrored and not self.backend.aliases:
            second = self.range.bytes_of(begin + self.ring_pages, end + self.ring_pages)
            second.copy_(self.range.bytes_of(begin, end))

    def _share_slots(self, slot: int, count: int, other: Pager) -> None:
        self.range.share(slot, other.range, slot, count)
        if not self.backend.aliases:
            self._own.update(range(slot, slot + count))

    def _privatise(self, begin: int, end: int) -> None:
        with self._gate.lock:
            for slot in self._body_slots(begin, end):
                self._make_own(slot)
            if not any(self.range.is_shared(slot) for slot in range(self.committed)):
                self._shared_below = 0

    def _body_slots(self, begin: int, end: int) -> Iterator[int]:
        size = self.backend.page_bytes
        seen = {slot % self.ring_pages for slot in range(begin // size, -(-end // size))}
        return iter(sorted(slot for slot in seen if slot < self.committed))

    def _make_own(self, slot: int) -> None:
        if self.range.is_shared(slot):
            self._gate.admit(self, 1)
            self.range.privatise(slot)
            self._gate.copies += 1
            self._own.add(slot)
