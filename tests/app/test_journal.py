"""The journal: what was said is there after every kind of end."""

from __future__ import annotations

import os
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
