"""What makes a plan fit that does not: each fix is itself planned, so none is promised that would not do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpu.memory.needs import PRECISIONS_ON, PREFILL_TOKENS, weights_bytes
from gpu.memory.places import Machine, Place
from gpu.memory.preflight import Known, MemoryPlanError, Plan, Request, largest, plan
from gpu.memory.shapes import ModelShape

WANTED = 3
_IN_8_BITS = "Hold the conversation in 8 bits: --set llm.kv_dtype=int8"
_ON_THE_CPU = "The language model on the CPU, at int8: --set llm.device=cpu --set llm.precision=int8"
_WINDOW_STEP = PREFILL_TOKENS
"""Also the smallest window that the configuration allows."""


@dataclass(frozen=True, slots=True)
class Switches:
    """How the command at hand is told of a change: a flag of its own wins over the configuration's key."""

    window: str = "--set llm.context_tokens="
    model: str = "--set llm.model="
    least_tokens: int = _WINDOW_STEP
    """No smaller window is proposed: the rest of the configuration would not go with it."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One way out, and the plan that proves it."""

    text: str
    frees_bytes: int
    """In the memories that are short."""
    plan: Plan


_CONFIGURED = Switches()


def fixes(
    refused: Plan,
    smaller: Sequence[ModelShape] = (),
    known: Known = lambda key: None,
    switches: Switches = _CONFIGURED,
) -> list[Fix]:
    """Three ways to make `refused` fit, the mildest first; empty where it fits.

    Where no change is enough, what comes nearest with the memory that must be freed for it. Fewer than three only
    where nothing can be given up any more: a small model with a small window on a machine without memory.
    `smaller` are models that may replace the requested one.
    """
    if refused.fits:
        return []
    found: list[Fix] = []
    singles = _changes(refused, smaller, known, switches)
    for text, request in itertools.chain(singles, _combined(refused, smaller, known, switches)):
        trial = plan(request, refused.machine, known)
        if trial.fits and all(trial.request != other.plan.request for other in found):
            found.append(Fix(text, _freed(refused, trial), trial))
        if len(found) == WANTED:
            return found
    return found + _nearer(refused, smaller, known, switches)[: WANTED - len(found)]


def require_fit(
    made: Plan,
    smaller: Sequence[ModelShape] = (),
    known: Known = lambda key: None,
    switches: Switches = _CONFIGURED,
) -> Plan:
    """The plan itself where it fits.

    Raises:
        MemoryPlanError: it does not; the shortfall and the fixes are in the message.
    """
    if made.fits:
        return made
    tight = max(made.ledgers, key=lambda ledger: ledger.short_bytes)
    ways = "; or ".join(f"{way.text} ({text_of(way.frees_bytes)})" for way in fixes(made, smaller, known, switches))
    raise MemoryPlanError(
        f"{made.request.shape.name} does not fit: {tight.place.name} has {text_of(tight.place.free_bytes)} free, "
        f"{text_of(tight.needs_bytes)} are needed, {text_of(tight.short_bytes)} are missing",
        short_bytes=made.short_bytes,
        fix=ways,
    )


def text_of(size_bytes: int) -> str:
    """As in `1.25 GiB` or `12 MiB`."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def _changes(
    refused: Plan, smaller: Sequence[ModelShape], known: Known, switches: Switches
) -> Iterator[tuple[str, Request]]:
    """Single changes, the mildest first."""
    request, machine = refused.request, refused.machine
    window = _largest_window(request, machine, known, switches)
    if window is not None:
        yield _window_text(window, switches), replace(request, context_tokens=window)
    sessions = _most_sessions(request, machine, known)
    if sessions is not None:
        yield _sessions_text(sessions), replace(request, sessions=sessions)
    yield from _kinds(request, smaller, switches)


def _kinds(request: Request, smaller: Sequence[ModelShape], switches: Switches) -> Iterator[tuple[str, Request]]:
    """Changes that have no size: of how numbers are held, of the device, of the model."""
    if request.kv_dtype == "auto":
        yield _IN_8_BITS, replace(request, kv_dtype="int8")
    order = PRECISIONS_ON[request.kind]
    for precision in reversed(order[: order.index(request.precision)]):
        text = f"Hold the weights in fewer bits: --set llm.precision={precision}"
        yield text, replace(request, precision=precision)
    if request.kind == "cuda":
        yield _ON_THE_CPU, replace(request, kind="cpu", precision="int8")
    for shape in _by_size(request, smaller):
        yield _model_text(shape, switches), replace(request, shape=shape)


def _combined(
    refused: Plan, smaller: Sequence[ModelShape], known: Known, switches: Switches
) -> Iterator[tuple[str, Request]]:
    """Two or three changes together, where single ones do not give enough ways out."""
    request = refused.request
    bases = [("", request)]
    if request.kind == "cuda":
        bases.append((_ON_THE_CPU, replace(request, kind="cpu", precision="int8")))
    if request.kv_dtype == "auto":
        bases.append((_IN_8_BITS, replace(request, kv_dtype="int8")))
    for (first, base), shape in itertools.product(bases, [request.shape, *_by_size(request, smaller)]):
        for sessions in dict.fromkeys((request.sessions, 1)):
            trial = replace(base, shape=shape, sessions=sessions)
            window = _largest_window(trial, refused.machine, known, switches)
            if window is None:
                continue
            parts = [first] if first else []
            parts += [_model_text(shape, switches)] if shape is not request.shape else []
            parts += [_sessions_text(sessions)] if sessions != request.sessions else []
            parts += [_window_text(window, switches)] if window < trial.positions else []
            if len(parts) > 1:
                yield "; and ".join(parts), replace(trial, context_tokens=min(window, trial.context_tokens))


def _nearer(refused: Plan, smaller: Sequence[ModelShape], known: Known, switches: Switches) -> list[Fix]:
    """Where there is too little for anything: the changes that spare most, each with what must be freed for it yet."""
    request = refused.request
    changes = list(_kinds(request, smaller, switches))
    least = max(_WINDOW_STEP, switches.least_tokens)
    if least < request.positions:
        changes.append((_window_text(least, switches), replace(request, context_tokens=least)))
    if request.sessions > 1:
        changes.append((_sessions_text(1), replace(request, sessions=1)))
    trials = [(text, plan(changed, refused.machine, known)) for text, changed in changes]
    trials = [(text, trial) for text, trial in trials if not trial.fits and trial.short_bytes < refused.short_bytes]
    trials.sort(key=lambda entry: entry[1].short_bytes)
    found = [_with_memory(refused, f"{text}; and ", trial, known) for text, trial in trials]
    return [way for way in (*found, _with_memory(refused, "", refused, known)) if way.frees_bytes > 0]


def _with_memory(refused: Plan, text: str, changed: Plan, known: Known) -> Fix:
    """Close what holds it, or, where others do not hold as much, a device with more."""
    trial, parts = changed, list[str]()
    for ledger in changed.ledgers:
        place, short = ledger.place, ledger.short_bytes
        if not short:
            continue
        closing = place.others_bytes > short
        while ledger.short_bytes:  # of a larger memory a little more is reserved, up to a limit
            free = ledger.needs_bytes
            place = replace(place, free_bytes=free, total_bytes=max(place.total_bytes, free))
            trial = plan(changed.request, _with_place(trial.machine, place), known)
            ledger = next(other for other in trial.ledgers if other.place.name == place.name)
        parts.append(
            f"close what holds {text_of(short)} of {place.name} ({place.others})"
            if closing
            else f"more memory: {text_of(place.free_bytes)} free on {place.name}"
        )
    whole = text + "; and ".join(parts)
    return Fix(whole[0].upper() + whole[1:], _freed(refused, changed) if text else refused.short_bytes, trial)


def _with_place(machine: Machine, place: Place) -> Machine:
    if place.kind == "cpu":
        return replace(machine, host=place)
    return replace(machine, gpus=tuple(place if gpu.device == place.device else gpu for gpu in machine.gpus))


def _by_size(request: Request, smaller: Sequence[ModelShape]) -> list[ModelShape]:
    """Models that take less than the requested one, the largest first."""

    def size(shape: ModelShape) -> int:
        return weights_bytes(shape, request.precision, 1, request.kind)

    own = size(request.shape)
    return sorted((shape for shape in smaller if size(shape) < own and shape.is_runnable), key=size, reverse=True)


def _largest_window(request: Request, machine: Machine, known: Known, switches: Switches) -> int | None:
    """The largest window of whole chunks, no longer than the requested one."""
    least, most = -(-switches.least_tokens // _WINDOW_STEP), request.positions // _WINDOW_STEP

    def fits(count: int) -> bool:
        return plan(replace(request, context_tokens=count * _WINDOW_STEP), machine, known).fits

    best = largest(least, most, fits)
    return None if best is None else best * _WINDOW_STEP


def _most_sessions(request: Request, machine: Machine, known: Known) -> int | None:
    return largest(1, request.sessions - 1, lambda n: plan(replace(request, sessions=n), machine, known).fits)


def _model_text(shape: ModelShape, switches: Switches) -> str:
    return f"A smaller model: {switches.model}{shape.name}"


def _window_text(tokens: int, switches: Switches) -> str:
    return f"A smaller window: {switches.window}{tokens}"


def _sessions_text(sessions: int) -> str:
    return f"Fewer sessions: --sessions {sessions}"


def _freed(refused: Plan, better: Plan) -> int:
    """What the refused plan's short memories hold less in the better one."""
    before = {ledger.place.name: ledger.needs_bytes for ledger in refused.ledgers if ledger.short_bytes}
    after = {ledger.place.name: ledger.needs_bytes for ledger in better.ledgers}
    return sum(needs - after.get(name, 0) for name, needs in before.items())
