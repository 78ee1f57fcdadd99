"""What every reader of model files returns: shape, tokenizer, chat template and tensors by one set of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.errors import WeightsError
from gpu.llm.config import LlamaConfig

if TYPE_CHECKING:
    import torch

_LAYER_PARTS = ("attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down")

# Our name -> the name in the file; "{layer}" stands for the layer's number.
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attn_norm": "blk.{layer}.attn_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "o": "blk.{layer}.attn_output.weight",
    "mlp_norm": "blk.{layer}.ffn_norm.weight",
    "gate": "blk.{layer}.ffn_gate.weight",
    "up": "blk.{layer}.ffn_up.weight",
    "down": "blk.{layer}.ffn_down.weight",
}
HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{layer}.input_layernorm.weight",
    "q": "model.layers.{layer}.self_attn.q_proj.weight",
    "k": "model.layers.{layer}.self_attn.k_proj.weight",
    "v": "model.layers.{layer}.self_attn.v_proj.weight",
    "o": "model.layers.{layer}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "up": "model.layers.{layer}.mlp.up_proj.weight",
    "down": "model.layers.{layer}.mlp.down_proj.weight",
}


@dataclass(frozen=True, slots=True)
class RawModel:
    """An opened model. Tensors are read one at a time, so that a load never holds the model twice."""

    config: LlamaConfig
    tokenizer_json: str
    chat_template: str | None
    bos_token: str
    eos_token: str
    read: Callable[[str, int], torch.Tensor]
    """(our name, layer) -> the tensor as float32 on the CPU in Hugging Face's row order; -1 for no layer."""

    def tensor(self, name: str, layer: int = -1) -> torch.Tensor:
        """One tensor, its shape checked against the configuration; WeightsError where it is missing or wrong."""
        tensor = self.read(name, layer)
        expected = expected_shape(self.config, name)
        if tuple(tensor.shape) != expected:
            where = name if layer < 0 else f"{name} of layer {layer}"
            raise WeightsError(
                f"Tensor {where} has shape {tuple(tensor.shape)}, the configuration says {expected}",
                fix="Fetch the model again",
            )
        return tensor


def expected_shape(config: LlamaConfig, name: str) -> tuple[int, ...]:
    """Shape of the tensor called `name`, [rows out, columns in] or [size]."""
    query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab, config.hidden),
        "head": (config.vocab, config.hidden),
        "final_norm": (config.hidden,),
        "attn_norm": (config.hidden,),
        "mlp_norm": (config.hidden,),
        "q": (query, config.hidden),
        "k": (key_value, config.hidden),
        "v": (key_value, config.hidden),
        "o": (config.hidden, query),
        "gate": (config.intermediate, config.hidden),
        "up": (config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
    }
    return shapes[name]


def file_name(names: dict[str, str], name: str, layer: int) -> str:
    """The name in the file of our tensor `name`."""
    return names[name].format(layer=layer)


def required_file_names(names: dict[str, str], config: LlamaConfig) -> list[str]:
    """Every tensor that the file must hold."""
    whole = ["embed", "final_norm"] + ([] if config.tied_embeddings else ["head"])
    layers = [file_name(names, part, layer) for layer in range(config.layers) for part in _LAYER_PARTS]
    return [names[name] for name in whole] + layers


def require_tensors(names: dict[str, str], config: LlamaConfig, present: set[str], where: str) -> None:
    """WeightsError that names the first missing tensor."""
    missing = [name for name in required_file_names(names, config) if name not in present]
    if missing:
        raise WeightsError(
            f"{where} lacks {len(missing)} tensors, first {missing[0]}", fix="Fetch the whole model again"
        )
