"""What is typed: at a terminal, into a pipe, with bytes that nobody expects."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.keyboard import COMMANDS, Keyboard, clean, parse_command
from app.commands import Quit, SayText, SetMuted, StopSpeaking


def test_bytes_that_are_no_utf8_and_control_characters_do_not_end_the_conversation() -> None:
    assert clean(b"caf\xe9 \xff \x00\x1b[2J please\r") == "caf\ufffd \ufffd please"
    assert clean(b"\x1b]0;title\x07\x9b31m\xc2\x9b31mred\x1b") == "0;title\ufffd31m31mred"
    assert clean("naïve\tcafé  你好 👍🏽\u2028on".encode()) == "naïve café 你好 👍🏽 on"


@given(st.binary(max_size=60))
def test_any_bytes_become_text_that_can_be_shown_and_sent(data: bytes) -> None:
    text = clean(data)
    text.encode()
    assert text == text.strip()
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text)


def test_commands_and_words() -> None:
    assert [parse_command(line) for line in ("/stop", "/mute", "/UNMUTE", "/quit")] == [
        StopSpeaking(),
        SetMuted(True),
        SetMuted(False),
        Quit(),
    ]
    assert parse_command("stop") == SayText("stop")
    for line in ("/stopp", "/", "/help", "/etc/passwd is a file"):
        assert parse_command(line) is None
    assert set(COMMANDS) == {"/stop", "/mute", "/unmute", "/quit"}


def test_a_pipe_is_read_line_by_line_without_waiting_and_its_end_is_no_quit() -> None:
    reading, writing = os.pipe()
    with open(reading) as stdin, open(writing, "wb", buffering=0) as other:
        keyboard = Keyboard(stdin)
        assert (keyboard.is_open, keyboard.is_terminal, keyboard.lines()) == (True, False, [])
        other.write(b"one\ntwo\n\n   \nthr")
        assert keyboard.lines() == ["one", "two"]
        other.write(b"ee\n" + "é".encode()[:1])
        assert keyboard.lines() == ["three"]
        other.write("é".encode()[1:])
        assert keyboard.lines() == []
        other.close()
        assert keyboard.lines() == ["é"]
        assert not keyboard.is_open
        assert keyboard.lines() == []


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    reading, writing = os.pipe()
    with open(reading) as stdin, open(writing, "wb", buffering=0) as other:
        keyboard, remarks = Keyboard(stdin), []
        for _ in range(20):
            other.write(b"x" * 4096)
            assert keyboard.lines() == []
            remarks.append(keyboard.remark)
            assert len(keyboard._rest) <= 16_384
        assert [bool(remark) for remark in remarks].count(True) == 1
        other.write(b"its end\nhello\n")
        assert (keyboard.lines(), keyboard.remark) == (["hello"], "")


@pytest.mark.parametrize("character", ["x", "é", "你", "👍"])
@pytest.mark.parametrize("count", [5_462, 9_000, 300_000])
def test_a_line_is_one_message_or_none_and_no_character_is_cut(tmp_path: Path, character: str, count: int) -> None:
    path = tmp_path / "words"
    path.write_text(f"before\n{character * count}\nbehind", encoding="utf-8")
    found, remarks = [], []
    with path.open() as stdin:
        keyboard = Keyboard(stdin)
        while keyboard.is_open:
            found += keyboard.lines()
            remarks += [keyboard.remark] if keyboard.remark else []
    fits = len((character * count).encode()) <= 16_384
    assert found == ["before", *([character * count] if fits else []), "behind"]
    assert len(remarks) == (not fits)
    assert all("16384 bytes" in remark for remark in remarks)


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(b"hello\n/quit")
    with path.open() as stdin:
        assert Keyboard(stdin).lines() == ["hello", "/quit"]


def test_a_terminal_that_is_closed_is_the_end_of_the_typing() -> None:
    ours, theirs = pty.openpty()
    with open(theirs) as stdin:
        keyboard = Keyboard(stdin)
        assert keyboard.is_terminal
        os.write(ours, b"caf\xe9\n")
        assert keyboard.lines() == ["caf\ufffd"]
        os.close(ours)
        assert keyboard.lines() == []
        assert not keyboard.is_open


@pytest.mark.parametrize("kind", ["none", "null", "closed"])
def test_where_nothing_can_be_typed_nothing_is_read(kind: str) -> None:
    with open(os.devnull) as null:
        if kind == "closed":
            null.close()
        keyboard = Keyboard(None if kind == "none" else null)
        assert (keyboard.is_open, keyboard.is_terminal, keyboard.lines()) == (False, False, [])
