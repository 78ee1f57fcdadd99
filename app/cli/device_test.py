"""`vivavoce devices test`: hear the microphone, play a tone, measure the echo through the real stream."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from app.config.schema import Config
from app.engine.device_check import Finding, Measured, check_pair, peak_db

_BAR_DB = 60
"""Range of the live level, one character for every 2 dB."""


def run(args: argparse.Namespace, config: Config) -> int:
    """Test the pair that is configured or given; 0 where all is well, 1 where something is wrong.

    Raises:
        DeviceError: a name means no device or several, or the device does not open.
    """
    show = (lambda _, __: None) if args.json else _show
    measured, findings = check_pair(config.audio.input, config.audio.output, config.audio.rate_hz or None, show)
    if not args.json and sys.stderr.isatty():
        print(file=sys.stderr)  # behind the live level
    if args.json:
        print(json.dumps(_document(measured, findings), indent=2))
    else:
        for finding in findings:
            print(f"{finding.status:8} {finding.name}: {finding.found}" + (f". {finding.fix}" if finding.fix else ""))
    return 1 if any(finding.status == "wrong" for finding in findings) else 0


def _show(title: str, level_db: float) -> None:
    """The live level, on a terminal only."""
    if not sys.stderr.isatty():
        return
    bar = "#" * round(max(0.0, _BAR_DB + level_db) / 2)
    print(f"\r{title:26} {level_db:4.0f} dB |{bar:{_BAR_DB // 2}}|", end="", file=sys.stderr, flush=True)


def _document(measured: Measured, findings: list[Finding]) -> dict[str, object]:
    return {
        **dataclasses.asdict(measured.stream),
        "priority": measured.priority,
        "level_db": round(measured.level_db, 1),
        "peak_db": round(peak_db(measured), 1),
        "clipped_samples": measured.clipped_samples,
        "round_trip_ms": None if measured.round_trip_ms is None else round(measured.round_trip_ms, 2),
        "erl_db": None if measured.erl_db is None else round(measured.erl_db, 1),
        "sweeps": [dataclasses.asdict(path) for path in measured.paths],
        "lost_ms": round(measured.lost_ms, 1),
        "late_blocks": measured.late_blocks,
        "underruns": measured.underruns,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
