"""Word error rate: how many words must be changed to turn what was heard into what was said.

Own code instead of `jiwer`: the distance is fifteen lines, and what decides a figure is the normalisation
(numbers as digits or words), which `jiwer` leaves to its user.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_ORDINALS["twelve"] = "twelfth"
_SPELLINGS = {
    "dr": "doctor", "mr": "mister", "mrs": "missus", "ok": "okay", "percent": "per cent", "grey": "gray",
    "colour": "color", "favourite": "favorite", "&": "and", "%": "per cent", "$": "dollars",
}  # fmt: skip
_TOKEN = re.compile(r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:st|nd|rd|th)?|[^\W\d_]+(?:'[^\W\d_]+)*|[&%$]")


def cardinal(value: int) -> str:
    """English words of 0 <= value < 10**12, without "and"."""
    for size, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            rest = f" {cardinal(value % size)}" if value % size else ""
            return f"{cardinal(value // size)} {name}{rest}"
    if value < 20:
        return _ONES[value]
    return _TENS[value // 10] + (f" {_ONES[value % 10]}" if value % 10 else "")


def _ordinal(value: int) -> str:
    head, _, last = cardinal(value).rpartition(" ")
    if last in _ORDINALS:
        last = _ORDINALS[last]
    else:
        last = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return f"{head} {last}".strip()


def _number(token: str) -> str:
    whole, _, fraction = token.replace(",", "").partition(".")
    suffix = whole[len(whole.rstrip("stndrh")) :]
    digits = whole[: len(whole) - len(suffix)]
    value = int(digits)
    if value >= 10**12:
        return " ".join(_ONES[int(digit)] for digit in digits)
    if suffix:
        return _ordinal(value)
    if fraction:
        return f"{cardinal(value)} point {' '.join(_ONES[int(digit)] for digit in fraction)}"
    if len(digits) == 4 and "," not in token and 1100 <= value < 2100 and value % 1000 >= 10:
        low = cardinal(value % 100) if value % 100 >= 10 else f"oh {_ONES[value % 100]}"
        return f"{cardinal(value // 100)} {low if value % 100 else 'hundred'}"
    return cardinal(value)


def normalize(text: str) -> list[str]:
    """Lower-case words without punctuation; numbers as words, "1984" as a year."""
    folded = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    words: list[str] = []
    for token in _TOKEN.findall(folded):
        words += (_number(token) if token[0].isdigit() else _SPELLINGS.get(token, token)).split()
    return words


def word_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """(errors, words of the reference): Levenshtein distance over normalised words."""
    said, heard = normalize(reference), normalize(hypothesis)
    row = list(range(len(heard) + 1))
    for index, word in enumerate(said, start=1):
        diagonal, row[0] = row[0], index
        for column, other in enumerate(heard, start=1):
            substituted = diagonal + (word != other)
            diagonal = row[column]
            row[column] = min(substituted, row[column] + 1, row[column - 1] + 1)
    return row[-1], len(said)


def word_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Errors over words, pooled over (reference, hypothesis) pairs; 0 where nothing was said or heard."""
    errors = words = 0
    for reference, hypothesis in pairs:
        pair_errors, pair_words = word_errors(reference, hypothesis)
        errors, words = errors + pair_errors, words + pair_words
    return errors / words if words else float(errors > 0)
