"""Keys and values in one byte a number: how a block of tokens is quantised, laid out and read back.

Keys have channels that are large in every token, so each channel of a block has a centre and a scale of its own (KIVI,
Liu et al. 2024; KVQuant, Hooper et al. 2024); values have none, so each token and head has a scale. Centres (halfway
between least and greatest) and scales (the largest distance from there over the largest code) are bfloat16. A number
comes back as centre + code x scale: the product is exact in float32, so it is rounded once, to the session's dtype.

Numbers must be finite. One infinity or NaN among the keys takes its channel of the whole block with it, one among the
values its token's head; looking for them would make every block wait for the device.

Bytes of a block's rows, all of one length:
    row 0         key scales, bfloat16 [layer][kv_head][channel]
    row 1         key centres, the same
    row 2 + token key codes, value codes [layer][kv_head][channel], value scales, bfloat16 [layer][kv_head], padding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.errors import GpuError
from gpu.kv.spec import ArenaSpec, BodySpec, torch_dtype

if TYPE_CHECKING:
    import torch

HEAD_ROWS = 2
"""Of a block, before those of its tokens."""
_SCALE_BYTES = 2
_ALIGNMENT_BYTES = 16
"""Of a row: what a thread of a kernel reads at once."""
_LARGEST = {"int8": 127.0, "fp8": 448.0}
_DTYPE = {"int8": "int8", "fp8": "float8_e4m3fn"}


def body_of(spec: ArenaSpec) -> BodySpec:
    """The quantised body of an arena that has one; GpuError where it has none."""
    if spec.body is None:
        raise GpuError("KV arena: it has no quantised body", fix="Open it with ArenaSpec(body=BodySpec(...))")
    return spec.body


def coded_row_bytes(spec: ArenaSpec) -> int:
    """Bytes of one row of codes."""
    used = 2 * spec.layers * spec.kv_heads * (spec.head_dim + _SCALE_BYTES // 2)
    return -(-used // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def coded_rows(spec: ArenaSpec, tokens: int) -> int:
    """Rows of codes for the whole blocks in `tokens`, scales included."""
    block = body_of(spec).block
    return tokens // block * (block + HEAD_ROWS)


def blocks_rows(spec: ArenaSpec, position: int) -> int:
    """Rows of codes for every block that begins before `position`."""
    body = body_of(spec)
    return coded_rows(spec, max(0, position - body.sinks) + body.block - 1)


def coded_spec(spec: ArenaSpec) -> ArenaSpec:
    """The rows of codes of one session as an arena sees them: plain bytes (the two parts are halves of a row)."""
    rows = blocks_rows(spec, spec.positions)
    return ArenaSpec(1, 1, coded_row_bytes(spec) // 2, max(1, rows), "uint8", spec.device)


class Codes:
    """Views over a session's rows of codes. Plain torch, any device, nothing waits for the device."""

    def __init__(self, spec: ArenaSpec, memory: torch.Tensor) -> None:
        """`memory`: uint8, the rows of codes of `spec`, from the first one on."""
        import torch

        body = body_of(spec)
        self._name, self._block = body.code, body.block
        self._dtype = torch_dtype(spec.dtype)
        self._largest = torch.finfo(self._dtype).max
        # float16 ends where bfloat16 goes on, and has no room for small scales: it is put together in float32.
        self._is_narrow = self._largest < torch.finfo(torch.bfloat16).max / 2
        with torch.inference_mode(False):
            self._lay_out(spec, memory)

    def _lay_out(self, spec: ArenaSpec, memory: torch.Tensor) -> None:
        import torch

        layers, kv_heads, head_dim = spec.layers, spec.kv_heads, spec.head_dim
        numbers, row_bytes = layers * kv_heads * head_dim, coded_row_bytes(spec)
        rows = self._block + HEAD_ROWS
        count = memory.numel() // (row_bytes * rows)
        blocks = memory[: count * rows * row_bytes].view(count, rows, row_bytes)
        tokens = blocks[:, HEAD_ROWS:]
        heads = [blocks[:, row, : numbers * _SCALE_BYTES].view(torch.bfloat16) for row in range(HEAD_ROWS)]
        self._key_scales, self._centres = (head.view(count, layers, kv_heads, head_dim) for head in heads)
        value_scales = tokens[:, :, 2 * numbers : 2 * numbers + layers * kv_heads * _SCALE_BYTES].view(torch.bfloat16)
        self._value_scales = value_scales.view(count, self._block, layers, kv_heads)
        dtype = torch_dtype(_DTYPE[self._name])
        parts = [tokens[:, :, part * numbers : (part + 1) * numbers].view(dtype) for part in (0, 1)]
        self._codes = [part.view(count, self._block, layers, kv_heads, head_dim) for part in parts]

    def store(self, block: int, rows: torch.Tensor) -> None:
        """Quantise the tokens of a block: `rows` [block, layers, 2, kv_heads, head_dim]."""
        import torch

        keys = rows[:, :, 0].float()
        # A bfloat16 step below the greatest number: the centre is rounded, and must not come out as infinity.
        most = self._largest * (1 - 2**-8)
        centres = (keys.amax(0) * 0.5 + keys.amin(0) * 0.5).clamp_(-most, most).to(torch.bfloat16)
        keys = keys - centres.float()
        scales = (keys.abs().amax(0) * (1.0 / _LARGEST[self._name])).to(torch.bfloat16)
        self._centres[block].copy_(centres)
        self._key_scales[block].copy_(scales)
        self._codes[0][block].copy_(self._encode(keys, scales))
        values = rows[:, :, 1].float()
        scales = (values.abs().amax(-1) * (1.0 / _LARGEST[self._name])).to(torch.bfloat16)
        self._value_scales[block].copy_(scales)
        self._codes[1][block].copy_(self._encode(values, scales.unsqueeze(-1)))

    def read(self, part: int, layer: int, out: torch.Tensor) -> None:
        """Write the keys (`part` 0) or values of the first blocks to `out`, [kv_heads, whole blocks, head_dim]."""
        import torch

        kv_heads, tokens, head_dim = out.shape
        count = tokens // self._block
        whole = out.view(kv_heads, count, self._block, head_dim)
        target = whole.float() if self._is_narrow else whole
        target.copy_(self._codes[part][:count, :, layer].permute(2, 0, 1, 3))
        if part == 0:
            heads = (self._key_scales[:count, layer], self._centres[:count, layer])
            scales, centres = (head.permute(1, 0, 2).unsqueeze(2).to(target.dtype) for head in heads)
            torch.addcmul(centres, target, scales, out=target)
        else:
            target.mul_(self._value_scales[:count, :, layer].permute(2, 0, 1).unsqueeze(3).to(target.dtype))
        if self._is_narrow:
            whole.copy_(target.clamp_(-self._largest, self._largest))

    def tokens(self, block: int, count: int) -> torch.Tensor:
        """The first `count` tokens of a block as they read back: [count, layers, 2, kv_heads, head_dim]."""
        import torch

        dtype = torch.float32 if self._is_narrow else self._dtype
        keys, values = (part[block, :count].to(dtype) for part in self._codes)
        scales, centres = (head[block].to(dtype) for head in (self._key_scales, self._centres))
        value_scales = self._value_scales[block, :count].unsqueeze(-1).to(dtype)
        rows = torch.stack((torch.addcmul(centres, keys, scales), values * value_scales), 2)
        return rows.clamp_(-self._largest, self._largest).to(self._dtype)

    def _encode(self, numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """float32 [..] over its scales, rounded to codes; e4m3 has no infinity, so what exceeds it is cut first."""
        import torch

        scales = scales.float()
        numbers = numbers / scales.masked_fill_(scales == 0, 1.0)
        if self._name == "int8":
            return numbers.round_().clamp_(-127, 127).to(torch.int8)
        return numbers.clamp_(-448, 448).to(torch.float8_e4m3fn)


class Workspace:
    """Where the keys and values of one layer are put together: made once, for whoever's pass it is."""

    def __init__(self, spec: ArenaSpec) -> None:
        import torch

        self._shape = (spec.kv_heads, spec.head_dim)
        numbers = spec.positions * spec.kv_heads * spec.head_dim
        dtype = torch_dtype(spec.dtype)
        with torch.inference_mode(False):
            self._parts = [torch.empty(numbers, dtype=dtype, device=spec.device) for _ in (0, 1)]

    def view(self, part: int, length: int) -> torch.Tensor:
        """[1, kv_heads, length, head_dim], contiguous, content undefined."""
        kv_heads, head_dim = self._shape
        return self._parts[part].narrow(0, 0, kv_heads * length * head_dim).view(1, kv_heads, length, head_dim)

    def memory_bytes(self) -> int:
        """Bytes of both parts."""
        return sum(part.numel() * part.element_size() for part in self._parts)
