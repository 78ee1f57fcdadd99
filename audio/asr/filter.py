"""Drop what Moonshine writes when it hears no words. Pure text; knows no audio and no model.

Measured on noise, hum, clicks and street recordings of 0.2 to 8 s: half of the answers were the bare word
"You", one in six was a closing phrase of videos, and long ones repeated a phrase until the token limit or
were a row of musical notes. Digital silence gives "" by itself.
"""

from __future__ import annotations

import re
import unicodedata

_BARE_HALLUCINATIONS = frozenset({"You", "The", "I", "A", "So", "And"})
"""Exactly these, without a full stop: spoken single words come back with one ("You.", "You?")."""
_CLOSING_PHRASES = frozenset({"thank you for watching", "thanks for watching", "please subscribe"})
_MIN_MS_PER_WORD = 70.0
"""Fast conversation is about 150 ms a word; less than half of that is not speech."""
_MAX_MS_PER_WORD = 2000.0
"""A single word for seconds of sound is an invention."""
_MAX_LOOP_WORDS = 8
_STUTTER = re.compile(r"(\S{2,12}?)\1{3,}")
"""A word that repeats its own piece four times, like "2020-2020-2020-2020-"."""
_DOUBLE_COMMA = re.compile(r",(?:\s*,)+")
_NON_SPEECH = re.compile(r"[♪♫♩♬]+|\[[^\]]*\]|\([^)]*\)|<[^>]*>")


def _bare(word: str) -> str:
    return re.sub(r"[^\w']+", "", word).lower()


def collapse_loops(text: str) -> str:
    """Keep one copy of a phrase that is said again at once: three times, or four for a single word.

    "no no no" stays. A cut-off last copy goes too.
    """
    words = text.split()
    bare = [_bare(word) for word in words]
    out: list[str] = []
    position = 0
    while position < len(words):
        step, copies = 1, 1
        for size in range(1, min(_MAX_LOOP_WORDS, (len(words) - position) // 3) + 1):
            phrase = bare[position : position + size]
            count = 1
            while bare[position + count * size : position + (count + 1) * size] == phrase:
                count += 1
            if count >= (4 if size == 1 else 3):
                step, copies = size, count
                break
        out += words[position : position + step]
        position += step * copies
        if copies > 1:
            while step > 1 and position < len(words) and bare[position] == bare[position - step]:
                position += 1
    return " ".join(out)


def spoken_text(text: str, voiced_ms: float) -> str:
    """What of a transcript can have been said in `voiced_ms` of voiced audio; "" where nothing can.

    Loops are cut to one copy and non-speech marks removed. A text that was mostly loop, that has more words
    than the voiced time can hold or almost none for it, letters of another script, or that is a known
    invention is no speech. For English models only.
    """
    cleaned = " ".join(_DOUBLE_COMMA.sub(",", _NON_SPEECH.sub(" ", text)).split())
    kept = collapse_loops(cleaned)
    words = [word for word in kept.split() if _bare(word)]
    if not words or kept in _BARE_HALLUCINATIONS:
        return ""
    if " ".join(_bare(word) for word in words) in _CLOSING_PHRASES:
        return ""
    was_mostly_loop = len(kept.split()) * 2 < len(cleaned.split()) or _STUTTER.search(kept)
    is_foreign = any(char.isalpha() and not unicodedata.name(char, "").startswith("LATIN") for char in kept)
    is_out_of_pace = not len(words) * _MIN_MS_PER_WORD <= voiced_ms <= len(words) * _MAX_MS_PER_WORD
    if was_mostly_loop or is_foreign or is_out_of_pace:
        return ""
    return kept
