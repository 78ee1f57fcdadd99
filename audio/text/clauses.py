"""Cut a stream of text into clauses that can be spoken one after the other. Pure text.

A cut is decided only when enough text behind it has come, so the clauses of a text do not depend on the
pieces in which it arrived. The first clause is cut early, because the listener waits for it; later ones
follow sentences, because a voice sounds best on whole ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clause:
    """`text` is raw[start_chars:end_chars] of the streamed text, without white space around it."""

    text: str
    start_chars: int
    end_chars: int
    ends_sentence: bool
    """Cut behind a sentence, a line or a code block, not inside one or where the text broke off."""


@dataclass(frozen=True, slots=True)
class ClauseConfig:
    """Lengths in words; an ideograph counts as half a word."""

    first_comma_words: float = 3.0
    """The first clause may end at a comma, colon or dash from here on ..."""
    first_joint_words: float = 6.0
    """... and before a word like "and" or "because" from here on."""
    later_comma_words: float = 10.0
    max_words: float = 30.0
    max_chars: int = 240
    """A clause that gets longer is cut at its last comma, joint or space."""


_WORDS_THAT_JOIN = frozenset(
    "and but or because that which who when while where if so although though since until unless than".split()
)
_NEVER_ENDS = frozenset(
    "mr mrs ms dr prof st mt ft gen col sgt lt capt rev sen rep gov hon fig vol eq pp vs e.g i.e approx ca cf".split()
)
"""Abbreviations that a name, a number or an example follows."""
_MAY_END = frozenset(
    "etc inc ltd co corp jr sr bros dept est jan feb mar apr jun jul aug sep sept oct nov dec no nos".split()
)
"""Abbreviations that end a sentence only where a capital follows."""
_DOTTED = re.compile(r"^(?:[^\W\d_]\.)*[^\W\d_]$")
_ENDS = ".!?…"
_WIDE_ENDS = "。！？｡"
_COMMAS = ",;:—–"
_WIDE_COMMAS = "，、；：､"
_CLOSERS = "\"')]}»”’*_`~」』）】》"
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f]")
_FENCE = "```"


class _Undecided(Exception):
    """The text behind a possible cut has not come yet."""


class ClauseSplitter:
    """Feed pieces with `push`, end with `flush`; offsets count characters from `start_chars` on."""

    def __init__(self, config: ClauseConfig | None = None, *, start_chars: int = 0) -> None:
        """`start_chars`: where the text goes on, for a text whose beginning has been voiced before."""
        self._config = config or ClauseConfig()
        self._rest = ""
        self._offset = start_chars
        self._is_first = True

    def push(self, piece: str) -> list[Clause]:
        """Add text; return the clauses that are now certain."""
        self._rest += piece
        return self._take(is_final=False)

    def flush(self) -> list[Clause]:
        """End the text; return what is left."""
        return self._take(is_final=True)

    def _take(self, *, is_final: bool) -> list[Clause]:
        clauses: list[Clause] = []
        while True:
            stripped = self._rest.lstrip()
            self._offset += len(self._rest) - len(stripped)
            self._rest = stripped
            if not stripped:
                return clauses
            try:
                end, ends_sentence = _Scan(self._rest, self._config, self._is_first, is_final).next_cut()
            except _Undecided:
                return clauses
            text = self._rest[:end].rstrip()
            clauses.append(Clause(text, self._offset, self._offset + len(text), ends_sentence))
            self._is_first = self._is_first and text.startswith(_FENCE)
            self._rest = self._rest[end:]
            self._offset += end


class _Scan:
    """One search for the first cut of `text`, which starts at a clause. Looks left of what it has only."""

    def __init__(self, text: str, config: ClauseConfig, is_first: bool, is_final: bool) -> None:
        self._text, self._config = text, config
        self._is_first, self._is_final = is_first, is_final
        self._words = 0.0
        self._ends_sentence = False
        self._fallback: dict[str, int] = {}

    def next_cut(self) -> tuple[int, bool]:
        """(end, does it end a sentence); raises _Undecided where more text could change the answer."""
        if self._starts_with_fence():
            return self._fence_end(), True
        for index, char in enumerate(self._text):
            if char == "`" and self._is_line_start(index) and self._peek(index, len(_FENCE)) == _FENCE:
                return index, True
            cut = self._cut_at(index, char)
            if cut is not None:
                return cut, self._ends_sentence
            self._count(index, char)
            if self._words > self._config.max_words or index + 1 >= self._config.max_chars:
                return self._longest_cut(index + 1), False
        if self._is_final:
            end = len(self._text.rstrip().rstrip(_CLOSERS))
            return len(self._text), self._text[end - 1 : end] in _ENDS + _WIDE_ENDS
        raise _Undecided

    # --- characters -----------------------------------------------------------------------------------

    def _peek(self, index: int, count: int = 1) -> str:
        """`count` characters from `index` on, fewer only at the end of the whole text."""
        if index + count > len(self._text) and not self._is_final:
            raise _Undecided
        return self._text[index : index + count]

    def _is_line_start(self, index: int) -> bool:
        line = self._text[:index].rpartition("\n")
        return not line[2].strip()

    def _starts_with_fence(self) -> bool:
        return self._text[0] == "`" and self._peek(0, len(_FENCE)) == _FENCE

    def _fence_end(self) -> int:
        closing = re.compile(r"\n[ \t]*```[^\n]*(?:\n|$)" if self._is_final else r"\n[ \t]*```[^\n]*\n")
        match = closing.search(self._text)
        if match is None and not self._is_final:
            raise _Undecided
        return len(self._text) if match is None else match.end()

    def _count(self, index: int, char: str) -> None:
        if _WIDE.match(char):
            self._words += 0.5
        elif char.isalnum() and not (index and (self._text[index - 1].isalnum() or self._text[index - 1] in "'’.,:")):
            self._words += 1.0
        if char.isspace():
            self._fallback["space"] = index

    def _longest_cut(self, index: int) -> int:
        for kind in ("comma", "joint", "space"):
            if self._fallback.get(kind, 0) > 0:
                return self._fallback[kind]
        return index

    # --- rules ----------------------------------------------------------------------------------------

    def _cut_at(self, index: int, char: str) -> int | None:
        if not self._words:
            return None
        self._ends_sentence = char == "\n" or char in _ENDS or char in _WIDE_ENDS
        if char == "\n":
            return index
        if char in _ENDS or char in _WIDE_ENDS:
            return self._sentence_end(index)
        if char in _COMMAS or char in _WIDE_COMMAS:
            return self._comma_end(index, char)
        if char == " ":
            return self._joint(index)
        return None

    def _sentence_end(self, index: int) -> int | None:
        if index and self._text[index - 1] in _ENDS + _WIDE_ENDS:
            return None  # inside a run that was decided at its first mark
        end = index
        while self._peek(end) and self._peek(end) in _ENDS + _WIDE_ENDS:
            end += 1
        marks = self._text[index:end]
        while self._peek(end) and self._peek(end) in _CLOSERS:
            end += 1
        following = self._peek(end)
        is_wide = any(mark in _WIDE_ENDS for mark in marks)
        if following and not (following.isspace() or is_wide or _WIDE.match(following)):
            return None
        if marks == ".":
            return end if self._dot_ends(index, end) else None
        if (len(marks) > 1 and set(marks) == {"."}) or marks == "…":
            self._ends_sentence = self._next_is_capital(end)
            return end if self._ends_sentence else self._accept_comma(end)
        return end

    def _dot_ends(self, index: int, end: int) -> bool:
        word = re.split(r"[\s(\[\"'“‘*_]", self._text[:index])[-1]
        bare = word.lower()
        if word.isdigit() and self._is_line_start(index - len(word)):
            return False  # the number of a list item
        if bare in _NEVER_ENDS:
            return False
        if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":
            return False  # an initial
        if bare in ("no", "nos"):
            return not self._next(end).isdigit()
        if bare in _MAY_END or (len(word) > 1 and _DOTTED.match(word)):
            return self._next_is_capital(end)
        return True

    def _next(self, end: int) -> str:
        """The next character that is no white space or opening mark; "" at the end of the text."""
        while self._peek(end) and (self._peek(end).isspace() or self._peek(end) in "\"'“‘(*_["):
            end += 1
        return self._peek(end)

    def _next_is_capital(self, end: int) -> bool:
        following = self._next(end)
        return not following or following.isupper() or bool(_WIDE.match(following))

    def _comma_end(self, index: int, char: str) -> int | None:
        end = index + 1
        while self._peek(end) and self._peek(end) in _CLOSERS:
            end += 1
        following = self._peek(end)
        if following and not following.isspace() and char not in _WIDE_COMMAS + "—":
            return None
        return self._accept_comma(end)

    def _accept_comma(self, end: int) -> int | None:
        self._fallback["comma"] = end
        least = self._config.first_comma_words if self._is_first else self._config.later_comma_words
        return end if self._words >= least else None

    def _joint(self, index: int) -> int | None:
        end = index + 1
        while self._peek(end) and self._peek(end).isalpha():
            end += 1
        if self._text[index + 1 : end].lower() not in _WORDS_THAT_JOIN or not self._peek(end).isspace():
            return None
        self._fallback["joint"] = index
        return index if self._is_first and self._words >= self._config.first_joint_words else None
