"""The file of `--events`: one JSON object a line, every line whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

from app.errors import AgentError


class EventLog:
    """Made with its first event: a session that does not begin leaves alone what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def write(self, line: str) -> None:
        """Append one line, at once.

        Raises:
            AgentError: the file cannot be made.
            OSError: the line cannot be written, as on a full disk; the lines before it stay whole.
        """
        if self._file is None:
            self._file = self._open()
        data = line.encode() + b"\n"
        written = self._file.write(data)
        if written != len(data):
            with suppress(OSError):
                self._file.truncate(self._file.tell() - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """No more is written; closing twice is harmless."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> FileIO:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.open("wb", buffering=0)
        except OSError as error:
            raise AgentError(f"{self.path} cannot be written: {error.strerror}", fix="Name another file") from None
