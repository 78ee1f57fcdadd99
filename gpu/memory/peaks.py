"""Peaks that real runs reached, in one SQLite file: the planner reads them in place of estimates.

A help and never a hindrance: a file that is locked, damaged or cannot be written costs the record, not the run.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gpu.memory.preflight import PeakKey

_LOG = logging.getLogger(__name__)
_WAIT_S = 0.2
"""For another process's lock. The planner answers people, so it does not wait long."""
_KEPT_RUNS = 5
"""More would keep one odd run for weeks."""
_COLUMNS = "stage, model, precision, context_tokens, device, version"
_TABLE = f"""
CREATE TABLE IF NOT EXISTS peaks (
    stage TEXT NOT NULL, model TEXT NOT NULL, precision TEXT NOT NULL, context_tokens INTEGER NOT NULL,
    device TEXT NOT NULL, version TEXT NOT NULL, peak_bytes INTEGER NOT NULL, recorded_s REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS peaks_by_key ON peaks ({_COLUMNS}, recorded_s);
"""
_WHERE = "stage = ? AND model = ? AND precision = ? AND context_tokens = ? AND device = ? AND version = ?"


class Peaks:
    """The largest of the last 5 runs of each key. Every call opens the file and closes it: nothing is held."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock_s = clock_s

    def peak(self, key: PeakKey) -> int | None:
        """Bytes, None where nothing is known or the file cannot be read."""
        if not self.path.is_file():
            return None
        try:
            with self._open() as base:
                last = f"SELECT peak_bytes FROM peaks WHERE {_WHERE} ORDER BY recorded_s DESC, rowid DESC LIMIT ?"
                row = base.execute(f"SELECT MAX(peak_bytes) FROM ({last})", (*_values(key), _KEPT_RUNS)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._excuse("read", error)
            return None
        value = row[0]
        return value if isinstance(value, int) and value > 0 else None

    def record(self, key: PeakKey, peak_bytes: int) -> bool:
        """Keep one run's peak; whether it was kept."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as base:
                base.executescript(_TABLE)
                marks = ", ".join("?" * 8)
                base.execute(
                    f"INSERT INTO peaks ({_COLUMNS}, peak_bytes, recorded_s) VALUES ({marks})",
                    (*_values(key), int(peak_bytes), self._clock_s()),
                )
                old = f"SELECT rowid FROM peaks WHERE {_WHERE} ORDER BY recorded_s DESC, rowid DESC LIMIT -1 OFFSET ?"
                base.execute(f"DELETE FROM peaks WHERE rowid IN ({old})", (*_values(key), _KEPT_RUNS))
                base.commit()
        except (sqlite3.Error, OSError) as error:
            self._excuse("written", error)
            return False
        return True

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=_WAIT_S)) as base:
            yield base

    def _excuse(self, what: str, error: Exception) -> None:
        """Log it; put a damaged file aside, so that the next record begins a new one."""
        _LOG.warning("The recorded memory peaks in %s cannot be %s: %s", self.path, what, error)
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        if damaged:
            try:
                self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
            except OSError as failure:
                _LOG.warning("It cannot be put aside either: %s", failure)


def _values(key: PeakKey) -> tuple[str | int, ...]:
    return (key.stage, key.model, key.precision, key.context_tokens, key.device, key.version)
