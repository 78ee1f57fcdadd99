"""One conversation's keys and values: append by index, views over the live length, O(1) rollback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.errors import ArenaFullError, GpuError
from gpu.kv.arena import ArenaSpec

if TYPE_CHECKING:
    import torch


def allocation_bytes(spec: ArenaSpec) -> int:
    """Bytes of a session's buffer."""
    return int(spec.positions * spec.row_elements * torch_dtype(spec.dtype).itemsize)


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name ("float32", "bfloat16", ...); GpuError where there is none."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise GpuError(f"KV arena: {name!r} is no dtype of torch", fix="Use float32, float16 or bfloat16")
    return dtype


@dataclass(frozen=True, slots=True)
class Mark:
    """A position to come back to. Valid until the session is truncated below it."""

    position: int
    epoch: int


class Session:
    """Rows `[0, length)` are live. Nothing is allocated, moved or cleared after the constructor.

    A decoder calls `extend(n)` once per forward pass, `write(layer, start, k, v)` in each layer and reads
    `keys(layer)`/`values(layer)`; others append whole rows with `append`.
    """

    def __init__(self, spec: ArenaSpec, on_close: Callable[[Session], None] | None = None) -> None:
        import torch

        self.spec = spec
        self._on_close = on_close
        self._length = 0
        self._epoch = 0
        # Truncations that still matter to marks, as (epoch, position), positions rising: at most one per position.
        self._truncations: list[tuple[int, int]] = []
        self._buffer: torch.Tensor | None = torch.empty(
            (spec.positions, *spec.row_shape), dtype=torch_dtype(spec.dtype), device=spec.device
        )
        self._base_address = self._buffer.data_ptr()
        # [1, kv_heads, positions, head_dim] per layer: one `narrow` away from what attention takes.
        self._keys = [self._layer_view(layer, 0) for layer in range(spec.layers)]
        self._values = [self._layer_view(layer, 1) for layer in range(spec.layers)]

    @property
    def length(self) -> int:
        """Live tokens."""
        return self._length

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.spec.positions

    def extend(self, tokens: int) -> int:
        """Make `tokens` more rows live, to be written layer by layer; returns the first one's position.

        Raises ArenaFullError (and changes nothing) where they do not fit.
        """
        self._require_open()
        start = self._length
        if tokens < 0 or start + tokens > self.capacity:
            raise ArenaFullError(
                f"The session holds {start} of {self.capacity} tokens and cannot take {tokens} more",
                wanted=start + tokens,
                capacity=self.capacity,
            )
        self._length = start + tokens
        return start

    def write(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store one layer's `keys` and `values`, each [tokens, kv_heads, head_dim], at positions start.. ."""
        tokens = keys.shape[0]
        if start + tokens > self._length:
            raise GpuError("KV session: write past the live length", fix="Call extend() before write()")
        self._keys[layer][0].narrow(1, start, tokens).copy_(keys.transpose(0, 1))
        self._values[layer][0].narrow(1, start, tokens).copy_(values.transpose(0, 1))

    def append(self, rows: torch.Tensor) -> int:
        """Append whole rows [tokens, layers, 2, kv_heads, head_dim]; returns the first one's position."""
        if tuple(rows.shape[1:]) != self.spec.row_shape:
            raise GpuError(f"KV session: rows of shape {tuple(rows.shape[1:])}", fix=f"Use {self.spec.row_shape}")
        buffer = self._require_open()
        start = self.extend(rows.shape[0])
        buffer.narrow(0, start, rows.shape[0]).copy_(rows)
        return start

    def keys(self, layer: int) -> torch.Tensor:
        """[1, kv_heads, length, head_dim]: a view, valid until the next truncation or append."""
        return self._keys[layer].narrow(2, 0, self._length)

    def values(self, layer: int) -> torch.Tensor:
        """[1, kv_heads, length, head_dim]: a view, valid until the next truncation or append."""
        return self._values[layer].narrow(2, 0, self._length)

    def mark(self) -> Mark:
        """Remember the present length."""
        return Mark(self._length, self._epoch)

    def rollback(self, mark: Mark) -> None:
        """Forget what was appended since `mark`.

        Raises GpuError where the session was truncated below the mark since: those rows are other tokens' now.
        """
        lowest = next((position for epoch, position in self._truncations if epoch > mark.epoch), self._length)
        if mark.position > min(lowest, self._length):
            raise GpuError("KV session: the mark is stale, the session was truncated below it", fix="Mark again")
        self.truncate_to(mark.position)

    def truncate_to(self, position: int) -> None:
        """Keep the first `position` tokens, O(1). GpuError for a position that is not in [0, length]."""
        if not 0 <= position <= self._length:
            raise GpuError(
                f"KV session: cannot truncate to {position}, the length is {self._length}",
                fix="Give a position between 0 and the length",
            )
        if position < self._length:
            self._epoch += 1
            while self._truncations and self._truncations[-1][1] >= position:
                self._truncations.pop()
            self._truncations.append((self._epoch, position))
        self._length = position

    def memory_bytes(self) -> int:
        """Bytes of the buffer (0 after `close`)."""
        return 0 if self._buffer is None else self._buffer.numel() * self._buffer.element_size()

    def check(self) -> None:
        """Verify the invariants; GpuError names the broken one."""
        buffer = self._require_open()
        broken = []
        if not 0 <= self._length <= self.capacity:
            broken.append("length outside [0, capacity]")
        if buffer.data_ptr() != self._base_address or not buffer.is_contiguous():
            broken.append("buffer moved")
        row_bytes = self.spec.row_elements * buffer.element_size()
        half = self.spec.kv_heads * self.spec.head_dim
        for layer in range(self.spec.layers):
            k, v = self.keys(layer), self.values(layer)
            if k.stride(2) * buffer.element_size() != row_bytes or k.shape[2] != self._length:
                broken.append(f"view of layer {layer} does not cover the live rows")
            if k.storage_offset() != 2 * layer * half or v.storage_offset() - k.storage_offset() != half:
                broken.append(f"view of layer {layer} is not inside the buffer")
        if broken:
            raise GpuError(f"KV session invariants broken: {'; '.join(broken)}", fix="This is a bug; report it")

    def close(self) -> None:
        """Give the memory back. Views handed out before must not be used any more."""
        if self._buffer is None:
            return
        self._buffer = None
        self._keys, self._values, self._length = [], [], 0
        if self._on_close is not None:
            self._on_close(self)

    def _layer_view(self, layer: int, which: int) -> torch.Tensor:
        return self._require_open()[:, layer, which].transpose(0, 1).unsqueeze(0)

    def _require_open(self) -> torch.Tensor:
        if self._buffer is None:
            raise GpuError("KV session: used after close", fix="Open a new session")
        return self._buffer
