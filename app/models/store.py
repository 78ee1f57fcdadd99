"""The model store on disk: `<root>/<model name>/<file>`. Hands out paths only to files that are what they must be.

The size of a file is compared on every use; its SHA-256 once, after which a stamp (`.verified.json`, keyed by
size and modification time) stands for it. Nothing here touches the network: that is `app.models.fetch`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from app.errors import ModelStoreError
from app.models.catalog import Catalog, Member, Model

STAMP_FILE = ".verified.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileState:
    """What is wrong with one file; `problem` is "" where nothing is."""

    model: str
    path: Path
    problem: str


class Store:
    """Models under one folder. The folder need not exist."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self.root = root
        self.catalog = catalog

    def folder(self, name: str) -> Path:
        """Where the files of a model lie or will lie."""
        return self.root / self.catalog[name].name

    def resolve(self, name: str) -> dict[str, Path]:
        """File name to path, for every file of the model.

        Raises:
            ModelStoreError: unknown name, or a file is missing or damaged; the message names the command that mends it.
        """
        model = self.catalog[name]
        bad = [state for state in self.check(model) if state.problem]
        if bad:
            message = f"Model {name}: {bad[0].path} {bad[0].problem}"
            raise ModelStoreError(message, model=name, fix=f"Run: vivavoce models fetch {name}")
        return {member.file_name: self.root / name / member.file_name for member in model.members}

    def parts(self, name: str) -> dict[str, Path]:
        """Like `resolve`, by what the engine calls each file: `model`, `config`, `encoder` ..."""
        paths = self.resolve(name)
        return {member.part: paths[member.file_name] for member in self.catalog[name].members}

    def missing(self) -> list[Model]:
        """Starter models that are not complete."""
        return [model for model in self.catalog.starters() if any(state.problem for state in self.check(model))]

    def check(self, model: Model, *, rehash: bool = False) -> list[FileState]:
        """The state of every file of a model; `rehash` reads all bytes again whatever the stamp says."""
        folder = self.root / model.name
        stamps = {} if rehash else _read_stamps(folder)
        fresh = dict(stamps)
        states = [
            FileState(model.name, folder / member.file_name, _problem(folder / member.file_name, member, fresh))
            for member in model.members
        ]
        if fresh != stamps or rehash:
            _write_stamps(folder, fresh)
        return states

    def remove(self, name: str) -> int:
        """Delete a model's folder and return the bytes freed.

        Raises:
            ModelStoreError: unknown name, not in the store, or the folder cannot be deleted.
        """
        folder = self.folder(name)
        if not folder.is_dir():
            raise ModelStoreError(f"Model {name} is not in the store {self.root}", model=name)
        freed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        try:
            shutil.rmtree(folder)
        except OSError as error:
            message = f"Cannot delete {folder}: {error.strerror}"
            raise ModelStoreError(message, model=name, fix="Check its permissions") from error
        return freed


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def stamp_of(path: Path, sha256: str) -> dict[str, int | str]:
    """What the stamp file remembers of a file whose bytes were hashed."""
    status = path.stat()
    return {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}


def _problem(path: Path, member: Member, stamps: dict[str, object]) -> str:
    try:
        status = path.stat()
        if status.st_size != member.size_bytes:
            return f"has {status.st_size} bytes, must have {member.size_bytes}"
        wanted = {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": member.sha256}
        if stamps.get(member.file_name) == wanted:
            return ""
        stamps.pop(member.file_name, None)
        if sha256_of(path) != member.sha256:
            return "is damaged (its SHA-256 is not the catalog's)"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    stamps[member.file_name] = wanted
    return ""


def _read_stamps(folder: Path) -> dict[str, object]:
    try:
        stamps = json.loads((folder / STAMP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # no stamp, or one that was cut off: hash again
    return stamps if isinstance(stamps, dict) else {}


def _write_stamps(folder: Path, stamps: dict[str, object]) -> None:
    """Best effort: in a read-only store the files are hashed on every use instead."""
    temporary = folder / f"{STAMP_FILE}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(stamps, indent=1), encoding="utf-8")
        temporary.replace(folder / STAMP_FILE)
    except OSError:
        return
