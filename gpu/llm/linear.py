"""Matrix products of the decoder at each precision.

Int8 is W8A8: weights per output row, activations per token, both symmetric, products summed in int32 by
`torch._int_mm` (oneDNN's VNNI kernels; the operator that torchao's int8 dynamic quantisation is built on).
The sums are exact integers, so a token's result does not depend on the rows computed beside it.
See docs/decisions/0003-int8-on-cpu.md for what else was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpu.errors import GpuError

if TYPE_CHECKING:
    import torch


class Linear(Protocol):
    """y = x W^T for x [tokens, columns]; no bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, columns] -> [tokens, rows]."""
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of W as activations (an embedding look-up): [tokens] -> [tokens, columns]."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of the weights."""
        ...


class DenseLinear:
    """fp32 or bf16 weights; activations of the same type."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, columns] -> [tokens, rows]."""
        import torch

        return torch.nn.functional.linear(x, self._weight)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, columns]."""
        import torch

        return torch.nn.functional.embedding(ids, self._weight)

    def memory_bytes(self) -> int:
        """Bytes of the weights."""
        return self._weight.numel() * self._weight.element_size()


class Int8Linear:
    """int8 weights [rows, columns] with one float32 scale a row; float32 activations.

    `rotation` [block, block], where given, is applied to the activations first: the weights hold W R then.
    """

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, rotation: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._weight_t = weight.t()
        self._scale = scale
        self._rotation = rotation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, columns] -> [tokens, rows]."""
        import torch

        if self._rotation is not None:
            x = rotate_columns(x, self._rotation)
        step = x.abs().amax(1, keepdim=True).clamp_min_(1e-30).mul_(1.0 / 127.0)
        quantised = (x / step).round_().to(torch.int8)
        return torch._int_mm(quantised, self._weight_t).mul(self._scale).mul_(step)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, columns], in the rotated basis where there is a rotation."""
        return self._weight[ids].mul(self._scale[ids].unsqueeze(1))

    def memory_bytes(self) -> int:
        """Bytes of weights and scales."""
        return self._weight.numel() + 4 * self._scale.numel()


def rotate_columns(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """x [..., columns] times the block-diagonal matrix that repeats `rotation` [block, block]."""
    import torch

    return torch.matmul(x.reshape(-1, rotation.shape[0]), rotation).view(x.shape)


def quantise_rows(weight: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [rows, columns] -> int8 in [-limit, limit] and scale [rows] with weight ~ int8 * scale."""
    import torch

    scale = weight.abs().amax(1).clamp_min(1e-30) / limit
    return (weight / scale.unsqueeze(1)).round_().to(torch.int8).contiguous(), scale


def int8_weight_limit() -> int:
    """Largest weight magnitude at which this CPU's int8 product is exact: 127 or 63.

    Without VNNI oneDNN adds two byte products in 16 bits, which saturates; 7-bit weights avoid that.
    """
    import torch

    x = torch.full((2, 256), 127, dtype=torch.int8)
    for limit in (127, 63):
        weight = torch.full((32, 256), limit, dtype=torch.int8)
        weight[1::2] = -limit
        exact = x.to(torch.int32) @ weight.to(torch.int32).t()
        if torch.equal(torch._int_mm(x, weight.t()), exact):
            return limit
    raise GpuError("This CPU computes int8 products inexactly", fix="Use precision bf16 or fp32")
