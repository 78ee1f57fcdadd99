"""Model families and the shape of one model. A new family is one row of `FAMILIES` (and what it computes anew)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu.errors import WeightsError


@dataclass(frozen=True, slots=True)
class Family:
    """What is common to the files of one family."""

    name: str
    gguf_architecture: str
    """`general.architecture` of its GGUF files, also the prefix of their keys."""
    hf_model_type: str
    """`model_type` of its Hugging Face config.json."""
    gguf_interleaved_rope: bool
    """Its GGUF converter permutes Q and K rows so that rotary pairs are neighbours (llama.cpp's "NORM" RoPE)."""


FAMILIES: tuple[Family, ...] = (
    # Llama 2, 3, 3.1, 3.2 and SmolLM2: RMSNorm, SwiGLU, grouped-query attention, no biases.
    Family(name="llama", gguf_architecture="llama", hf_model_type="llama", gguf_interleaved_rope=True),
)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shape of a decoder of the Llama family. Sizes are in elements, positions in tokens."""

    family: Family
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    rms_eps: float
    tied_embeddings: bool
    max_positions: int
    rope_factors: tuple[float, ...] | None = None
    """Divisors of the rotary frequencies, [head_dim / 2] (Llama 3 scaling); None: unscaled."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a reply, as the file names them."""

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads, self.head_dim)
        if min(sizes) < 1 or self.max_positions < 1:
            raise WeightsError("The model's configuration has a size below 1", fix="Use an unchanged model file")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise WeightsError(
                f"{self.heads} heads, {self.kv_heads} KV heads and head size {self.head_dim} do not fit together",
                fix="Use an unchanged model file",
            )

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def family_of_gguf(architecture: str) -> Family:
    """The family of a GGUF file; WeightsError where we do not run it."""
    return _family(architecture, {row.gguf_architecture: row for row in FAMILIES})


def family_of_hf(model_type: str) -> Family:
    """The family of a Hugging Face directory; WeightsError where we do not run it."""
    return _family(model_type, {row.hf_model_type: row for row in FAMILIES})


def _family(name: str, rows: Mapping[str, Family]) -> Family:
    if name not in rows:
        raise WeightsError(f"Models of family {name!r} are not supported", fix=f"Use one of: {', '.join(sorted(rows))}")
    return rows[name]


def llama3_rope_factors(
    head_dim: int, theta: float, factor: float, low_freq_factor: float, high_freq_factor: float, original_positions: int
) -> tuple[float, ...]:
    """Divisors of the rotary frequencies, [head_dim / 2], of Llama 3.1's context extension.

    Source: Llama 3.1 reference code, `apply_scaling`: wavelengths (tokens) longer than original/low are divided
    by `factor`, shorter than original/high kept, those between interpolated.
    """
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < original_positions / high_freq_factor:
            factors.append(1.0)
        elif wavelength > original_positions / low_freq_factor:
            factors.append(factor)
        else:
            smooth = (original_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
            factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return tuple(factors)


def config_from_hf(config: Mapping[str, Any], stop_ids: tuple[int, ...]) -> LlamaConfig:
    """Shape from a Hugging Face config.json (written by transformers 4 or 5)."""
    family = family_of_hf(str(config.get("model_type")))
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise WeightsError("Llama variants with biases are not supported", fix="Use a model without biases")
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    return LlamaConfig(
        family=family,
        vocab=int(config["vocab_size"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        rope_theta=theta,
        rms_eps=float(config["rms_norm_eps"]),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_positions=int(config["max_position_embeddings"]),
        rope_factors=_hf_rope_factors(rope, head_dim, theta),
        stop_ids=stop_ids,
    )


def _hf_rope_factors(rope: Mapping[str, Any], head_dim: int, theta: float) -> tuple[float, ...] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return (float(rope["factor"]),) * (head_dim // 2)
    if kind == "llama3":
        return llama3_rope_factors(
            head_dim,
            theta,
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )
    raise WeightsError(f"RoPE scaling {kind!r} is not supported", fix="Use a model with default, linear or llama3")
