"""A session on disk: one file, whole or not there, bound to the model and the layout that made it.

magic, version, length of the header | header (JSON: model, layout, state, token ids) | rows | SHA-256 of all before.
Written beside its place, synced, then renamed: whoever is killed meanwhile leaves the old file or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.errors import GpuError
from gpu.kv.session import Session
from gpu.kv.spec import ArenaSpec, torch_dtype
from gpu.kv.window import WindowSession, WindowSpec

if TYPE_CHECKING:
    import torch

    from gpu.kv.arena import Arena

VERSION = 1
_MAGIC = b"VVKVSNAP"
_FRONT = struct.Struct("<8sII")
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_BLOCK_BYTES = 16 << 20
_LONGEST_HEADER_BYTES = 64 << 20


class SnapshotError(GpuError):
    """A snapshot cannot be written, or is not one that this arena and model can go on from."""


class _StoppedError(Exception):
    """The caller has something better to do."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A session as it was when the snapshot was taken."""

    session: Session
    ids: tuple[int, ...]
    """The token ids that were saved with it."""
    cuts: tuple[int, ...]
    """Where the chunks ended in which they were computed, as in `gpu.kv.prefix.Prefix`."""


def save(
    session: Session,
    path: Path,
    *,
    model: str,
    ids: Sequence[int] = (),
    cuts: Sequence[int] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Write the session to `path`, atomically; returns the file's bytes. `model` is the hash of its weights.

    `stopped` is asked before every 16 MiB: where it is true, nothing is written and 0 returned.
    Raises SnapshotError, with what was at `path` untouched, where the disk refuses.
    """
    contents = session.contents()
    header: dict[str, Any] = {
        "model": model,
        "layout": _layout(session.spec),
        "window": asdict(session.shape) if isinstance(session, WindowSession) else None,
        "state": session.state(),
        "rows": [part.shape[0] for part in contents],
        "ids": list(ids),
        "cuts": list(cuts),
    }
    text = json.dumps(header).encode()
    front = memoryview(_FRONT.pack(_MAGIC, VERSION, len(text)) + text)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        for stale in path.parent.glob(f".{path.name}.*.tmp"):
            stale.unlink()
        size = _write(temporary, itertools.chain([front], _blocks(contents, session.spec.row_bytes)), stopped)
        temporary.replace(path)
        _sync_folder(path.parent)
    except _StoppedError:
        temporary.unlink(missing_ok=True)
        return 0
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise SnapshotError(
            f"Cannot write the snapshot {path.name}: {error.strerror}", fix="Free disk space or choose another folder"
        ) from error
    return size


def _write(path: Path, blocks: Iterable[memoryview], stopped: Callable[[], bool]) -> int:
    """The blocks and their checksum, on the disk when this returns the file's bytes."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in blocks:
            if stopped():
                raise _StoppedError
            digest.update(block)
            file.write(block)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def restore(arena: Arena, path: Path, *, model: str, owner: str = "", quota_bytes: int | None = None) -> Restored:
    """Open a session with the content of a snapshot. Nothing is opened where it is not whole, or not ours.

    Raises SnapshotError for a file that is missing, damaged, of another version, model or layout; QuotaError where
    the arena has no room.
    """
    try:
        with path.open("rb") as file:
            _verify(file, path.name)
            header = _read_header(file)
            _require(header, arena.spec, model, path.name)
            parts = [_read_rows(file, rows, arena.spec) for rows in header["rows"]]
    except OSError as error:
        raise SnapshotError(f"Cannot read the snapshot {path.name}: {error.strerror}", fix="Start afresh") from error
    if header["window"] is None:
        session: Session = arena.session(owner=owner, quota_bytes=quota_bytes)
    else:
        session = arena.session(window=WindowSpec(**header["window"]), owner=owner, quota_bytes=quota_bytes)
    try:
        session.place_rows(parts[0], header["state"], *parts[1:])
    except GpuError:
        session.close()
        raise
    return Restored(session, tuple(header["ids"]), tuple(header["cuts"]))


def _layout(spec: ArenaSpec) -> dict[str, Any]:
    layout: dict[str, Any] = {"row_shape": list(spec.row_shape), "dtype": spec.dtype}
    return layout if spec.body is None else {**layout, "body": asdict(spec.body)}


def _layout_text(layout: dict[str, Any]) -> str:
    body = f" with a body of {layout['body']}" if "body" in layout else ""
    return f"{layout['row_shape']} {layout['dtype']}{body}"


def _blocks(parts: Sequence[torch.Tensor], row_bytes: int) -> Iterator[memoryview]:
    import torch

    count = max(1, _BLOCK_BYTES // row_bytes)
    for part in parts:
        for begin in range(0, part.shape[0], count):
            rows = part[begin : begin + count].to("cpu", copy=True)
            yield rows.view(torch.uint8).numpy().reshape(-1).data


def _verify(file: BufferedReader, name: str) -> None:
    """Check magic, version and checksum; leaves the file at the header's length."""
    front = file.read(_FRONT.size)
    if len(front) < _FRONT.size or not front.startswith(_MAGIC):
        raise SnapshotError(f"{name} is no snapshot of a session", fix="Start afresh")
    version = _FRONT.unpack(front)[1]
    if version != VERSION:
        raise SnapshotError(f"{name} has format {version}, this program reads {VERSION}", fix="Start afresh")
    remaining = file.seek(0, os.SEEK_END) - _CHECKSUM_BYTES
    file.seek(0)
    digest = hashlib.sha256()
    while remaining > 0:
        block = file.read(min(_BLOCK_BYTES, remaining))
        digest.update(block)
        remaining -= len(block)
    if file.read() != digest.digest():
        raise SnapshotError(f"{name} is damaged: its checksum does not match", fix="Start afresh")
    file.seek(0)


def _read_header(file: BufferedReader) -> dict[str, Any]:
    _, _, length = _FRONT.unpack(file.read(_FRONT.size))
    if length > _LONGEST_HEADER_BYTES:
        raise SnapshotError("The snapshot's header is impossibly long", fix="Start afresh")
    header: dict[str, Any] = json.loads(file.read(length))
    return header


def _require(header: dict[str, Any], spec: ArenaSpec, model: str, name: str) -> None:
    if header["model"] != model:
        raise SnapshotError(f"{name} was made with another model", fix="Load that model, or start afresh")
    if header["layout"] != _layout(spec):
        theirs, ours = _layout_text(header["layout"]), _layout_text(_layout(spec))
        raise SnapshotError(
            f"{name} holds rows of {theirs}, the arena's are {ours}",
            fix="Open the arena as it was, or start afresh",
        )
    tokens = header["rows"][0]
    if spec.body is not None:  # most of them are not rows of their own
        tokens = header["state"]["length"] + header["state"]["offset"]
    if header["window"] is None and tokens > spec.positions:
        raise SnapshotError(
            f"{name} holds {tokens} tokens, a session of the arena {spec.positions}",
            fix="Open the arena with more positions, or start afresh",
        )


def _read_rows(file: BufferedReader, rows: int, spec: ArenaSpec) -> torch.Tensor:
    import torch

    if not rows:
        return torch.empty((0, *spec.row_shape), dtype=torch_dtype(spec.dtype))
    content = bytearray(rows * spec.row_bytes)
    file.readinto(content)  # all of it: the checksum says so
    return torch.frombuffer(content, dtype=torch_dtype(spec.dtype)).view(rows, *spec.row_shape)


def _sync_folder(folder: Path) -> None:
    """Make the rename last; systems without folder descriptors do that by themselves."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
