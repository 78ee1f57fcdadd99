"""Which logs can be followed, how far, and what counts as the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import events
from app.cli.replay import _compare, _read_lines
from app.engine.files import read_log
from app.errors import AgentError

STARTED = events.SessionStarted(0, "1", 0, "live", 48_000, 0.0, "default", "", [])
SAID = events.UserTranscript(16_000, 1, "naïve 👍 words", True, 14)
ARRIVED = events.Arrival(32_000, 1, "llm", 0, 0.0)
ENDED = events.SessionEnded(48_000, "quit")


def written(path: Path, *lines: events.Event) -> Path:
    path.write_text("".join(f"{line.to_json()}\n" for line in lines), encoding="utf-8")
    return path


def test_a_whole_log_is_followed_to_the_end_of_its_audio(tmp_path: Path) -> None:
    log = read_log(_read_lines(written(tmp_path / "e", STARTED, SAID, ARRIVED, ENDED)))
    assert (log.ended_samples, log.end_samples, log.remark, len(log.lines)) == (32_000, 48_000, "", 4)


def test_a_log_cut_anywhere_is_followed_as_far_as_its_lines_are_whole(tmp_path: Path) -> None:
    """A crash cuts between two bytes, not between two lines, and not between two characters."""
    whole = written(tmp_path / "e", STARTED, SAID, ARRIVED, ENDED).read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:end])
        log = read_log(_read_lines(tmp_path / "cut"))
        assert log.remark
        assert len(log.lines) in (whole[:end].count(b"\n"), whole[:end].count(b"\n") + 1)
        assert [line.encode() for line in log.lines] == whole.splitlines()[: len(log.lines)]
        assert log.end_samples == log.ended_samples


def test_what_is_wrong_inside_a_log_is_no_cut(tmp_path: Path) -> None:
    lines = written(tmp_path / "e", STARTED, SAID, ENDED).read_text(encoding="utf-8").splitlines()
    with pytest.raises(AgentError, match="line 2 of the log"):
        read_log([lines[0], lines[1][:20], lines[2]])
    with pytest.raises(AgentError, match="line 1 of the log"):
        read_log(["my notes"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n\n")
    with pytest.raises(AgentError, match="it is not UTF-8 text"):
        _read_lines(tmp_path / "binary")


def test_a_killed_session_settles_nothing_and_its_replay_does(capsys: pytest.CaptureFixture[str]) -> None:
    said = events.AgentSaid(32_000, 1, "an answer", "an", True)
    before, after = [event.to_json() for event in (STARTED, SAID, ARRIVED)], [SAID.to_json(), ARRIVED.to_json()]
    assert _compare(before, [*after, said.to_json()], is_cut=True) == 0
    assert "same decisions: 2 events" in capsys.readouterr().out
    assert _compare(before, [*after, said.to_json()], is_cut=False) == 1
    assert _compare(before, after[::-1], is_cut=True) == 1
