"""Hugging Face directories: config.json, tokenizer.json and one or several safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.errors import WeightsError
from gpu.llm.config import config_from_hf
from gpu.llm.weights.raw import HF_NAMES, RawModel, file_name, require_tensors

if TYPE_CHECKING:
    import torch

_REFETCH = "Fetch the whole model directory again"


def open_hf_directory(directory: Path) -> RawModel:
    """Open a model directory as `save_pretrained` writes it. Raises WeightsError for anything else."""
    raw_config = _json(directory / "config.json")
    generation = directory / "generation_config.json"
    stops = (_json(generation) if generation.is_file() else {}).get("eos_token_id", raw_config.get("eos_token_id"))
    stop_ids = tuple(stops) if isinstance(stops, list) else () if stops is None else (int(stops),)
    try:
        config = config_from_hf(raw_config, stop_ids)
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{directory.name}/config.json: missing or wrong entry ({error})", fix=_REFETCH) from error
    files = _tensor_files(directory)
    require_tensors(HF_NAMES, config, set(files), directory.name)
    tokenizer_config = directory / "tokenizer_config.json"
    settings = _json(tokenizer_config) if tokenizer_config.is_file() else {}
    template_file = directory / "chat_template.jinja"
    template = _text(template_file) if template_file.is_file() else settings.get("chat_template")
    return RawModel(
        config=config,
        tokenizer_json=_text(directory / "tokenizer.json"),
        chat_template=template if isinstance(template, str) else None,
        bos_token=_token_text(settings.get("bos_token")),
        eos_token=_token_text(settings.get("eos_token")),
        read=lambda name, layer: _read_tensor(files, file_name(HF_NAMES, name, layer)),
    )


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it. Opening each checks its header against its size."""
    from safetensors import SafetensorError, safe_open

    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"{directory} holds no .safetensors file", fix=_REFETCH)
    files: dict[str, Path] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                files.update(dict.fromkeys(file.keys(), path))
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path.name} is truncated or corrupt ({error})", fix=_REFETCH) from error
    return files


def _read_tensor(files: dict[str, Path], name: str) -> torch.Tensor:
    import torch
    from safetensors import safe_open

    with safe_open(files[name], framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor.to(torch.float32)


def _token_text(token: Any) -> str:
    """A special token of tokenizer_config.json, which is a string or an AddedToken object."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"Cannot read {path}: {error}", fix=_REFETCH) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise WeightsError(f"{path} is no JSON ({error})", fix=_REFETCH) from error
    if not isinstance(value, dict):
        raise WeightsError(f"{path} holds no JSON object", fix=_REFETCH)
    return value
