"""The journal: what was said is there after every kind of end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import events
from app.conversation.history import Exchange
from app.errors import AgentError
from app.journal import Journal


def say(journal: Journal, turn: int, user: str, heard: str | None) -> None:
    journal.take(events.UserTranscript(0, turn, user, True, len(user)))
    if heard is not None:
        journal.take(events.AgentSaid(0, turn, heard + " and more", heard, True))


def test_exchanges_come_back_in_order_and_sessions_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    first = Journal(path)
    say(first, 1, "one", "eins")
    say(first, 2, "two", None)
    first.close()
    second = Journal(path)
    say(second, 1, "three", "drei")
    assert second.exchanges() == [Exchange("one", "eins"), Exchange("two", ""), Exchange("three", "drei")]
    second.close()


def test_partials_are_not_kept_and_a_corrected_turn_counts_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.take(events.UserTranscript(0, 1, "hel", False, 0))
    say(journal, 1, "hello", None)
    say(journal, 1, "hello there", "hi")
    assert journal.exchanges() == [Exchange("hello there", "hi")]
    journal.close()


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_cut_off_by_a_crash_is_dropped_and_the_rest_stays(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    say(journal, 1, "one", "eins")
    whole = path.read_bytes()
    say(journal, 2, "two", None)
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[: max(len(whole), len(content) - cut)])
    again = Journal(path)
    assert again.exchanges() == [Exchange("one", "eins")]
    say(again, 1, "next", None)
    again.close()
    third = Journal(path)
    assert third.exchanges() == [Exchange("one", "eins"), Exchange("next", "")]
    third.close()


def test_every_turn_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    say(journal, 1, "said", None)
    assert b'"said"' in path.read_bytes()
    journal.close()


def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nare precious\n")
    with pytest.raises(AgentError, match="not a journal"):
        Journal(path)
    assert path.read_text() == "my notes\nare precious\n"
    with pytest.raises(AgentError, match="cannot be written"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"one line\nand the beginning of another", b"RIFF....WAVE\n\0\0\x01", b'{"a": 1}', b"[1, 2]\n",
     b'{"session": "x y", "turn": 1}\n', b'{"session": "1f", "turn": 1, "user": 3}\n'],
)  # fmt: skip
def test_what_is_no_journal_is_left_as_it_is_also_its_last_line(tmp_path: Path, content: bytes) -> None:
    """A line without an end is dropped only from a journal."""
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises(AgentError) as refused:
        Journal(path)
    assert str(refused.value) == f"{path} is not a journal. Name another with --journal"
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("kind", ["device", "fifo", "folder", "below a file"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "device":
            path = Path("/dev/full")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "below a file":
            path.write_text("")
            path = path / "journal.jsonl"
    with pytest.raises(AgentError, match=r"cannot be written: .*--journal"):
        Journal(path)


@pytest.mark.parametrize("damage", [b"\0" * 50 + b"\n", b"{half\n", b"\xff\xfe\n", b'{"session": "1", "turn": "x"}\n',
                                    b'{"session": "zz", "turn": 1}\n', b"garbage without an end"])  # fmt: skip
def test_a_damaged_journal_is_kept_aside_and_what_can_be_read_goes_on(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    assert journal.remark == ""
    say(journal, 1, "one", "eins")
    say(journal, 2, "two", "zwei")
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], damage, *lines[2:]]) if damage.endswith(b"\n") else b"".join([*lines, damage])
    path.write_bytes(damaged)
    again = Journal(path)
    (aside,) = tmp_path.glob("j.jsonl.damaged-*")
    assert aside.read_bytes() == damaged
    assert str(aside) in again.remark
    say(again, 1, "three", "drei")
    again.close()
    third = Journal(path)
    assert third.remark == ""
    assert third.exchanges() == [Exchange("one", "eins"), Exchange("two", "zwei"), Exchange("three", "drei")]
    third.close()


def test_a_disk_that_lost_everything_is_a_new_journal(tmp_path: Path) -> None:
    """Blocks of zeros are what a power cut leaves of a young file."""
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"\0" * 4096)
    journal = Journal(path)
    say(journal, 1, "one", "eins")
    journal.close()
    again = Journal(path)
    assert (again.remark, again.exchanges()) == ("", [Exchange("one", "eins")])
    again.close()


def test_a_disk_that_takes_half_a_line_leaves_no_half_line_and_closes_quietly(tmp_path: Path) -> None:
    """The limit is on the size of the file: the last bytes that fit are taken, as on a disk that fills."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from app import events\n"
        "from app.errors import AgentError\n"
        "from app.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for turn in range(1, 5):\n"
        "    try: journal.take(events.UserTranscript(0, turn, 'hello', True, 5))\n"
        "    except AgentError as error: print(error)\n"
        "journal.close()\n"
    )
    path = tmp_path / "j.jsonl"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("cannot be written: ") == 2
    journal = Journal(path)
    assert (journal.remark, journal.exchanges()) == ("", [Exchange("hello", ""), Exchange("hello", "")])
    journal.close()


def test_full_disk_is_one_sentence_and_the_journal_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    say(journal, 1, "one", "eins")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AgentError, match="No space left"):
        say(journal, 2, "two", None)
    monkeypatch.undo()
    journal.close()
    again = Journal(path)
    assert again.exchanges() == [Exchange("one", "eins")]
    again.close()


def test_words_are_kept_as_they_are_heard(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    say(journal, 1, "one", None)
    journal.take(events.AgentText(0, 1, 1, "First words,", 0))
    journal.take(events.AgentText(0, 1, 2, "then more.", 13))
    for chars in (5, 12, 12, 17):
        journal.take(events.AgentWord(0, 1, chars))
    killed = Journal(tmp_path / "j.jsonl")  # whoever opens it next: the first one was never closed
    assert killed.exchanges() == [Exchange("one", "First words, then")]
    killed.close()
    journal.take(events.AgentSaid(0, 1, "First words, then more.", "First words, then more.", False))
    journal.close()
    settled = Journal(path)
    assert settled.exchanges() == [Exchange("one", "First words, then more.")]
    settled.close()


def test_an_engine_without_a_face_writes_the_last_words(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    face = Journal(path)
    say(face, 1, "one", None)
    face.take(events.AgentText(0, 1, 1, "First words.", 0))
    face.take(events.AgentWord(0, 1, 5))
    engine = Journal(path, session=face.session)
    engine.take(events.AgentSaid(0, 1, "First words.", "First words.", True))
    engine.close()
    face.close()
    again = Journal(path)
    assert again.exchanges() == [Exchange("one", "First words.")]
    again.close()
