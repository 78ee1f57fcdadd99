"""`vivavoce` without a command: talk, live or on files."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from app import events
from app.cli.keeper import Keeper
from app.cli.keyboard import COMMANDS, Keyboard, parse_command
from app.cli.probe import ask_in_child
from app.cli.targets import EVENTS, RECORDING, check_file, check_recording, check_wav, refuse_same
from app.cli.terminal import TerminalFace
from app.commands import Command
from app.config.load import unread_variables
from app.config.schema import Config
from app.conversation.history import Exchange
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import (
    LIMIT_AFTER_INPUT_S,
    cost_table,
    input_end_samples,
    open_session,
)
from app.engine.live import LiveSession
from app.errors import AgentError
from app.log import begin_session, close_log, setup_log
from app.samples import sample_questions
from app.version import VERSION
from audio.block import SAMPLE_RATE_HZ
from audio.errors import DeviceError
from audio.files import read_audio
from audio.io.device import DeviceSpec, PortAudioSpec, RoomSpec, ScriptSpec, SimulatedSpec, Utterance
from audio.io.identity import DeviceInfo, find_device
from audio.io.pulse import look
from audio.io.server import exact_name

_POLL_S = 0.05
_SIMULATED_RATE_HZ = 48_000
_LIST_LIMIT_S = 10.0


def run(args: argparse.Namespace, config: Config) -> int:
    """Talk. Returns the exit code."""
    check_flags(args, config)
    # What is said is nobody else's business: every file and folder of a conversation is its user's alone.
    with private_files(), _Face(args, config) as face:
        if args.input is not None or args.in_process:
            return _talk_on_file(args, config, face)
        return _talk_live(args, config, face)


def config_sha256(config: Config) -> str:
    """Identity of a configuration; a replay compares it."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


class _Face:
    """The terminal, and what is kept: everything that takes events."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self.terminal = TerminalFace(sys.stdout)
        for remark in unread_variables(os.environ):
            self.terminal.line(f"note: {remark}")
        path = journal_path(args, config)
        self.keeper = Keeper(path, event_logs(args), self.terminal.line)
        self.keyboard = Keyboard(sys.stdin)
        self.exchanges: list[Exchange] = self.keeper.exchanges() if args.resume else []
        if args.resume and not self.exchanges:
            self.terminal.line(f"note: there is no conversation in {path}; this is a new one")

    def __enter__(self) -> _Face:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminal.close()
        self.keeper.close()

    def typed(self) -> list[Command]:
        """Commands from the keyboard or a pipe, and words to be answered."""
        commands: list[Command] = []
        for line in self.keyboard.lines():
            command = parse_command(line)
            if command is None:
                self.terminal.line(f"there is no command {line}; there are: {', '.join(COMMANDS)}")
            else:
                commands.append(command)
        if self.keyboard.remark:
            self.terminal.line(f"warning: {self.keyboard.remark}")
        return commands

    def emit(self, event: events.Event) -> None:
        """Show, keep and log."""
        self.keeper.take(event)
        self.terminal.show(event)


def event_logs(args: argparse.Namespace) -> list[Path]:
    """Where every event of the conversation is written."""
    paths = (args.events, args.record / EVENTS if args.record else None)
    return [path for path in paths if path is not None]


# -- live -----------------------------------------------------------------------------------------------


def _talk_live(args: argparse.Namespace, config: Config, face: _Face) -> int:
    device = live_device(args, config, face.terminal.line)
    log = begin_session(places(config, os.environ).data)
    setup_log(log, "face")
    session = LiveSession(
        config,
        device,
        face.emit,
        exchanges=face.exchanges,
        journal=face.keeper.journal_ref,
        record_dir=args.record,
        output=args.output,
        log=log,
    )
    model_files(config, places(config, os.environ))  # a wrong name is said before anything is promised
    face.terminal.line("loading the models ...")
    is_error = False
    with _interruptible():
        try:
            stream = session.start()
            face.emit(started(config, face.exchanges, "live", stream.rate_hz, stream.output_latency_ms))
            face.terminal.line(_hint(face.keyboard))
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
    _farewell(face, reason, args.output)
    if is_error:
        raise AgentError(
            f"the session ended by itself: {reason}", fix="Start again; vivavoce doctor checks the machine"
        )
    return 0


def _hint(keyboard: Keyboard) -> str:
    """What one can do; what is typed counts only where there is something to type on."""
    if keyboard.is_terminal:
        return f"listening. Speak, interrupt, type words or {', '.join(COMMANDS)}; Ctrl-C ends."
    if keyboard.is_open:
        return "listening. Speak or interrupt; words and commands are taken from the standard input; Ctrl-C ends."
    return "listening. Speak or interrupt; Ctrl-C ends."


def live_device(args: argparse.Namespace, config: Config, say: Callable[[str], None]) -> DeviceSpec:
    """The sound device; where there is no microphone, a scripted user on a simulated one, which `say` is told."""
    wanted = PortAudioSpec(config.audio.input, config.audio.output, config.audio.rate_hz or None, config.audio.mode)
    if not args.simulate:
        from audio.io.portaudio import list_devices

        found = ask_in_child(list_devices, timeout_s=_LIST_LIMIT_S)
        has_both = bool(found) and any(d.inputs for d in found) and any(d.outputs for d in found)
        if has_both or config.audio.input or config.audio.output:
            if found is not None:
                _check_names(found, config)
            return wanted
        say("No microphone and loudspeaker were found (vivavoce devices lists what there is).")
    say("A scripted user asks sample questions through a simulated room, in real time.")
    room = RoomSpec(erl_db=15.0, noise_db=-70.0)
    return SimulatedSpec(input=sample_script(), room=room, rate_hz=_SIMULATED_RATE_HZ)


def _check_names(found: Sequence[DeviceInfo], config: Config) -> None:
    """Raises DeviceError for a name that no device has, or several, by the rules by which it will be opened."""
    view, _ = look()
    for name, is_input in ((config.audio.input, True), (config.audio.output, False)):
        exact = exact_name(view, name, is_input=is_input) if name else ""
        _, server_name = find_device(found, exact, is_input=is_input)
        if server_name and view is not None and view.find(server_name, is_input=is_input) is None:
            kind = "input" if is_input else "output"
            fix = "Give a name that `vivavoce devices` lists"
            raise DeviceError(f"no {kind} device matches {name!r}", device=name, fix=fix)


def sample_script() -> ScriptSpec:
    """The sample questions, one after the other."""
    return ScriptSpec(tuple(Utterance(str(sample.path)) for sample in sample_questions()), lead_s=0.5)


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
    if args.fast:
        face.terminal.tell_progress(end)
    face.emit(started(config, face.exchanges, cost or "live", _SIMULATED_RATE_HZ, device.output_latency_ms))
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


def check_flags(args: argparse.Namespace, config: Config) -> None:
    """Refuse what contradicts itself, and files that cannot be read or written, before anything loads."""
    if args.fast and args.input is None and not args.in_process:
        raise AgentError("--fast needs --input or --in-process", fix="Give it a file to listen to")
    if args.cost and args.input is None and not args.in_process:
        raise AgentError("--cost needs --input or --in-process", fix="A live device charges nothing")
    if args.record is not None and (args.input is not None or args.in_process):
        raise AgentError("--record is for live sessions", fix="Use --output and --events")
    reads = {"--input": args.input, "--config": getattr(args, "config", None)}
    if args.cost and args.cost.startswith("fixed:"):
        reads["--cost"] = Path(args.cost.removeprefix("fixed:"))
    writes = {"--output": args.output, "--events": args.events, "the journal": journal_path(args, config)}
    recording = {f"--record ({name})": args.record / name for name in RECORDING} if args.record is not None else {}
    refuse_same(reads, writes | recording)
    if args.input is not None:
        read_audio(args.input)
    if args.output is not None:
        check_wav(args.output)
    if args.events is not None:
        check_file(args.events)
    if args.record is not None:
        check_recording(args.record)


def journal_path(args: argparse.Namespace, config: Config) -> Path | None:
    """A conversation on a file is kept only if that is asked for."""
    if args.journal is None and not args.resume and args.input is not None:
        return None
    journal: Path = args.journal or places(config, os.environ).data / "journal.jsonl"
    return journal


def started(
    config: Config, exchanges: Sequence[Exchange], cost: str, rate_hz: int, output_latency_ms: float
) -> events.SessionStarted:
    """First event of a log."""
    resumed = [[exchange.user, exchange.heard] for exchange in exchanges]
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
    """SIGTERM ends a session as Ctrl-C does, and so does a terminal that is closed (but not under `nohup`)."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, before in previous.items():
        if before is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def private_files() -> Iterator[None]:
    """Files are made with mode 0600 and folders with 0700, here and in child processes."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
