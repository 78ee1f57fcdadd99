"""`vivavoce replay`: a log and its input once more, and whether the decisions are the same."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from app import events
from app.cli.talk import config_sha256
from app.cli.targets import check_wav, refuse_same
from app.config.schema import Config
from app.conversation.history import Exchange
from app.engine.builder import check_models, ear_spec, model_files, open_engines, places
from app.engine.files import LIMIT_AFTER_INPUT_S, open_session, read_log
from app.errors import AgentError
from audio.block import SAMPLE_RATE_HZ
from audio.files import read_audio
from audio.io.device import SimulatedSpec

_NOT_REPLAYED = ("session.started", "session.ended", "stage.backend", "device.", "process.", "notice")


def run(args: argparse.Namespace, config: Config) -> int:
    """Run a log and its input again; say whether the decisions are the log's. Exit code 1 where they are not."""
    reads = {"--events": args.events, "--input": args.input, "--config": getattr(args, "config", None)}
    refuse_same(reads, {"--output": args.output})
    if args.output is not None:
        check_wav(args.output)
    lines = _read_lines(args.events)
    log = read_log(lines)
    if log.remark:
        print(f"note: {log.remark}; the log is followed for {len(log.lines)} events")
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
        session.play_on(log.end_samples)
    finally:
        session.close()
    return _compare(list(log.lines), again, is_cut=bool(log.remark))


def _read_lines(path: Path) -> list[str]:
    """The whole lines, and behind them what a session that was killed had begun to write."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
        return [line.decode() for line in lines] + ([rest.decode(errors="replace")] if rest else [])
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise AgentError(f"{path} cannot be read: {reason}", fix="Name a file that --events wrote") from None


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
    print(f"same decisions: {min(len(log), len(run_again))} events")
    return 0
