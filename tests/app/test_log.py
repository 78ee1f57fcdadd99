"""One log for all processes, whole lines, no word of what was said; and crashes that are named."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import re
import signal
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app import events
from app.cli.main import main
from app.crash import describe_crash, describe_death
from app.log import LogSpec, begin_session, event_line, setup_log

_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\S+) (\w+)\[(\d+)\] (INFO|WARNING|ERROR) (.*)")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a user who has no configuration."""
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path / "data" / "vivavoce"


def _in_child(work: Callable[[], None]) -> tuple[int, int | None]:
    """Run it in a process of its own: `setup_log` changes the process. (pid, exit code)."""
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    assert child.pid is not None
    child.join(60)
    ended = child.pid, child.exitcode
    child.close()
    return ended


def _write_many(spec: LogSpec, name: str, lines: int) -> None:
    setup_log(spec, name)
    for number in range(lines):
        logging.getLogger("vivavoce.test").info("%d %s", number, "x" * 300)


def test_lines_of_several_processes_stay_whole(data: Path) -> None:
    spec = begin_session(data)
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_write_many, args=(spec, name, 500)) for name in ("audio", "ear", "engine")]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
        child.close()
    matches = [_LINE.fullmatch(line) for line in spec.path.read_text().splitlines()]
    assert all(matches)
    assert len(matches) == 1500
    found = [match for match in matches if match]
    assert {match[1] for match in found} == {spec.session}
    assert len({(match[2], match[3]) for match in found}) == 3
    for name in ("audio", "ear", "engine"):
        numbers = [int(match[5].split()[0]) for match in found if match[2] == name]
        assert numbers == list(range(500))
    assert list(spec.path.parent.glob("crash-*")) == []


def _log_all_kinds(spec: LogSpec) -> None:
    setup_log(spec, "face")
    logging.getLogger("vivavoce.test").debug("too small to keep")
    logging.getLogger("another.library").info("not ours")
    logging.getLogger("another.library").warning("but this matters")
    logging.getLogger("vivavoce.test").info("%d arguments too few: %d", 1)
    logging.getLogger("vivavoce.test").info("two\nlines \ud800")
    try:
        raise KeyError("missing")
    except KeyError as error:
        print(describe_crash(error))


def test_what_is_kept_and_what_cannot_be_written_is_dropped(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = begin_session(data)
    assert _in_child(partial(_log_all_kinds, spec))[1] == 0
    lines = spec.path.read_text().splitlines()
    assert lines[0].endswith("WARNING but this matters")
    assert lines[1].endswith("INFO two")
    assert lines[2] == r"    lines \ud800"
    assert " ERROR vivavoce " in lines[3]
    assert "KeyError: 'missing'" in lines[-1]
    assert all(line.startswith(" ") for line in lines[4:])
    said = capfd.readouterr()
    assert f"details: {spec.path}, session {spec.session}" in said.out
    assert said.err == ""


def _log_too_much(spec: LogSpec) -> None:
    setup_log(spec, "ear")
    for _ in range(20):
        logging.getLogger("vivavoce.test").info("x" * 1_000_000)


def test_a_process_that_logs_without_end_is_cut_off(data: Path) -> None:
    spec = begin_session(data)
    _in_child(partial(_log_too_much, spec))
    assert spec.path.stat().st_size < 9 << 20
    assert spec.path.read_text().splitlines()[-1].endswith("ERROR too much was logged, it ends here")


def test_a_log_that_has_grown_is_moved_away_by_the_next_session(data: Path) -> None:
    log = begin_session(data).path
    for number in range(5):
        log.write_text(f"{number}\n" + "x" * (3 << 20))
        begin_session(data)
    kept = sorted(path.name for path in log.parent.iterdir())
    assert kept == ["vivavoce.log.1", "vivavoce.log.2", "vivavoce.log.3"]
    assert (log.parent / "vivavoce.log.1").read_text().startswith("4\n")


def test_without_a_place_to_write_there_is_no_log_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = begin_session(tmp_path / "file")
    assert _in_child(partial(_write_many, spec, "audio", 3))[1] == 0


def _crash(spec: LogSpec, signal_number: int) -> None:
    setup_log(spec, "ear")
    os.kill(os.getpid(), signal_number)
    signal.pause()


def test_a_crash_is_named_with_its_file_and_a_kill_is_not(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = begin_session(data)
    pid, code = _in_child(partial(_crash, spec, signal.SIGSEGV))
    assert code == -signal.SIGSEGV
    path = spec.crash_path("ear", pid)
    assert describe_death(spec, "ear", pid) == f": Segmentation fault; details: {path}"
    assert "in _crash" in path.read_text()
    assert capfd.readouterr().err == ""
    pid, code = _in_child(partial(_crash, spec, signal.SIGKILL))
    assert code == -signal.SIGKILL
    assert describe_death(spec, "ear", pid) == ""
    assert describe_death(spec, "audio", pid) == ""
    assert describe_death(None, "ear", pid) == ""
    begin_session(data)
    assert list(spec.path.parent.glob("crash-*")) == [path]


def _log_from(spec: LogSpec, name: str, text: str) -> None:
    setup_log(spec, name)
    logging.getLogger("vivavoce.test").info(text)


def test_log_command_shows_one_session(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log"]) == 2
    assert "there is no log" in capsys.readouterr().err
    old, new = (LogSpec(str(data / "logs"), name) for name in ("20260101T000000Z-aaaa", "20260102T000000Z-bbbb"))
    (data / "logs").mkdir(parents=True)
    for spec, text in ((old, "first"), (new, "second\nof two lines"), (old, "third")):
        _in_child(partial(_log_from, spec, "face", text))
    old.crash_path("ear", 1).write_text("Fatal Python error: Aborted\n")
    for flags in ([], ["--last"], ["--session", new.session]):
        assert main(["log", *flags]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [line.split("INFO ")[-1] for line in shown] == ["second", "    of two lines"]
    assert main(["log", "--session", "20260101"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("first")
    assert shown[1].endswith("third")
    assert shown[2] == f"crash: {old.crash_path('ear', 1)}"
    assert main(["log", "--session", "2026"]) == 2
    assert "several sessions begin with '2026'" in capsys.readouterr().err
    assert main(["log", "--session", "x"]) == 2
    assert f"Choose one of: {old.session}, {new.session}" in capsys.readouterr().err


_ALLOWED_TEXT = {
    "version", "cost", "persona", "config_sha256", "reason", "stage", "backend", "severity", "message", "input_name",
    "output_name", "scheduling", "device", "state", "kind", "name", "process", "level", "rung",
    "rungs_given", "rungs_open",
}  # fmt: skip
"""Fields of events that hold text which nobody said."""


def _filled(cls: type[events.Event]) -> tuple[events.Event, set[str]]:
    """An event whose text fields hold a secret, and the names of those fields."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    texts = set()
    for field in dataclasses.fields(cls):
        kind = str(hints[field.name])
        if "str" in kind:
            texts.add(field.name)
            values[field.name] = [["secret", "secret"]] if kind.startswith("list") else "secret"
        else:
            values[field.name] = 1
    return cls(**values), texts


def test_no_event_takes_what_was_said_to_the_log() -> None:
    """A new event with a text field must be put on one of the two lists."""
    for cls in events._REGISTRY.values():
        event, texts = _filled(cls)
        line = event_line(event)
        assert line.startswith(cls.type)
        shown = {name for name in texts if f"{name}=" in line}
        assert shown <= _ALLOWED_TEXT, f"{cls.type}: may the log hold {shown - _ALLOWED_TEXT}?"
        assert ("secret" in line) == bool(shown)
    said = events.AgentSaid(16_000, 1, "the whole answer", "the whole", True)
    assert event_line(said) == "agent.said at_samples=16000 turn=1 interrupted=True"
