"""Every event of the product: what faces show, logs keep, metrics count and a replay reads.

One frozen dataclass per event with a stable `type`. `at_samples` is the 16 kHz input index at which the event became
true. `to_json` and `from_json` are inverse. Events with `is_logged = False` are for faces only: a replay derives them.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.event_base import REGISTRY as _REGISTRY  # noqa: F401  (tests look at all events)
from app.event_base import Event as Event
from app.event_base import event_type as _event
from app.event_base import from_json as from_json

# --- session -------------------------------------------------------------------------------------------


@_event("session.started")
@dataclass(frozen=True, slots=True)
class SessionStarted(Event):
    """First line of a log: what is needed to replay it."""

    version: str
    seed: int
    cost: str
    """`live`, or the cost table that charged the arrivals."""
    device_rate_hz: int
    output_latency_ms: float
    persona: str
    config_sha256: str
    resumed: list[list[str]]
    """(user, heard) of the exchanges that a resumed conversation began with."""


@_event("session.ended")
@dataclass(frozen=True, slots=True)
class SessionEnded(Event):
    """Last line of a log."""

    reason: str


@_event("stage.backend")
@dataclass(frozen=True, slots=True)
class StageBackend(Event):
    """Which implementation a stage runs on, and what it holds."""

    stage: str
    backend: str
    memory_bytes: int


@_event("notice")
@dataclass(frozen=True, slots=True)
class Notice(Event):
    """One sentence for the user."""

    severity: str
    """`info`, `warning` or `error`."""
    message: str


# --- devices -------------------------------------------------------------------------------------------


@_event("device.opened")
@dataclass(frozen=True, slots=True)
class DeviceOpened(Event):
    """The audio stream runs."""

    input_name: str
    output_name: str
    rate_hz: int
    output_latency_ms: float
    scheduling: str
    """What the audio process got: `fifo:10`, `nice:-11`, `normal`."""


@_event("device.lost")
@dataclass(frozen=True, slots=True)
class DeviceLost(Event):
    """The stream stopped delivering."""

    device: str
    reason: str


@_event("device.back")
@dataclass(frozen=True, slots=True)
class DeviceBack(Event):
    """The named device delivers again."""

    device: str


@_event("device.round_trip")
@dataclass(frozen=True, slots=True)
class DeviceRoundTrip(Event):
    """Delay from a sample leaving the callback to its echo arriving in it."""

    delay_ms: float
    confidence: float


@_event("device.drift", logged=False)
@dataclass(frozen=True, slots=True)
class DeviceDrift(Event):
    """How the clocks of a microphone and a loudspeaker that are different devices get on, every 2 s."""

    drift_ppm: float
    """How much faster the loudspeaker's clock runs."""
    fill_ms: float
    depth_ms: float
    underruns: int
    jumps: int


@_event("meters", logged=False)
@dataclass(frozen=True, slots=True)
class Meters(Event):
    """Levels in dB full scale and the ear's lateness, about ten times a second."""

    level_db: float
    far_level_db: float
    clean_level_db: float
    speech_probability: float
    hop_late_ms: float
    lost_frames: int
    """Device frames that never arrived, since the stream started."""
    underruns: int = 0
    """Times since then that a reply had nothing to play."""


@_event("process.lost")
@dataclass(frozen=True, slots=True)
class ProcessLost(Event):
    """A process of ours ended by itself or does not move; another one takes its place."""

    process: str
    """`ear` or `engine`."""
    reason: str


@_event("process.back")
@dataclass(frozen=True, slots=True)
class ProcessBack(Event):
    """Its successor is at work. After an engine's, a log cannot be replayed further: a new mind goes on from here."""

    process: str
    after_ms: float
    """Since the loss was noticed."""


@_event("memory.degraded")
@dataclass(frozen=True, slots=True)
class MemoryDegraded(Event):
    """Memory is `tight` or `critical`, and a rung of `gpu.memory.ladder` was given up. A replay ends here."""

    level: str
    rung: str
    freed_bytes: int


@_event("memory.restored")
@dataclass(frozen=True, slots=True)
class MemoryRestored(Event):
    """It is `calm`, and the rung was taken back."""

    level: str
    rung: str
    taken_bytes: int


@_event("memory.state", logged=False)
@dataclass(frozen=True, slots=True)
class MemoryState(Event):
    """The memory that the language model lies in, and what it holds there; once a second, where anything is new."""

    device: str
    """`cpu` for RAM, else torch's name of a GPU."""
    total_bytes: int
    free_bytes: int
    """For anybody."""
    engine_bytes: int
    """What the engine's process has taken of it; on a GPU without the CUDA context."""
    weights_bytes: int
    page_bytes: int
    pages: int
    """Physical ones of the arena; what is shared counts once."""
    shared_pages: int
    parked_sessions: int
    live_tokens: int
    """Of the conversation."""
    window_tokens: int
    """That it may have."""
    sessions: list[list[int]]
    """For each (pages, how many of them others show too, pages that it may grow to, tokens); first the conversation."""
    prefixes: list[list[int]]
    """The same of what sessions may begin with."""
    level: str
    """`calm`, `tight` or `critical`; empty where nobody guards the memory."""
    rungs_given: list[str]
    """Of `gpu.memory.ladder`, in the order in which they were given up."""
    rungs_open: dict[str, int]
    """Those that would free something now, and how many bytes."""


# --- user ----------------------------------------------------------------------------------------------


@_event("user.speech_started")
@dataclass(frozen=True, slots=True)
class UserSpeechStarted(Event):
    """The judge heard speech; `onset_samples` is where the voiced run began."""

    turn: int
    onset_samples: int


@_event("user.speech_ended")
@dataclass(frozen=True, slots=True)
class UserSpeechEnded(Event):
    """The judge hears silence since `offset_samples`."""

    turn: int
    offset_samples: int


@_event("user.transcript")
@dataclass(frozen=True, slots=True)
class UserTranscript(Event):
    """What the user said. Partials may change; the final one is what the model answers."""

    turn: int
    text: str
    final: bool
    stable_chars: int
    """Length of the prefix that will not change."""


@_event("turn.checked")
@dataclass(frozen=True, slots=True)
class TurnChecked(Event):
    """The end-of-turn model's answer to a pause."""

    turn: int
    probability: float


@_event("turn.ended")
@dataclass(frozen=True, slots=True)
class TurnEnded(Event):
    """The decision that the user has finished."""

    turn: int
    reason: str
    """`complete` (the model said so) or `silence` (it waited long enough), or `text` (typed)."""
    speech_end_samples: int


@_event("turn.dropped")
@dataclass(frozen=True, slots=True)
class TurnDropped(Event):
    """Sound that held no words: no turn."""

    turn: int


# --- agent ---------------------------------------------------------------------------------------------


@_event("agent.text")
@dataclass(frozen=True, slots=True)
class AgentText(Event):
    """A clause of the reply, as it is sent to the voice; it begins at `start_chars` of the reply's text."""

    turn: int
    clause: int
    text: str
    start_chars: int


@_event("agent.voiced")
@dataclass(frozen=True, slots=True)
class AgentVoiced(Event):
    """Where a clause's words lie in the reply's audio, before they are heard.

    `words` has (characters of the reply up to and with the word, device frame of the reply at which half of
    its sound is over), in order. With it anybody who sees the loudspeaker's frames knows what was heard.
    """

    turn: int
    generation: int
    words: list[list[int]]


@_event("agent.word", logged=False)
@dataclass(frozen=True, slots=True)
class AgentWord(Event):
    """Progress of the heard cursor: `chars` characters of the reply were heard."""

    turn: int
    chars: int


@_event("agent.said")
@dataclass(frozen=True, slots=True)
class AgentSaid(Event):
    """The reply is over: what was intended and what left the loudspeaker."""

    turn: int
    text: str
    heard: str
    interrupted: bool


@_event("barge_in")
@dataclass(frozen=True, slots=True)
class BargeIn(Event):
    """The user took the floor. `stop_ms`: from the onset of their speech to the last sample of the reply."""

    turn: int
    generation: int
    onset_samples: int
    decided_samples: int
    stop_ms: float


@_event("turn.latency")
@dataclass(frozen=True, slots=True)
class TurnLatency(Event):
    """Where the time of one turn went, in ms from one mark to the next, on the sample clock.

    The marks: end of the user's speech, decision that the turn is over, final transcript, first token,
    first clause complete, its audio ready, first sample copied by the callback, loudspeaker.
    `voice_to_voice_ms` is their sum: end of speech to loudspeaker.
    """

    turn: int
    endpoint_ms: float
    asr_ms: float
    first_token_ms: float
    first_clause_ms: float
    tts_ms: float
    playback_ms: float
    output_ms: float
    """Output latency that the stream reports."""
    voice_to_voice_ms: float


@_event("state")
@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """`listening`, `hearing`, `thinking` or `speaking`."""

    state: str


# --- what a replay needs ---------------------------------------------------------------------------------


@_event("arrival")
@dataclass(frozen=True, slots=True)
class Arrival(Event):
    """Result number `sequence` of job `job` was released to the turn machine."""

    job: int
    kind: str
    sequence: int
    late_ms: float
    """How far behind its charged index it came; 0 in a run without late arrivals."""


@_event("playback")
@dataclass(frozen=True, slots=True)
class Playback(Event):
    """From the block at `at_samples` on, the callback plays a reply, fades it out, or neither.

    `reply_frames` of `generation` (device frames) have left it after that block.
    """

    generation: int
    reply_frames: int
    playing: bool
    faded: bool


@_event("command")
@dataclass(frozen=True, slots=True)
class CommandTaken(Event):
    """A user command took effect."""

    name: str
    argument: str
