"""Sessions with a quantised body: the sinks and the recent tokens as they came, what lies between in one byte a number.

Two runs of rows in one arena: this session's own (sinks, then the tokens from `offset` on, in the arena's dtype) and a
body session's (codes and scales, `gpu.kv.codes`). A pass that begins at position p sees the first `BodySpec.coded(p)`
tokens behind the sinks quantised: it depends on p alone, so a rollback and another try see what a fresh run would.
That needs the tokens as they came; they are kept beside their codes for the last `slack` coded ones:

    tokens       | sinks | dropped (offset) | slack | recent, new |
    own rows     | sinks |                  | slack   recent, new |
    codes                |      coded blocks        |
    seen         | sinks |  codes x scales          | recent, new |

Truncated further back, whole blocks stay quantised, also such as a fresh run would not have quantised yet, and of the
block that is cut the tokens before the cut are kept as they read back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu.errors import ArenaFullError, GpuError
from gpu.kv.codes import Codes, Workspace, blocks_rows, body_of, coded_row_bytes, coded_rows, coded_spec
from gpu.kv.pager import Pager
from gpu.kv.pages import PagesError
from gpu.kv.session import Session
from gpu.kv.spec import ArenaSpec, torch_dtype

if TYPE_CHECKING:
    import torch

    from gpu.kv.arena import Arena


def open_quantised(arena: Arena, pager: Pager, workspace: Workspace) -> QuantisedSession:
    """An empty session over `pager`, which has its first page. QuotaError where there is none for the codes."""
    spec = coded_spec(arena.spec)
    codes = arena.codes_pager(pager, spec)
    try:
        codes.commit_to(1)
    except GpuError:
        codes.close()
        raise
    body = arena.enlist(Session(arena, codes, spec.positions, spec))
    return QuantisedSession(arena, pager, body, workspace, arena.spec)


class QuantisedSession(Session):
    """Made by `Arena.session` where the spec has a `body`. `length` is `position`: nothing is evicted.

    `keys` and `values` put a layer together in the arena's workspace, in its dtype: contiguous, and valid until the
    next call of the same for any session of the arena; as long as nothing is quantised they are views as elsewhere.
    The registers count this session's own rows.
    """

    def __init__(self, arena: Arena, pager: Pager, body: Session, workspace: Workspace, spec: ArenaSpec) -> None:
        """`body`: an empty session of `coded_spec(spec)`, or one with codes, of which `restore_state` will speak."""
        self.shape = body_of(spec)
        self._body = body
        self._workspace = workspace
        self._coded = 0
        self._exact_rows = self.shape.exact_rows(spec.positions)
        body.is_part = True
        super().__init__(arena, pager, self._exact_rows, spec)
        self._codes = Codes(spec, body.buffer().view(-1))

    @property
    def length(self) -> int:
        return self.position

    @property
    def coded(self) -> int:
        """Tokens behind the sinks that are seen quantised."""
        return self._coded

    @property
    def body(self) -> Session:
        """The rows of codes: what a decode kernel reads beside this session's own rows."""
        return self._body

    def use(self) -> None:
        self._body.use()  # first: this session counts as parked until both are back
        super().use()

    def rows(self) -> torch.Tensor:
        """[length, layers, parts, kv_heads, head_dim] as attention sees them: a copy."""
        import torch

        out = torch.empty((self.length, *self.spec.row_shape), dtype=self._rows.dtype, device=self._rows.device)
        for part in range(self.spec.parts):
            for layer in range(self.spec.layers):
                out[:, layer, part].copy_(self._view(part, layer)[0].transpose(0, 1))
        return out

    def compact(self, keep: torch.Tensor, tail: int) -> None:
        """Refused: blocks are quantised together."""
        raise GpuError("KV session: one with a quantised body does not evict", fix="Open the arena without a body")

    def fork_into(self, pager: Pager, position: int) -> Session:
        return self.fork_as(pager, position, self._arena.spec)

    def fork_as(self, pager: Pager, position: int, spec: ArenaSpec) -> Session:
        """As `fork_into`, for a session of `spec`: with room for `position` tokens at least."""
        codes_spec = coded_spec(spec)
        codes = self._arena.codes_pager(pager, codes_spec)
        body: Session | None = None
        try:
            if not 0 <= position <= self.position:
                raise GpuError(
                    f"KV session: cannot fork at {position}, the length is {self.position}",
                    fix="Give a position that is there",
                )
            shared = max(position - self._offset, min(position, self.shape.sinks))
            pager.share_from(self.pager, shared * self._row_bytes)
            rows = min(self._body.position, blocks_rows(spec, position))
            codes.share_from(self._body.pager, rows * codes_spec.row_bytes)
            body = self._arena.enlist(Session(self._arena, codes, codes_spec.positions, codes_spec))
            body.restore_state({"length": rows, "offset": 0, "floor": 0})
            child = QuantisedSession(self._arena, pager, body, self._workspace, spec)
            child.restore_state(self.state())
            if position != self.position:
                child._cut(position)
                child._set_registers()
        except GpuError:
            pager.close()
            if body is None:
                codes.close()
            else:
                body.close()
            raise
        return child

    def trim(self) -> int:
        return super().trim() + self._body.trim()

    def park(self) -> int:
        return super().park() + self._body.park()

    def memory_bytes(self) -> int:
        return super().memory_bytes() + self._body.memory_bytes()

    def close(self) -> None:
        with self._arena.lock:
            super().close()
            self._body.close()

    def state(self) -> dict[str, Any]:
        return {"length": self._length, "offset": self._offset, "coded": self._coded}

    def restore_state(self, state: dict[str, Any]) -> None:
        self._length, self._offset, self._coded = state["length"], state["offset"], state["coded"]
        self._set_registers()

    def contents(self) -> list[torch.Tensor]:
        """Own rows; then the codes, by way of the host, as rows of the same length, of which the last is filled up."""
        import torch

        self.use()
        exact = self._rows.narrow(0, 0, self._length)
        if not self._coded:
            return [exact]
        codes = self._body.rows().reshape(-1).cpu()
        padding = torch.zeros(-codes.numel() % self._row_bytes, dtype=torch.uint8)
        packed = torch.cat((codes, padding)).view(torch_dtype(self.spec.dtype))
        return [exact, packed.view(-1, *self.spec.row_shape)]

    def place_rows(self, rows: torch.Tensor, state: dict[str, Any], store: torch.Tensor | None = None) -> None:
        import torch

        self.pager.ensure(0, rows.shape[0] * self._row_bytes)
        if store is not None:
            count = coded_rows(self.spec, state["coded"])
            self._body.extend(count)
            codes = store.reshape(-1).view(torch.uint8).narrow(0, 0, count * coded_row_bytes(self.spec))
            self._body.rows().view(-1).copy_(codes)
        self._rows.narrow(0, 0, rows.shape[0]).copy_(rows)
        self.restore_state(state)

    def _make_room(self, tokens: int) -> None:
        shape, position = self.shape, self.position
        if tokens < 0 or position + tokens > self.capacity:
            raise ArenaFullError(
                f"The session holds {position} of {self.capacity} tokens and cannot take {tokens} more",
                wanted=position + tokens,
                capacity=self.capacity,
            )
        if tokens > shape.chunk and self._exact_rows < self.capacity:
            raise ArenaFullError(
                f"A session with a quantised body takes {shape.chunk} tokens at once, not {tokens}",
                wanted=tokens,
                capacity=shape.chunk,
            )
        if not tokens:
            return
        coded, offset = max(self._coded, shape.coded(position)), self._offset
        if self._length + tokens > self._exact_rows:
            offset = max(offset, shape.dropped(coded))
        row, before = position - offset, self._body.position
        self._body.extend(coded_rows(self.spec, coded) - before)
        try:
            begin = row if offset == self._offset else shape.sinks
            self.pager.ensure(begin * self._row_bytes, (row + tokens) * self._row_bytes)
        except PagesError:
            self._body.truncate_to(before)
            raise
        for block in range(self._coded // shape.block, coded // shape.block):
            first = shape.sinks + block * shape.block - self._offset
            self._codes.store(block, self._rows.narrow(0, first, shape.block))
        self._coded = coded
        if offset > self._offset:
            self._drop(offset)

    def _drop(self, offset: int) -> None:
        """Forget the tokens up to `offset` (behind the sinks) as they came: the others move down in steps as wide."""
        step, first = offset - self._offset, self.shape.sinks
        for row in range(first, self._length - step, step):
            count = min(step, self._length - step - row)
            self._rows.narrow(0, row, count).copy_(self._rows.narrow(0, row + step, count))
        self._length, self._offset = self._length - step, offset
        self._set_registers()

    def _cut(self, position: int) -> None:
        sinks, block = self.shape.sinks, self.shape.block
        behind = position - sinks
        coded, offset = min(self._coded, self.shape.coded(position)), self._offset
        if behind <= 0:
            coded = offset = 0
        elif coded < offset:
            coded = min(offset, behind // block * block)
            kept = behind - coded
            if behind < offset and kept:
                self.pager.ensure(sinks * self._row_bytes, (sinks + kept) * self._row_bytes)
                self._rows.narrow(0, sinks, kept).copy_(self._codes.tokens(coded // block, kept))
            offset = coded
        self._body.truncate_to(coded_rows(self.spec, coded))
        self._coded, self._offset, self._length = coded, offset, position - offset

    def _view(self, part: int, layer: int) -> torch.Tensor:
        if self._state != "open":
            self.use()
        rows, sinks, coded = self._parts[part][layer], self.shape.sinks, self._coded
        if not coded:
            return rows.narrow(2, 0, self._length)
        out = self._workspace.view(part, self.position)
        out.narrow(2, 0, sinks).copy_(rows.narrow(2, 0, sinks))
        self._codes.read(part, layer, out[0].narrow(1, sinks, coded))
        begin = sinks + coded
        recent = rows.narrow(2, begin - self._offset, self.position - begin)
        out.narrow(2, begin, self.position - begin).copy_(recent)
        return out

    def _check_rows(self) -> list[str]:
        broken, block = super()._check_rows(), self.shape.block
        if not 0 <= self._offset <= self._coded or self._offset % block or self._coded % block:
            broken.append("codes and own rows do not meet in whole blocks")
        if self.position > self.capacity:
            broken.append(f"{self.position} tokens in a session of {self.capacity}")
        if self._length > self._exact_rows or self._coded > max(0, self.position - self.shape.sinks):
            broken.append("more own rows or codes than there is room for")
        if self._body.position != coded_rows(self.spec, self._coded):
            broken.append(f"the body holds {self._body.position} rows for {self._coded} tokens")
        return broken
