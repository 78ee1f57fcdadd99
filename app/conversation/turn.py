"""The turn machine: who has the floor. Pure: observations in, decisions out, no clock, no thread, no audio.

It knows samples of the 16 kHz input index and nothing else. What it decides is carried out elsewhere;
what comes back enters as an observation. The same observations give the same decisions, which is what
makes a log replayable.

    listening -> hearing     speech
    hearing   -> thinking    the user has finished (the end-of-turn model said so, or the silence was long)
    thinking  -> hearing     the user goes on after all: the reply is withdrawn, the turn continues
                             (a new one begins where the question was typed, or asked of an engine that died)
    thinking  -> speaking    the first sample of the reply left
    speaking  -> hearing     barge-in
    speaking  -> listening   the reply is over
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from audio.block import HOP_SAMPLES, ms_to_samples

_GATE_GAP = ms_to_samples(100)
"""The gate may close so long between two syllables of one sound."""
_GATE_LEAD = ms_to_samples(300)
"""A sound that was there so long before the judge heard speech is another one."""


class State(StrEnum):
    """Who has the floor."""

    LISTENING = "listening"
    HEARING = "hearing"
    THINKING = "thinking"
    SPEAKING = "speaking"


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """Durations in milliseconds, thresholds as probabilities."""

    min_silence_ms: float
    """Silence after which a pause is examined."""
    max_silence_ms: float
    """Silence that ends a turn whatever the model says."""
    complete_threshold: float
    """End-of-turn probability from which a turn is over at `min_silence_ms`."""
    barge_in_ms: float
    """Evidence of speech that takes the floor from the agent."""
    cold_barge_in_ms: float
    """The same while the ear cannot yet tell its own echo from a user: in the first seconds of the first reply."""
    barge_in_threshold: float
    """Speech probability that counts as evidence while the agent can be heard."""
    resume_ms: float
    """Evidence of speech that withdraws a reply before it is heard."""
    echo_tail_ms: float
    """How long after the agent's last sample its echo may still sound."""


# --- observations --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HopHeard:
    """One hop of the ear."""

    end_samples: int
    is_voiced: bool
    onset_samples: int
    """Where the voiced run that this hop belongs to began (meaningful while voiced)."""
    speech_probability: float
    is_reply_playing: bool
    is_room_known: bool = True
    """The ear can tell its own echo from a user."""
    is_gate_open: bool = False
    """The fast gate hears something, speech or not."""


@dataclass(frozen=True, slots=True)
class PauseScored:
    """The end-of-turn model answered for a pause."""

    pause: int
    probability: float


@dataclass(frozen=True, slots=True)
class PauseTranscribed:
    """The whole turn up to a pause as text; "" when it held no words."""

    pause: int
    text: str


@dataclass(frozen=True, slots=True)
class ReplyOver:
    """The reply was heard to its end, or there is none."""


@dataclass(frozen=True, slots=True)
class TextTyped:
    """The user typed instead of speaking."""

    text: str


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The user pressed stop."""


@dataclass(frozen=True, slots=True)
class MuteSet:
    """The microphone was muted or opened."""

    muted: bool


Observation = HopHeard | PauseScored | PauseTranscribed | ReplyOver | TextTyped | StopWanted | MuteSet

# --- decisions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The user began to speak at `onset_samples`."""

    turn: int
    onset_samples: int


@dataclass(frozen=True, slots=True)
class ExaminePause:
    """Ask the end-of-turn model about, and transcribe, the turn up to now."""

    turn: int
    pause: int
    speech_end_samples: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The turn is over: reply to `text`."""

    turn: int
    text: str
    reason: str
    speech_end_samples: int
    endpoint_samples: int
    """When the silence alone would have decided; waiting for the transcript comes on top."""


@dataclass(frozen=True, slots=True)
class DropTurn:
    """There were no words in it."""

    turn: int


@dataclass(frozen=True, slots=True)
class WithdrawReply:
    """Take back a reply that nobody has heard yet. `turn` continues unless it is None."""

    turn: int | None


@dataclass(frozen=True, slots=True)
class InterruptReply:
    """Stop the reply that is being heard. `onset_samples` is None when a key did it, not speech."""

    onset_samples: int | None


Decision = OpenTurn | ExaminePause | Answer | DropTurn | WithdrawReply | InterruptReply


@dataclass(slots=True)
class _Pause:
    """A silence inside a turn."""

    number: int
    probability: float | None = None
    text: str | None = None


class TurnMachine:
    """See the module's text for the states."""

    def __init__(self, settings: TurnSettings, *, last_turn: int = 0) -> None:
        self._settings = settings
        self.state = State.LISTENING
        self.turn = last_turn
        self._now = 0
        self._last_voiced = 0
        self._last_playing = -(10**9)
        self._evidence = 0
        self._evidence_onset = 0
        self._gate_seen = self._gate_onset = -(10**9)
        self._pauses = 0
        self._pause: _Pause | None = None
        self._is_muted = False
        self._is_room_known = True
        self._can_go_on = True
        """The question that is being answered was heard here and now, so more words may still belong to it."""

    def step(self, observation: Observation) -> list[Decision]:
        """Take one observation; return what follows from it, in order."""
        match observation:
            case HopHeard():
                return self._hop(observation)
            case PauseScored(pause, probability):
                if self._pause is not None and self._pause.number == pause:
                    self._pause.probability = probability
                return self._try_end()
            case PauseTranscribed(pause, text):
                if self._pause is not None and self._pause.number == pause:
                    self._pause.text = text
                return self._try_end()
            case ReplyOver():
                if self.state in (State.THINKING, State.SPEAKING):
                    self._listen()
                return []
            case TextTyped(text):
                return self._typed(text)
            case StopWanted():
                return self._silence_reply()
            case MuteSet(muted):
                return self._mute(muted)

    def owe(self, turn: int) -> bool:
        """A dead engine owed the answer to `turn`. Whether it can be given now: nobody has spoken since."""
        if self.state is not State.LISTENING or self.turn != turn:
            return False
        self._can_go_on = False
        self._enter(State.THINKING)
        return True

    # -- hops --

    def _hop(self, hop: HopHeard) -> list[Decision]:
        self._now = hop.end_samples
        self._is_room_known = hop.is_room_known
        self._watch_gate(hop)
        if hop.is_reply_playing:
            self._last_playing = hop.end_samples
            if self.state is State.THINKING:
                self._enter(State.SPEAKING)
        if self._is_muted:
            return []
        self._weigh(hop)
        match self.state:
            case State.LISTENING:
                return self._while_listening(hop)
            case State.HEARING:
                return self._while_hearing(hop)
            case State.THINKING:
                return self._while_thinking(hop)
            case State.SPEAKING:
                return self._while_speaking()

    def _watch_gate(self, hop: HopHeard) -> None:
        """Remember where the sound that is going on began."""
        if hop.is_gate_open:
            if self._now - self._gate_seen > _GATE_GAP:
                self._gate_onset = hop.end_samples - HOP_SAMPLES
            self._gate_seen = self._now

    def _sound_onset(self, onset_samples: int) -> int:
        """The judge is sure some time after the sound began; the gate noticed it at once."""
        is_same_sound = self._now - self._gate_seen <= _GATE_GAP and onset_samples - self._gate_onset <= _GATE_LEAD
        return min(onset_samples, self._gate_onset) if is_same_sound else onset_samples

    def _weigh(self, hop: HopHeard) -> None:
        """Evidence rises with every speech-like hop and falls with every other: clicks add up to nothing."""
        if hop.speech_probability >= self._settings.barge_in_threshold:
            if self._evidence == 0:
                self._evidence_onset = self._sound_onset(hop.end_samples - HOP_SAMPLES)
            self._evidence += HOP_SAMPLES
        else:
            self._evidence = max(0, self._evidence - HOP_SAMPLES)

    def _has_floor_evidence(self) -> bool:
        """Enough to interrupt, or to open a turn in the agent's echo."""
        return self._has_evidence(
            self._settings.barge_in_ms if self._is_room_known else self._settings.cold_barge_in_ms
        )

    def _has_evidence(self, wanted_ms: float) -> bool:
        return self._evidence >= ms_to_samples(wanted_ms)

    def _while_listening(self, hop: HopHeard) -> list[Decision]:
        if self._now - self._last_playing <= ms_to_samples(self._settings.echo_tail_ms):
            opens, onset = self._has_floor_evidence(), self._evidence_onset
        else:
            opens, onset = hop.is_voiced, self._sound_onset(hop.onset_samples)
        return self._open(onset) if opens else []

    def _open(self, onset_samples: int) -> list[Decision]:
        self.turn += 1
        self._pause = None
        self._last_voiced = self._now
        self._enter(State.HEARING)
        return [OpenTurn(self.turn, onset_samples)]

    def _while_hearing(self, hop: HopHeard) -> list[Decision]:
        if hop.is_voiced:
            self._last_voiced = self._now
            self._pause = None
            return []
        if self._pause is None and self._silence() >= ms_to_samples(self._settings.min_silence_ms):
            self._pauses += 1
            self._pause = _Pause(self._pauses)
            return [ExaminePause(self.turn, self._pauses, self._last_voiced)]
        return self._try_end()

    def _while_thinking(self, hop: HopHeard) -> list[Decision]:
        if not (hop.is_voiced and self._has_evidence(self._settings.resume_ms)):
            return []
        if not self._can_go_on:
            return [WithdrawReply(None), *self._open(self._sound_onset(hop.onset_samples))]
        self._pause = None
        self._last_voiced = self._now
        self._enter(State.HEARING)
        return [WithdrawReply(self.turn)]

    def _while_speaking(self) -> list[Decision]:
        if not self._has_floor_evidence():
            return []
        onset = self._evidence_onset
        return [InterruptReply(onset), *self._open(onset)]

    # -- end of turn --

    def _silence(self) -> int:
        return self._now - self._last_voiced

    def _try_end(self) -> list[Decision]:
        pause = self._pause
        if self.state is not State.HEARING or pause is None or pause.text is None:
            return []
        is_complete = pause.probability is not None and pause.probability >= self._settings.complete_threshold
        is_long = self._silence() >= ms_to_samples(self._settings.max_silence_ms)
        if not (is_complete or is_long):
            return []
        self._pause = None
        if not pause.text:
            self._listen()
            return [DropTurn(self.turn)]
        self._can_go_on = True
        self._enter(State.THINKING)
        waited_ms = self._settings.min_silence_ms if is_complete else self._settings.max_silence_ms
        endpoint = min(self._now, self._last_voiced + ms_to_samples(waited_ms))
        reason = "complete" if is_complete else "silence"
        return [Answer(self.turn, pause.text, reason, self._last_voiced, endpoint)]

    # -- commands --

    def _typed(self, text: str) -> list[Decision]:
        decisions = self._silence_reply()
        if self.state is State.HEARING:
            decisions.append(DropTurn(self.turn))
        self.turn += 1
        self._pause = None
        self._can_go_on = False
        self._enter(State.THINKING)
        return [*decisions, Answer(self.turn, text, "text", self._now, self._now)]

    def _silence_reply(self) -> list[Decision]:
        if self.state is State.SPEAKING:
            self._listen()
            return [InterruptReply(None)]
        if self.state is State.THINKING:
            self._listen()
            return [WithdrawReply(None)]
        return []

    def _mute(self, muted: bool) -> list[Decision]:
        self._is_muted = muted
        self._evidence = 0
        if muted and self.state is State.HEARING:
            self._listen()
            return [DropTurn(self.turn)]
        return []

    def _listen(self) -> None:
        self._pause = None
        self._enter(State.LISTENING)

    def _enter(self, state: State) -> None:
        self.state = state
        if state is not State.HEARING:
            self._evidence = 0
