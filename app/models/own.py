"""A model that the configuration names: one of the catalog, or the user's own files by path.

Accepted by path: a GGUF file, or a Hugging Face folder (or a safetensors file in it) for `llm`; a Piper voice for
`tts`; an ONNX file for `vad` and `turn`; for `asr` a folder with the files of a catalog model. Only what is cheap is
looked at here: the engine refuses the rest when it loads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import ModelStoreError
from app.models.catalog import Catalog, Model
from app.models.store import Store

_ENDINGS = (".gguf", ".safetensors", ".onnx", ".ort", ".bin", ".pt")
_LFS_POINTER = b"version https://git-lfs"
_GGUF_MAGIC = b"GGUF"
_ONNX_FIRST_BYTE = b"\x08"
"""Field 1 of the protocol buffer, the version of the format, which every exporter writes first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which engine runs a model, and its files by what the engine calls them."""

    engine: str
    parts: Mapping[str, Path]


def choose(configured: str, role: str, store: Store) -> Choice:
    """The model behind a configured name or path, its files checked.

    Raises:
        ModelStoreError: unknown name, wrong role, missing or damaged files, or a path that cannot be used.
    """
    if not is_path(configured, store.catalog):
        model = _of_role(configured, role, store.catalog)
        return Choice(model.engine, store.parts(model.name))
    path = Path(configured).expanduser().absolute()
    if not path.exists():
        raise _unusable(path, role, "there is no such file or folder", "Check the path")
    if role == "llm":
        return Choice("llama", {"model": _language_model(path)})
    if role == "tts":
        return _voice(path)
    if role == "asr":
        return _recogniser(path, store.catalog)
    engine = next(model.engine for model in store.catalog if model.role == role)
    return Choice(engine, {"model": _onnx(_single(path, "*.onnx", role), role)})


def engine_of(configured: str, role: str, catalog: Catalog) -> str:
    """Which engine `choose` would name; looks at no file of the store.

    Raises:
        ModelStoreError: unknown name, wrong role, or the catalog has no model of this role.
    """
    if not is_path(configured, catalog):
        return _of_role(configured, role, catalog).engine
    return next(model.engine for model in catalog if model.role == role)


def is_path(configured: str, catalog: Catalog) -> bool:
    """Whether a configured model is a path and not a name of the catalog."""
    if any(model.name == configured for model in catalog):
        return False
    return "/" in configured or "\\" in configured or configured.startswith("~") or configured.endswith(_ENDINGS)


def _of_role(name: str, role: str, catalog: Catalog) -> Model:
    model = catalog[name]
    if model.role != role:
        known = ", ".join(other.name for other in catalog if other.role == role)
        message = f"{name} is a model for {model.role}, not for {role}"
        raise ModelStoreError(message, model=name, fix=f"Use one of: {known}, or the path of your own")
    return model


def _language_model(path: Path) -> Path:
    """A GGUF file or a Hugging Face folder."""
    if path.suffix == ".gguf":
        if _first_bytes(path, "llm")[:4] != _GGUF_MAGIC:
            raise _unusable(path, "llm", "it is no GGUF file", "Download it again")
        return path
    folder = path.parent if path.suffix == ".safetensors" else path
    if not folder.is_dir():
        raise _unusable(path, "llm", "it is neither GGUF nor safetensors", "Give a .gguf file or a Hugging Face folder")
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.gguf")):
        return _language_model(_single(folder, "*.gguf", "llm"))
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        fix = "Convert the weights to safetensors, or give a GGUF file"
        raise _unusable(folder, "llm", "it holds neither .safetensors nor .gguf files", fix)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            fix = "Download the whole repository of the model"
            raise _unusable(folder, "llm", f"{name} is not beside the weights", fix)
    for file in weights:
        _first_bytes(file, "llm")
    return folder


def _voice(path: Path) -> Choice:
    """A Piper voice: the ONNX file, its JSON beside it."""
    model = _onnx(_single(path, "*.onnx", "tts"), "tts")
    config = model.with_name(f"{model.name}.json")
    if not config.is_file():
        fix = "Download both files of the Piper voice into one folder"
        raise _unusable(model, "tts", f"{config.name} is not beside it", fix)
    if "phoneme_id_map" not in _json(config, "tts"):
        raise _unusable(model, "tts", f"{config.name} is not that of a Piper voice", "Use a Piper voice")
    return Choice("piper", {"model": model, "config": config})


def _recogniser(path: Path, catalog: Catalog) -> Choice:
    """A folder with all the files of one of the catalog's recognisers, under the same names."""
    models = [model for model in catalog if model.role == "asr"]
    folder = path if path.is_dir() else path.parent
    for model in models:
        parts = {member.part: folder / member.file_name for member in model.members}
        if all(file.is_file() for file in parts.values()):
            for file in parts.values():
                _first_bytes(file, "asr")
            return Choice(model.engine, parts)
    wanted = " or ".join(", ".join(member.file_name for member in model.members) for model in models)
    raise _unusable(path, "asr", "it does not have the files of a recogniser", f"Give a folder with {wanted}")


def _single(path: Path, pattern: str, role: str) -> Path:
    """The file itself, or the one in the folder that fits."""
    if path.is_file():
        if not path.match(pattern):
            raise _unusable(path, role, f"it is no {pattern[1:]} file", f"Give a {pattern[1:]} file")
        return path
    found = sorted(path.glob(pattern))
    if len(found) != 1:
        raise _unusable(path, role, f"it holds {len(found)} {pattern[1:]} files, not one", "Give the file itself")
    return found[0]


def _onnx(path: Path, role: str) -> Path:
    if _first_bytes(path, role)[:1] != _ONNX_FIRST_BYTE:
        raise _unusable(path, role, "it is no ONNX file", "Download it again")
    return path


def _first_bytes(path: Path, role: str) -> bytes:
    """Proves that the file can be read and is not a pointer that stands for it."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device never ends
        raise _unusable(path, role, "it is no regular file", "Give a file")
    try:
        with path.open("rb") as file:
            data = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise _unusable(path, role, f"it cannot be read ({error.strerror})", "Check its permissions") from error
    if not data:
        raise _unusable(path, role, "it is empty", "Download it again")
    if data == _LFS_POINTER:
        raise _unusable(path, role, "it is a Git LFS pointer, not the weights", "Run `git lfs pull` in that folder")
    return data


def _json(path: Path, role: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(path, role, f"it is no readable JSON ({error})", "Download it again") from error
    return document if isinstance(document, dict) else {}


def _unusable(path: Path, role: str, reason: str, fix: str) -> ModelStoreError:
    return ModelStoreError(f"{path} cannot be used for {role}: {reason}", model=str(path), fix=fix)
