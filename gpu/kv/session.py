"""One conversation's keys and values: append by index, views over the live length, O(1) rollback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu.errors import ArenaFullError, GpuError
from gpu.kv.pager import Pager
from gpu.kv.spec import ArenaSpec, torch_dtype

if TYPE_CHECKING:
    import torch

    from gpu.kv.arena import Arena
    from gpu.kv.policies import EvictionPolicy


@dataclass(frozen=True, slots=True)
class Mark:
    """A position to come back to. Valid until the session is truncated below it."""

    position: int
    epoch: int


class Session:
    """Made by `Arena.session`. Nothing is moved or cleared while it grows, and views keep their address.

    A decoder calls `extend(n)` once per forward pass, `write(layer, start, k, v)` in each layer and reads
    `keys(layer)`/`values(layer)`; others append whole tokens with `append`. `position` counts every token that ever
    came, `length` those whose keys are still here; they differ only after an eviction (`compact`, or a window).
    """

    def __init__(self, arena: Arena, pager: Pager, rows: int, spec: ArenaSpec | None = None) -> None:
        """`rows` of physical space, of which `pager` holds the first page already; of `spec`, None: the arena's."""
        import torch

        self.spec: ArenaSpec = arena.spec if spec is None else spec
        self.pager = pager
        self.is_part = False
        """Whether it belongs to another session (its codes), which answers for it to the arena."""
        self.idle = False
        """Set by the owner while the session waits for somebody: then it may be shrunk or moved to the host."""
        self.policy: EvictionPolicy | None = None
        """How it may be shrunk while it is idle; None: never."""
        self.last_used = 0
        """The arena's count of calls at the last `extend`."""
        self._arena = arena
        self._row_bytes = self.spec.row_bytes
        self._length = 0
        self._first = 0  # physical row of the view's begin
        self._offset = 0  # position of a token less its place in the view, for those that no compaction moved
        self._floor = 0  # rows of the view below which no position can be truncated to
        self._epoch = 0
        # Truncations that still matter to marks, as (epoch, position), positions rising: at most one per position.
        self._truncations: list[tuple[int, int]] = []
        self._state = "open"
        with torch.inference_mode(False):  # what is made there cannot be changed outside of it
            self.registers = torch.zeros(3, dtype=torch.int32, device=self.spec.device)
        """int32 on the device: length, position, first physical row of the view (for captured graphs)."""
        self._registered: tuple[int, int, int] | None = (0, 0, 0)
        """What the registers hold; None where a graph counts."""
        self._lay_out(rows)

    def _lay_out(self, rows: int) -> None:
        import torch

        dtype = torch_dtype(self.spec.dtype)
        with torch.inference_mode(False):
            memory = self.pager.range.memory.narrow(0, 0, rows * self._row_bytes)
            self._rows: torch.Tensor = memory.view(dtype).view(rows, *self.spec.row_shape)
            # [1, kv_heads, rows, head_dim] per layer: one `narrow` away from what attention takes.
            by_part = self._rows.permute(2, 1, 3, 0, 4).unsqueeze(2).unbind(0)
            self._parts: list[Sequence[torch.Tensor]] = [part.unbind(0) for part in by_part]
        self._base_address = self._rows.data_ptr()

    @property
    def length(self) -> int:
        """Tokens whose keys and values are here."""
        return self._length

    @property
    def position(self) -> int:
        """Tokens that came so far: the next one's absolute position."""
        return self._length + self._offset

    @property
    def rope_position(self) -> int:
        """The position to rotate the next key with: `position`, less what re-basing took."""
        return self.position

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.spec.positions

    @property
    def is_parked(self) -> bool:
        """Whether the content is on the host; the next `extend`, `keys` or `values` brings it back."""
        return self._state == "parked"

    def extend(self, tokens: int, *, registers: bool = True) -> int:
        """Make `tokens` more rows live, to be written layer by layer; returns the first one's position.

        `registers` False leaves the device's registers to a captured graph that counts by itself.
        Raises ArenaFullError or QuotaError (and changes nothing) where they do not fit.
        """
        self.use()
        self._make_room(tokens)
        start = self.position
        self._length += tokens
        if registers:
            self._set_registers()
        else:
            self._registered = None
        self.idle = False
        self._arena.used(self)
        return start

    def write(
        self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor, unrotated: torch.Tensor | None = None
    ) -> None:
        """Store one layer's `keys` and `values`, each [tokens, kv_heads, head_dim], at positions start.. ."""
        tokens = keys.shape[0]
        if start + tokens > self.position:
            raise GpuError("KV session: write past the live length", fix="Call extend() before write()")
        row = start - self._offset + self._first
        for part, source in enumerate(self._sources(keys, values, unrotated)):
            target = self._parts[part][layer][0]
            for to, begin, count in self._places(row, tokens):
                target.narrow(1, to, count).copy_(source.narrow(0, begin, count).transpose(0, 1))

    def append(self, keys: torch.Tensor, values: torch.Tensor, unrotated: torch.Tensor | None = None) -> int:
        """Append keys and values of all layers, [tokens, layers, kv_heads, head_dim]; returns the first position."""
        tokens = keys.shape[0]
        sources = self._sources(keys, values, unrotated)
        wanted = (tokens, self.spec.layers, self.spec.kv_heads, self.spec.head_dim)
        if any(tuple(source.shape) != wanted for source in sources):
            raise GpuError(f"KV session: keys of shape {tuple(keys.shape)}", fix=f"Use {wanted}")
        start = self.extend(tokens)
        row = self._first + self._length - tokens
        for part, source in enumerate(sources):
            for to, begin, count in self._places(row, tokens):
                self._rows.narrow(0, to, count).select(2, part).copy_(source.narrow(0, begin, count))
        return start

    def keys(self, layer: int) -> torch.Tensor:
        """[1, kv_heads, length, head_dim]: a view, valid until the next truncation or append."""
        return self._view(0, layer)

    def values(self, layer: int) -> torch.Tensor:
        """[1, kv_heads, length, head_dim]: a view, valid until the next truncation or append."""
        return self._view(1, layer)

    def unrotated_keys(self, layer: int) -> torch.Tensor:
        """[1, kv_heads, length, head_dim] of keys without positions, where the arena keeps them."""
        if not self.spec.unrotated_keys:
            raise GpuError("KV session: un-rotated keys are not kept", fix="Open the arena with unrotated_keys=True")
        return self._view(2, layer)

    def rows(self) -> torch.Tensor:
        """[length, layers, parts, kv_heads, head_dim]: a view of everything that is live."""
        self.use()
        return self._rows.narrow(0, self._first, self._length)

    def buffer(self) -> torch.Tensor:
        """[rows, layers, parts, kv_heads, head_dim] over the whole range, for kernels that write by the registers.

        A row that `extend` did not make live may have no page: touching it is a fault of the process.
        """
        self.use()
        return self._rows

    def mark(self) -> Mark:
        """Remember the present position."""
        return Mark(self.position, self._epoch)

    def rollback(self, mark: Mark) -> None:
        """Forget what was appended since `mark`.

        Raises GpuError where the session was truncated below the mark since: those rows are other tokens' now.
        """
        lowest = next((position for epoch, position in self._truncations if epoch > mark.epoch), self.position)
        if mark.position > min(lowest, self.position):
            raise GpuError("KV session: the mark is stale, the session was truncated below it", fix="Mark again")
        self.truncate_to(mark.position)

    def truncate_to(self, position: int) -> None:
        """Keep the first `position` tokens, O(1). GpuError for a position outside [0, position], or evicted."""
        if not 0 <= position <= self.position:
            raise GpuError(
                f"KV session: cannot truncate to {position}, the length is {self.position}",
                fix="Give a position between 0 and the length",
            )
        if position == self.position:
            return
        self.use()
        self._cut(position)
        self._epoch += 1
        while self._truncations and self._truncations[-1][1] >= position:
            self._truncations.pop()
        self._truncations.append((self._epoch, position))
        self._set_registers()

    def compact(self, keep: torch.Tensor, tail: int) -> None:
        """Keep of each head only the rows `keep`, int64 [layers, kv_heads, n], rising, in place: addresses stay.

        The last `tail` rows must be kept by all heads: to their positions the session can still be truncated.
        """
        kept = keep.shape[-1]
        if not 0 <= tail <= kept <= self._length:
            raise GpuError(f"KV session: cannot keep {kept} of {self._length} rows", fix="Keep fewer")
        self.use()
        self.pager.ensure(self._first * self._row_bytes, (self._first + kept) * self._row_bytes)
        for layer in range(self.spec.layers):
            index = keep[layer].unsqueeze(-1).expand(-1, -1, self.spec.head_dim)
            for part in range(self.spec.parts):
                view = self._view(part, layer)[0]
                view.narrow(1, 0, kept).copy_(view.gather(1, index))
        self._offset += self._length - kept
        self._length, self._floor = kept, kept - tail
        self._set_registers()

    def fork(self, position: int | None = None) -> Session:
        """A session that goes on from here (or from an earlier `position`) on its own: whole pages are shared.

        Raises QuotaError where there is no room, as `truncate_to` for a position that is not there.
        """
        self.use()
        return self._arena.fork(self, self.position if position is None else position)

    def fork_into(self, pager: Pager, position: int) -> Session:
        """As `fork`, over a pager without pages; it is closed where the fork fails."""
        rows = position - self._offset
        try:
            if not max(self._floor, 0) <= rows <= self._length:
                raise GpuError(
                    f"KV session: cannot fork at {position}, the length is {self.position}",
                    fix="Give a position that is there and was not evicted",
                )
            pager.share_from(self.pager, rows * self._row_bytes)
        except GpuError:
            pager.close()
            raise
        child = Session(self._arena, pager, self.capacity, self.spec)
        child.restore_state({"length": rows, "offset": self._offset, "floor": self._floor})
        return child

    def trim(self) -> int:
        """Give back pages that were committed ahead; returns how many."""
        return self.pager.trim((self._first + self._length) * self._row_bytes) if self._state == "open" else 0

    def park(self) -> int:
        """Move the content to the host and give the pages back; returns how many. Views and addresses stay."""
        self.use()
        self._state = "parked"
        return self.pager.park()

    def memory_bytes(self) -> int:
        """Bytes that the session may grow to (0 after `close`); `pager.charged_pages` says what it has now."""
        return 0 if self._state == "closed" else self.pager.range.pages * self.pager.backend.page_bytes

    def check(self) -> None:
        """Verify the invariants; GpuError names the broken one."""
        if self._state == "closed":
            self.use()
        broken = self.pager.check() + self._check_rows()
        if self.registers.tolist() != [self._length, self.rope_position, self._first]:
            broken.append(f"registers say {self.registers.tolist()}")
        if broken:
            raise GpuError(f"KV session invariants broken: {'; '.join(broken)}", fix="This is a bug; report it")

    def close(self) -> None:
        """Give the memory back. Views handed out before must not be used any more."""
        with self._arena.lock:  # the watermark thread must not commit pages to a range that is gone
            if self._state == "closed":
                return
            self._state = "closed"
            self._parts, self._length, self._first, self._offset = [], 0, 0, 0
            del self._rows
            self.pager.close()
            self._arena.closed(self)

    def use(self) -> None:
        """Be open: bring a parked session back; GpuError where it is closed or the arena sleeps."""
        if self._state == "open":
            return
        if self._state == "closed":
            raise GpuError("KV session: used after close", fix="Open a new session")
        if self._state == "asleep":
            raise GpuError("KV session: the arena sleeps", fix="Call Arena.wake() first")
        self.pager.unpark()
        self._state = "open"

    def set_asleep(self, asleep: bool) -> None:
        """The whole arena went to sleep or woke: called by it."""
        if self._state in ("open", "asleep"):
            self._state = "asleep" if asleep else "open"

    def state(self) -> dict[str, Any]:
        """What `restore_state` needs beside the rows: plain numbers."""
        return {"length": self._length, "offset": self._offset, "floor": self._floor}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Take over another session's `state`; the rows are there already."""
        self._length, self._offset, self._floor = state["length"], state["offset"], state["floor"]
        self._set_registers()

    def contents(self) -> list[torch.Tensor]:
        """Everything that `state` and these rows [n, *row_shape] bring back."""
        return [self.rows()]

    def place_rows(self, rows: torch.Tensor, state: dict[str, Any], store: torch.Tensor | None = None) -> None:
        """Fill an empty session with `contents` and `state` of another; QuotaError where they do not fit."""
        self.pager.ensure(0, rows.shape[0] * self._row_bytes)
        self._rows.narrow(0, 0, rows.shape[0]).copy_(rows)
        self.restore_state(state)

    def written_bytes(self) -> int:
        """Where the next row goes, as the pager counts."""
        return (self._first + self._length) * self._row_bytes

    # What a window does otherwise.

    def _make_room(self, tokens: int) -> None:
        """Make the next `tokens` rows writable, or raise with nothing changed."""
        row = self._first + self._length
        if tokens < 0 or row + tokens > self.capacity:
            raise ArenaFullError(
                f"The session holds {self._length} of {self.capacity} tokens and cannot take {tokens} more",
                wanted=self._length + tokens,
                capacity=self.capacity,
            )
        self.pager.ensure(row * self._row_bytes, (row + tokens) * self._row_bytes)

    def _cut(self, position: int) -> None:
        row = position - self._offset
        if position == 0:
            self._length, self._offset, self._floor = 0, 0, 0
        elif row < self._floor or row < 0:
            raise GpuError(
                f"KV session: position {position} was evicted",
                fix=f"Truncate to 0 or to {self._floor + self._offset}..",
            )
        else:
            self._length = row

    def _places(self, row: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """(physical row, offset in the source, rows) of each copy that a write of `tokens` rows takes."""
        yield row, 0, tokens

    def _check_rows(self) -> list[str]:
        broken = []
        if not 0 <= self._floor <= self._length <= self.capacity:
            broken.append("length outside [0, capacity]")
        address = self._rows.data_ptr()
        moved = self.pager.backend.keeps_addresses and address != self._base_address
        if moved or address != self.pager.range.memory.data_ptr() or not self._rows.is_contiguous():
            broken.append("buffer moved")
        if self._state == "open" and self.written_bytes() > self.pager.committed_bytes:
            broken.append("live rows without pages")
        return broken

    def _view(self, part: int, layer: int) -> torch.Tensor:
        if self._state != "open":
            self.use()
        return self._parts[part][layer].narrow(2, self._first, self._length)

    def _sources(self, *parts: torch.Tensor | None) -> list[torch.Tensor]:
        given = [part for part in parts if part is not None]
        if len(given) != self.spec.parts:
            raise GpuError("KV session: un-rotated keys given or missing", fix="Give them where the arena keeps them")
        return given

    def _set_registers(self) -> None:
        """No blocking sync; one launch where length and position move alike, as in an append or a truncation."""
        known, wanted = self._registered, (self._length, self.rope_position, self._first)
        self._registered = wanted
        if known is None or known[0] - known[1] != wanted[0] - wanted[1] or known[2] != wanted[2]:
            for register, value in enumerate(wanted):
                self.registers.narrow(0, register, 1).fill_(value)
        elif known[0] != wanted[0]:
            self.registers.narrow(0, 0, 2).add_(wanted[0] - known[0])
