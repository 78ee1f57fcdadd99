"""The shape of what one token leaves behind, what of it is quantised, and torch's name for its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpu.errors import GpuError

if TYPE_CHECKING:
    import torch

_PAGE_TOKENS = 160
CodeName = Literal["int8", "fp8"]
KvDtype = Literal["auto", "int8", "fp8"]
"""How a conversation's keys and values are held; auto: all of them as the model computes them."""


@dataclass(frozen=True, slots=True)
class BodySpec:
    """What a session quantises of its middle, in tokens: behind the sinks, before the recent ones."""

    code: CodeName
    """int8, or fp8 as e4m3: one byte a number either way."""
    block: int = 64
    """Quantised at a time; the keys of a block share one scale for each channel."""
    sinks: int = 4
    """The first tokens stay as they came: much attention falls on them."""
    recent: int = 128
    """The last ones that stay as they came, at least."""
    slack: int = 256
    """Kept as they came beside their codes: a rollback of so many is exact."""
    chunk: int = 256
    """Tokens that one `extend` may bring."""

    def __post_init__(self) -> None:
        if self.code not in ("int8", "fp8"):
            raise GpuError(f"KV body: there is no code {self.code!r}", fix="Use int8 or fp8")
        if self.block < 1 or self.chunk < 1 or min(self.sinks, self.recent, self.slack) < 0:
            raise GpuError("KV body: block and chunk must be 1 or more, the others 0 or more", fix="Change them")

    def coded(self, position: int) -> int:
        """Tokens (behind the sinks) that a pass which begins at `position` sees quantised: whole blocks."""
        return max(0, position - self.sinks - self.recent) // self.block * self.block

    def dropped(self, coded: int) -> int:
        """Tokens (behind the sinks) that need not be kept as they came when `coded` are quantised: whole blocks."""
        return max(0, coded - self.slack) // self.block * self.block

    def exact_rows(self, positions: int) -> int:
        """Rows of a session for what is kept as it came."""
        return min(positions, self.sinks + self.recent + self.slack + 2 * (self.block - 1) + self.chunk)


def body_for(kv_dtype: KvDtype) -> BodySpec | None:
    """The body of a session that holds its keys and values so."""
    return None if kv_dtype == "auto" else BodySpec(kv_dtype)


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """Shape and place of a session's rows. `dtype` and `device` are torch's names ("float32", "cpu", "cuda:0").

    Layout: token-major, `[position][layer][K, V][kv_head][head_dim]`. All that one token leaves behind is one
    contiguous row, so an append is one write position for all layers, a rollback moves one integer, and an idle
    session costs one page, not one for each layer.
    """

    layers: int
    kv_heads: int
    head_dim: int
    positions: int
    """Tokens that one session can hold."""
    dtype: str = "float32"
    device: str = "cpu"
    unrotated_keys: bool = False
    """Keep each key a second time without rotary positions: what `window.rebase` turns where `dtype` is not fp32."""
    body: BodySpec | None = None
    """Quantise the middle of every session; None: all of it stays in `dtype`."""

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "positions"):
            if getattr(self, name) < 1:
                raise GpuError(f"KV arena: {name} is {getattr(self, name)}", fix=f"Give {name} >= 1")
        if self.body is not None and self.unrotated_keys:
            raise GpuError("KV arena: un-rotated keys are for windows, which have no quantised body", fix="Take one")

    @property
    def parts(self) -> int:
        """Tensors for each layer of a row: K, V and, where they are kept, un-rotated K."""
        return 3 if self.unrotated_keys else 2

    @property
    def row_shape(self) -> tuple[int, int, int, int]:
        """What one token occupies: (layers, parts, kv_heads, head_dim)."""
        return (self.layers, self.parts, self.kv_heads, self.head_dim)

    @property
    def row_elements(self) -> int:
        """Numbers that one token occupies."""
        return math.prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes that one token occupies."""
        return int(self.row_elements * torch_dtype(self.dtype).itemsize)


def page_bytes_for(row_bytes: int, granularity_bytes: int) -> int:
    """Size of a page for rows of `row_bytes`: 160 to 320 tokens, whichever ends soonest together with a row.

    The driver takes 23 to 28 µs to make a page accessible, whatever its size (H200), and a fork shows all pages of its
    parent: at 2,000 tokens of a 1B model 2 ms where they have 2 MiB, below 1 ms with these. The price is what an idle
    session holds. The ring of an endless session must hold whole rows in whole pages, hence the choice among them.
    """
    both = math.lcm(row_bytes, granularity_bytes)
    if both <= _PAGE_TOKENS * row_bytes:
        return -(-_PAGE_TOKENS * row_bytes // both) * both
    least = -(-_PAGE_TOKENS * row_bytes // granularity_bytes) * granularity_bytes
    larger = range(least, 2 * _PAGE_TOKENS * row_bytes + 1, granularity_bytes)
    return min(larger, key=lambda size: math.lcm(size, row_bytes), default=least)


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name ("float32", "bfloat16", ...); GpuError where there is none."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise GpuError(f"KV arena: {name!r} is no dtype of torch", fix="Use float32, float16 or bfloat16")
    return dtype
