"""Where the clause splitter cuts, and that the pieces in which a text arrives do not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.text.clauses import Clause, ClauseConfig, ClauseSplitter

_LATER = ClauseConfig(first_comma_words=10, first_joint_words=100)
"""No hurry with the first clause: shows the sentence rules alone."""
_PROSE = st.text(
    st.sampled_from("ab AB 12 .,;:!?…—\n\"')(*_`#-。！，你好 ")
    | st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]),
    max_size=120,
)  # fmt: skip
_WORDY = st.lists(
    st.sampled_from(
        ["Dr.", "Smith", "No.", "5", "3.50", "e.g.", "U.S.", "and", "because", "the", "end.", "etc.", "...", "I.", "1.",
         "**bold**", "said:", "“Yes.”", "\n", "- item", "why?!", "word,", "—", "```\ncode. X\n```\n", "你好。", "9:30"]
    ),
    max_size=60,
).map(" ".join)  # fmt: skip


def _split(text: str, sizes: list[int] | None = None, config: ClauseConfig | None = None) -> list[Clause]:
    splitter = ClauseSplitter(config)
    clauses: list[Clause] = []
    position = 0
    for size in [*(sizes or []), len(text)]:
        clauses += splitter.push(text[position : position + size])
        position += size
    return clauses + splitter.flush()


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith met Mr. T. Jones. They left.", ["Dr. Smith met Mr. T. Jones.", "They left."]),
        ("It costs 3.50 or 1,000. At 10:30.", ["It costs 3.50 or 1,000.", "At 10:30."]),
        ("Fruit, e.g. apples, i.e. red ones. Yes.", ["Fruit, e.g. apples, i.e. red ones.", "Yes."]),
        ("In the U.S. people drive. In the U.S. They do.", ["In the U.S. people drive.", "In the U.S.", "They do."]),
        ("At 5 p.m. we eat. At 5 p.m. Then sleep.", ["At 5 p.m. we eat.", "At 5 p.m.", "Then sleep."]),
        ("No. 5 is alive. No. Really.", ["No. 5 is alive.", "No.", "Really."]),
        ("Apples, pears, etc. are fruit. Etc. And so.", ["Apples, pears, etc. are fruit.", "Etc.", "And so."]),
        ("On May 2nd. On the 3rd. In 2026. Good.", ["On May 2nd.", "On the 3rd.", "In 2026.", "Good."]),
        ("Wait... what? Well... So it is…", ["Wait... what?", "Well...", "So it is…"]),
        ('He said "No." Then (it rained.) We left!', ['He said "No."', "Then (it rained.)", "We left!"]),
        ("**Bold end.** Next.", ["**Bold end.**", "Next."]),
        ("Really?! Yes!!! Ok.", ["Really?!", "Yes!!!", "Ok."]),
        ("See example.com/a?b=1.2 now. Go.", ["See example.com/a?b=1.2 now.", "Go."]),
        ("# Title\n\nText\nmore", ["# Title", "Text", "more"]),
        ("1. First\n2. Second. Still\n- third", ["1. First", "2. Second.", "Still", "- third"]),
        ("你好，世界。今天天气很好！去吧？好……走。", ["你好，世界。", "今天天气很好！", "去吧？", "好……", "走。"]),
        ("I did what I. Then", ["I did what I.", "Then"]),
        ("😀\n\nHi.", ["😀\n\nHi."]),
    ],
)
def test_sentences(text: str, clauses: list[str]) -> None:
    assert [clause.text for clause in _split(text, config=_LATER)] == clauses


def test_code_is_one_clause_of_its_own() -> None:
    text = "Look:\n```python\nprint('a. b.')\n\nx = 1\n```\nDone. ```"
    assert [clause.text for clause in _split(text)] == [
        "Look:",
        "```python\nprint('a. b.')\n\nx = 1\n```",
        "Done.",
        "```",
    ]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Well, yes, of course, we can.", "Well, yes, of course,"),
        ("The moon is a celestial body that orbits the Earth.", "The moon is a celestial body"),
        ("The sky is blue because of the way light scatters.", "The sky is blue because of the way light scatters."),
        ("Here is what I think: it works.", "Here is what I think:"),
        ("Sure. And more.", "Sure."),
    ],
)
def test_the_first_clause_is_early(text: str, first: str) -> None:
    assert _split(text)[0].text == first


@pytest.mark.parametrize("terminator", ["。", "！", "？", "……"])
def test_a_chinese_reply_is_split_at_its_first_terminator(terminator: str) -> None:
    """It has no spaces: the next character is enough, however many more sentences come."""
    first, next_char = f"今天的天气很好我们可以去公园散步{terminator}", "你"
    splitter = ClauseSplitter()
    assert [clause for char in first for clause in splitter.push(char)] == []
    assert [clause.text for clause in splitter.push(next_char)] == [first]


def test_the_first_clause_comes_before_the_sentence_is_over() -> None:
    splitter = ClauseSplitter()
    assert [clause.text for clause in splitter.push("The moon is a celestial body that ")] == [
        "The moon is a celestial body"
    ]
    assert splitter.push("orbits the Earth, and it is a very important part") == []


def test_later_clauses_are_whole_sentences_up_to_a_length() -> None:
    text = "Yes. The first is short, the second is too, and here, after ten words, it may be cut."
    assert [clause.text for clause in _split(text)][1:] == [
        "The first is short, the second is too, and here,",
        "after ten words, it may be cut.",
    ]


def test_endless_text_is_cut_at_a_good_place() -> None:
    words = "alpha beta gamma and delta epsilon " * 12
    clauses = _split(words)
    assert all(len(clause.text) <= 240 and len(clause.text.split()) <= 31 for clause in clauses)
    assert all(clause.text.startswith("and") for clause in clauses[1:])
    assert max(len(clause.text) for clause in _split("x" * 1000)) <= 240


def test_ends_sentence() -> None:
    ends = {clause.text: clause.ends_sentence for clause in _split("Well, yes, I do. Title\nA cut that breaks off he")}
    assert ends == {"Well, yes, I do.": True, "Title": True, "A cut that breaks off he": False}
    assert [clause.ends_sentence for clause in _split("Well, yes, I think, so.")] == [False, True]


@pytest.mark.parametrize("source", ["prose", "wordy"])
def test_pieces_do_not_matter(source: str) -> None:
    @settings(max_examples=400, deadline=None)
    @given(_PROSE if source == "prose" else _WORDY, st.lists(st.integers(1, 9), max_size=120))
    def check(text: str, sizes: list[int]) -> None:
        assert _split(text, sizes) == _split(text) == _split(text, [1] * len(text))

    check()


@settings(max_examples=300, deadline=None)
@given(_PROSE | _WORDY)
def test_every_character_but_space_is_in_one_clause(text: str) -> None:
    position = 0
    for clause in _split(text):
        assert text[clause.start_chars : clause.end_chars] == clause.text
        assert clause.text.strip() == clause.text != ""
        assert not text[position : clause.start_chars].strip()
        position = clause.end_chars
    assert not text[position:].strip()
