"""`vivavoce plan`: whether a model, a window and so many sessions fit, row by row, before anything loads."""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import replace
from functools import partial
from typing import Any

from app.cli.probe import ask_in_child
from app.config.schema import Config
from app.engine.builder import places
from app.engine.memory_plan import open_peaks, request_of, smaller_models, switches
from gpu.memory.fixes import Fix, fixes, text_of
from gpu.memory.peaks import Peaks
from gpu.memory.places import Machine, Place, cuda_memory, read_machine
from gpu.memory.preflight import EXIT_DOES_NOT_FIT, Ledger, Plan, context_key, most_sessions, plan
from gpu.memory.record import cuda_context, record_context

_CHILD_LIMIT_S = 60.0
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SCHEMA = 1


def run(args: argparse.Namespace, config: Config) -> int:
    """Print the plan; 0 where it fits, 3 where it does not."""
    where = places(config, os.environ)
    peaks = open_peaks(where)
    if args.gpu_memory is None:
        machine = read_machine(os.environ, ask_cuda=partial(ask_in_child, cuda_memory, timeout_s=_CHILD_LIMIT_S))
    else:
        machine = pretended(read_machine({"CUDA_VISIBLE_DEVICES": ""}, has_gpu=lambda: False), args.gpu_memory)
    request = request_of(
        config,
        where,
        machine,
        model=args.model or "",
        sessions=args.sessions,
        context_tokens=args.context or 0,
    )
    made = plan(request, machine, peaks.peak)
    if args.gpu_memory is None and _measure_context(peaks, made):
        made = plan(request, machine, peaks.peak)
    flags = switches(
        config, window_flag="--context" if args.context else "", model_flag="--model" if args.model else ""
    )
    ways = fixes(made, smaller_models(where), peaks.peak, flags)
    notes = _notes(made, config)
    print(_json(made, ways, peaks, notes) if args.json else _text(made, ways, peaks, notes))
    return 0 if made.fits else EXIT_DOES_NOT_FIT


def size_bytes(text: str) -> int:
    """`8GiB`, `500 MB`, `7.5G` in bytes.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of memory, as in 8GiB or 500MB")
    size = int(float(match[1]) * _UNITS[match[2]])
    if not 0 < size < 2**50:
        raise argparse.ArgumentTypeError(f"{text!r} is no size that memory has")
    return size


def pretended(machine: Machine, free_bytes: int) -> Machine:
    """This machine with one GPU that has `free_bytes` free and nobody else on it."""
    gpu = Place("cuda", "GPU 0 (pretended)", free_bytes, free_bytes, "cuda:0", others="nobody")
    return replace(machine, gpus=(gpu,), note="")


def _measure_context(peaks: Peaks, made: Plan) -> bool:
    """Measure, once for each kind of GPU and torch, what is only estimated otherwise; whether it is new."""
    place = made.ledgers[0].place
    if place.kind != "cuda" or peaks.peak(context_key(place, made.request.version)) is not None:
        return False
    taken = ask_in_child(partial(cuda_context, place.device), timeout_s=_CHILD_LIMIT_S)
    return bool(taken) and record_context(peaks, made, taken)


def _text(made: Plan, ways: list[Fix], peaks: Peaks, notes: list[str]) -> str:
    lines = []
    for ledger in made.ledgers:
        lines += [*_table(ledger), ""]
    lines += [f"Note: {note}." for note in notes]
    if made.fits:
        count = most_sessions(made.request, made.machine, peaks.peak)
        lines.append(f"It fits; there is room for up to {count} sessions of this window.")
        return "\n".join(lines)
    lines.append(f"It does not fit: {text_of(made.short_bytes)} are missing. Any one of these makes it fit:")
    lines += [f"  {number}. {way.text}  (frees {text_of(way.frees_bytes)})" for number, way in enumerate(ways, 1)]
    return "\n".join(lines)


def _table(ledger: Ledger) -> list[str]:
    place = ledger.place
    rows = [
        ("in all", place.total_bytes, ""),
        ("in use by others", place.others_bytes, place.others),
        ("free now", place.free_bytes, ""),
        *((f"  {row.name}", row.size_bytes, row.origin) for row in ledger.rows),
        ("needed", ledger.needs_bytes, ""),
        ("missing", ledger.short_bytes, "")
        if ledger.short_bytes
        else ("left over", place.free_bytes - ledger.needs_bytes, ""),
    ]
    return [place.name, *(f"  {name:<19}{text_of(size):>10}  {origin}".rstrip() for name, size, origin in rows)]


def _notes(made: Plan, config: Config) -> list[str]:
    shape, wanted = made.request.shape, config.llm.device
    no_gpu = f"llm.device is {wanted}, but there is no GPU here: this is the plan for the CPU"
    no_gpu = no_gpu if wanted.startswith("cuda") and made.request.kind == "cpu" else ""
    unknown = "" if shape.is_runnable else f"models of the family {shape.family} are planned for, but do not run yet"
    found = [no_gpu, unknown, made.machine.note, *(ledger.place.note for ledger in made.ledgers)]
    return list(dict.fromkeys(note for note in found if note))


def _json(made: Plan, ways: list[Fix], peaks: Peaks, notes: list[str]) -> str:
    request = made.request
    document: dict[str, Any] = {
        "schema": _SCHEMA,
        "fits": made.fits,
        "short_bytes": made.short_bytes,
        "model": request.shape.name,
        "parameters": request.shape.parameters,
        "precision": request.precision,
        "device": made.ledgers[0].place.device,
        "sessions": request.sessions,
        "context_tokens": request.positions,
        "most_sessions": most_sessions(request, made.machine, peaks.peak),
        "memories": [_memory(ledger) for ledger in made.ledgers],
        "fixes": [{"text": way.text, "frees_bytes": way.frees_bytes} for way in ways],
        "notes": notes,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _memory(ledger: Ledger) -> dict[str, Any]:
    place = ledger.place
    return {
        "name": place.name,
        "total_bytes": place.total_bytes,
        "others_bytes": place.others_bytes,
        "others": place.others,
        "free_bytes": place.free_bytes,
        "needs_bytes": ledger.needs_bytes,
        "short_bytes": ledger.short_bytes,
        "rows": [{"name": row.name, "bytes": row.size_bytes, "origin": row.origin} for row in ledger.rows],
    }
