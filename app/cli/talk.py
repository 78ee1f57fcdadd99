"""`vivavoce` without a command: talk, live or on files; and `vivavoce replay`."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from app import events
from app.cli.probe import ask_in_child
from app.cli.terminal import TerminalFace
from app.commands import Command, Quit, SayText, SetMuted, StopSpeaking
from app.config.schema import Config
from app.conversation.history import Exchange
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import (
    LIMIT_AFTER_INPUT_S,
    cost_table,
    input_end_samples,
    open_session,
    read_log,
)
from app.engine.live import LiveSession
from app.engine.process import JournalRef
from app.errors import AgentError
from app.journal import Journal
from app.log import begin_session, close_log, event_line, setup_log
from app.samples import sample_questions
from app.version import VERSION
from audio.block import SAMPLE_RATE_HZ
from audio.files import read_audio
from audio.io.device import DeviceSpec, PortAudioSpec, RoomSpec, ScriptSpec, SimulatedSpec, Utterance

_logger = logging.getLogger("vivavoce.face")
_POLL_S = 0.05
_SIMULATED_RATE_HZ = 48_000
_LIST_LIMIT_S = 10.0


def run(args: argparse.Namespace, config: Config) -> int:
    """Talk. Returns the exit code."""
    _check_flags(args)
    with _Face(args, config) as face:
        if args.input is not None or args.in_process:
            return _talk_on_file(args, config, face)
        return _talk_live(args, config, face)


def replay(args: argparse.Namespace, config: Config) -> int:
    """Run a log and its input again; say whether the decisions are the log's. Exit code 1 where they are not."""
    lines = _read_lines(args.events)
    log = read_log(lines)
    if len(log.lines) < len(lines):
        print(f"note: a device or a process was lost; the log is followed for its first {len(log.lines)} events")
    if log.started.config_sha256 != config_sha256(config):
        print("note: the configuration is not that of the log", file=sys.stderr)
    again: list[str] = []

    def emit(event: events.Event) -> None:
        if event.is_logged:
            again.append(event.to_json())

    read_audio(args.input)
    device = SimulatedSpec(
        input=str(args.input),
        tail_s=LIMIT_AFTER_INPUT_S,
        rate_hz=log.started.device_rate_hz,
        output_latency_ms=log.started.output_latency_ms,
        output_path=str(args.output) if args.output else None,
    )
    where = places(config, os.environ)
    check_models(config, where)
    engines, _ = open_engines(config, where)
    ear = ear_spec(config, model_files(config, where))
    resumed = [Exchange(user, heard) for user, heard in log.started.resumed]
    session = open_session(config, engines, ear, device, emit, costs=None, is_paced=False, exchanges=resumed, log=log)
    try:
        session.run(limit_s=log.ended_samples / SAMPLE_RATE_HZ)
    finally:
        session.close()
    return _compare(list(log.lines), again, is_cut=len(log.lines) < len(lines))


def config_sha256(config: Config) -> str:
    """Identity of a configuration; a replay compares it."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


class _Face:
    """Terminal, event log and journal: everything that takes events."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self.terminal = TerminalFace(sys.stdout)
        data = places(config, os.environ).data
        self.journal: Journal | None = None
        if args.journal is not None or args.resume or args.input is None:
            self.journal = Journal(args.journal or data / "journal.jsonl")
        self._has_keyboard = sys.stdin is not None and sys.stdin.isatty() and os.name == "posix"
        self.exchanges: list[Exchange] = self.journal.exchanges() if self.journal and args.resume else []
        self._logs = []
        for path in (args.events, args.record / "events.jsonl" if args.record else None):
            if path is not None:
                self._logs.append(_open_log(path))

    def __enter__(self) -> _Face:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminal.close()
        if self.journal is not None:
            self.journal.close()
        for log in self._logs:
            log.close()

    def typed(self) -> list[Command]:
        """Commands from the keyboard, if there is one: /stop, /mute, /unmute, /quit, or words to be answered."""
        commands: list[Command] = []
        while self._has_keyboard and select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            self._has_keyboard = bool(line)
            if line.strip():
                commands.append(parse_command(line.strip()))
        return commands

    def emit(self, event: events.Event) -> None:
        """Show, keep and log."""
        if self.journal is not None:
            self.journal.take(event)
        if event.is_logged:
            _logger.info("%s", event_line(event))
            if self._logs:
                self._log(event.to_json())
        self.terminal.show(event)

    def _log(self, line: str) -> None:
        """A full disk ends the log, not the conversation."""
        try:
            for log in self._logs:
                log.write(line + "\n")
        except OSError as error:
            self._logs = []
            self.terminal.line(f"error: the event log ends here: {error.strerror}")


# -- live -----------------------------------------------------------------------------------------------


def _talk_live(args: argparse.Namespace, config: Config, face: _Face) -> int:
    device, output = _live_device(args, config, face)
    log = begin_session(places(config, os.environ).data)
    setup_log(log, "face")
    session = LiveSession(
        config,
        device,
        face.emit,
        exchanges=face.exchanges,
        journal=JournalRef(face.journal.path, face.journal.session) if face.journal is not None else None,
        record_dir=args.record,
        output=args.output or output,
        log=log,
    )
    face.terminal.line("loading the models ...")
    is_error = False
    with _interruptible():
        try:
            stream = session.start()
            face.emit(_started(config, face, "live", stream.rate_hz, stream.output_latency_ms))
            face.terminal.line("listening. Speak, interrupt, type words or /stop, /mute, /unmute, /quit; Ctrl-C ends.")
            while (over := session.poll(_POLL_S)) is None:
                for command in face.typed():
                    session.send(command)
            reason, is_error = over.reason, over.is_error
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            session.stop()
    face.emit(events.SessionEnded(session.now_samples, reason))
    close_log()
    _farewell(face, reason, args.output or output)
    if is_error:
        raise AgentError(
            f"the session ended by itself: {reason}", fix="Start again; vivavoce doctor checks the machine"
        )
    return 0


def _live_device(args: argparse.Namespace, config: Config, face: _Face) -> tuple[DeviceSpec, Path | None]:
    """The sound device; where there is no microphone, a scripted user on a simulated one, and where its sound goes."""
    wanted = PortAudioSpec(config.audio.input, config.audio.output, config.audio.rate_hz or None, config.audio.mode)
    if not args.simulate:
        from audio.io.portaudio import list_devices

        found = ask_in_child(list_devices, timeout_s=_LIST_LIMIT_S)
        has_both = bool(found) and any(d.inputs for d in found) and any(d.outputs for d in found)
        if has_both or config.audio.input or config.audio.output:
            return wanted, None
        face.terminal.line("No microphone and loudspeaker were found (vivavoce devices lists what there is).")
    output = places(config, os.environ).data / "conversation.wav"
    output.parent.mkdir(parents=True, exist_ok=True)
    face.terminal.line("A scripted user asks sample questions through a simulated room, in real time.")
    return SimulatedSpec(
        input=sample_script(), room=RoomSpec(erl_db=15.0, noise_db=-70.0), rate_hz=_SIMULATED_RATE_HZ
    ), output


def sample_script() -> ScriptSpec:
    """The sample questions, one after the other."""
    return ScriptSpec(tuple(Utterance(str(sample.path)) for sample in sample_questions()), lead_s=0.5)


def parse_command(line: str) -> Command:
    """A typed line as a command; what does not begin with one of the known words is for the agent."""
    known: dict[str, Command] = {
        "/stop": StopSpeaking(),
        "/mute": SetMuted(True),
        "/unmute": SetMuted(False),
        "/quit": Quit(),
    }
    return known.get(line, SayText(line))


# -- on files -------------------------------------------------------------------------------------------


def _talk_on_file(args: argparse.Namespace, config: Config, face: _Face) -> int:
    cost = args.cost or ("fixed" if args.fast else None)
    costs = cost_table(cost) if cost else None
    if args.input is not None:
        end = input_end_samples(args.input)
        device = SimulatedSpec(
            input=str(args.input),
            tail_s=LIMIT_AFTER_INPUT_S,
            rate_hz=_SIMULATED_RATE_HZ,
            output_path=_text(args.output),
        )
        limit_s = end / SAMPLE_RATE_HZ + LIMIT_AFTER_INPUT_S
    else:
        end, limit_s = 0, 3600.0
        device = SimulatedSpec(
            input=sample_script(),
            room=RoomSpec(erl_db=15.0),
            rate_hz=_SIMULATED_RATE_HZ,
            output_path=_text(args.output),
        )
    where = places(config, os.environ)
    check_models(config, where)
    engines, backends = open_engines(config, where)
    ear = ear_spec(config, model_files(config, where))
    is_paced = not args.fast
    session = open_session(
        config, engines, ear, device, face.emit, costs=costs, is_paced=is_paced, exchanges=face.exchanges
    )
    session.input_end_samples = end
    face.emit(_started(config, face, cost or "live", _SIMULATED_RATE_HZ, device.output_latency_ms))
    for stage, backend, held in [*session.ear.backends(), *backends]:
        face.emit(events.StageBackend(0, stage, backend, held))
    with _interruptible():
        try:
            reason = session.run(limit_s=limit_s)
        except KeyboardInterrupt:
            reason = "interrupted"
        finally:
            session.close()
    face.emit(events.SessionEnded(session.conversation.now_samples, reason))
    _farewell(face, reason, args.output)
    return 0


# -- small things ---------------------------------------------------------------------------------------


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse what contradicts itself, and files that cannot be read or written, before anything loads."""
    if args.fast and args.input is None and not args.in_process:
        raise AgentError("--fast needs --input or --in-process", fix="Give it a file to listen to")
    if args.cost and args.input is None and not args.in_process:
        raise AgentError("--cost needs --input or --in-process", fix="A live device charges nothing")
    if args.record is not None and (args.input is not None or args.in_process):
        raise AgentError("--record is for live sessions", fix="Use --output and --events")
    if args.input is not None:
        read_audio(args.input)
    for path in (args.output, args.events):
        if path is not None and not path.resolve().parent.is_dir():
            raise AgentError(f"the folder of {path} does not exist", fix="Create it, or name another")


def _started(config: Config, face: _Face, cost: str, rate_hz: int, output_latency_ms: float) -> events.SessionStarted:
    resumed = [[exchange.user, exchange.heard] for exchange in face.exchanges]
    identity = (config.persona, config_sha256(config), resumed)
    return events.SessionStarted(0, VERSION, config.llm.seed, cost, rate_hz, output_latency_ms, *identity)


def _farewell(face: _Face, reason: str, output: Path | None) -> None:
    summary = face.terminal.summary()
    if summary:
        face.terminal.line(summary)
    if output is not None:
        face.terminal.line(f"the agent's side is in {output}")
    face.terminal.line(f"ended: {reason}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a session as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _open_log(path: Path):  # type: ignore[no-untyped-def]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        raise AgentError(f"{path} cannot be written: {error.strerror}", fix="Name another file") from None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AgentError(f"{path} cannot be read: {error}", fix="Name a file that --events wrote") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


_NOT_REPLAYED = ("session.started", "session.ended", "stage.backend", "device.", "process.", "notice")


def _compare(before: list[str], after: list[str], *, is_cut: bool) -> int:
    """Line by line, but for what the device alone says. Of a log that was cut, the last events may be missing."""

    def kept(lines: list[str]) -> list[str]:
        prefixes = tuple(f'{{"type": "{name}' for name in _NOT_REPLAYED)
        # How late a result was is the log's to know; when it arrived is compared.
        return [re.sub(r', "late_ms": [0-9.]+', "", line) for line in lines if not line.startswith(prefixes)]

    log, run_again = kept(before), kept(after)
    for number, (old, new) in enumerate(zip(log, run_again, strict=False)):
        if old != new:
            print(f"the runs part at event {number}:\n  log:    {old}\n  replay: {new}")
            return 1
    if len(log) != len(run_again) and not is_cut:
        print(f"the log has {len(log)} events, the replay {len(run_again)}")
        return 1
    print(f"same decisions: {len(log)} events")
    return 0
