"""Files that a command line names: never one for two purposes, never where nothing can be written, nothing touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import app.cli.replay as replay_module
import app.cli.talk as talk_module
from app.cli.main import main
from app.cli.targets import RECORDING, check_file, check_folder, check_recording, check_wav
from app.errors import AgentError
from app.log import close_log
from app.samples import sample_questions

TALK_FLAGS = ("--input", "--output", "--events", "--journal", "--config", "--cost")
WRITTEN = ("--output", "--events", "--journal")


@pytest.fixture(autouse=True)
def nothing_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own folders; whoever gets as far as a model, a session or a journal fails the test."""
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))

    def fail(*_: object, **__: object) -> None:
        pytest.fail("something was loaded or opened")

    for module in (talk_module, replay_module):
        for name in ("check_models", "open_engines", "LiveSession", "Journal"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fail)


def same(path: Path) -> Path:
    return path


def relative(path: Path) -> Path:
    return Path(os.path.relpath(path))


def symbolic(path: Path) -> Path:
    link = path.with_name("symbolic.wav")
    link.symlink_to(path)
    return link


def hard(path: Path) -> Path:
    link = path.with_name("hard.wav")
    link.hardlink_to(path)
    return link


def through_folder(path: Path) -> Path:
    (path.parent / "other").symlink_to(path.parent)
    return path.parent / "other" / path.name


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flag_words(flag: str, path: Path) -> list[str]:
    return [flag, f"fixed:{path}" if flag == "--cost" else str(path)]


PAIRS = [(one, other) for one in WRITTEN for other in TALK_FLAGS if one != other]


@pytest.mark.parametrize("alias", [same, relative, symbolic, hard, through_folder])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_names_of_one_file_are_refused_and_the_file_is_untouched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one: str, other: str, alias: Callable[[Path], Path]
) -> None:
    """Above all `--output` onto the recording that is read."""
    path = tmp_path / "x.wav"
    path.write_bytes(b"" if "--config" in (one, other) else sample_questions()[0].path.read_bytes())
    flags = [*flag_words(one, path), *flag_words(other, alias(path))]
    if "--input" not in flags:
        flags += ["--input", str(sample_questions()[1].path)]
    before = snapshot(tmp_path)
    assert main([*flags, "--fast"]) == 2
    error = capsys.readouterr().err
    assert "are the same file" in error
    assert error.count("\n") == 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("alias", [same, relative, through_folder])
def test_a_file_that_is_not_yet_there_counts_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alias: Callable[[Path], Path]
) -> None:
    path = tmp_path / "new.wav"
    flags = ["--output", str(path), "--events", str(alias(path)), "--input", str(sample_questions()[0].path)]
    assert main([*flags, "--fast"]) == 2
    assert "--output and --events are the same file" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("name", RECORDING)
@pytest.mark.parametrize("flag", WRITTEN)
def test_files_of_a_recording_count_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, name: str
) -> None:
    folder = tmp_path / "talk"
    assert main(["--record", str(folder), flag, str(folder / name)]) == 2
    assert f"--record ({name}) are the same file" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("read", ["--events", "--input"])
def test_a_replay_does_not_write_over_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], read: str
) -> None:
    files = {"--events": tmp_path / "log.wav", "--input": tmp_path / "in.wav"}
    for path in files.values():
        path.write_bytes(b"precious")
    flags = [str(word) for item in files.items() for word in item]
    assert main(["replay", *flags, "--output", str(symbolic(files[read]))]) == 2
    assert f"--output and {read} are the same file" in capsys.readouterr().err
    assert files[read].read_bytes() == b"precious"


def test_everything_may_go_to_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk_module, "_talk_on_file", lambda args, config, face: 0)
    flags = ["--input", str(sample_questions()[0].path), "--output", os.devnull, "--events", os.devnull]
    assert main(flags) == 0


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("folder.wav", "is a folder"),
        ("no/a.wav", "the folder of .* does not exist"),
        ("/proc/a.wav", "cannot be written"),
        ("/dev/full", "no regular file"),
        ("pipe.wav", "cannot be written|no regular file"),
        ("talk.mp3", "Name it talk.wav"),
        ("talk.flac", "Name it talk.wav"),
        ("file/a.wav", "the folder of .* does not exist"),
        ("nowhere.wav", "cannot be written"),
    ],
)
def test_places_where_no_sound_can_be_written_are_refused(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere.wav").symlink_to("/proc/nowhere.wav")
    os.mkfifo(tmp_path / "pipe.wav")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(AgentError, match=reason):
        check_wav(tmp_path / place)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["a.wav", "a.WAV", "a", "a.wave"])
def test_good_places_are_only_looked_at(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    check_wav(path)
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"an older one")
    path.chmod(0o600)
    written = path.stat().st_mtime_ns
    check_wav(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (b"an older one", written)
    link = tmp_path / "link.wav"
    link.symlink_to(tmp_path / "not yet there.wav")
    check_wav(link)
    assert not link.exists()


def test_a_pipe_with_a_reader_takes_events(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AgentError, match="cannot be written"):
        check_file(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_file(tmp_path / "pipe")
    os.close(reader)


@pytest.mark.parametrize("name", RECORDING)
def test_a_recording_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = tmp_path / "talk"
    folder.mkdir()
    (folder / name).write_bytes(b"precious")
    assert main(["--record", str(folder)]) == 2
    assert capsys.readouterr().err == (f"vivavoce: {folder} holds a recording already ({name}). Name another folder\n")
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_bytes() == b"precious"


def test_folders_are_only_looked_at(tmp_path: Path) -> None:
    check_recording(tmp_path / "a" / "b" / "c")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/below/that")):
        with pytest.raises(AgentError, match="cannot be written"):
            check_folder(bad)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    check_folder(tmp_path)


def test_a_session_that_does_not_begin_leaves_an_older_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AgentError("no models")

    log, folder = tmp_path / "e.jsonl", tmp_path / "talk"
    log.write_text("precious")
    monkeypatch.setattr(talk_module, "check_models", refuse)
    monkeypatch.setattr(talk_module, "LiveSession", refuse)
    monkeypatch.setattr("app.cli.keeper.Journal", lambda path: FakeJournal())
    assert main(["--input", str(sample_questions()[0].path), "--events", str(log), "--fast"]) == 2
    assert main(["--simulate", "--record", str(folder)]) == 2
    close_log()
    assert capsys.readouterr().err == "vivavoce: no models\n" * 2
    assert log.read_text() == "precious"
    assert not folder.exists()


class FakeJournal:
    path, session, remark = Path("nowhere"), "", ""

    def close(self) -> None:
        pass
