"""Int8 weights that lose little: rotate outliers away, then round.

A few channels of a Llama's activations are a hundred times larger than the rest, and one scale for a token's whole
row then leaves the small ones two or three levels. An orthogonal matrix spreads each outlier over its block and
changes nothing in exact arithmetic (QuaRot, Ashkboos et al. 2024, here for 8 bits and without calibration data).
With R block-diagonal and x row vectors:

    residual       x -> x R, kept so throughout: folded into embedding, o, down, and into what reads it
    norm weights   folded into the matrix behind each norm, because RMSNorm without weight commutes with R
    values         v -> v R inside each head: folded into v and o
    mlp, head      the input of down and of the head is rotated at run time (one small product), R folded into both
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpu.llm.config import LlamaConfig
from gpu.llm.weights.raw import RawModel

if TYPE_CHECKING:
    import torch

_LARGEST_BLOCK = 64


def int8_state(raw: RawModel) -> dict[str, torch.Tensor]:
    """The decoder's state at int8: see gpu.llm.weights.prepare for its keys."""
    import torch

    from gpu.llm.linear import int8_weight_limit, quantise_rows, rotate_columns

    config, limit = raw.config, int8_weight_limit()
    rotation = hadamard_rotation(rotation_block(config))
    state: dict[str, torch.Tensor] = {"rotation": rotation, "final_norm": raw.tensor("final_norm").clone()}

    def rotate_rows(weight: torch.Tensor) -> torch.Tensor:
        return rotate_columns(weight.t(), rotation).t()

    def store(key: str, weight: torch.Tensor) -> None:
        state[key], state[f"{key}.scale"] = quantise_rows(weight, limit)

    store("embed", rotate_columns(raw.tensor("embed"), rotation))
    if not config.tied_embeddings:
        store("head", rotate_columns(raw.tensor("head"), rotation))
    for layer in range(config.layers):
        attn_norm, mlp_norm = raw.tensor("attn_norm", layer), raw.tensor("mlp_norm", layer)
        values = rotate_rows(raw.tensor("v", layer))
        qkv = torch.cat([raw.tensor("q", layer), raw.tensor("k", layer), values])
        store(f"{layer}.qkv", rotate_columns(qkv * attn_norm, rotation))
        store(f"{layer}.o", rotate_rows(rotate_columns(raw.tensor("o", layer), rotation)))
        gate_up = torch.cat([raw.tensor("gate", layer), raw.tensor("up", layer)])
        store(f"{layer}.gate_up", rotate_columns(gate_up * mlp_norm, rotation))
        store(f"{layer}.down", rotate_rows(rotate_columns(raw.tensor("down", layer), rotation)))
    return state


def rotation_block(config: LlamaConfig) -> int:
    """The largest power of two, at most 64, that divides all that is rotated."""
    common = math.gcd(config.hidden, config.intermediate, config.head_dim)
    return min(_LARGEST_BLOCK, common & -common)


def hadamard_rotation(block: int) -> torch.Tensor:
    """Orthogonal [block, block]: Sylvester's Hadamard matrix over sqrt(block)."""
    import torch

    matrix = torch.ones(1, 1)
    while matrix.shape[0] < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(block)
