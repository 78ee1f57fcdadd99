"""What became of every turn: finals and their fates from the events, laid beside what the user really said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app import events
from app.conversation.costs import CostTable, zero_costs
from audio.block import HOP_SAMPLES, HOPS_PER_SECOND, SAMPLE_RATE_HZ, ms_to_samples, samples_to_ms
from audio.io.device import SpokenUtterance
from audio.wer import normalize

_HANG_S = 10.0
_SLOW_HANG_S = 60.0
"""While a model is slow: two decodes of the longest segment, one behind the other, and a wait for the worker."""
_LEAST_RECALL = 0.5
"""So many of an utterance's words must be in the transcript; the rest are the recogniser's own mistakes."""
_OVERLAP_MS = 300.0
_SAME_ONSET_S = 1.0
"""A turn that began with the utterance is its transcript, however badly it was heard (over a loud reply, say)."""


@dataclass(slots=True)
class Final:
    """One final transcript."""

    turn: int
    text: str
    at_samples: int
    onset_samples: int
    is_typed: bool
    fate: str = ""
    """`answered`, `interrupted` (the user spoke or pressed stop, or the answer ended early), or `went on` (the same
    turn has a later final)."""
    first_played_samples: int = 0
    output_ms: float = 0.0
    charged_ms: float = 0.0
    """What the table charges for the first clause of the answer; it depends on the clause."""


@dataclass(frozen=True, slots=True)
class Said:
    """An utterance in places of the microphone, 16 kHz."""

    text: str
    onset_samples: int
    end_samples: int
    is_delivered: bool
    """All of it reached the callback."""


class Ledger:
    """Feed it every event; ask it in the end."""

    def __init__(self, costs: CostTable | None = None) -> None:
        """`costs`: the usual ones, where latencies are of interest."""
        self._costs = costs or zero_costs()
        self.finals: list[Final] = []
        self.typed: list[tuple[int, int, str]] = []
        """(at_samples, onset_samples of the turn that it cut short or its own time, text) of every typed question."""
        self.hangs: list[dict[str, Any]] = []
        self.notices: dict[str, int] = {}
        self.replies: list[list[int]] = []
        """[from, to] in samples of every time in which the agent could be heard."""
        self.state = "listening"
        self._onset_samples = 0
        self._reason = ""
        self._moved_samples = 0

    def take(self, event: events.Event, output_ms: float = 0.0) -> None:
        """One event. `output_ms`: from the callback to the loudspeaker at this time."""
        if isinstance(event, events.Meters):
            return
        self._moved_samples = max(self._moved_samples, event.at_samples)
        match event:
            case events.UserSpeechStarted(onset_samples=onset):
                self._onset_samples = onset
                self._settle("interrupted")
            case events.TurnEnded(reason=reason):
                self._reason = reason
            case events.UserTranscript(turn=turn, text=text, at_samples=at, final=True):
                is_typed = self._reason == "text"
                self._settle("interrupted")
                self.finals.append(Final(turn, text, at, at if is_typed else self._onset_samples, is_typed))
            case events.StateChanged(state=state):
                if state == "listening":
                    self._settle("interrupted")
                elif state == "hearing":  # and no new turn has begun with it
                    self._settle("went on")
                if state == "speaking":
                    self.replies.append([event.at_samples, event.at_samples])
                elif self.state == "speaking":
                    self.replies[-1][1] = event.at_samples
                self.state = state
            case events.AgentSaid(turn=turn, interrupted=is_interrupted):
                self._said(turn, is_interrupted)
            case events.AgentText(turn=turn, clause=1, text=text):
                if self.finals and self.finals[-1].turn == turn:
                    tokens_ms = self._costs.charge("llm", 0.0).each_ms * len(text.split())
                    self.finals[-1].charged_ms = tokens_ms + self._costs.charge("tts", float(len(text))).first_ms
            case events.TurnLatency(turn=turn, at_samples=at):
                for final in self.finals[-1:]:
                    if final.turn == turn and not final.first_played_samples:
                        final.first_played_samples, final.output_ms = at, output_ms
            case events.CommandTaken(name="say", argument=text, at_samples=at):
                self.typed.append((at, self._onset_samples if self.state == "hearing" else at, text))
            case events.Notice(message=message):
                kind = "".join(" " if char.isdigit() else char for char in message).split(":")[0]
                self.notices[kind] = self.notices.get(kind, 0) + 1

    def watch(self, now_samples: int, *, is_slow: bool) -> None:
        """Called now and then while an engine is there: whether it moves, where it should."""
        limit_s = _SLOW_HANG_S if is_slow else _HANG_S
        if self.state == "listening":
            self._moved_samples = now_samples
        elif now_samples - self._moved_samples > limit_s * SAMPLE_RATE_HZ:
            self.hangs.append({"at_s": now_samples / SAMPLE_RATE_HZ, "state": self.state, "limit_s": limit_s})
            self._moved_samples = now_samples

    def moved(self, now_samples: int) -> None:
        """An engine was replaced; it has its time from here on."""
        self._moved_samples = now_samples

    def _said(self, turn: int, is_interrupted: bool) -> None:
        for final in reversed(self.finals):
            if final.turn == turn:
                final.fate = "interrupted" if is_interrupted else "answered"
                return

    def _settle(self, fate: str) -> None:
        if self.finals and not self.finals[-1].fate:
            self.finals[-1].fate = fate


def utterance_rows(
    ledger: Ledger, said: Sequence[Said], disturbed: Sequence[tuple[float, float]], kept: Iterable[str]
) -> list[dict[str, Any]]:
    """One row for everything that the user said or typed, and for every turn that nobody began (`spurious`).

    `disturbed` are the (from_s, to_s) in which something was wrong: turns that touch none of them are clean.
    `kept` are the questions in the journal. `outcome` is `lost` where what was delivered is in no final transcript,
    or not in the journal, or was neither answered nor interrupted; `misheard` where only the words are wrong;
    `unheard` where the agent talked all the time and its echo hid the user, so that no turn began (how often that
    happens in rooms that the ear knows is a figure of `bench talk`: here the ear is often new).
    """
    in_journal = set(kept)
    rows = []
    matched: list[Final] = []
    for one in said:
        final = _final_of(ledger.finals, one)
        matched += [] if final is None else [final]
        row: dict[str, Any] = {
            "scene": "soak",
            "kind": "utterance",
            "at_s": round(one.onset_samples / SAMPLE_RATE_HZ, 2),
        }
        row |= {"text": one.text, "is_delivered": one.is_delivered}
        if final is not None:
            row |= {"turn": final.turn, "heard_as": final.text, "recall": round(_recall(one.text, final.text), 2)}
        row["outcome"] = _outcome(one, final, ledger, in_journal)
        if final is not None and final.first_played_samples:
            latency_ms = samples_to_ms(final.first_played_samples - one.end_samples) + final.output_ms
            row["voice_to_voice_ms"] = round(latency_ms, 1)
            row["uncharged_ms"] = round(latency_ms - final.charged_ms, 1)
            first_s, last_s = one.onset_samples / SAMPLE_RATE_HZ, final.first_played_samples / SAMPLE_RATE_HZ
            row["is_clean"] = one.is_delivered and not any(a < last_s and first_s < b for a, b in disturbed)
        rows.append(row)
    for at_samples, _, text in ledger.typed:
        typed = next((final for final in ledger.finals if final.is_typed and final.text == text), None)
        is_lost = typed is None or not typed.fate or text not in in_journal
        row = {"scene": "soak", "kind": "typed", "at_s": round(at_samples / SAMPLE_RATE_HZ, 2), "text": text}
        rows.append(row | {"outcome": "lost" if is_lost or typed is None else typed.fate})
    for final in ledger.finals:
        if not final.is_typed and final.fate != "went on" and not any(final is other for other in matched):
            row = {"scene": "soak", "kind": "spurious", "at_s": round(final.onset_samples / SAMPLE_RATE_HZ, 2)}
            rows.append(row | {"turn": final.turn, "heard_as": final.text})
    return sorted(rows, key=lambda row: row["at_s"])


def _final_of(finals: Sequence[Final], one: Said) -> Final | None:
    """The transcript that holds an utterance: of those that cover its time, the one with most of its words."""
    beside = [
        final
        for final in finals
        if not final.is_typed
        and final.fate != "went on"
        and final.onset_samples <= one.end_samples
        and final.at_samples > one.onset_samples
    ]
    return max(beside, key=lambda final: _recall(one.text, final.text), default=None)


def _outcome(one: Said, final: Final | None, ledger: Ledger, kept: set[str]) -> str:
    if not one.is_delivered:
        return "not delivered"
    if any(onset < one.end_samples and one.onset_samples < at for at, onset, _ in ledger.typed):
        return "typed over"  # the user's own doing: typed words are a turn of their own, whatever was being said
    allowed = ms_to_samples(_OVERLAP_MS)
    if final is None and any(a <= one.onset_samples + allowed and one.end_samples <= b for a, b in ledger.replies):
        return "unheard"
    if final is None or final.text not in kept or not final.fate:
        return "lost"
    if _recall(one.text, final.text) < _LEAST_RECALL:
        is_of_it = abs(final.onset_samples - one.onset_samples) < _SAME_ONSET_S * SAMPLE_RATE_HZ
        return "misheard" if is_of_it else "lost"
    return final.fate


def _recall(said: str, heard: str) -> float:
    """Share of the words that were said which are among those heard."""
    words, there = normalize(said), set(normalize(heard))
    return sum(word in there for word in words) / len(words) if words else 1.0


def placed(
    spoken: Sequence[SpokenUtterance],
    texts: Sequence[str],
    *,
    rate_hz: int,
    first_block: int,
    end_block: int,
    stalls: Sequence[tuple[float, float]],
) -> list[Said]:
    """A device's utterances on the sample clock.

    Args:
        first_block: the microphone's block at which the device began.
        end_block: and the one behind its last.
        stalls: (at_s, duration_s) of the device's own time that came to nobody.
    """
    gone = [(round(at_s * HOPS_PER_SECOND), round(lasts_s * HOPS_PER_SECOND)) for at_s, lasts_s in stalls]
    block_frames = rate_hz // HOPS_PER_SECOND

    def place(frames: int) -> int:
        block, inside = divmod(frames, block_frames)
        swallowed = sum(min(length, max(0, block - at)) for at, length in gone)
        return (first_block + block - swallowed) * HOP_SAMPLES + inside * HOP_SAMPLES // block_frames

    rows = []
    for one, text in zip(spoken, texts, strict=False):
        first, last = one.onset_frames // block_frames, one.end_frames // block_frames
        is_hurt = any(at <= last and first <= at + length for at, length in gone)
        end = place(one.end_frames)
        rows.append(Said(text, place(one.onset_frames), end, not is_hurt and end <= end_block * HOP_SAMPLES))
    return rows
