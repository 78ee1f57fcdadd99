"""GGUF files through the `gguf` package: metadata, tokenizer, and tensors dequantised to float32.

llama.cpp's converter permutes the Q and K rows of the llama family so that rotary pairs lie side by side. We
undo that here, once at load: the decoder then knows one RoPE (halves, as Hugging Face), for both file kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.errors import WeightsError
from gpu.llm.config import Family, LlamaConfig, family_of_gguf
from gpu.llm.tokenizer import tokenizer_json_from_gguf
from gpu.llm.weights.raw import GGUF_NAMES, RawModel, file_name, require_tensors

if TYPE_CHECKING:
    import torch

_MAGIC = b"GGUF"
_REFETCH = "Fetch the file again or give another one"


def open_gguf(path: Path) -> RawModel:
    """Open a GGUF file of a supported family. Raises WeightsError for anything else."""
    fields, tensors = _read(path)
    family = family_of_gguf(str(fields.get("general.architecture")))
    try:
        config = _config(family, fields, tensors)
        require_tensors(GGUF_NAMES, config, set(tensors), path.name)
        tokenizer_json = tokenizer_json_from_gguf(fields)
        tokens = fields["tokenizer.ggml.tokens"]
        bos = fields.get("tokenizer.ggml.bos_token_id")
        eos = fields.get("tokenizer.ggml.eos_token_id")
        return RawModel(
            config=config,
            tokenizer_json=tokenizer_json,
            chat_template=fields.get("tokenizer.chat_template"),
            bos_token="" if bos is None else str(tokens[bos]),
            eos_token="" if eos is None else str(tokens[eos]),
            read=lambda name, layer: _dequantise(config, tensors, name, layer, path),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WeightsError(f"{path.name}: metadata missing or wrong ({error!r})", fix=_REFETCH) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise WeightsError(f"Cannot read {path}: {error.strerror}", fix="Check the path and its permissions") from error
    if magic != _MAGIC:
        raise WeightsError(f"{path.name} is no GGUF file", fix=_REFETCH)
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the reader trusts the file: a corrupt one raises anything, from IndexError to numpy's
        raise WeightsError(f"{path.name} is truncated or corrupt ({error!r})", fix=_REFETCH) from error
    return fields, tensors


def _config(family: Family, fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> LlamaConfig:
    def value(key: str, default: Any = None) -> Any:
        full = f"{family.gguf_architecture}.{key}"
        return fields[full] if default is None else fields.get(full, default)

    heads, hidden = int(value("attention.head_count")), int(value("embedding_length"))
    factors = tensors.get("rope_freqs.weight")
    stop_keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    stops = [fields[key] for key in (f"tokenizer.ggml.{name}" for name in stop_keys) if key in fields]
    return LlamaConfig(
        family=family,
        vocab=len(fields["tokenizer.ggml.tokens"]),
        hidden=hidden,
        intermediate=int(value("feed_forward_length")),
        layers=int(value("block_count")),
        heads=heads,
        kv_heads=int(value("attention.head_count_kv", heads)),
        head_dim=int(value("attention.key_length", hidden // heads)),
        rope_theta=float(value("rope.freq_base", 10000.0)),
        rms_eps=float(value("attention.layer_norm_rms_epsilon")),
        tied_embeddings="output.weight" not in tensors,
        max_positions=int(value("context_length")),
        rope_factors=None if factors is None else tuple(float(x) for x in factors.data),
        stop_ids=tuple(dict.fromkeys(int(stop) for stop in stops)),
    )


def _dequantise(config: LlamaConfig, tensors: Mapping[str, Any], name: str, layer: int, path: Path) -> torch.Tensor:
    import gguf
    import numpy as np
    import torch

    entry = tensors[file_name(GGUF_NAMES, name, layer)]
    try:
        array = gguf.quants.dequantize(entry.data, entry.tensor_type)
    except (NotImplementedError, ValueError, KeyError) as error:
        raise WeightsError(
            f"{path.name}: cannot dequantise {entry.name} ({entry.tensor_type.name})",
            fix="Use a Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, K-quant, F16, BF16 or F32 file",
        ) from error
    tensor = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
    if config.family.gguf_interleaved_rope and name in ("q", "k"):
        heads = config.heads if name == "q" else config.kv_heads
        tensor = deinterleave_rows(tensor, heads)
    return tensor


def deinterleave_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads * head_dim, columns] with rotary pairs side by side -> the same with pairs half a head apart.

    Inverse of `permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()
