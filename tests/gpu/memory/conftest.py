"""Machines and decoders of the tests' making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu.memory.places import Machine, Place

_GIB = 1 << 30


@pytest.fixture(scope="session")
def machine_of() -> Callable[..., Machine]:
    """`machine_of(card_gib, held_gib=0, host_gib=48)`: RAM of which so much is free, and a GPU that others use too."""

    def build(card_gib: float | None = None, held_gib: float = 0.0, host_gib: float = 48.0) -> Machine:
        total = int(host_gib * 1.25 * _GIB)
        host = Place("cpu", "memory", total, int(host_gib * _GIB), others="other programs")
        if card_gib is None:
            return Machine(host)
        total, free = int(card_gib * _GIB), int((card_gib - held_gib) * _GIB)
        card = Place("cuda", "GPU 0 (Card)", total, free, "cuda:0", "8.9", "Card", others="process 7: a game")
        return Machine(host, (card,))

    return build


def random_decoder(shape: Any, precision: str, positions: int, device: str = "cpu") -> Any:
    """Our decoder with random weights of that shape, made on the device itself."""
    import torch

    from gpu.llm.config import FAMILIES, LlamaConfig
    from gpu.llm.decoder import Decoder
    from gpu.llm.weights.int8 import hadamard_rotation, rotation_block

    sizes = ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "tied_embeddings")
    config = LlamaConfig(
        family=FAMILIES[0],
        rope_theta=10000.0,
        rms_eps=1e-5,
        max_positions=shape.max_positions,
        **{name: getattr(shape, name) for name in sizes},
    )
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    state = {"final_norm": torch.ones(shape.hidden, dtype=dtype, device=device)}
    names = ["embed"] + ([] if shape.tied_embeddings else ["head"])
    names += [f"{layer}.{part}" for layer in range(shape.layers) for part in ("qkv", "o", "gate_up", "down")]
    for name, (rows, columns) in zip(names, shape.matrices(), strict=True):
        if precision == "int8":
            state[name] = torch.randint(-60, 61, (rows, columns), dtype=torch.int8)
            state[f"{name}.scale"] = torch.full((rows,), 1e-3)
        else:
            state[name] = torch.empty(rows, columns, dtype=dtype, device=device).uniform_(-0.02, 0.02)
    if precision == "int8":
        state["rotation"] = hadamard_rotation(rotation_block(config))
    else:
        norms = [f"{layer}.{norm}" for layer in range(shape.layers) for norm in ("attn_norm", "mlp_norm")]
        state |= {name: torch.ones(shape.hidden, dtype=dtype, device=device) for name in norms}
    return Decoder(config, state, positions=positions, device=device)


@pytest.fixture(scope="session")
def decoder_of() -> Callable[..., Any]:
    """`decoder_of(shape, precision, positions)`: see `random_decoder`."""
    pytest.importorskip("torch", reason="the decoder is torch")
    return random_decoder
