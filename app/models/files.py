"""Hashes, names of unfinished downloads, and the members of an archive. Knows neither the catalog nor the network."""

from __future__ import annotations

import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class BadArchiveError(Exception):
    """The archive cannot be read, or has no such member."""


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def part_path(folder: Path, file_name: str, sha256: str) -> Path:
    """Where a download is kept until all of it is here. Named by content, so that any source can go on with it."""
    return folder / f"{sha256[:16]}-{file_name}.part"


def extract(archive: Path, name: str, wanted: Mapping[str, tuple[Path, int]]) -> None:
    """Copy members out of a wheel, zip or tar. `name` is the archive's, its ending tells the kind.

    `wanted`: path inside to (target, size in bytes); one byte more than that is copied at most, so that a lying
    archive cannot fill the disk. What is copied is on disk when this returns.

    Raises:
        BadArchiveError: unreadable, or a member is not in it.
        OSError: the disk.
    """
    try:
        left = dict(wanted)
        with _open_members(archive, name, left) as members:
            for path, source in members:
                target, size_bytes = left.pop(path)
                with target.open("wb") as sink:
                    copy(source, sink, size_bytes + 1)
                    sync(sink)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise BadArchiveError(f"{name} is no readable archive ({error})") from error
    if left:
        raise BadArchiveError(f"{name} holds no {next(iter(left))}")


def copy(source: IO[bytes], sink: IO[bytes], limit_bytes: int) -> None:
    """Copy at most `limit_bytes`."""
    while limit_bytes > 0 and (chunk := source.read(min(_CHUNK_BYTES, limit_bytes))):
        sink.write(chunk)
        limit_bytes -= len(chunk)


def sync(file: IO[bytes]) -> None:
    """On disk, not only in the system's cache."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """The names in a folder, after a rename. Windows has no such thing."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _open_members(archive: Path, name: str, wanted: Mapping[str, object]) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """(path, stream) of the wanted members that are there, in one pass."""
    if name.endswith(_TAR_ENDINGS):
        with tarfile.open(archive) as tar:
            yield _tar_members(tar, wanted)
    else:
        with zipfile.ZipFile(archive) as container:
            yield _zip_members(container, wanted)


def _zip_members(container: zipfile.ZipFile, wanted: Mapping[str, object]) -> Iterator[tuple[str, IO[bytes]]]:
    for path in [path for path in wanted if path in container.NameToInfo]:
        with container.open(path) as source:
            yield path, source


def _tar_members(tar: tarfile.TarFile, wanted: Mapping[str, object]) -> Iterator[tuple[str, IO[bytes]]]:
    for member in tar:
        source = tar.extractfile(member) if member.name in wanted and member.isfile() else None
        if source is not None:
            yield member.name, source
