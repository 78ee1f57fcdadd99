"""The store hands out paths only to files that are what the catalog says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from model_rig import WEIGHTS, Fetching

import app.models.store as store_module
from app.errors import ModelStoreError
from app.models.fetch import fetch
from app.models.files import part_path
from app.models.store import STAMP_FILE, Store


@pytest.fixture
def filled(on_disk: Callable[..., Fetching]) -> Store:
    """A store with the model `voice` in it."""
    given = on_disk("voice")
    assert fetch(given.store, list(given.store.catalog), **given.options) == ["voice"]
    return given.store


@pytest.fixture
def empty(on_disk: Callable[..., Fetching]) -> Store:
    """A store that knows the model `voice` and does not have it."""
    return on_disk("voice").store


def test_resolve_gives_every_member(filled: Store) -> None:
    paths = filled.resolve("voice")
    assert set(paths) == {"weights.bin", "tokens.txt"}
    assert paths["weights.bin"].read_bytes() == WEIGHTS
    assert paths["weights.bin"] == filled.root / "voice" / "weights.bin"
    assert filled.parts("voice") == {"weights": paths["weights.bin"], "tokens": paths["tokens.txt"]}
    assert filled.missing() == []


def test_empty_store_names_the_command_that_mends_it(empty: Store) -> None:
    store = empty
    with pytest.raises(ModelStoreError, match=r"weights\.bin is missing\. Run: vivavoce models fetch voice"):
        store.resolve("voice")
    assert [model.name for model in store.missing()] == ["voice"]
    assert not store.root.exists(), "looking must not create anything"


def test_truncated_file_is_refused(filled: Store) -> None:
    path = filled.root / "voice" / "weights.bin"
    path.write_bytes(WEIGHTS[:-1])
    with pytest.raises(ModelStoreError, match="has 299999 bytes, must have 300000"):
        filled.resolve("voice")


def test_changed_byte_of_same_size_is_refused(filled: Store) -> None:
    path = filled.root / "voice" / "weights.bin"
    path.write_bytes(bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:])
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelStoreError, match="SHA-256"):
        filled.resolve("voice")
    with pytest.raises(ModelStoreError, match="SHA-256"):
        filled.resolve("voice")  # the bad result was not stamped as good


def test_hash_is_computed_once(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    original = store_module.sha256_of
    monkeypatch.setattr(store_module, "sha256_of", lambda path: (read.append(path), original(path))[1])
    (filled.root / "voice" / STAMP_FILE).unlink()
    filled.resolve("voice")
    assert len(read) == 2
    filled.resolve("voice")
    assert len(read) == 2
    filled.check(filled.catalog["voice"], rehash=True)
    assert len(read) == 4


@pytest.mark.parametrize("stamp", ["", "{", "[]", '{"weights.bin": {"size_bytes": 300000}}'])
def test_broken_stamp_means_hashing_again(filled: Store, stamp: str) -> None:
    path = filled.root / "voice" / STAMP_FILE
    path.write_text(stamp, encoding="utf-8")
    filled.resolve("voice")
    assert set(json.loads(path.read_text(encoding="utf-8"))) == {"weights.bin", "tokens.txt"}


def test_stamp_of_another_catalog_version_does_not_count(filled: Store) -> None:
    path = filled.root / "voice" / STAMP_FILE
    stamps = json.loads(path.read_text(encoding="utf-8"))
    stamps["weights.bin"]["sha256"] = "0" * 64
    path.write_text(json.dumps(stamps), encoding="utf-8")
    filled.resolve("voice")


def test_remove_frees_and_a_second_remove_says_so(filled: Store) -> None:
    assert filled.remove("voice") > 300_000
    assert not (filled.root / "voice").exists()
    with pytest.raises(ModelStoreError, match="is not in the store"):
        filled.remove("voice")


@pytest.mark.parametrize("is_dangling", [False, True])
def test_of_a_folder_that_lies_elsewhere_only_the_link_is_removed(
    filled: Store, tmp_path: Path, is_dangling: bool
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (filled.root / "voice").rename(elsewhere)
    (filled.root / "voice").symlink_to(tmp_path / "gone" if is_dangling else elsewhere)
    before = sorted(path.name for path in elsewhere.iterdir())
    assert filled.remove("voice") == 0
    assert not (filled.root / "voice").is_symlink()
    assert sorted(path.name for path in elsewhere.iterdir()) == before


def _download(store: Store, data: bytes) -> None:
    """As a fetch leaves it that was cut."""
    (source,) = store.catalog["voice"].sources
    archive = source.archives[0]  # type: ignore[union-attr]
    part = part_path(store.root / ".downloads", archive.file_name, archive.sha256)
    part.parent.mkdir(parents=True)
    part.write_bytes(data)


def test_states(filled: Store) -> None:
    model, folder = filled.catalog["voice"], filled.root / "voice"
    assert filled.state(model) == "in place"
    (folder / "tokens.txt").rename(folder / "elsewhere")
    assert filled.state(model) == "partial"
    (folder / "weights.bin").write_bytes(b"x")
    assert filled.state(model) == "damaged"
    (folder / "weights.bin").unlink()
    assert filled.state(model) == "missing"
    _download(filled, b"half")
    assert filled.state(model) == "partial"


def test_remove_takes_an_unfinished_download_too(empty: Store) -> None:
    _download(empty, b"half")
    assert empty.remove("voice") == 4
    assert empty.state(empty.catalog["voice"]) == "missing"


def test_strangers_among_the_downloads(empty: Store) -> None:
    assert empty.strangers() == []
    _download(empty, b"half")
    (part,) = (empty.root / ".downloads").iterdir()
    part.with_name(f"{part.name}.json").write_text("{}")
    other = part.with_name("0123-old.whl.part")
    other.write_bytes(b"x")
    assert empty.strangers() == [other]
