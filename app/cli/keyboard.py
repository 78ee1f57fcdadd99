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
"""A longer line is not taken; nobody says so much at once."""
_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|.)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Keyboard:
    """Standard input, read without waiting. The end of a pipe is the end of the typing, not of the conversation."""

    def __init__(self, stdin: TextIO | None) -> None:
        self._descriptor = -1
        self._rest = b""
        self._is_too_long = False  # the line whose end has not come yet
        self.is_terminal = False
        self.remark = ""
        """What of the last `lines` was not taken; "" where all was."""
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
        """The lines that have come since the last call, cleaned; empty and overlong ones are left out."""
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
        return [text for line in self._whole_lines() if (text := clean(line))]

    def _whole_lines(self) -> list[bytes]:
        """Take them out of what was read, and say so once of each that is too long: it is dropped as it comes."""
        *lines, self._rest = self._rest.split(b"\n")
        if self._is_too_long and lines:
            del lines[0]
            self._is_too_long = False
        taken = [line for line in lines if len(line) <= _LINE_BYTES]
        begins_too_long = not self._is_too_long and len(self._rest) > _LINE_BYTES
        self._is_too_long = self._is_too_long or begins_too_long
        if self._is_too_long:
            self._rest = b""
        has_dropped = begins_too_long or len(taken) < len(lines)
        self.remark = f"a line of more than {_LINE_BYTES} bytes was not taken; shorten it" if has_dropped else ""
        return taken


def clean(line: bytes) -> str:
    """Text that may go anywhere: what is no UTF-8 is replaced, what steers a terminal is dropped."""
    text = _ESCAPE_SEQUENCE.sub("", line.decode("utf-8", errors="replace"))
    return " ".join(_CONTROL.sub("", re.sub(r"\s", " ", text)).split())


def parse_command(line: str) -> Command | None:
    """A typed line as a command; words are for the agent, and None stands for a command that does not exist."""
    if line.startswith("/"):
        return COMMANDS.get(line.lower())
    return SayText(line)
