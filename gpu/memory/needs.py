"""How many bytes each part of a language model takes: arithmetic on its shape, by what our loader and decoder do.

Held to account by tests: the decoder's real tensors for weights and arena, the profiler's record of every allocation
for the workspace, and on a GPU the driver's own figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gpu.kv.codes import coded_spec
from gpu.kv.pages_host import GRANULARITY_BYTES
from gpu.kv.spec import ArenaSpec, KvDtype, body_for, page_bytes_for
from gpu.llm.weights.prepare import Precision
from gpu.memory.shapes import ModelShape

DeviceKind = Literal["cuda", "cpu"]

MIB = 1 << 20
PAGE_BYTES = 2 * MIB
"""Granularity of CUDA's physical pages and of torch's large allocations."""
_SHARERS = 2
"""Beside a full session: the persona's prefix, and the fork that a snapshot is written from."""
PREFILL_TOKENS = 256
"""Longest chunk of a prompt in one forward pass (gpu/llm/prompts.py)."""

PRECISIONS_ON: dict[DeviceKind, tuple[Precision, ...]] = {"cuda": ("bf16", "fp32"), "cpu": ("int8", "bf16", "fp32")}
"""What the decoder runs where, smallest first: int8 products exist on the CPU only."""

# torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp): requests up to 1 MiB come from blocks of 2 MiB,
# every size is a multiple of 512 bytes.
_SMALL_BYTES = MIB
_SMALL_BLOCK_BYTES = 2 * MIB
_STEP_BYTES = 512
# torch's workspace for cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp): 32 MiB from compute capability 9.0 on.
_CUBLAS_BYTES = 8 * MIB + 128 * 1024
_CUBLAS_BYTES_FROM_9 = 32 * MIB
_MEASURED_SLACK = 1.05
"""On top of the counted activations: what kernels allocate inside themselves."""


def number_bytes(precision: Precision) -> int:
    """Bytes of one activation, key or value: the int8 path computes in float32 between its products."""
    return 2 if precision == "bf16" else 4


def weights_bytes(shape: ModelShape, precision: Precision, context_tokens: int, kind: DeviceKind) -> int:
    """Weights, and the rotary tables of `context_tokens` positions, as the decoder holds them."""
    sizes = _tensor_bytes(shape, precision, context_tokens)
    return sum(allocated_bytes(sizes)) if kind == "cuda" else sum(sizes)


def small_blocks_bytes(shape: ModelShape, precision: Precision, context_tokens: int) -> int:
    """The part of the weights on a GPU that torch does not cut from a pool: small tensors have blocks of their own."""
    return allocated_bytes(_tensor_bytes(shape, precision, context_tokens))[1]


def allocated_bytes(sizes: Iterable[int]) -> tuple[int, int]:
    """What torch's allocator on a GPU sets aside for tensors of these sizes, one after the other: (large, small)."""
    large, blocks, left = 0, 0, 0
    for size in sizes:
        size = _up(size, _STEP_BYTES)
        if size > _SMALL_BYTES:
            large += size
        elif size <= left:
            left -= size
        else:
            blocks, left = blocks + 1, _SMALL_BLOCK_BYTES - size
    return large, blocks * _SMALL_BLOCK_BYTES


def _tensor_bytes(shape: ModelShape, precision: Precision, context_tokens: int) -> list[int]:
    size = number_bytes(precision)
    tables = [context_tokens * shape.head_dim * size] * 2
    if precision == "int8":  # a scale a row; the layers' norms are folded into the matrices
        matrices = [rows * columns for rows, columns in shape.matrices()]
        return matrices + [4 * rows for rows, _ in shape.matrices()] + [4 * shape.hidden] + tables
    matrices = [rows * columns * size for rows, columns in shape.matrices()]
    return matrices + [elements * size for elements in shape.vectors()] + tables


def row_bytes(shape: ModelShape, precision: Precision) -> int:
    """Bytes that one token leaves in the KV arena."""
    return shape.row_elements * number_bytes(precision)


def kv_page_bytes(shape: ModelShape, precision: Precision, kind: DeviceKind) -> int:
    """Bytes of one page of the arena."""
    return page_bytes_for(row_bytes(shape, precision), PAGE_BYTES if kind == "cuda" else GRANULARITY_BYTES)


def kv_bytes(
    shape: ModelShape,
    precision: Precision,
    sessions: int,
    context_tokens: int,
    kv_dtype: KvDtype = "auto",
    kind: DeviceKind = "cuda",
) -> int:
    """The most that the arena holds: every session full, its persona a prefix, and a snapshot of it being written.

    Token-major rows in whole pages; quantised sessions hold rows of codes as well, in pages of their own. Who goes back
    and rewrites what is shared may need more: there the arena keeps to its budget (`gpu.kv.quota`).
    """
    body = body_for(kv_dtype)
    rows = context_tokens if body is None else body.exact_rows(context_tokens)
    page = kv_page_bytes(shape, precision, kind)
    own = -(-rows * row_bytes(shape, precision) // page)
    pages = own + _SHARERS  # who shares has a copy of the last page
    if body is not None:
        codes = coded_spec(ArenaSpec(shape.layers, shape.kv_heads, shape.head_dim, context_tokens, body=body))
        pages += -(-codes.positions * codes.row_elements // page)
        pages += _SHARERS * own  # the rows move down as they are quantised, so those who share keep copies of all
    return sessions * pages * page


def workspace_bytes(
    shape: ModelShape,
    precision: Precision,
    context_tokens: int,
    kind: DeviceKind,
    capability: str = "",
    kv_dtype: KvDtype = "auto",
) -> int:
    """The most that one forward pass holds beside weights and arena: the longest chunk at the end of a full context.

    One pass at a time, so it does not grow with the sessions. `capability` as in "9.0", for a GPU. Where sessions are
    quantised, a layer's keys and values in full are part of it.
    """
    size, tokens = number_bytes(precision), min(PREFILL_TOKENS, context_tokens)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    stream = tokens * shape.hidden * size
    mask = shape.heads // shape.kv_heads * tokens * context_tokens * size
    # Making the mask holds one copy for a single head as well; the attention on a GPU pads it once more.
    mask_made = mask + tokens * context_tokens * size
    mask_padded = 2 * mask if kind == "cuda" else mask
    projected = tokens * (queries + 2 * keys) * size
    rotating = projected + 3 * tokens * (queries + keys) * size
    attending = projected + tokens * (queries + keys) * size + 2 * tokens * queries * size
    mlp = 3 * tokens * shape.intermediate * size
    if precision == "int8":  # quantised inputs, int32 sums, and the products before they are scaled
        mlp += tokens * shape.intermediate * (4 + 1) + 2 * tokens * shape.intermediate * 4
        rotating += tokens * shape.hidden * (4 + 1)
    live = max(mask_made, mask + rotating, mask_padded + attending, mask + mlp + stream) + 2 * stream
    scores = shape.vocab * (size + 4 + 4)  # one row: as computed, as float32, and a copy with the penalty
    counted = int(max(live, stream + scores) * _MEASURED_SLACK)
    if kv_dtype != "auto":
        counted += 2 * context_tokens * keys * size
    if kind == "cpu":
        return counted
    large = _CUBLAS_BYTES_FROM_9 if capability and float(capability) >= 9.0 else _CUBLAS_BYTES
    return _up(counted + large, PAGE_BYTES)


def loading_bytes(shape: ModelShape, precision: Precision) -> int:
    """Host memory at the worst moment of converting the model: what is made so far, and one matrix in float32.

    The embedding and the head come first, the fused gate and up of the last layer last.
    """
    first, gate_up = shape.vocab * shape.hidden, 2 * shape.intermediate * shape.hidden
    held = weights_bytes(shape, precision, 1, "cpu")
    if precision == "int8":  # float32, its quotient by the scales, int8; the layer's unscaled matrices wait as well
        whole, size = 9 * first, 1
        layer = 13 * gate_up + 4 * shape.qkv_rows * shape.hidden
    else:  # float32 as read, and joined
        whole, size = 8 * first, number_bytes(precision)
        layer = 8 * gate_up
    return max(whole + (0 if shape.tied_embeddings else size * first), held + layer)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
