"""The log as it grows, is moved away and is filtered; with records written by the program's own handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.log import LOG_FILE, LogSpec, close_log, setup_log
from app.viewmodel.log import LogModel


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[LogSpec]:
    yield LogSpec(str(tmp_path), "20261201T000000Z-abcd")
    close_log()


def _write(spec: LogSpec, process: str, *lines: tuple[int, str]) -> None:
    setup_log(spec, process)
    for level, text in lines:
        logging.getLogger("vivavoce.test").log(level, text)
    close_log()


def _line(number: int, process: str = "ear", level: str = "INFO") -> bytes:
    return f"2026-12-01T00:00:00.000Z s {process}[1] {level} line {number}\n".encode()


def test_no_log_yet_is_no_trouble(tmp_path: Path) -> None:
    model = LogModel(tmp_path / "none")
    model.poll()
    assert (model.shown, model.problem, model.revision, model.crashes) == ([], "", 0, [])


def test_records_of_all_processes_come_in_as_they_are_written(spec: LogSpec) -> None:
    model = LogModel(spec.path.parent)
    _write(spec, "face", (logging.INFO, "turn=1"), (logging.WARNING, "two\nlines"))
    model.poll()
    first, second = model.shown
    assert (first.process, first.level, first.message, first.session) == ("face", "INFO", "turn=1", spec.session)
    assert second.message == "two\nlines"
    assert str(second) in spec.path.read_text()
    revision = model.revision
    model.poll()
    assert model.revision == revision
    _write(spec, "engine", (logging.ERROR, "lost"))
    model.poll()
    assert model.shown[-1].message == "lost"
    assert model.processes == ["engine", "face"]


def test_filter_by_process_level_and_text(spec: LogSpec) -> None:
    model = LogModel(spec.path.parent)
    _write(spec, "face", (logging.INFO, "Alpha"), (logging.WARNING, "beta"))
    _write(spec, "ear", (logging.INFO, "alpha two"), (logging.ERROR, "gamma"))
    model.poll()
    model.set_filter(process="", least_level="WARNING", text="")
    assert [record.message for record in model.shown] == ["beta", "gamma"]
    model.set_filter(process="ear", least_level="DEBUG", text="ALPHA")
    assert [record.message for record in model.shown] == ["alpha two"]
    _write(spec, "ear", (logging.INFO, "alpha three"), (logging.INFO, "delta"))
    model.poll()
    assert [record.message for record in model.shown] == ["alpha two", "alpha three"]
    model.set_filter(process="", least_level="INFO", text="")
    assert len(model.shown) == 6


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path, model = tmp_path / LOG_FILE, LogModel(tmp_path)
    whole = _line(1) + "2026-12-01T00:00:00.001Z s ear[1] INFO größer\n".encode()
    path.write_bytes(whole[:-4])
    model.poll()
    assert [record.message for record in model.shown] == ["line 1"]
    with path.open("ab") as file:
        file.write(whole[-4:])
    model.poll()
    assert model.shown[-1].message == "größer"


def test_one_poll_reads_little_and_a_large_file_is_read_from_near_its_end(tmp_path: Path) -> None:
    path, model = tmp_path / LOG_FILE, LogModel(tmp_path)
    path.write_bytes(b"".join(_line(number) for number in range(20_000)))
    model.poll()
    assert 0 < len(model.shown) <= (16 << 10) / 40
    first = model.shown[0]
    assert first.message.startswith("line ")
    for _ in range(20):
        model.poll()
    assert model.shown[-1].message == "line 19999"
    assert model.skipped_bytes > 0
    numbers = [int(record.message.split()[1]) for record in model.shown]
    assert numbers == list(range(numbers[0], 20_000))
    assert len(numbers) <= 4000


def test_a_file_that_was_moved_away_is_followed_by_the_new_one(tmp_path: Path) -> None:
    path, model = tmp_path / LOG_FILE, LogModel(tmp_path)
    path.write_bytes(_line(1) + _line(2))
    model.poll()
    path.rename(tmp_path / f"{LOG_FILE}.1")
    path.write_bytes(_line(3) + _line(4) + _line(5))
    model.poll()
    assert [record.message for record in model.shown] == [f"line {number}" for number in range(1, 6)]
    path.write_bytes(_line(6))  # shorter: begun anew under the same name
    model.poll()
    assert model.shown[-1].message == "line 6"


def test_a_log_that_cannot_be_read_is_a_sentence_until_it_can(tmp_path: Path) -> None:
    path, model = tmp_path / LOG_FILE, LogModel(tmp_path)
    path.mkdir()
    model.poll()
    assert model.problem == f"{path}: Is a directory"
    path.rmdir()
    path.write_bytes(_line(1))
    model.poll()
    assert (model.problem, len(model.shown)) == ("", 1)


def test_crashes_of_the_newest_session(tmp_path: Path) -> None:
    model = LogModel(tmp_path)
    (tmp_path / LOG_FILE).write_bytes(_line(1))
    for name, text in (("crash-s-ear-1.txt", "Fatal"), ("crash-s-face-2.txt", ""), ("crash-t-ear-3.txt", "old")):
        (tmp_path / name).write_text(text)
    model.poll()
    assert [path.name for path in model.crashes] == ["crash-s-ear-1.txt"]
