"""Written words to the words that are said for them, before the grapheme-to-phoneme step. English.

Only what that step gets wrong or drops: clock times, sums, fractions, units, some abbreviations, huge
numbers, letters that it does not know. Money, years, ordinals, decimals and ordinary abbreviations pass
through: it says them well. Works word by word, so that every spoken word is known to belong to one written
word; a written word may become none (an emoji, another script).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from audio.wer import cardinal

_TIME = re.compile(r"(?<![\d:])(\d{1,2}):([0-5]\d)(?![\d:])")
_RANGE = re.compile(r"(?<=\d)-(?=\d)")
_FRACTION = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?![\d/])")
_DEGREES = re.compile(r"(-?\d+(?:\.\d+)?)\s*°\s*([CF]?)(?![A-Za-z])")
_NUMBER_UNIT = re.compile(r"(\d)(km/h|km|kg|cm|mm|mph|ms|GB|MB|kHz|Hz|am|pm|AM|PM)\b")
_LONG_DIGITS = re.compile(r"\d(?:,?\d){15,}")
_ELLIPSIS = re.compile(r"\.{2,}|…")
_DASH = re.compile(r"(?:--+|[—–])")
_OUTSIDE = re.compile(r"[^A-Za-z0-9 .,;:!?'\"()$£€%&+@/—-]")
_LETTER_OR_DIGIT = re.compile(r"[A-Za-z0-9%&+@]")
_UNITS = {
    "km/h": "kilometers per hour", "km": "kilometers", "kg": "kilograms", "cm": "centimeters",
    "mm": "millimeters", "mph": "miles per hour", "ms": "milliseconds", "GB": "gigabytes", "MB": "megabytes",
    "kHz": "kilohertz", "Hz": "hertz", "am": "a.m.", "pm": "p.m.", "AM": "a.m.", "PM": "p.m.",
}  # fmt: skip
_ABBREVIATIONS = {
    "e.g.": "for example", "i.e.": "that is", "vs.": "versus", "vs": "versus", "approx.": "approximately",
    "w/": "with", "w/o": "without", "km/h": "kilometers per hour", "mph": "miles per hour", "km": "kilometers",
    "kg": "kilograms", "cm": "centimeters", "mm": "millimeters",
}  # fmt: skip
_OPERATORS = {"=": "equals", "+": "plus", "×": "times", "÷": "divided by", "*": "times"}
_DENOMINATORS = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 8: "eighth", 10: "tenth"}


def _say_time(match: re.Match[str]) -> str:
    hour, minute = int(match[1]), int(match[2])
    if minute == 0:
        return f"{cardinal(hour)} o'clock"
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def _say_fraction(match: re.Match[str]) -> str:
    top, bottom = int(match[1]), int(match[2])
    if bottom not in _DENOMINATORS or not 0 < top < bottom:
        return f"{top} over {bottom}"
    plural = "s" if top > 1 else ""
    return f"{cardinal(top)} {'halves' if plural and bottom == 2 else _DENOMINATORS[bottom] + plural}"


def _say_degrees(match: re.Match[str]) -> str:
    scale = {"C": " Celsius", "F": " Fahrenheit", "": ""}[match[2]]
    return f"{match[1]} degree{'' if match[1] in ('1', '-1') else 's'}{scale}"


def _fold(word: str) -> str:
    """Compatibility forms and accents to ASCII; letters without such a form are dropped later."""
    word = word.replace("½", " 1/2").replace("¼", " 1/4").replace("¾", " 3/4")
    decomposed = unicodedata.normalize("NFKD", word.replace("\u2018", "'").replace("\u2019", "'"))
    folded = "".join(char for char in decomposed if not unicodedata.combining(char))
    return folded.replace("\u201c", '"').replace("\u201d", '"').replace("−", "-")


def _expand(word: str) -> str:
    word = _ELLIPSIS.sub(", ", word.replace("…", "..."))
    word = _TIME.sub(_say_time, word)
    word = _DEGREES.sub(_say_degrees, word)
    word = _FRACTION.sub(_say_fraction, word)
    word = _NUMBER_UNIT.sub(lambda match: f"{match[1]} {_UNITS[match[2]]}", word)
    word = _LONG_DIGITS.sub(lambda match: " ".join(cardinal(int(c)) for c in match[0] if c.isdigit()), word)
    word = _RANGE.sub(" to ", word)
    word = re.sub(r"(?<=[\dA-Za-z)])([=×÷*+])(?=[\dA-Za-z(])", lambda match: f" {_OPERATORS[match[1]]} ", word)
    if word in _OPERATORS:
        word = _OPERATORS[word]
    return _DASH.sub(", ", word)


def _expand_abbreviation(word: str, following: str) -> str:
    opening, core, closing = _affixes(word)
    if core in ("No.", "no.", "Nos.") and following[:1].isdigit():
        core = "number"
    elif core == "St." and following[:1].isupper():
        core = "Saint"
    elif core == "St.":
        core = "Street."
    else:
        core = _ABBREVIATIONS.get(core, core)
    return opening + core + closing


def _affixes(word: str) -> tuple[str, str, str]:
    start = len(word) - len(word.lstrip("(\"'["))
    end = len(word.rstrip(",;:!?)\"']"))
    return word[:start], word[start : max(start, end)], word[max(start, end) :]


def spoken_words(words: Sequence[str]) -> list[list[str]]:
    """For each written word (no spaces inside) the words to say; an empty list where there is nothing to say.

    What comes out is ASCII plus "£", "€" and the dash; every piece holds a letter or a digit, or only punctuation that
    makes a pause after the piece before it.
    """
    spoken: list[list[str]] = []
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        expanded = _expand_abbreviation(_expand(_fold(word)), following)
        pieces = _OUTSIDE.sub(" ", expanded).split()
        said: list[str] = []
        for piece in pieces:
            if _LETTER_OR_DIGIT.search(piece):
                said.append(piece)
            elif piece[0] in ",;:.!?" and said:
                said[-1] = said[-1].rstrip(",") + piece[0]
            elif piece[0] in ",;:.!?" and spoken and spoken[-1] and spoken[-1][-1][-1].isalnum():
                spoken[-1][-1] += piece[0]
        spoken.append(said)
    return spoken
