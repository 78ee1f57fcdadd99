"""The conversation in a terminal: what is shown, and what becomes of it where nothing can be shown."""

from __future__ import annotations

import errno
import io

import pytest

from app import events
from app.cli.terminal import TerminalFace
from app.errors import AgentError
from gpu.memory.rungs import CpuRung, KvRung, SpareRung, WindowRung


class Screen(io.StringIO):
    """A terminal; `number` is the error that it answers with."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.number = 0
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if self.number:
            raise OSError(self.number, "reason")
        return super().write(text)


def meters(at_samples: int) -> events.Meters:
    return events.Meters(at_samples, -60.0, -60.0, -60.0, 0.0, 0.0, 0)


def lines(screen: io.StringIO) -> list[str]:
    """Those that stay."""
    return [line.rpartition("\r\x1b[K")[2] for line in screen.getvalue().split("\n")[:-1]]


def test_words_cannot_steer_the_terminal() -> None:
    for text in ("\x1b[2J\x07red", "\x9b2J\r\n\x00red"):
        screen = Screen()
        face = TerminalFace(screen)
        face.show(events.UserTranscript(0, 1, text, False, 3))
        face.show(events.UserTranscript(0, 1, text, True, 3))
        face.show(events.AgentText(0, 1, 1, text, 0))
        face.show(events.AgentSaid(0, 1, text, text, False))
        face.line(text)
        face.close()
        shown = screen.getvalue().replace("\r\x1b[K", "").replace("\n", "")
        assert shown.isprintable(), shown
        assert "2Jred" in shown


def test_a_long_fast_run_tells_each_minute_once_and_only_on_a_terminal() -> None:
    screen, file = Screen(), io.StringIO()
    for out in (screen, file):
        face = TerminalFace(out)
        face.show(meters(10 * 60 * 16_000))
        face.tell_progress(10 * 60 * 16_000)
        for second in range(0, 200, 2):
            face.show(meters(second * 16_000))
        face.show(meters(500 * 16_000))
        face.close()
    assert lines(screen) == ["       1 of 10 min", "       2 of 10 min", "       3 of 10 min", "       8 of 10 min"]
    assert file.getvalue() == ""


def test_a_closed_terminal_is_forgotten_and_a_full_disk_is_one_sentence() -> None:
    screen = Screen()
    face = TerminalFace(screen)
    screen.number = errno.EIO
    face.line("nobody sees this")
    face.show(meters(0))
    face.close()
    file = Screen(is_terminal=False)
    face = TerminalFace(file)
    file.number = errno.ENOSPC
    with pytest.raises(AgentError, match=r"the standard output cannot be written: reason\. Free some disk space"):
        face.line("text")
    face.close()


def test_a_reader_that_goes_away_is_not_an_error_of_the_disk() -> None:
    screen = Screen()
    face = TerminalFace(screen)
    screen.number = errno.EPIPE
    with pytest.raises(BrokenPipeError):
        face.line("text")


def test_memory_that_is_scarce_is_said_for_every_rung_that_can_be_given_up() -> None:
    screen = io.StringIO()
    face = TerminalFace(screen)
    rungs = (SpareRung.name, WindowRung.name, KvRung.name, CpuRung.name)
    for rung in rungs:
        face.show(events.MemoryDegraded(0, "tight", rung, 12_400_000))
        face.show(events.MemoryRestored(0, "calm", rung, 12_400_000))
    said = lines(screen)
    assert len(set(said)) == 2 * len(rungs)
    assert "memory is tight: half of the conversation's window was given up, 12 MB came free" in said
    assert "there is memory again: the window is whole" in said
