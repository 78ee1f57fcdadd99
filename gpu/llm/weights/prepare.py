"""Raw tensors to what the decoder multiplies with: fused, converted once, and cached on disk for GGUF files.

The prepared state is a flat dict: `embed`, `head` (untied only), `final_norm` and per layer `{n}.attn_norm`,
`{n}.qkv`, `{n}.o`, `{n}.mlp_norm`, `{n}.gate_up`, `{n}.down`. At int8 each matrix has a `.scale` beside it, the layers'
norms are folded into the matrices behind them, and `rotation` is there (gpu/llm/weights/int8.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpu.errors import WeightsError
from gpu.llm.config import LlamaConfig, family_of_hf
from gpu.llm.weights.raw import RawModel

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")

_FORMAT = 1
_STAMP_BYTES = 4 << 20
_CHECKSUMS = "checksums.json"
_CHUNK_BYTES = 1 << 20
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedModel:
    """All that a language model is built from."""

    config: LlamaConfig
    precision: Precision
    state: dict[str, torch.Tensor]
    tokenizer_json: str
    chat_template: str | None
    bos_token: str
    eos_token: str


def prepare(raw: RawModel, precision: Precision) -> PreparedModel:
    """Read, fuse and convert every tensor, one layer at a time."""
    import torch

    if precision not in PRECISIONS:
        raise WeightsError(f"Precision {precision!r} is unknown", fix=f"Use one of: {', '.join(PRECISIONS)}")
    if precision == "int8":
        from gpu.llm.weights.int8 import int8_state

        state = int8_state(raw)
    else:
        state = _dense_state(raw, torch.bfloat16 if precision == "bf16" else torch.float32)
    return PreparedModel(
        config=raw.config,
        precision=precision,
        state=state,
        tokenizer_json=raw.tokenizer_json,
        chat_template=raw.chat_template,
        bos_token=raw.bos_token,
        eos_token=raw.eos_token,
    )


def _dense_state(raw: RawModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    import torch

    def matrix(layer: int, *parts: str) -> torch.Tensor:
        return torch.cat([raw.tensor(part, layer) for part in parts]).to(dtype)

    state = {"embed": matrix(-1, "embed"), "final_norm": matrix(-1, "final_norm")}
    if not raw.config.tied_embeddings:
        state["head"] = matrix(-1, "head")
    for layer in range(raw.config.layers):
        state[f"{layer}.attn_norm"] = matrix(layer, "attn_norm")
        state[f"{layer}.qkv"] = matrix(layer, "q", "k", "v")
        state[f"{layer}.o"] = matrix(layer, "o")
        state[f"{layer}.mlp_norm"] = matrix(layer, "mlp_norm")
        state[f"{layer}.gate_up"] = matrix(layer, "gate", "up")
        state[f"{layer}.down"] = matrix(layer, "down")
    return state


def prepare_gguf(path: Path, precision: Precision, cache_dir: Path | None) -> PreparedModel:
    """Prepared weights of a GGUF file, from the cache where it has them. A cache that cannot be written is skipped."""
    from gpu.llm.weights.gguf import open_gguf

    if cache_dir is None:
        return prepare(open_gguf(path), precision)
    entry = cache_dir / f"{file_stamp(path)}-{precision}"
    cached = _load(entry)
    if cached is not None:
        return cached
    model = prepare(open_gguf(path), precision)
    try:
        _store(model, entry)
    except OSError as error:
        reason = error.strerror or error
        _LOG.warning("Cannot cache the converted model in %s (%s); every start will convert it again", entry, reason)
    return model


def file_stamp(path: Path) -> str:
    """What identifies a file's content without reading gigabytes: SHA-256 of size, mtime, first and last 4 MiB.

    The head of a GGUF file holds its metadata and tensor table. WeightsError where it cannot be read.
    """
    try:
        stat = path.stat()
        with path.open("rb") as file:
            head = file.read(_STAMP_BYTES)
            file.seek(max(0, stat.st_size - _STAMP_BYTES))
            tail = file.read(_STAMP_BYTES)
    except OSError as error:
        raise WeightsError(f"Cannot read {path}: {error.strerror}", fix="Check the path and its permissions") from error
    from gpu.llm.linear import int8_weight_limit

    stamp = f"{_FORMAT} {stat.st_size} {stat.st_mtime_ns} {int8_weight_limit()} ".encode()
    return hashlib.sha256(stamp + head + tail).hexdigest()[:32]


def _store(model: PreparedModel, entry: Path) -> None:
    """Write a cache entry beside its final name and rename it: a reader sees all of it or nothing."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    entry.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        try:
            save_file(model.state, str(temporary / "weights.safetensors"))
        except SafetensorError as error:  # also for a full disk
            raise OSError(str(error)) from error
        meta = {"config": _config_json(model.config), "precision": model.precision}
        meta |= {key: getattr(model, key) for key in ("chat_template", "bos_token", "eos_token")}
        (temporary / "model.json").write_text(json.dumps(meta), encoding="utf-8")
        (temporary / "tokenizer.json").write_text(model.tokenizer_json, encoding="utf-8")
        checksums = {path.name: _checksum(path) for path in temporary.iterdir()}
        (temporary / _CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
        if entry.exists():
            shutil.rmtree(entry)
        os.replace(temporary, entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _load(entry: Path) -> PreparedModel | None:
    """A cache entry, or None where it is absent, unreadable or not what was written (it is then written anew)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if not entry.is_dir():
            return None
        for name, expected in json.loads((entry / _CHECKSUMS).read_text(encoding="utf-8")).items():
            if _checksum(entry / name) != expected:
                raise ValueError(f"{name} is damaged")
        meta = json.loads((entry / "model.json").read_text(encoding="utf-8"))
        # Cloned out of the file mapping: torch's own allocations are aligned, which oneDNN and MKL like better.
        mapped = load_file(str(entry / "weights.safetensors"))
        return PreparedModel(
            config=_config_from_json(meta["config"]),
            precision=meta["precision"],
            state={name: mapped.pop(name).clone() for name in list(mapped)},
            tokenizer_json=(entry / "tokenizer.json").read_text(encoding="utf-8"),
            chat_template=meta["chat_template"],
            bos_token=meta["bos_token"],
            eos_token=meta["eos_token"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        _LOG.info("The cached model %s is unreadable (%r); it is converted again", entry, error)
        return None


def _checksum(path: Path) -> int:
    """CRC-32 of a file: enough against a disk's mistakes, and three times as fast as SHA-256 (60 ms for 135 MB)."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _config_json(config: LlamaConfig) -> dict[str, Any]:
    return {**dataclasses.asdict(config), "family": config.family.hf_model_type}


def _config_from_json(values: dict[str, Any]) -> LlamaConfig:
    factors = values["rope_factors"]
    return LlamaConfig(
        **{
            **values,
            "family": family_of_hf(values["family"]),
            "rope_factors": None if factors is None else tuple(factors),
            "stop_ids": tuple(values["stop_ids"]),
        }
    )
