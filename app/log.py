"""One log for all processes of a session, and a file for what the interpreter says when it crashes.

`<data>/logs/vivavoce.log` takes one line a record from every process: UTC time, session, process and pid, level,
message. Each line is one write to a file opened for appending, so lines of several processes never mix. The
face moves a file that has grown too large out of the way, before it begins a session; nobody else does. What was
said is never written: events go through `event_line`, which leaves texts out. Imports only the standard library:
every child runs `setup_log` first.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.events import Event

LOG_FILE = "vivavoce.log"
_KEPT_FILES = 3
"""vivavoce.log.1 is the newest of the files that were moved away."""
_ROTATE_BYTES = 2 << 20
_PROCESS_LIMIT_BYTES = 8 << 20
"""A process that writes more than this in one session has gone mad; it is cut off with a line that says so."""
_KEPT_CRASHES = 20
_LOGGER = "vivavoce"
_TEXT_FIELDS = frozenset({"text", "heard", "resumed", "argument"})
"""Fields of events that hold what somebody said."""


@dataclass(frozen=True, slots=True)
class LogSpec:
    """What a child needs to write to the session's log. Plain values: it travels to other processes."""

    folder: str
    session: str
    """The correlation id: the same in every line of a session. Sorts by the time when it began."""

    @property
    def path(self) -> Path:
        """The log."""
        return Path(self.folder) / LOG_FILE

    def crash_path(self, process_name: str, pid: int) -> Path:
        """Where the interpreter of a process writes when it crashes."""
        return Path(self.folder) / f"crash-{self.session}-{process_name}-{pid}.txt"


def begin_session(data: Path) -> LogSpec:
    """For the face, once, before children start: make room, name the session. `data` is the user's data folder.

    Never raises: without a place to write there is no log, and the conversation goes on.
    """
    session = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(2).hex()}"
    spec = LogSpec(str(data / "logs"), session)
    try:
        spec.path.parent.mkdir(parents=True, exist_ok=True)
        if spec.path.exists() and spec.path.stat().st_size > _ROTATE_BYTES:
            _rotate(spec.path)
        _sweep_crashes(spec.path.parent)
    except OSError:  # read-only, full, or another face moves the same files
        pass
    return spec


def setup_log(spec: LogSpec, process_name: str, *, is_quiet: bool = False) -> None:
    """Log of this process, from now on: `logging.getLogger("vivavoce.…")` from INFO, all others from WARNING.

    `is_quiet`: what native libraries print to the terminal is dropped from now on (ALSA tells every underrun).

    Also tells `faulthandler` to write to the crash file of this process. May be called again for a new session.
    """
    close_log()
    handler = _LineHandler(spec, process_name)
    logging.getLogger().addHandler(handler)
    logging.getLogger(_LOGGER).setLevel(logging.INFO)
    if is_quiet:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)


def close_log() -> None:
    """Undo `setup_log`; harmless where nothing was set up. A crash file that stayed empty is removed."""
    for handler in logging.getLogger().handlers[:]:
        if isinstance(handler, _LineHandler):
            logging.getLogger().removeHandler(handler)
            handler.close()


def current_log() -> LogSpec | None:
    """Where this process logs; None before `setup_log`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler):
            return handler.spec
    return None


def event_line(event: Event) -> str:
    """An event for the log: its type and its fields, without what anybody said."""
    fields = dataclasses.asdict(event)
    kept = (f"{name}={_plain(value)}" for name, value in fields.items() if name not in _TEXT_FIELDS)
    return " ".join([event.type, *kept])


class _LineHandler(logging.Handler):
    """Appends records to the log. Errors while writing are dropped: nothing may fail because it is logged."""

    def __init__(self, spec: LogSpec, process_name: str) -> None:
        super().__init__()
        self.spec = spec
        self._prefix = f"{spec.session} {process_name}[{os.getpid()}]"
        self._crash_path = spec.crash_path(process_name, os.getpid())
        self._written_bytes = 0
        self._file = _append_to(spec.path)
        self._crash_file = _append_to(self._crash_path)
        if self._crash_file >= 0:
            faulthandler.enable(self._crash_file)

    def emit(self, record: logging.LogRecord) -> None:
        """One record, one write. A message of several lines goes on in lines that begin with a space."""
        if self._file < 0 or self._written_bytes > _PROCESS_LIMIT_BYTES:
            return
        try:
            line = f"{_stamp(record.created)} {self._prefix} {record.levelname} {self.format(record)}".rstrip()
            data = (line.replace("\n", "\n    ") + "\n").encode("utf-8", "backslashreplace")
            self._written_bytes += len(data)
            if self._written_bytes > _PROCESS_LIMIT_BYTES:
                data = f"{_stamp(record.created)} {self._prefix} ERROR too much was logged, it ends here\n".encode()
            os.write(self._file, data)
        except (OSError, ValueError, TypeError):  # a full disk, or a message that does not fit its arguments
            pass

    def close(self) -> None:
        """See `logging.Handler`."""
        if self._crash_file >= 0:
            faulthandler.disable()
            _close(self._crash_file)
            self._crash_file = -1
            _remove_empty(self._crash_path)
        if self._file >= 0:
            _close(self._file)
            self._file = -1
        super().close()


def _append_to(path: Path) -> int:
    """A file descriptor, or -1 where the file cannot be written."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return -1


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # somebody else closed it


def _stamp(created_s: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(created_s))}.{int(created_s % 1 * 1000):03d}Z"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return repr(text) if " " in text or not text else text


def _rotate(path: Path) -> None:
    for number in range(_KEPT_FILES - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))


def _sweep_crashes(folder: Path) -> None:
    """Empty files of processes that were killed go at once, those that hold something when there are many."""
    crashes = sorted(folder.glob("crash-*.txt"), key=lambda path: path.stat().st_mtime)
    for path in crashes:
        if not _is_alive(path):
            _remove_empty(path)
    for path in [path for path in crashes if path.exists()][:-_KEPT_CRASHES]:
        path.unlink(missing_ok=True)


def _is_alive(crash_path: Path) -> bool:
    """The process that the file belongs to may still crash."""
    pid = crash_path.stem.rpartition("-")[2]
    return pid.isdecimal() and Path(f"/proc/{pid}").exists()


def _remove_empty(path: Path) -> None:
    try:
        if not path.stat().st_size:
            path.unlink()
    except OSError:
        pass  # it is gone, or stays
