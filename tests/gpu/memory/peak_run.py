"""One process that does on a GPU what a plan foresaw, and prints what it took.

`peak_run.py MODEL SESSIONS WINDOW BACKEND`; its own process, so that the CUDA context is part of the measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

from conftest import random_decoder

from gpu.kv.arena import Arena, ArenaSpec
from gpu.kv.session import Session
from gpu.memory.budget import budget_of
from gpu.memory.needs import PREFILL_TOKENS
from gpu.memory.places import Place, read_machine
from gpu.memory.pool import Pools
from gpu.memory.preflight import Plan, Request, context_key, plan
from gpu.memory.shapes import known_shape

_DECODED_TOKENS = 16
_CHILD = "from gpu.memory.record import cuda_context; print(cuda_context('cuda:0'))"


def main(model: str, sessions: int, window: int, backend: str) -> None:
    """Plan, take the pool, load, fill every session to its last token, with all that shares its pages."""
    shape = known_shape(model)
    assert shape is not None
    context = int(subprocess.run([sys.executable, "-c", _CHILD], check=True, capture_output=True, text=True).stdout)
    machine = read_machine(os.environ)
    # The weights are made on the GPU: what this machine's RAM would have to hold on the way is not the question here.
    machine = replace(machine, host=replace(machine.host, total_bytes=1 << 40, free_bytes=1 << 40))
    request = Request(shape, "bf16", "cuda", sessions, window)
    made = plan(request, machine, {context_key(machine.gpus[0], ""): context}.get)
    assert made.fits, "another GPU is needed"
    before = made.ledgers[0].place
    budget = budget_of(made, arena_is_torchs=backend != "vmm")
    Pools().take(budget)
    arena, forks = _fill(made, backend)
    stats = arena.stats()
    figures = {
        "predicted_bytes": made.ledgers[0].peak_bytes,
        "pool_bytes": budget.pool_bytes,
        "small_bytes": budget.small_bytes,
        "cap_bytes": budget.cap_bytes,
        "context_bytes": context,
        "arena_planned_bytes": made.arena_bytes,
        "arena_bytes": stats.used_bytes,
        "arena_resident_bytes": stats.resident_bytes,
        "prefixes": stats.prefixes,
        "forks": len(forks),
        **_taken(before),
    }
    print(json.dumps(figures))


def _fill(made: Plan, backend: str) -> tuple[Arena, list[Session]]:
    """The arena, and the forks that snapshots would be written from.

    `plain` cuts every session whole out of its block, which is taken at once, so there nothing is shared.
    """
    request, place = made.request, made.ledgers[0].place
    shape, window = request.shape, request.positions
    decoder = random_decoder(shape, "bf16", window, place.device)
    arena = Arena.open(
        ArenaSpec(shape.layers, shape.kv_heads, shape.head_dim, window, "bfloat16", place.device),
        made.arena_bytes,
        backend,  # type: ignore[arg-type]
    )
    forks = []
    for number in range(request.sessions):
        session, shares = arena.session(), backend != "plain"
        while session.length < window - _DECODED_TOKENS:
            tokens = min(PREFILL_TOKENS, window - _DECODED_TOKENS - session.length)
            scores = decoder.logits(decoder.forward([7] * tokens, session)[-1:])
            if shares and session.length == tokens:  # the first ones
                arena.prefixes.add(range(number, number + session.length), session)
        if shares:
            forks.append(session.fork())
        while session.length < window:
            scores = decoder.logits(decoder.forward([int(scores.argmax())], session))
    return arena, forks


def _taken(before: Place) -> dict[str, int]:
    """By the driver's figure, and by torch's."""
    import torch

    torch.cuda.synchronize()
    now = read_machine(os.environ).gpus[0]
    return {
        "device_bytes": before.free_bytes - now.free_bytes,
        "reserved_bytes": torch.cuda.memory_reserved(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
