"""Named shared memory that one process creates and removes, and others attach.

Not `multiprocessing.shared_memory`: its resource tracker deletes segments under their owner when an
attached process dies (CPython 3.11), and its destructor complains while arrays still look into the memory.
Here a mapping lives as long as anything refers to it, and only the creator removes the name.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from audio.errors import AudioError

_PREFIX = "vivavoce-"
_SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """What another process needs to attach."""

    name: str
    nbytes: int


class Segment:
    """Shared memory of this process's making; zero at first. Removed by `unlink`, or when the process ends.

    Raises:
        AudioError: there is not enough shared memory.
    """

    def __init__(self, role: str, nbytes: int) -> None:
        self.ref = SegmentRef(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{role}", nbytes)
        if sys.platform == "win32":
            self.buffer = memoryview(mmap.mmap(-1, nbytes, tagname=self.ref.name))
            self._remove = weakref.finalize(self, int)  # Windows frees it with the last handle
            return
        path = _folder() / self.ref.name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._remove = weakref.finalize(self, _unlink, path, os.getpid())
        try:
            os.posix_fallocate(descriptor, 0, nbytes)  # else a full /dev/shm would be a SIGBUS later
            self.buffer = memoryview(mmap.mmap(descriptor, nbytes))
        except OSError as error:
            self._remove()
            message = f"no {nbytes >> 10} KiB of shared memory: {error.strerror}"
            raise AudioError(message, fix=f"Free space in {_folder()}") from None
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the name; memory in use stays until its last user lets go. Harmless twice."""
        self._remove()


def attach(ref: SegmentRef) -> memoryview:
    """The memory of a segment that another process made.

    Raises:
        FileNotFoundError: it has been removed.
    """
    if sys.platform == "win32":
        return memoryview(mmap.mmap(-1, ref.nbytes, tagname=ref.name))
    descriptor = os.open(_folder() / ref.name, os.O_RDWR)
    try:
        return memoryview(mmap.mmap(descriptor, ref.nbytes))
    finally:
        os.close(descriptor)


def sweep_stale() -> list[str]:
    """Remove the segments of processes that no longer live; their names."""
    if sys.platform == "win32":
        return []
    swept = []
    for path in _folder().glob(f"{_PREFIX}*-*-*"):
        owner = path.name.removeprefix(_PREFIX).split("-", 1)[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            path.unlink(missing_ok=True)
            swept.append(path.name)
    return swept


def _folder() -> Path:
    return _SHM if _SHM.is_dir() else Path(tempfile.gettempdir())


def _unlink(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked copy of the object must not remove what its parent uses
        path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True
