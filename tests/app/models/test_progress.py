"""What a download shows, in a terminal and in a log, on a clock of its own."""

from __future__ import annotations

import io

from app.models.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _run(stream: io.StringIO, seconds: float, step_s: float, bytes_a_second: int) -> Progress:
    clock = _Clock()
    progress = Progress(stream, clock)
    progress.begin(0)
    while clock.now_s < 100.0 + seconds:
        clock.now_s += step_s
        progress.update("voice", int((clock.now_s - 100.0) * bytes_a_second), 100_000_000)
    return progress


def test_log_gets_a_plain_line_every_five_seconds() -> None:
    stream = io.StringIO()
    _run(stream, 10.0, 0.5, 2_000_000).end()
    assert stream.getvalue().splitlines() == [
        "  voice: 10.0 of 100.0 MB, 2.0 MB/s, 0:45 left",
        "  voice: 20.0 of 100.0 MB, 2.0 MB/s, 0:40 left",
    ]


def test_terminal_line_is_rewritten_and_goes_away() -> None:
    stream = _Terminal()
    progress = _run(stream, 2.0, 0.25, 1_000_000)
    assert "\n" not in stream.getvalue()
    shown = stream.getvalue().split("\r")
    assert shown[-1] == "  voice: 2.0 of 100.0 MB, 1.0 MB/s, 1:38 left"
    assert len(shown) == 9, "eight in two seconds"
    progress.say("done")
    last = stream.getvalue().split("\r")
    assert last[-2].strip() == ""
    assert len(last[-2]) >= len(shown[-1])
    assert last[-1] == "done\n"


def test_rate_is_that_of_the_last_seconds() -> None:
    stream, clock = io.StringIO(), _Clock()
    progress = Progress(stream, clock)
    progress.begin(0)
    done = 0
    for second in range(60):
        clock.now_s += 1.0
        done += 100_000 if second < 40 else 1_000_000
        progress.update("voice", done, 50_000_000)
    assert "1.0 MB/s" in stream.getvalue().splitlines()[-1]


def test_what_was_there_before_does_not_count_as_rate() -> None:
    stream, clock = io.StringIO(), _Clock()
    progress = Progress(stream, clock)
    progress.begin(90_000_000)
    clock.now_s += 5.0
    progress.update("voice", 95_000_000, 100_000_000)
    assert stream.getvalue() == "  voice: 95.0 of 100.0 MB, 1.0 MB/s, 0:05 left\n"


def test_start_from_the_beginning_again_shows_no_rate() -> None:
    stream, clock = io.StringIO(), _Clock()
    progress = Progress(stream, clock)
    progress.begin(90_000_000)
    clock.now_s += 5.0
    progress.update("voice", 1_000_000, 100_000_000)
    assert stream.getvalue() == "  voice: 1.0 of 100.0 MB\n"
