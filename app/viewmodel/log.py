"""The log of all processes, followed as it grows: a little at a time, the last few thousand records."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from app.log import LOG_FILE
from app.viewmodel.base import ViewModel

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_KEPT_RECORDS = 4000
_STEP_BYTES = 16 << 10
"""Read in one `poll`."""
_BACK_BYTES = 256 << 10
"""No older part of the file is read; what grows faster than we read is left out, which is said."""
_RECORD = re.compile(r"(\S+) (\S+) ([\w-]+)\[(\d+)\] (DEBUG|INFO|WARNING|ERROR|CRITICAL) ?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record; `message` may have several lines."""

    time: str
    """UTC, as in `2026-12-01T14:39:09.616Z`."""
    session: str
    process: str
    pid: int
    level: str
    message: str

    def __str__(self) -> str:
        message = self.message.replace("\n", "\n    ")
        return f"{self.time} {self.session} {self.process}[{self.pid}] {self.level} {message}"


class LogModel(ViewModel):
    """Newest last. The filter says what `shown` holds; nothing is forgotten by it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the logs; it need not exist."""
        super().__init__()
        self.folder = folder
        self.path = folder / LOG_FILE
        self._records: deque[LogRecord] = deque(maxlen=_KEPT_RECORDS)
        self._shown: deque[LogRecord] = deque(maxlen=_KEPT_RECORDS)
        self._file_id = -1
        self._offset_bytes = 0
        self._rest = b""
        self.skipped_bytes = 0
        """Of the present file: too old, or too much to follow."""
        self.problem = ""
        """Why the log cannot be read; "" where it can, or where there is none yet."""
        self.process = ""
        self.least_level = "INFO"
        self.text = ""

    @property
    def shown(self) -> list[LogRecord]:
        """What passes the filter."""
        return list(self._shown)

    @property
    def processes(self) -> list[str]:
        """Names that occur."""
        return sorted({record.process for record in self._records})

    @property
    def crashes(self) -> list[Path]:
        """What the interpreters of the newest session wrote when they crashed."""
        if not self._records:
            return []
        found = self.folder.glob(f"crash-{self._records[-1].session}-*.txt")
        return sorted(path for path in found if path.stat().st_size)

    def set_filter(self, *, process: str, least_level: str, text: str) -> None:
        """`process` "": all; `text`: a part of the message, in any case."""
        self.process, self.least_level, self.text = process, least_level, text.casefold()
        self._shown = deque((record for record in self._records if self._is_shown(record)), _KEPT_RECORDS)
        self.changed()

    def poll(self) -> None:
        """Read a little on."""
        try:
            data = self._read()
        except FileNotFoundError:
            return
        except OSError as error:
            if self.problem != (problem := f"{self.path}: {error.strerror}"):
                self.problem = problem
                self.changed()
            return
        if data or self.problem:
            self.problem = ""
            self._take(data)
            self.changed()

    def _read(self) -> bytes:
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            file_id = self.path.stat().st_ino
            if file_id != self._file_id or size < self._offset_bytes:  # moved away, and begun anew
                self._file_id, self._offset_bytes, self._rest, self.skipped_bytes = file_id, 0, b"", 0
            if size - self._offset_bytes > _BACK_BYTES:
                start = size - _BACK_BYTES
                self.skipped_bytes += start - self._offset_bytes
                self._offset_bytes, self._rest = start, b""
                file.seek(start)
                cut_off = file.readline()  # the end of a line whose start we do not have
                self._offset_bytes += len(cut_off)
            file.seek(self._offset_bytes)
            data = file.read(_STEP_BYTES)
            self._offset_bytes += len(data)
            return data

    def _take(self, data: bytes) -> None:
        """Whole lines; the rest waits for its end. A line that begins with a space goes on with the record before."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            if text.startswith(" "):
                self._continue(text.removeprefix("    "))
            elif match := _RECORD.fullmatch(text):
                time, session, process, pid, level, message = match.groups()
                self._add(LogRecord(time, session, process, int(pid), level, message))

    def _add(self, record: LogRecord) -> None:
        self._records.append(record)
        if self._is_shown(record):
            self._shown.append(record)

    def _continue(self, line: str) -> None:
        if not self._records:
            return
        last = self._records.pop()
        if self._shown and self._shown[-1] is last:
            self._shown.pop()
        more = f"{last.message}\n{line}"
        self._add(LogRecord(last.time, last.session, last.process, last.pid, last.level, more))

    def _is_shown(self, record: LogRecord) -> bool:
        return (
            self.process in ("", record.process)
            and LEVELS.index(record.level) >= LEVELS.index(self.least_level)
            and self.text in record.message.casefold()
        )
