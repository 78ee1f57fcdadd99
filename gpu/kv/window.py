"""Endless sessions: attention sinks and a mirrored ring, seen as one contiguous view in order; no roll, no cat.

Token t has ring row t mod R, and every row shows again R rows further on, so the window is contiguous wherever it
wraps. The sinks (the first tokens, Xiao et al. 2023) are copied into the rows just below the window, where evicted
tokens lie; those go into a small undo ring first, so that a rollback is exact up to the slack.

    view = [sinks | window], physical rows [offset mod R, offset mod R + length), offset = tokens that are not seen
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu.errors import ArenaFullError, GpuError
from gpu.kv.pager import Pager
from gpu.kv.pages import PagesError
from gpu.kv.session import Session
from gpu.kv.spec import ArenaSpec, torch_dtype

if TYPE_CHECKING:
    import torch

    from gpu.kv.arena import Arena


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """What an endless session keeps, in tokens."""

    window: int
    """Seen behind the sinks when a token comes, itself included: at most `window`, at least `window - step + 1`."""
    sinks: int = 4
    slack: int = 64
    """How far back a rollback is exact, counted from the longest that the session ever was."""
    chunk: int = 256
    """Tokens that one `extend` may bring."""
    step: int = 16
    """The window moves by so many at a time: the sinks are copied once in a step, not once a token."""

    def __post_init__(self) -> None:
        for name in ("window", "chunk", "step"):
            if getattr(self, name) < 1:
                raise GpuError(f"KV window: {name} is {getattr(self, name)}", fix=f"Give {name} >= 1")
        if self.sinks < 0 or self.slack < 0 or self.step > self.window:
            raise GpuError("KV window: sinks and slack must be 0 or more, step at most window", fix="Change them")

    def hidden(self, tokens: int) -> int:
        """How many tokens (behind the sinks) are not seen any more when `tokens` have come."""
        over = tokens - self.sinks - self.window
        return 0 if over <= 0 else -(-over // self.step) * self.step

    def ring_rows(self, spec: ArenaSpec, page_bytes: int) -> int:
        """Rows of the ring: all that can be seen at once, rounded up so that rows and pages end together."""
        granule = page_bytes // math.gcd(page_bytes, spec.row_bytes)
        return -(-(self.sinks + self.window + self.chunk - 1) // granule) * granule

    @property
    def undo_rows(self) -> int:
        """Evicted tokens that are remembered."""
        return self.slack + self.step if self.slack else 0


class WindowSession(Session):
    """A session whose `length` stops growing. `position` goes on for ever; `rope_position` until a re-base."""

    def __init__(self, arena: Arena, pager: Pager, shape: WindowSpec) -> None:
        self.shape = shape
        self._ring_rows = pager.ring_pages * pager.backend.page_bytes // arena.spec.row_bytes
        self._saved_from = 0  # oldest token in the undo ring, if it is behind the window
        self._barrier = 0  # the window cannot begin before: a resize forgot what was there
        self._shift = 0  # what re-basing took from positions
        super().__init__(arena, pager, 2 * self._ring_rows)

    @property
    def capacity(self) -> int:
        """Tokens that are seen at most (a chunk may make it more for its own pass)."""
        return self.shape.sinks + self.shape.window

    @property
    def rope_position(self) -> int:
        return self.position - self._shift

    def first_seen(self, tokens: int) -> list[int]:
        """For each of the last `tokens` the first row that it sees behind the sinks: as if it had come alone."""
        first = self.position - tokens + 1
        hidden = (self.shape.hidden(count) for count in range(first, first + tokens))
        return [self.shape.sinks + max(0, offset - self._offset) for offset in hidden]

    def resize(self, window: int) -> None:
        """Change the window up to what the session was opened with, keeping what still fits; addresses stay.

        A smaller ring gives pages back. No rollback reaches behind this. Waits for the device.
        """
        self.use()
        shape = replace(self.shape, window=window, step=min(self.shape.step, window))
        pages = self.pages_at(window)
        rows = pages * self.pager.backend.page_bytes // self._row_bytes
        if pages > self.pager.body_pages:
            raise GpuError(f"KV window: {window} is more than the session was opened with", fix="Open a new session")
        self.pager.admit_ring(pages)
        position, offset = self.position, max(self._offset, shape.hidden(self.position))
        seen = self.rows()
        # By way of the host: who shrinks has no memory to spare on the device.
        kept = seen.narrow(0, offset - self._offset, position - offset).to("cpu", copy=True)
        if offset:
            sinks = min(shape.sinks, position)
            kept.narrow(0, 0, sinks).copy_(seen.narrow(0, 0, sinks))
        state = {**self.state(), "offset": offset, "barrier": offset, "saved_from": offset + shape.sinks}
        old_shape, old_rows = self.shape, self._ring_rows
        try:
            self._relay(shape, rows, kept, state)
        except PagesError:
            self._relay_or_close(old_shape, old_rows, kept, state)
            raise

    def pages_at(self, window: int) -> int:
        """Pages of the ring, in one of its two copies, that `resize(window)` would make."""
        size = self.pager.backend.page_bytes
        shape = replace(self.shape, window=window, step=min(self.shape.step, window))
        return shape.ring_rows(self.spec, size) * self._row_bytes // size

    def _relay(self, shape: WindowSpec, ring_rows: int, kept: torch.Tensor, state: dict[str, Any]) -> None:
        self.pager.shrink_ring(ring_rows * self._row_bytes // self.pager.backend.page_bytes)
        self.shape, self._ring_rows = shape, ring_rows
        self._lay_out(2 * ring_rows)
        self.place_rows(kept, state)

    def _relay_or_close(self, shape: WindowSpec, ring_rows: int, kept: torch.Tensor, state: dict[str, Any]) -> None:
        """Back to what was, and where somebody took even that memory meanwhile, better closed than empty."""
        try:
            self._relay(shape, ring_rows, kept, state)
        except PagesError:
            self.close()
            raise

    def compact(self, keep: torch.Tensor, tail: int) -> None:
        """Refused: the window is the policy."""
        raise GpuError("KV window: an endless session evicts by its window", fix="Use a plain session, or resize()")

    def trim(self) -> int:
        return 0

    def fork_into(self, pager: Pager, position: int) -> Session:
        child: WindowSession | None = None
        try:
            pager.share_ring_from(self.pager)
            child = WindowSession(self._arena, pager, self.shape)
            child.restore_state(self.state())
            if position != self.position:
                child._cut(position)
                child._set_registers()
        except GpuError:
            pager.close()
            raise
        return child

    def state(self) -> dict[str, Any]:
        return {
            "length": self._length,
            "offset": self._offset,
            "saved_from": self._saved_from,
            "barrier": self._barrier,
            "shift": self._shift,
            "window": self.shape.window,
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        self._length, self._offset = state["length"], state["offset"]
        self._saved_from, self._barrier, self._shift = state["saved_from"], state["barrier"], state["shift"]
        self._first = self._offset % self._ring_rows
        self._set_registers()

    def contents(self) -> list[torch.Tensor]:
        return [self.rows(), self._store()] if self._offset else [self.rows()]

    def place_rows(self, rows: torch.Tensor, state: dict[str, Any], store: torch.Tensor | None = None) -> None:
        """Lay `rows` (what is seen) out as `state` says, into an empty ring."""
        if state["offset"]:
            self.pager.commit_to(self.pager.ring_pages)
        self._ensure(0, rows.shape[0])
        self._put(state["offset"] % self._ring_rows, rows)
        self.restore_state({**state, "length": rows.shape[0]})
        if self._offset:
            self.own_store()
            self._store().narrow(0, 0, self.shape.sinks).copy_(rows.narrow(0, 0, self.shape.sinks))
            if store is not None:
                self._store().copy_(store)

    def copy_first(self, source: Session, tokens: int) -> None:
        """Take over what the window would see of the first `tokens` of `source`, which evicted nothing; now empty."""
        import torch

        sinks, offset = self.shape.sinks, self.shape.hidden(tokens)
        rows = source.rows()
        kept = torch.cat((rows.narrow(0, 0, sinks), rows.narrow(0, sinks + offset, tokens - offset - sinks)))
        self.place_rows(kept, {**self.state(), "offset": offset, "barrier": offset, "saved_from": sinks + offset})

    def written_bytes(self) -> int:
        return min(self._first + self._length, self._ring_rows) * self._row_bytes

    def oldest(self) -> int:
        """The oldest token behind the sinks that is still somewhere: seen or in the undo ring."""
        return min(self._saved_from, self._start) if self._offset else self.shape.sinks

    def undone_rows(self, begin: int, end: int) -> Iterator[tuple[int, torch.Tensor]]:
        """(first token, rows) in the undo ring for tokens [begin, end), in pieces that do not wrap."""
        size, store = self.shape.undo_rows, self._store()
        while begin < end:
            count = min(end - begin, size - begin % size)
            yield begin, store.narrow(0, self.shape.sinks + begin % size, count)
            begin += count

    def replace_keys(self, layer: int, keys: torch.Tensor) -> None:
        """Overwrite one layer's keys of what is seen behind the sinks: [length - sinks, kv_heads, head_dim]."""
        row, rows = self._first + self.shape.sinks, keys.shape[0]
        self._ensure(row, rows)
        for to, begin, count in self._places(row, rows):
            self._rows.narrow(0, to, count)[:, layer, 0].copy_(keys.narrow(0, begin, count))

    def set_shift(self, shift: int) -> None:
        """The keys were turned: positions are `shift` less from now on (`gpu.kv.rebase`)."""
        self._shift = shift
        self._set_registers()

    @property
    def shift(self) -> int:
        """What re-basing took from positions so far."""
        return self._shift

    @property
    def _start(self) -> int:
        """The oldest token that is seen behind the sinks."""
        return self.shape.sinks + self._offset

    def _make_room(self, tokens: int) -> None:
        position = self.position
        longest = self._ring_rows - self.shape.sinks - self.shape.window + 1
        if not 0 <= tokens <= longest:
            raise ArenaFullError(
                f"An endless session takes {longest} tokens at once, not {tokens}", wanted=tokens, capacity=longest
            )
        offset = max(self._offset, self.shape.hidden(position + 1)) if tokens else self._offset
        self._ensure(offset % self._ring_rows + position - offset, tokens)
        if offset > self._offset:
            self.own_store()
            self._ensure(offset % self._ring_rows, self.shape.sinks)
            self._advance(offset)

    def _advance(self, offset: int) -> None:
        """Let the window begin later: remember what leaves it, and put the sinks below its new begin."""
        sinks = self.shape.sinks
        store, begin, end = self._store(), self._start, sinks + offset
        if not self._offset:
            self._saved_from = begin
            store.narrow(0, 0, sinks).copy_(self._rows.narrow(0, 0, sinks))
        if self.shape.undo_rows:
            for token, saved in self.undone_rows(max(begin, end - self.shape.undo_rows), end):
                saved.copy_(self._rows.narrow(0, token % self._ring_rows, saved.shape[0]))
        self._saved_from = max(self._saved_from, end - self.shape.undo_rows)
        self._move(offset)

    def _move(self, offset: int) -> None:
        self._length -= offset - self._offset
        self._offset, self._first = offset, offset % self._ring_rows
        self._put(self._first, self._store().narrow(0, 0, self.shape.sinks))
        self._set_registers()

    def _cut(self, position: int) -> None:
        sinks, offset = self.shape.sinks, min(self._offset, self.shape.hidden(position))
        if position > sinks:
            offset = max(offset, self._barrier)
        begin, end = sinks + offset, min(self._start, position)
        if position > sinks and (position < begin or begin < min(end, self._saved_from)):
            raise GpuError(
                f"KV session: position {position} was evicted",
                fix=f"Roll back {self.shape.slack} tokens in all at most, or truncate to {sinks} or less",
            )
        if offset < self._offset:
            if begin < end:
                self._ensure(begin % self._ring_rows, end - begin)
                for token, saved in self.undone_rows(begin, end):
                    self._put(token % self._ring_rows, saved)
            self._ensure(offset % self._ring_rows, sinks)
            self._length = position - self._offset
            self._move(offset)
        self._length = position - offset
        if position <= sinks:
            self._shift, self._barrier = 0, 0

    def _ensure(self, row: int, rows: int) -> None:
        if rows:
            self.pager.ensure(row * self._row_bytes, (row + rows) * self._row_bytes)

    def own_store(self) -> None:
        """Make the store writable: there, and nobody else's."""
        self.pager.ensure_store(0, (self.shape.sinks + self.shape.undo_rows) * self._row_bytes)

    def _store(self) -> torch.Tensor:
        """[sinks + undo_rows, layers, parts, kv_heads, head_dim]: the sinks, then the undo ring."""
        begin = self.pager.store_slot * self.pager.backend.page_bytes
        rows = self.shape.sinks + self.shape.undo_rows
        memory = self.pager.range.memory.narrow(0, begin, rows * self._row_bytes)
        return memory.view(torch_dtype(self.spec.dtype)).view(rows, *self.spec.row_shape)

    def _put(self, row: int, rows: torch.Tensor) -> None:
        for to, begin, count in self._places(row, rows.shape[0]):
            self._rows.narrow(0, to, count).copy_(rows.narrow(0, begin, count))

    def _places(self, row: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        yield row, 0, tokens
        if not self.pager.backend.aliases:
            low = max(0, min(tokens, self._ring_rows - row))
            if low:
                yield row + self._ring_rows, 0, low
            if low < tokens:
                yield row + low - self._ring_rows, low, tokens - low

    def _check_rows(self) -> list[str]:
        broken = []
        if self._barrier > self._offset or (self._offset and self.oldest() > self._start):
            broken.append("the window begins before what is remembered")
        if not 0 <= self._length <= self._ring_rows or self._first != self._offset % self._ring_rows:
            broken.append("the view is larger than the ring or begins elsewhere")
        if self._rows.data_ptr() != self.pager.range.memory.data_ptr():
            broken.append("buffer moved")
        if self._state == "open" and self._offset and self.pager.store_pages and not self.pager.has_store:
            broken.append("evicted, and nothing remembers the sinks")
        if self._state == "open" and self.written_bytes() > self.pager.committed_bytes:
            broken.append("live rows without pages")
        return broken
