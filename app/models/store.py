"""The model store on disk: `<root>/<model name>/<file>`. Hands out paths only to files that are what they must be.

The size of a file is compared on every use; its SHA-256 once, after which a stamp (`.verified.json`, keyed by
size and modification time) stands for it. Nothing here touches the network: that is `app.models.fetch`.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from app.errors import ModelStoreError
from app.models.catalog import Catalog, IndexSource, Member, Model
from app.models.files import part_path, sha256_of

STAMP_FILE = ".verified.json"
DOWNLOADS_FOLDER = ".downloads"
"""Unfinished downloads, by content."""
_MISSING = "is missing"


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

    def state(self, model: Model) -> str:
        """`in place`, `damaged`, `partial` (a file or the end of a download is missing) or `missing`."""
        problems = [state.problem for state in self.check(model)]
        if not any(problems):
            return "in place"
        if any(problem not in ("", _MISSING) for problem in problems):
            return "damaged"
        return "partial" if "" in problems or self.downloads(model) else "missing"

    def downloads(self, model: Model) -> list[Path]:
        """What an interrupted fetch has left of a model, to go on with."""
        folder = self.root / DOWNLOADS_FOLDER
        return [path for path in (part_path(folder, *file) for file in _files_on_the_way(model)) if path.is_file()]

    def remove(self, name: str) -> int:
        """Delete a model's folder and what was downloaded of it; return the bytes freed.

        Of a folder that lies elsewhere, only the link in the store goes.

        Raises:
            ModelStoreError: unknown name, not in the store, or the folder cannot be deleted.
        """
        folder, downloads = self.folder(name), self.downloads(self.catalog[name])
        is_link = folder.is_symlink()
        if not is_link and not folder.is_dir() and not downloads:
            raise ModelStoreError(f"Model {name} is not in the store {self.root}", model=name)
        files = [*(path for path in folder.rglob("*") if path.is_file() and not is_link), *downloads]
        freed = sum(path.stat().st_size for path in files)
        try:
            for path in downloads:
                path.unlink(missing_ok=True)
            if is_link:
                folder.unlink()
            elif folder.is_dir():
                shutil.rmtree(folder)
        except OSError as error:
            message = f"Cannot delete {folder}: {error.strerror or error}"
            raise ModelStoreError(message, model=name, fix="Check its permissions") from error
        return freed

    def strangers(self) -> list[Path]:
        """Files among the downloads that belong to no model of this catalog."""
        folder = self.root / DOWNLOADS_FOLDER
        known = {part_path(folder, *file).name for model in self.catalog for file in _files_on_the_way(model)}
        paths = folder.iterdir() if folder.is_dir() else ()
        return [path for path in paths if path.name.removesuffix(".json") not in known]


def stamp_of(path: Path, sha256: str) -> dict[str, int | str]:
    """What the stamp file remembers of a file whose bytes were hashed."""
    status = path.stat()
    return {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}


def _files_on_the_way(model: Model) -> list[tuple[str, str]]:
    """(file name, SHA-256) of everything that a fetch of the model may download."""
    archives = [file for source in model.sources if isinstance(source, IndexSource) for file in source.archives]
    return [*((a.file_name, a.sha256) for a in archives), *((m.file_name, m.sha256) for m in model.members)]


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
        return _MISSING
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
