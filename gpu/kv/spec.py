"""The shape of what one token leaves behind, and torch's name for its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.errors import GpuError

if TYPE_CHECKING:
    import torch


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

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "positions"):
            if getattr(self, name) < 1:
                raise GpuError(f"KV arena: {name} is {getattr(self, name)}", fix=f"Give {name} >= 1")

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


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name ("float32", "bfloat16", ...); GpuError where there is none."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise GpuError(f"KV arena: {name!r} is no dtype of torch", fix="Use float32, float16 or bfloat16")
    return dtype
