"""What a new engine must know to go on where the old one died, gathered from the old one's events.

The face keeps this beside the journal. It is exact to the word: where a reply's words lie in its audio was
told before they were heard (`agent.voiced`), and what left the loudspeaker is in the microphone ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app import events
from app.conversation.history import Exchange
from audio.block import HOP_SAMPLES, ms_to_samples

_LEAD_MS = 1000.0
"""Sound that is heard once more: the judge needs its run-up, and the old engine may have sat on a decision."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A question whose answer is owed, and what of the answer was heard."""

    turn: int
    user: str
    heard: str


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an engine takes over; a conversation's first engine too."""

    exchanges: Sequence[Exchange] = ()
    last_turn: int = 0
    first_block: int = 0
    """Hops before this one were dealt with."""
    pending: Pending | None = None


@dataclass(slots=True)
class _Answering:
    """The question that is being answered."""

    turn: int
    user: str
    text: str = ""
    heard_chars: int = 0
    told_chars: int = 0
    """Of these a word of the engine's, or of ours, has been an event."""
    generation: int = 0
    words: list[list[int]] = field(default_factory=list)
    is_given_up: bool = False
    """Stopped or interrupted: nothing more of the answer is owed."""

    @property
    def heard(self) -> str:
        return self.text[: self.heard_chars].strip()


class Progress:
    """Feed it every event of the engine and what the loudspeaker played; ask it when the engine has died."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self._exchanges = list(exchanges)
        self._answering: _Answering | None = None
        self._last_turn = 0
        self._onset_samples = 0
        self._is_turn_open = False
        self._ended_samples = 0
        self._seen_samples = 0

    def take(self, event: events.Event) -> None:
        """One event, in order."""
        self._seen_samples = max(self._seen_samples, event.at_samples)
        match event:
            case events.UserSpeechStarted(turn=turn, onset_samples=onset):
                self._last_turn, self._onset_samples, self._is_turn_open = turn, onset, True
            case events.TurnEnded(turn=turn) | events.TurnDropped(turn=turn):
                self._last_turn, self._is_turn_open = turn, False
                self._ended_samples = event.at_samples
            case events.UserTranscript(turn=turn, text=text, final=True):
                self._settle()
                self._answering = _Answering(turn, text)
            case events.StateChanged(state=state):
                self._take_state(state)
            case _:
                self._take_answer(event)

    def give_up(self) -> None:
        """The user wants silence: nothing more of the answer is owed."""
        if self._answering is not None:
            self._answering.is_given_up = True

    def played(self, generation: int, reply_frames: int, *, is_alone: bool) -> events.AgentWord | None:
        """So many device frames of this reply have left the callback.

        Where no engine lives (`is_alone`) the last word heard, if nobody has told of it: also one from the time before
        the loss was noticed.
        """
        answer = self._answering
        if answer is None:
            return None
        if generation == answer.generation:
            heard = (chars for chars, middle_frames in answer.words if middle_frames < reply_frames)
            answer.heard_chars = max(answer.heard_chars, *heard, 0)
        if not is_alone or answer.heard_chars == answer.told_chars:
            return None
        answer.told_chars = answer.heard_chars
        return events.AgentWord(self._seen_samples, answer.turn, answer.heard_chars)

    def point(self) -> ResumePoint:
        """Where to go on."""
        answer, exchanges, pending = self._answering, list(self._exchanges), None
        if answer is not None and answer.is_given_up:
            exchanges.append(Exchange(answer.user, answer.heard))
        elif answer is not None:
            pending = Pending(answer.turn, answer.user, answer.heard)
        lead = ms_to_samples(_LEAD_MS)
        first = max(self._ended_samples, self._seen_samples - lead)
        if self._is_turn_open:
            first = self._onset_samples - lead
        last_turn = self._last_turn - 1 if self._is_turn_open else self._last_turn
        return ResumePoint(exchanges, last_turn, max(0, first // HOP_SAMPLES), pending)

    def _take_state(self, state: str) -> None:
        answer = self._answering
        if answer is None or state not in ("listening", "hearing"):
            return
        if state == "hearing" and answer.turn == self._last_turn and not answer.heard_chars:
            self._answering, self._is_turn_open = None, True  # the user went on after all
        else:
            answer.is_given_up = True

    def _take_answer(self, event: events.Event) -> None:
        answer = self._answering
        if answer is None or getattr(event, "turn", None) != answer.turn:
            return
        match event:
            case events.AgentText(text=text, start_chars=start):
                answer.text = answer.text[:start].ljust(start) + text
            case events.AgentVoiced(generation=generation, words=words):
                if generation != answer.generation:  # an answer that goes on counts its frames anew
                    answer.generation, answer.words = generation, []
                answer.words += words
            case events.AgentWord(chars=chars):
                answer.heard_chars = max(answer.heard_chars, chars)
                answer.told_chars = max(answer.told_chars, chars)
            case events.AgentSaid(heard=heard):
                self._exchanges.append(Exchange(answer.user, heard))
                self._answering = None

    def _settle(self) -> None:
        """Another question is being answered; the one before stays with what was heard."""
        if self._answering is not None:
            self._exchanges.append(Exchange(self._answering.user, self._answering.heard))
            self._answering = None
