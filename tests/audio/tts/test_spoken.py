"""Written words to spoken ones; each stays with the word it came from."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.tts.spoken import spoken_words


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Dr. Smith paid 3.50, didn't he?", [["Dr."], ["Smith"], ["paid"], ["3.50,"], ["didn't"], ["he?"]]),
        ("at 10:30 or 7:05 or 9:00.", [["at"], ["ten", "thirty"], ["or"], ["seven", "oh", "five"], ["or"],
                                       ["nine", "o'clock."]]),
        ("2+2=4", [["2", "plus", "2", "equals", "4"]]),
        ("5 = 5", [["5"], ["equals"], ["5"]]),
        ("pages 3-4", [["pages"], ["3", "to", "4"]]),
        ("½ or 3/4 or 7/11", [["one", "half"], ["or"], ["three", "quarters"], ["or"], ["7", "over", "11"]]),
        ("20°C 1° -5°F!", [["20", "degrees", "Celsius"], ["1", "degree"], ["-5", "degrees", "Fahrenheit!"]]),
        ("5km at 90 km/h", [["5", "kilometers"], ["at"], ["90"], ["kilometers", "per", "hour"]]),
        ("e.g. No. 5, St. Mary", [["for", "example"], ["number"], ["5,"], ["Saint"], ["Mary"]]),
        ("No. Nothing", [["No."], ["Nothing"]]),
        ("word — yes—no", [["word,"], [], ["yes,", "no"]]),
        ("wait... what", [["wait,"], ["what"]]),
        ("café Zürich ﬁne", [["cafe"], ["Zurich"], ["fine"]]),
        ("ok 😀 你好 ✓", [["ok"], [], [], []]),
        ("$5 50% R&B", [["$5"], ["50%"], ["R&B"]]),
        ("1234567890123456", ["one two three four five six seven eight nine zero one two three four five six".split()]),
        ("“quoted” ‘it’s’", [['"quoted"'], ["'it's'"]]),
        ("... — !", [[], [], []]),
    ],
)  # fmt: skip
def test_examples(text: str, spoken: list[list[str]]) -> None:
    assert spoken_words(text.split()) == spoken


@settings(max_examples=300, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_any_text_gives_words_that_the_g2p_can_take(text: str) -> None:
    words = text.split()
    spoken = spoken_words(words)
    assert len(spoken) == len(words)
    for pieces in spoken:
        for piece in pieces:
            assert re.fullmatch(r"[A-Za-z0-9.,;:!?'\"()$£€%&+@/-]+", piece)
            assert re.search(r"[A-Za-z0-9%&+@]", piece)
