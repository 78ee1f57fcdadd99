"""A model's shape from the first kilobytes of its files: no tensor is read, no heavy library imported."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpu.errors import WeightsError
from gpu.llm.config import config_from_hf, family_of_gguf
from gpu.llm.weights.raw import GGUF_NAMES, HF_NAMES
from gpu.memory.shapes import ModelShape

_REFETCH = "Fetch the file again or give another one"
_MOST_HEADER_BYTES = 256 << 20
# GGUF's value types, by number, as struct formats; 8 is a string, 9 an array.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 8


def read_shape(path: Path) -> ModelShape:
    """Shape of a GGUF file or a Hugging Face directory.

    Raises:
        WeightsError: it is neither, is truncated inside its header, or of a family that we do not run.
    """
    if path.is_dir():
        return _hf_shape(path)
    if not path.exists():
        raise WeightsError(f"There is no model at {path}", fix="Give a GGUF file or a Hugging Face model directory")
    _refuse_special(path)
    return _gguf_shape(path)


def _refuse_special(path: Path) -> None:
    """WeightsError for a pipe, which would be waited for, and for a device, which never ends."""
    if path.exists() and not path.is_file():
        raise WeightsError(f"{path} is no regular file", fix="Give a GGUF file or a Hugging Face model directory")


def _gguf_shape(path: Path) -> ModelShape:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise WeightsError(f"{path.name} is no GGUF file", fix=_REFETCH)
            fields, tensors = _gguf_header(file)
    except OSError as error:
        raise WeightsError(f"Cannot read {path}: {error.strerror}", fix="Check the path and its permissions") from error
    except (struct.error, KeyError, OverflowError, RecursionError) as error:
        raise WeightsError(f"{path.name} is truncated or corrupt ({error!r})", fix=_REFETCH) from error
    family = family_of_gguf(str(fields.get("general.architecture")))
    prefix = family.gguf_architecture
    try:
        hidden, heads = int(fields[f"{prefix}.embedding_length"]), int(fields[f"{prefix}.attention.head_count"])
        return ModelShape(
            name=path.stem,
            family=family.name,
            vocab=tensors[GGUF_NAMES["embed"]][1],
            hidden=hidden,
            intermediate=int(fields[f"{prefix}.feed_forward_length"]),
            layers=int(fields[f"{prefix}.block_count"]),
            heads=heads,
            kv_heads=int(fields.get(f"{prefix}.attention.head_count_kv", heads)),
            head_dim=int(fields.get(f"{prefix}.attention.key_length", hidden // heads)),
            tied_embeddings=GGUF_NAMES["head"] not in tensors,
            max_positions=int(fields[f"{prefix}.context_length"]),
            qkv_bias="blk.0.attn_q.bias" in tensors,
        )
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        raise WeightsError(f"{path.name}: metadata missing or wrong ({error!r})", fix=_REFETCH) from error


def _gguf_header(file: BinaryIO) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Scalar fields, and each tensor's size, fastest dimension first. Format: ggml's docs/gguf.md, versions 2 and 3."""
    _version, tensor_count, field_count = _unpack(file, "<IQQ")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = _text(file)
        value = _value(file, *_unpack(file, "<I"))
        if value is not None:
            fields[key] = value
    tensors: dict[str, tuple[int, ...]] = {}
    for _ in range(tensor_count):
        name = _text(file)
        (dimensions,) = _unpack(file, "<I")
        if dimensions > _MOST_DIMENSIONS:
            raise OverflowError(f"tensor of {dimensions} dimensions")
        tensors[name] = tuple(_unpack(file, f"<{dimensions}Q"))
        _unpack(file, "<IQ")  # type and offset
    return fields, tensors


def _value(file: BinaryIO, kind: int) -> Any:
    """A scalar or a string; arrays (the vocabulary) are skipped and give None."""
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    inner, count = _unpack(file, "<IQ")
    if inner in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[inner]), 1)
        return None
    for _ in range(count):
        _value(file, inner)
    return None


def _text(file: BinaryIO) -> str:
    (size,) = _unpack(file, "<Q")
    if size > _MOST_HEADER_BYTES:
        raise OverflowError(f"text of {size} bytes")
    return _read(file, size).decode("utf-8", "replace")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, _read(file, struct.calcsize(form)))


def _read(file: BinaryIO, size: int) -> bytes:
    if size > os.fstat(file.fileno()).st_size:  # or memory would be taken for it first
        raise struct.error("the file ends inside its header")
    data = file.read(size)
    if len(data) != size:
        raise struct.error("the file ends inside its header")
    return data


def _hf_shape(directory: Path) -> ModelShape:
    try:
        _refuse_special(directory / "config.json")
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        tensors = {name: shape for path in _tensor_files(directory) for name, shape in _tensor_shapes(path).items()}
        config = config_from_hf(raw, ())
        vocab = tensors[HF_NAMES["embed"]][0]
    except OSError as error:
        raise WeightsError(f"Cannot read {directory}: {error.strerror}", fix=_REFETCH) from error
    except (struct.error, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise WeightsError(f"{directory.name}: a header is missing or wrong ({error!r})", fix=_REFETCH) from error
    return ModelShape(
        name=directory.name,
        family=config.family.name,
        vocab=vocab,
        hidden=config.hidden,
        intermediate=config.intermediate,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        tied_embeddings=config.tied_embeddings,
        max_positions=config.max_positions,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
    )


def _tensor_files(directory: Path) -> list[Path]:
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"{directory} holds no .safetensors file", fix=_REFETCH)
    return paths


def _tensor_shapes(path: Path) -> Mapping[str, list[int]]:
    """Header of a safetensors file: its length in 8 bytes, then JSON."""
    _refuse_special(path)
    with path.open("rb") as file:
        (size,) = _unpack(file, "<Q")
        if size > min(_MOST_HEADER_BYTES, path.stat().st_size):
            raise struct.error("the header is longer than the file")
        entries = json.loads(_read(file, size))
    return {name: entry["shape"] for name, entry in entries.items() if name != "__metadata__"}
