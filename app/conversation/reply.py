"""One reply of the agent: the text that grows, the clauses that are voiced, and the words that were heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from audio.protocols import Speech
from audio.text.clauses import Clause
from audio.text.sanitise import Sanitised


@dataclass(frozen=True, slots=True)
class WordMark:
    """A word's place in the reply's raw text and in the reply's audio."""

    raw_end: int
    """Characters of raw text up to and including the word."""
    middle_frames: float
    """Device frame of the reply at which half of the word's sound is over."""


@dataclass(slots=True)
class Marks:
    """Sample indices at which the turn's stages were reached; None before."""

    speech_end: int
    endpoint: int
    answered: int
    first_token: int | None = None
    first_clause: int | None = None
    first_audio: int | None = None
    first_played: int | None = None


@dataclass(frozen=True, slots=True)
class VoicedClause:
    """A clause of raw text and what of it was given to the voice."""

    clause: Clause
    spoken: Sanitised


@dataclass(slots=True)
class Reply:
    """State of the reply to one turn. Frames are the device's, counted from the reply's first."""

    turn: int
    user_text: str
    generation: int
    marks: Marks
    raw: str = ""
    begun_chars: int = 0
    """Length of the beginning that was heard before the engine was restarted; `raw` starts with it."""
    clauses: dict[int, VoicedClause] = field(default_factory=dict)
    """Clauses with the voice, by job."""
    jobs: set[int] = field(default_factory=set)
    is_text_complete: bool = False
    is_audio_complete: bool = False
    has_gaps: bool = False
    """A clause could not be voiced, so the text is not what was heard."""
    words: list[WordMark] = field(default_factory=list)
    voiced_samples: int = 0
    """Samples of the voice so far, at its own rate."""
    total_frames: int = 0
    """Length of the finished reply."""
    heard_frames: int = 0
    last_played_samples: int = 0
    clause_count: int = 0

    def place(self, voiced: VoicedClause, speech: Speech, frames_per_sample: float) -> Sequence[WordMark]:
        """Append a voiced clause: its words begin where the reply's audio ends so far. Returns their marks."""
        before = len(self.words)
        start = self.voiced_samples * frames_per_sample
        self.voiced_samples += len(speech.samples)
        for position, word in enumerate(speech.words):
            is_last = position == len(speech.words) - 1
            inside = voiced.spoken.raw_end(word.text_end)
            raw_end = voiced.clause.end_chars if is_last else voiced.clause.start_chars + inside
            middle = start + (word.start_samples + word.end_samples) / 2 * frames_per_sample
            self.words.append(WordMark(raw_end, middle))
        return self.words[before:]

    def heard_chars(self) -> int:
        """Characters of raw text up to the last word of which half has left the loudspeaker.

        The design's *Heard*: words in order, so the first unheard word ends it.
        """
        chars = self.begun_chars
        for word in self.words:
            if word.middle_frames >= self.heard_frames:
                break
            chars = word.raw_end
        return chars

    def heard_text(self) -> str:
        """What the user heard, as the model wrote it."""
        return self.raw[: self.heard_chars()].strip()

    def is_heard_out(self) -> bool:
        """The last sample of a finished reply has left the callback."""
        return self.is_audio_complete and self.heard_frames >= self.total_frames
