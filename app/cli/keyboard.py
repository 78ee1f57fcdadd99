"""What is typed, at a terminal or into a pipe: lines without control characters, and the commands that they mean."""

from __future__ import annotations

import os
import re
import select
import stat
from typing import TextIO

from app.commands import Command, Quit, SayText, SetMuted, StopSpeaking

COMMANDS: dict[str, Command] = {
    "/stop": StopSpeaking(),
    "/mute": SetMuted(True),
    "/unmute": SetMuted(False),
    "/quit": Quit(),
}
_READ_BYTES = 4096
_LINE_BYTES = 16_384
"""A longer line is taken in pieces; nobody says so much at once."""
_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|.)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Keyboard:
    """Standard input, read without waiting. The end of a pipe is the end of the typing, not of the conversation."""

    def __init__(self, stdin: TextIO | None) -> None:
        self._descriptor = -1
        self._rest = b""
        self.is_terminal = False
        if stdin is None or os.name != "posix":  # elsewhere one cannot look whether something was typed
            return
        try:
            descriptor = stdin.fileno()
            mode = os.fstat(descriptor).st_mode
        except (OSError, ValueError):  # closed, or not one of the system's files
            return
        self.is_terminal = os.isatty(descriptor)
        if self.is_terminal or stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode):
            self._descriptor = descriptor

    @property
    def is_open(self) -> bool:
        """Whether something may still come."""
        return self._descriptor >= 0

    def lines(self) -> list[str]:
        """The lines that have come since the last call, cleaned; empty ones are left out."""
        while self.is_open and select.select([self._descriptor], [], [], 0)[0]:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except OSError:  # the terminal is gone
                data = b""
            if not data:
                self._descriptor = -1
                data = b"\n"  # what came last needs no end of its own
            self._rest += data
            if len(self._rest) > _LINE_BYTES:
                break
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        return [text for line in lines if (text := clean(line))]


def clean(line: bytes) -> str:
    """Text that may go anywhere: what is no UTF-8 is replaced, what steers a terminal is dropped."""
    text = _ESCAPE_SEQUENCE.sub("", line.decode("utf-8", errors="replace"))
    return " ".join(_CONTROL.sub("", re.sub(r"\s", " ", text)).split())


def parse_command(line: str) -> Command | None:
    """A typed line as a command; words are for the agent, and None stands for a command that does not exist."""
    if line.startswith("/"):
        return COMMANDS.get(line.lower())
    return SayText(line)
