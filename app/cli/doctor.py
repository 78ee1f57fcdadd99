"""`vivavoce doctor`: what was found, what is missing, and the fix for each in one line."""

from __future__ import annotations

import argparse
import dataclasses
import json

from app.cli.checks import Check, all_checks
from app.config.load import Loaded

_MARKS = {"ok": "ok", "warning": "note", "missing": "MISSING"}


def run(args: argparse.Namespace, loaded: Loaded) -> int:
    """Print the report; 0, or 2 where something is missing without which there is no conversation."""
    checks = all_checks(loaded.config)
    is_ready = all(check.status != "missing" for check in checks)
    if args.json:
        rows = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"ready": is_ready, "checks": rows}, indent=2, ensure_ascii=False))
    else:
        for check in checks:
            print(_line(check))
        print("Ready to talk." if is_ready else "Not ready: mend what is marked MISSING.")
    return 0 if is_ready else 2


def _line(check: Check) -> str:
    fix = f"\n{'':<30}{check.fix}" if check.fix else ""
    return f"{_MARKS[check.status]:<9}{check.name:<21}{check.found}{fix}"
