"""A Llama of some hundred thousand weights whose keys are as large as a real one's, made without a file."""

from __future__ import annotations

import json
from typing import Any

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LAYERS, HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE, VOCAB = 2, 8, 64, 48, 96, 258
ROW_BYTES = LAYERS * 2 * HEADS * HEAD_DIM * 4


def tiny_prepared(seed: int = 11) -> Any:
    """`gpu.llm.weights.prepare.PreparedModel` with one token a byte; a token leaves 8 KiB in the arena."""
    import tokenizers
    import torch

    from gpu.llm.config import FAMILIES, LlamaConfig
    from gpu.llm.weights.prepare import PreparedModel

    config = LlamaConfig(
        family=FAMILIES[0],
        vocab=VOCAB,
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=HEAD_DIM,
        rope_theta=10000.0,
        rms_eps=1e-5,
        tied_embeddings=True,
        max_positions=8192,
        stop_ids=(1,),
    )
    random = torch.Generator().manual_seed(seed)
    sizes = {"embed": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        sizes[f"{layer}.qkv"] = (config.qkv_rows, HIDDEN)
        sizes[f"{layer}.o"] = (HIDDEN, HEADS * HEAD_DIM)
        sizes[f"{layer}.gate_up"] = (2 * INTERMEDIATE, HIDDEN)
        sizes[f"{layer}.down"] = (HIDDEN, INTERMEDIATE)
    state = {name: torch.randn(size, generator=random) * 0.3 for name, size in sizes.items()}
    norms = ["final_norm", *(f"{layer}.{norm}" for layer in range(LAYERS) for norm in ("attn_norm", "mlp_norm"))]
    state |= {name: torch.ones(HIDDEN) for name in norms}
    return PreparedModel(config, "fp32", state, _tokenizer_json(tokenizers), TEMPLATE, "", "<|im_end|>")


def _tokenizer_json(tokenizers: Any) -> str:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    document = json.loads(made.to_str())
    document["model"]["vocab"] = {letter: number + 2 for number, letter in enumerate(letters)}
    return json.dumps(document)
