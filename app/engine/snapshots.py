"""The conversation's keys and values on disk, for the engine that comes after a crash: one file for each session."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.tended_model import TendedModel
from gpu.errors import GpuError

if TYPE_CHECKING:
    from gpu.llm.model import LocalLanguageModel

_logger = logging.getLogger("vivavoce.memory")
_INTERVAL_S = 10.0
_LARGEST_BYTES = 1 << 30
"""Reading more takes longer than people wait; the engine then reads the history again, as it does without a file."""


def open_snapshot_file(cache: Path) -> Path:
    """The place for this process's session, in a folder of its user's alone; what dead sessions left is removed."""
    import psutil

    folder = cache / "snapshots"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.iterdir():
        owner = path.name.lstrip(".").partition(".")[0]
        if owner.isdecimal() and (int(owner) == os.getpid() or not psutil.pid_exists(int(owner))):
            path.unlink(missing_ok=True)
    return folder / f"{os.getpid()}.kv"


def remove_snapshot_file(path: Path) -> None:
    """The session is over: nobody comes back to it. The half of one that a dead engine left goes too."""
    with suppress(OSError):
        for leaving in (path, *path.parent.glob(f".{path.name}.*.tmp")):
            leaving.unlink(missing_ok=True)


def resume(model: LocalLanguageModel, path: Path) -> bool:
    """Let the model go on from what an engine before this one kept; whether there was something to go on from."""
    if not path.exists():
        return False
    try:
        tokens = model.resume(path)
    except GpuError as error:
        _logger.warning("the conversation is read again: %s", error.message)
        return False
    _logger.info("%d tokens of the conversation need not be read again", tokens)
    return tokens > 0


class SnapshotKeeper:
    """`look` writes what is new, in the caller's thread, while nobody speaks and nobody waits."""

    def __init__(
        self,
        model: TendedModel,
        path: Path,
        is_idle: Callable[[], bool],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        largest_bytes: int = _LARGEST_BYTES,
    ) -> None:
        """`is_idle` is asked again while a file is written: somebody who begins to speak ends it."""
        self._model = model
        self._path = path
        self._is_idle = is_idle
        self._clock_s = clock_s
        self._largest_bytes = largest_bytes
        self._written: tuple[int, ...] = ()
        self._next_s = 0.0
        self._has_failed = False

    def look(self) -> bool:
        """Write where there is something new and it is time; whether it did."""
        if self._has_failed or not self._is_idle() or self._clock_s() < self._next_s:
            return False
        try:
            return self._write()
        except GpuError as error:
            _logger.warning("no more snapshots of this conversation: %s", error.message)
            self._has_failed = True
            return False

    def _write(self) -> bool:
        with self._model.tend(wait=False) as model:
            if model is None or not model.held_ids or model.held_ids == self._written:
                return False
            kept = model.keep()
        try:
            if kept.size_bytes > self._largest_bytes:
                _logger.info("a snapshot of %d bytes is too large to be kept", kept.size_bytes)
                self._written = kept.ids
                return False
            begun_s = self._clock_s()
            if not kept.save(self._path, stopped=lambda: not self._is_idle()):
                return False
            self._written, self._next_s = kept.ids, self._clock_s() + _INTERVAL_S
            took_ms = (self._next_s - _INTERVAL_S - begun_s) * 1000
            _logger.info("a snapshot of %d tokens took %.0f ms", len(kept.ids), took_ms)
            return True
        finally:
            kept.close()
