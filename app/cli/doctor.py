"""`vivavoce doctor`: what was found, what is missing, and the fix for each in one line."""

from __future__ import annotations

import argparse
import dataclasses
import json

from app.cli.checks import all_checks
from app.cli.checks.check import Check
from app.config.load import Loaded

_MARKS = {"ok": "ok", "warning": "note", "problem": "PROBLEM"}
_SCHEMA = 1
"""Of the JSON document; another number where a field changes its meaning or goes."""


def run(args: argparse.Namespace, loaded: Loaded) -> int:
    """Print the report; 0, or 2 where something is missing without which there is no conversation."""
    checks: list[Check] = []
    for check in all_checks(loaded, quick=args.quick):
        checks.append(check)
        if not args.json:
            print(report_line(check), flush=True)
    is_ready = all(check.status != "problem" for check in checks)
    if args.json:
        rows = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"schema": _SCHEMA, "ready": is_ready, "checks": rows}, indent=2, ensure_ascii=False))
    else:
        print("Ready to talk." if is_ready else "Not ready: mend what is marked PROBLEM.")
    return 0 if is_ready else 2


def report_line(check: Check) -> str:
    """One line of the report, with the fix below where there is one."""
    fix = f"\n{'':<30}{check.fix}" if check.fix else ""
    return f"{_MARKS[check.status]:<9}{check.name:<21}{check.found}{fix}"
