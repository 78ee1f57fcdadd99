"""Word error rate: the distance and the normalisation that decides the figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.wer import cardinal, normalize, word_error_rate, word_errors


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors"),
    [
        ("The capital of France is Paris.", "the capital of france is paris", 0),
        ("The capital of France is Paris.", "The capital of Francis Paris.", 2),
        ("There are seven days.", "There are 7 days", 0),
        ("in 1984 and 2026", "in nineteen eighty-four and twenty twenty-six", 0),
        ("in 1905, in 2005, in 1900", "in nineteen oh five, in two thousand five, in nineteen hundred", 0),
        ("the 21st and 3rd", "the twenty first and third", 0),
        ("3.50 dollars", "three point five zero dollars", 0),
        ("1,200 people", "one thousand two hundred people", 0),
        ("Dr. Smith's 50%", "doctor smith's fifty percent", 0),
        ("a b c", "", 3),
        ("", "a b", 2),
        ("a b c", "a x b c", 1),
        ("a b c d", "b c d", 1),
        ("don’t", "don't", 0),
        ("你好", "你好", 0),
    ],
)
def test_examples(reference: str, hypothesis: str, errors: int) -> None:
    assert word_errors(reference, hypothesis)[0] == errors


def test_rate_is_pooled_over_words() -> None:
    assert word_error_rate([("a b c d e f g h i", "a b c d e f g h i"), ("x", "y")]) == 0.1
    assert word_error_rate([]) == 0.0
    assert word_error_rate([("", "noise")]) == 1.0


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_is_a_distance(first: list[str], second: list[str]) -> None:
    there = word_errors(" ".join(first), " ".join(second))[0]
    assert there == word_errors(" ".join(second), " ".join(first))[0]
    assert (there == 0) == (first == second)
    assert abs(len(first) - len(second)) <= there <= max(len(first), len(second))


@given(st.integers(0, 10**12 - 1))
def test_any_number_is_said_in_words(value: int) -> None:
    assert cardinal(value).replace(" ", "").isalpha()
    assert all(word.isalpha() for word in normalize(str(value)))


@given(st.text(max_size=40))
def test_any_text_is_normalised_twice_the_same(text: str) -> None:
    assert isinstance(word_errors(text, text)[0], int)
    assert word_errors(text, text)[0] == 0
