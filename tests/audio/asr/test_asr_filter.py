"""What noise makes the recogniser write goes; what people say stays. The texts are measured answers."""

from __future__ import annotations

import pytest

from audio.asr.filter import collapse_loops, spoken_text


@pytest.mark.parametrize(
    ("text", "voiced_ms"),
    [
        ("You", 500),
        ("So", 2000),
        ("Thank you for watching.", 1000),
        ("♪♪♪♪♪♪♪♪♪♪♪♪♪♪", 3000),
        ("The first is the first is the first is the first is the first is the first", 3000),
        ("The 2020-2022-2022-2022-2022-2022-2022-2022-2", 8000),
        ("2-3ตวบนลาง 01/02/2566", 3000),
        ("2.", 5000),
        ("And so my fellow Americans ask not what your country can do", 300),
        ("[Music]", 1000),
        ("...", 1000),
        ("", 1000),
    ],
)
def test_inventions_are_dropped(text: str, voiced_ms: float) -> None:
    assert spoken_text(text, voiced_ms) == ""


@pytest.mark.parametrize(
    ("text", "voiced_ms"),
    [
        ("Yes.", 250),
        ("No, no, no.", 900),
        ("You?", 300),
        ("Thank you.", 500),
        ("What is the capital of France?", 1700),
        ("very very very good", 1500),
        ("A café in Zürich", 1200),
    ],
)
def test_words_stay(text: str, voiced_ms: float) -> None:
    assert spoken_text(text, voiced_ms) == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("go go go go go", "go"),
        ("to make a way to make a way to make a way to", "to make a way"),
        ("I said, I said, I said so", "I said, so"),
        ("no loop here", "no loop here"),
        ("In short,, the", "In short,, the"),
    ],
)
def test_loops_keep_one_copy(text: str, kept: str) -> None:
    assert collapse_loops(text) == kept


def test_marks_inside_words_go() -> None:
    assert spoken_text("In short,, the period ♪ was [laughs] far", 2500) == "In short, the period was far"
