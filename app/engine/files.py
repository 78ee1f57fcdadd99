"""Sessions on the simulated device in this process: from a file, from a script, or from a log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app import events
from app.commands import Command, Quit, SayText, SetMuted, StopSpeaking
from app.config.schema import Config
from app.conversation.agent import Engines
from app.conversation.costs import CostTable, load_costs, measured_costs, zero_costs
from app.conversation.desk import Release, ReplayRelease
from app.conversation.history import Exchange
from app.conversation.output import PlayedFrom, ReplayOutput, RingOutput
from app.conversation.resume import ResumePoint
from app.engine.builder import open_conversation, open_desk
from app.engine.local import LocalLink, LocalSession
from app.errors import AgentError
from app.paths import assets_dir
from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ
from audio.ear import Ear, EarSpec
from audio.files import read_audio
from audio.io.device import SimulatedSpec, make_simulated

LIMIT_AFTER_INPUT_S = 60.0
"""A session on a file ends at the latest this long after the file."""


@dataclass(frozen=True, slots=True)
class Log:
    """What a replay takes from an event log."""

    lines: Sequence[str]
    """The log as far as it can be replayed."""

    started: events.SessionStarted
    arrivals: Sequence[tuple[int, int, int]]
    played: Sequence[PlayedFrom]
    commands: Sequence[tuple[int, Command]]
    ended_samples: int
    """Where the last decision fell."""

    end_samples: int
    """Where the audio ends."""

    remark: str
    """Why it is not followed to its end; "" where it is."""


def cost_table(name: str) -> CostTable:
    """`fixed`, `fixed:FILE`, `measured` or `zero`.

    Raises:
        AgentError: the file is no cost table.
    """
    if name == "zero":
        return zero_costs()
    if name == "measured":
        return measured_costs()
    _, _, file = name.partition(":")
    return load_costs(Path(file) if file else assets_dir() / "costs.toml")


def open_session(
    config: Config,
    engines: Engines,
    ear: EarSpec,
    device_spec: SimulatedSpec,
    emit: Callable[[events.Event], None],
    *,
    costs: CostTable | None,
    is_paced: bool,
    exchanges: Sequence[Exchange] = (),
    log: Log | None = None,
) -> LocalSession:
    """Wire a session. `costs` None releases results as they come; a `log` is followed instead of either."""
    device = make_simulated(replace(device_spec, is_paced=False))
    stream = device.open()
    link = LocalLink.open(stream)
    release: Release | None = None if log is None else ReplayRelease(log.arrivals)
    desk = open_desk(costs, is_paced=is_paced, release=release)
    output = (
        RingOutput(link.playback_ring, link.control, stream.rate_hz)
        if log is None
        else ReplayOutput(link.playback_ring, link.control, stream.rate_hz, log.played)
    )
    conversation = open_conversation(
        config,
        engines,
        desk,
        output,
        emit,
        output_latency_ms=stream.output_latency_ms,
        resume=ResumePoint(exchanges),
    )
    session = LocalSession(device, link, Ear(ear, stream.rate_hz), conversation, desk, output, emit, is_paced=is_paced)
    if log is not None:
        session.commands = deque(log.commands)
    return session


def input_end_samples(path: Path) -> int:
    """The 16 kHz index at which a recorded user has nothing more to say.

    Raises:
        AudioFileError: the file is none that we read.
    """
    samples, rate_hz = read_audio(path)
    return -(-len(samples) * SAMPLE_RATE_HZ // rate_hz)


def read_log(lines: Iterable[str]) -> Log:
    """Read an event log, up to where a lost device or engine came back or memory was given up: from there another run.

    A log of a session that was killed is good as far as it goes, and its last line need not be whole.

    Raises:
        AgentError: a line is no event, or there is no `session.started`.
    """
    lines = list(lines)
    started: events.SessionStarted | None = None
    arrivals: list[tuple[int, int, int]] = []
    played: list[PlayedFrom] = []
    commands: list[tuple[int, Command]] = []
    ended = end = 0
    remark = "the log has no session.ended, the session was killed"
    kept: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            event = events.from_json(line)
        except ValueError as error:
            if kept and number == len(lines):
                remark = "the last line of the log is not whole, the session was killed"
                break
            raise AgentError(f"line {number} of the log: {error}", fix="Name a file that --events wrote") from None
        if isinstance(event, events.DeviceBack | events.ProcessBack | events.MemoryDegraded):
            remark = "a device, a process or memory was lost"
            break
        kept.append(line)
        if not isinstance(event, events.SessionEnded | events.DeviceLost | events.ProcessLost):
            # Playback is logged at the first sample of its hop, everything else behind the last.
            ended = max(ended, event.at_samples + HOP_SAMPLES * isinstance(event, events.Playback))
        match event:
            case events.SessionStarted():
                started = event
            case events.SessionEnded(at_samples=at):
                end, remark = at, ""
            case events.Arrival(at_samples=at, job=job, sequence=sequence):
                arrivals.append((at, job, sequence))
            case events.Playback(at_samples=at, generation=generation, playing=playing, faded=faded):
                played.append(PlayedFrom(at // HOP_SAMPLES, generation, playing, faded))
            case events.CommandTaken(at_samples=at, name=name, argument=argument):
                commands.append((at, _command(name, argument)))
    if started is None:
        raise AgentError("the log has no session.started", fix="Name a file that --events wrote")
    return Log(kept, started, arrivals, played, commands, ended, max(ended, end), remark)


def _command(name: str, argument: str) -> Command:
    match name:
        case "say":
            return SayText(argument)
        case "stop":
            return StopSpeaking()
        case "mute":
            return SetMuted(argument == "on")
    return Quit()
