"""`vivavoce bench NAME`: run a benchmark, print its document; `check`: recompute the committed ones."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.bench import audio, costs, kv, soak, talk, ui
from app.bench.document import Benchmark, Row, check_document, document_text, make_document
from app.bench.kv_table import table
from app.cli.targets import check_file
from app.config.schema import Config
from app.errors import AgentError

BENCHMARKS: dict[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK for module in (talk, costs, audio, soak, kv, ui)
}
DOCUMENTS = Path("docs/benchmarks")


def run(args: argparse.Namespace, config: Config, window: ui.WindowArm | None = None) -> int:
    """Run one benchmark; `window` is how one talks in a window, where there is one.

    Exit code 1 where `check` finds a figure that its rows do not give.
    """
    if args.name == "check":
        return _check()
    if args.name not in BENCHMARKS:
        known = ", ".join([*BENCHMARKS, "check"])
        raise AgentError(f"there is no benchmark {args.name!r}", fix=f"Choose one of: {known}")
    for target in (args.json, args.table):
        if target is not None:
            check_file(target)
    load1 = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    if load1 > 0.5:
        print(f"note: the load average is {load1:.1f}; times are worth something on a quiet machine", file=sys.stderr)
    benchmark = BENCHMARKS[args.name]
    command = " ".join(["vivavoce", *sys.argv[1:]])

    def document_of(rows: Sequence[Row]) -> dict[str, Any]:
        return make_document(benchmark, rows, command=command, seed=args.seed, load1=load1)

    def keep(rows: Sequence[Row]) -> None:
        if args.json is not None:
            args.json.write_text(document_text(document_of(rows)), encoding="utf-8")

    rows = benchmark.measure(config, seed=args.seed, size=_size(args, keep, window))
    for line in audio.remarks(rows) if args.name == "audio" else ():
        print(f"note: {line}", file=sys.stderr)
    for line in table(rows) if args.name == "kv" else ():
        print(line)
    document = document_of(rows)
    for name, value in document["metrics"].items():
        print(f"{name:34} {'-' if value is None else f'{value:12.2f}'}")
    if args.table is not None:
        costs.write_table(document["metrics"], args.table)
    text = json.dumps(document)
    if args.json is not None:
        args.json.write_text(document_text(document), encoding="utf-8")
    print(text)
    return 0


def _size(args: argparse.Namespace, keep: Callable[[Sequence[Row]], None], window: ui.WindowArm | None) -> object:
    """How much of each scene, in the benchmark's own terms; `keep` takes the rows so far."""
    match args.name:
        case "audio":
            return audio.Size(args.seconds, args.monitor)
        case "soak":
            return soak.Size(args.hours, args.sessions, args.kills, keep)
        case "kv":
            return kv.Size(keep)
        case "ui":
            return ui.Size(args.turns, window)
    return talk.Size(turns=args.turns)


def _check() -> int:
    paths = sorted(DOCUMENTS.glob("*.json"))
    if not paths:
        raise AgentError(f"no documents under {DOCUMENTS}", fix="Run it in a checkout")
    wrong = [line for path in paths for line in check_document(path, BENCHMARKS)]
    for line in wrong:
        print(line)
    print(f"{len(paths)} documents, {len(wrong)} figures that their rows do not give")
    return 1 if wrong else 0
