"""The store hands out paths only to files that are what the catalog says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import app.models.store as store_module
from app.errors import ModelStoreError
from app.models.catalog import Model
from app.models.fetch import fetch
from app.models.store import STAMP_FILE, Store

MakeModel = Callable[..., Model]
MakeStore = Callable[..., Store]


@pytest.fixture
def filled(make_model: MakeModel, make_store: MakeStore) -> Store:
    """A store with the model `voice` in it."""
    model = make_model("voice")
    store = make_store(model)
    assert fetch(store, [model], offline=False, say=lambda line: None) == ["voice"]
    return store


def test_resolve_gives_every_member(filled: Store) -> None:
    paths = filled.resolve("voice")
    assert set(paths) == {"weights.bin", "tokens.txt"}
    assert paths["weights.bin"].read_bytes() == b"w" * 5000
    assert paths["weights.bin"] == filled.root / "voice" / "weights.bin"
    assert filled.parts("voice") == {"weights": paths["weights.bin"], "tokens": paths["tokens.txt"]}
    assert filled.missing() == []


def test_empty_store_names_the_command_that_mends_it(make_model: MakeModel, make_store: MakeStore) -> None:
    store = make_store(make_model("voice"))
    with pytest.raises(ModelStoreError, match=r"weights\.bin is missing\. Run: vivavoce models fetch voice"):
        store.resolve("voice")
    assert [model.name for model in store.missing()] == ["voice"]
    assert not store.root.exists(), "looking must not create anything"


def test_truncated_file_is_refused(filled: Store) -> None:
    path = filled.root / "voice" / "weights.bin"
    path.write_bytes(b"w" * 4999)
    with pytest.raises(ModelStoreError, match="has 4999 bytes, must have 5000"):
        filled.resolve("voice")


def test_changed_byte_of_same_size_is_refused(filled: Store) -> None:
    path = filled.root / "voice" / "weights.bin"
    path.write_bytes(b"x" + b"w" * 4999)
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


@pytest.mark.parametrize("stamp", ["", "{", "[]", '{"weights.bin": {"size_bytes": 5000}}'])
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
    assert filled.remove("voice") > 5000
    assert not (filled.root / "voice").exists()
    with pytest.raises(ModelStoreError, match="is not in the store"):
        filled.remove("voice")
