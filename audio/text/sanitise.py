"""Written decoration out of a clause, with every kept character's place in the raw text. Pure text.

Markdown, HTML tags, emoji and stage directions go; links keep their words, web addresses are said. Works on
one clause without knowing its neighbours, so marks whose partner is in another clause go too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

_DIRECTIONS = (
    r"laughs?|laughing|laughter|smiles?|smiling|sighs?|sighing|chuckles?|giggles?|pauses?|nods?|winks?|grins?|"
    r"shrugs?|gasps?|whispers?|coughs?|sniffs?|yawns?|clears? (?:my |his |her |their )?throat|sings?|cries|"
    r"applause|music"
)
_KEPT_SYMBOLS = frozenset("°©®™")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f\u20e3")


@dataclass(frozen=True, slots=True)
class Sanitised:
    """`to_raw[i]` is the place of text[i] in the raw clause; one more entry holds the raw length."""

    text: str
    to_raw: tuple[int, ...]

    def raw_end(self, end_chars: int) -> int:
        """How much of the raw clause is covered once text[:end_chars] was said, dropped marks included."""
        return self.to_raw[end_chars]


_Made = Callable[[re.Match[str]], str] | str


class _Mapped:
    """Text under edit; parallel to it the raw place of each character."""

    def __init__(self, raw: str) -> None:
        self.text = raw
        self.places = list(range(len(raw)))

    def substitute(self, pattern: re.Pattern[str], kept: int | None, made: _Made) -> None:
        """Replace each match by its group `kept` (places preserved), or by `made` (all at the match's start)."""
        text: list[str] = []
        places: list[int] = []
        position = 0
        for match in pattern.finditer(self.text):
            text.append(self.text[position : match.start()])
            places += self.places[position : match.start()]
            if kept is not None and match[kept] is not None:
                start, end = match.span(kept)
                text.append(self.text[start:end])
                places += self.places[start:end]
            else:
                new = made if isinstance(made, str) else made(match)
                text.append(new)
                places += [self.places[match.start()] if match.start() < len(self.places) else 0] * len(new)
            position = match.end()
        self.text = "".join(text) + self.text[position:]
        self.places = places + self.places[position:]

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Drop the characters that are not wanted."""
        marks = [wanted(char) for char in self.text]
        self.places = [place for place, mark in zip(self.places, marks, strict=True) if mark]
        self.text = "".join(char for char, mark in zip(self.text, marks, strict=True) if mark)


def _say_host(match: re.Match[str]) -> str:
    host = re.sub(r"^www\.", "", match["host"].lower())
    return f"{host.replace('-', ' dash ').replace('.', ' dot ')}{match['end'] or ''}"


def _say_mail(match: re.Match[str]) -> str:
    return f"{match[1].replace('.', ' dot ')} at {match[2].replace('.', ' dot ')}"


_M = re.MULTILINE
_RULES: tuple[tuple[re.Pattern[str], int | None, _Made], ...] = (
    (re.compile(r"\A\s*```.*?(?:\n[ \t]*```[^\n]*|\Z)", re.DOTALL), None, ""),  # a code block is not for the ear
    (re.compile(r"\\([\\`*_{}\[\]()#+.!|>~-])"), 1, ""),
    (re.compile(r"!?\[([^\]\n]*)\]\([^)\s]*(?:\s+\"[^\"]*\")?\)"), 1, ""),  # link, image
    (re.compile(r"\[\^?\d{1,3}\]"), None, ""),  # footnote, citation
    (re.compile(rf"[\[(*]+\s*(?:{_DIRECTIONS})(?:\s[a-z ]{{1,24}})?\s*[\])*]+", re.IGNORECASE), None, ""),
    (re.compile(r"\[(?:[A-Za-z']+ ?){1,4}\](?!\()"), None, ""),
    (re.compile(r"<br\s*/?>", re.IGNORECASE), None, " "),
    (re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>", re.DOTALL), None, ""),
    (re.compile(r"(?:https?://|www\.)(?:[^\s/@]*@)?(?P<host>[\w-]+(?:\.[\w-]+)*)(?:[:/?#][^\s]*?)?"
                r"(?P<end>[.,;!?)]*)(?=\s|$)"), None, _say_host),
    (re.compile(r"\b([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)\b"), None, _say_mail),
    (re.compile(r"^[ \t]*(?:[-*_][ \t]*){3,}$", _M), None, ""),  # rule
    (re.compile(r"^[ \t|:-]*\|[ \t|:-]*$", _M), None, ""),  # line below a table's head
    (re.compile(r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", _M), None, ""),
    (re.compile(r"[ \t]*\|[ \t]*"), None, ", "),
    (re.compile(r"^[ \t]*(?:#{1,6}|>|[-+*\u2022\u2023\u25e6\u00b7])[ \t]+", _M), None, ""),
    (re.compile(r"\*{2,}|_{2,}|~{2,}|`+"), None, ""),
    (re.compile(r"(?<![\d\s])\*|\*(?![\d\s])|(?<!\w)_|_(?!\w)"), None, ""),
)  # fmt: skip
_SPACES = (
    (re.compile(r"\s+(?=[.,;:!?](?:\s|$))"), None, ""),
    (re.compile(r"(?<=\s)\s+|^\s+|\s+$"), None, ""),
)


def _is_said(char: str) -> bool:
    if char in _JOINERS or 0x1F1E6 <= ord(char) <= 0x1F1FF or 0x1F3FB <= ord(char) <= 0x1F3FF:
        return False
    if char in _KEPT_SYMBOLS or char.isspace():
        return True
    return unicodedata.category(char) not in ("So", "Cc", "Cf", "Co", "Cs", "Cn")


def sanitise(raw: str) -> Sanitised:
    """A raw clause to plain text on one line; other scripts are kept."""
    mapped = _Mapped(raw)
    for pattern, kept, made in _RULES:
        mapped.substitute(pattern, kept, made)
    mapped.keep(_is_said)
    mapped.substitute(re.compile(r"[\s\u00a0]"), None, " ")
    for pattern, kept, made in _SPACES:
        mapped.substitute(pattern, kept, made)
    return Sanitised(mapped.text, (*mapped.places, len(raw)))
