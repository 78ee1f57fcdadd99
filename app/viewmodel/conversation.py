"""What was said, what was heard of it and who has the floor: the lines of the *Conversation* panel.

Characters are counted in Python's way (code points), as the events do.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

from app import events
from app.viewmodel.base import ViewModel

SessionState = Literal["loading", "running", "ended"]
Kind = Literal["user", "agent", "notice"]
Role = Literal["said", "unstable", "heard", "coming", "unheard", "notice"]

NoticeEvent = (
    events.Notice
    | events.ProcessLost
    | events.ProcessBack
    | events.MemoryDegraded
    | events.MemoryRestored
    | events.DeviceLost
    | events.DeviceBack
    | events.SessionEnded
)
"""What is told between the turns."""


@dataclass(slots=True, eq=False)
class Line:
    """One side's words of one turn, or a notice. Changes only as long as its turn is under way."""

    kind: Kind
    turn: int = 0
    text: str = ""
    is_typed: bool = False
    is_over: bool = False
    """The user's words are final; the reply is heard out, interrupted or given up."""
    stable_chars: int = 0
    """Of the user's words: so many will not change."""
    heard_chars: int = 0
    """Of the reply: so many have left the loudspeaker."""
    event: NoticeEvent | None = None
    count: int = 1
    """How often the notice came in a row."""

    @property
    def is_cut_off(self) -> bool:
        """A reply that is over and was not heard to its end."""
        return self.kind == "agent" and self.is_over and self.heard_chars < len(self.text)

    def runs(self) -> list[tuple[int, Role]]:
        """The text in pieces of one look each: (characters, role)."""
        before: Role
        behind: Role
        if self.kind == "agent":
            cut, before, behind = self.heard_chars, "heard", "unheard" if self.is_over else "coming"
        else:
            cut, before, behind = len(self.text) if self.is_over else self.stable_chars, "said", "unstable"
        cut = min(cut, len(self.text))
        while cut and self.text[cut : cut + 1].isspace():
            cut += 1  # a line through a gap would look like one through the word before
        pieces = [(cut, before), (len(self.text) - cut, behind)]
        return [piece for piece in pieces if piece[0]]


class Match(NamedTuple):
    """Where a search found something. (A tuple: there may be tens of thousands.)"""

    line: int
    start_chars: int
    end_chars: int


class ConversationView(ViewModel):
    """See the module's text. `lines` grows at its end; `changed_since` says from where on it is different."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.session_state: SessionState = "loading"
        self.state = "listening"
        """The conversation's own: `listening`, `hearing`, `thinking` or `speaking`."""
        self.is_muted = False
        self._changes: list[tuple[int, int]] = []
        self._user: Line | None = None
        self._reply: Line | None = None
        self._last_turn = 0
        self._typed_turn = 0

    def set_session_state(self, state: SessionState) -> None:
        """What no event tells: the models are being loaded, or it is all over."""
        self.session_state = state
        if state != "running":
            self.state = "listening"
        self.changed()

    def changed_since(self, revision: int) -> int:
        """Index of the first line that is different from what it was then; the number of lines where none is."""
        position = bisect_right(self._changes, revision, key=lambda change: change[0])
        return min(self._changes[position][1] if position < len(self._changes) else len(self.lines), len(self.lines))

    def find(self, needle: str, first: int = 0) -> list[Match]:
        """Every place of `needle` from line `first` on, in any case of letters, oldest first. No notices."""
        wanted, found = _small(needle), list[Match]()
        if not wanted:
            return found
        for index, line in enumerate(islice(self.lines, first, None), first):
            text = _small(line.text)
            start = text.find(wanted)
            while start >= 0:
                end = start + len(wanted)
                found.append(Match(index, start, end))
                start = text.find(wanted, end)
        return found

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.UserSpeechStarted(turn=turn):
                self._last_turn = turn
            case events.TurnEnded(turn=turn, reason=reason):
                self._last_turn = turn
                self._typed_turn = turn if reason == "text" else 0
            case events.TurnDropped(turn=turn):
                if self._user is not None and self._user.turn == turn and not self._user.is_over:
                    self._remove(self._user)
                    self._user = None
            case events.UserTranscript():
                self._take_transcript(event)
            case events.AgentText() | events.AgentWord() | events.AgentSaid():
                self._take_reply(event)
            case events.StateChanged(state=state):
                self._take_state(state)
            case events.CommandTaken(name="mute", argument=argument):
                self.is_muted = argument == "on"
                self.changed()
            case _:
                self._take_other(event)

    # -- the two sides ------------------------------------------------------------------------------------

    def _take_transcript(self, event: events.UserTranscript) -> None:
        line = self._user
        if line is None or line.turn != event.turn:
            line = self._user = Line("user", event.turn, is_typed=event.turn == self._typed_turn)
            self.lines.append(line)
        if event.final and self._reply is not None and self._reply.turn != event.turn:
            self._end_reply(self._reply)
        line.text, line.is_over, line.stable_chars = event.text, event.final, event.stable_chars
        self._touch(line)

    def _take_reply(self, event: events.AgentText | events.AgentWord | events.AgentSaid) -> None:
        line = self._reply
        if line is None or line.turn != event.turn:
            if isinstance(event, events.AgentWord) or (isinstance(event, events.AgentSaid) and not event.text):
                return
            line = self._begin_reply(event.turn)
        match event:
            case events.AgentText(text=text, start_chars=start):
                line.text = line.text[:start].ljust(start) + text  # so that the heard characters count alike
                line.is_over = False
            case events.AgentWord(chars=chars):
                line.heard_chars = max(line.heard_chars, chars)
            case events.AgentSaid(text=text, heard=heard):
                line.text, line.heard_chars, line.is_over = text, _common_chars(text, heard), True
                self._reply = None
        self._touch(line)

    def _begin_reply(self, turn: int) -> Line:
        if self._reply is not None:
            self._end_reply(self._reply)
        line = self._reply = Line("agent", turn)
        self.lines.append(line)
        return line

    def _end_reply(self, line: Line) -> None:
        """Nothing more of it will be heard; an `agent.said` that comes later knows it to the character."""
        line.is_over = True
        self._touch(line)

    def _take_state(self, state: str) -> None:
        self.state = state
        self.changed()
        user, reply = self._user, self._reply
        if state == "hearing" and user is not None and user.turn == self._last_turn:
            user.is_over = False  # they went on after all, so what was going to be answered was never said
            self._touch(user)
            if reply is not None and reply.turn == user.turn and not reply.heard_chars:
                self._remove(reply)
                self._reply = reply = None
        if reply is not None and state in ("listening", "hearing"):
            self._end_reply(reply)

    # -- everything else ------------------------------------------------------------------------------------

    def _take_other(self, event: events.Event) -> None:
        match event:
            case events.SessionStarted():
                self._begin_session(event)
            case events.SessionEnded(reason=reason):
                self._close_turns()
                self.set_session_state("ended")
                if reason != "quit":
                    self._tell(event)
            case (
                events.Notice()
                | events.ProcessLost()
                | events.ProcessBack()
                | events.MemoryDegraded()
                | events.MemoryRestored()
                | events.DeviceLost()
                | events.DeviceBack()
            ):
                self._tell(event)

    def _tell(self, event: NoticeEvent) -> None:
        """A line for it; one that says the same as the line before only counts."""
        last = self.lines[-1] if self.lines else None
        if last is not None and last.event is not None and replace(last.event, at_samples=event.at_samples) == event:
            last.count += 1
        else:
            last = Line("notice", event=event, is_over=True)
            self.lines.append(last)
        self._touch(last)

    def _close_turns(self) -> None:
        """Nothing goes on in another session."""
        if self._reply is not None:
            self._end_reply(self._reply)
        if self._user is not None and not self._user.is_over:
            self._remove(self._user)  # nobody will answer it, and no journal has it
        self._user = self._reply = None
        self._last_turn = self._typed_turn = 0

    def _begin_session(self, event: events.SessionStarted) -> None:
        """The exchanges that it goes on from come first, unless they are here already, with more than a journal has."""
        self._close_turns()
        before = len(self.lines)
        self.is_muted = False
        self.set_session_state("running")
        shown = [line.text for line in self.lines if line.kind == "user"]
        resumed = [user for user, _ in event.resumed]
        if shown and resumed[-len(shown) :] == shown:
            new, kept = event.resumed[: -len(shown)], self.lines
        else:
            new, kept = event.resumed, self.lines[self._first_of_last_notices() :]
        earlier: list[Line] = []
        for user, heard in new:
            earlier.append(Line("user", text=user, is_over=True, stable_chars=len(user)))
            if heard:
                earlier.append(Line("agent", text=heard, is_over=True, heard_chars=len(heard)))
        self.lines = earlier + kept
        if earlier or len(kept) != before:
            self._change_from(0)

    def _first_of_last_notices(self) -> int:
        index = len(self.lines)
        while index and self.lines[index - 1].kind == "notice":
            index -= 1
        return index

    def _touch(self, line: Line) -> None:
        """It is different now. What changes is near the end."""
        index = len(self.lines) - 1
        while self.lines[index] is not line:
            index -= 1
        self._change_from(index)

    def _remove(self, line: Line) -> None:
        index = self.lines.index(line)
        del self.lines[index]
        self._change_from(index)

    def _change_from(self, index: int) -> None:
        """Note it. Older changes that lie behind it say nothing more, so both columns of `_changes` ascend."""
        self.changed()
        while self._changes and self._changes[-1][1] >= index:
            self._changes.pop()
        self._changes.append((self.revision, index))


def _small(text: str) -> str:
    """In small letters, and as long as it was: `İ` becomes two characters otherwise."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(char.lower()[0] for char in text)


def _common_chars(text: str, heard: str) -> int:
    """How much of `text` was heard: `heard` is its beginning."""
    if text.startswith(heard):
        return len(heard)
    return next(index for index in range(len(text) + 1) if heard[index : index + 1] != text[index : index + 1])
