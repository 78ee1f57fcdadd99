"""The memory that is free now, and whether what the configuration would load fits into it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from app.cli.checks.check import GIGABYTE, Check
from app.config.schema import Config
from app.engine.builder import places
from app.engine.memory_plan import plan_start
from app.errors import AgentError
from gpu.errors import GpuError
from gpu.memory.places import Place, read_host
from gpu.memory.preflight import Ledger, MemoryPlanError


def checks(config: Config) -> Iterator[Check]:
    """RAM, then the plan: one line for each memory that it needs."""
    try:
        made = plan_start(config, places(config, os.environ))
    except MemoryPlanError as error:
        yield _free(read_host())
        yield Check("memory plan", "problem", error.message, error.fix, {"short_bytes": error.short_bytes})
        return
    except (AgentError, GpuError) as error:
        yield _free(read_host())
        yield Check("memory plan", "warning", error.message, error.fix or "See: vivavoce plan")
        return
    yield _free(made.machine.host)
    yield from (_need(made.request.shape.name, ledger) for ledger in made.ledgers)


def _free(host: Place) -> Check:
    """What a conversation may take: of the whole machine, or less where a container or a limit leaves less."""
    note = f" ({host.note})" if host.note else ""
    found = f"{host.free_bytes / GIGABYTE:.1f} of {host.total_bytes / GIGABYTE:.1f} GB available{note}"
    figures = {"available_bytes": host.free_bytes, "total_bytes": host.total_bytes}
    return Check("memory", "ok", found, "", figures)


def _need(model: str, ledger: Ledger) -> Check:
    name = "memory plan" if ledger.place.kind == "cpu" else "gpu memory plan"
    sizes = f"{ledger.needs_bytes / GIGABYTE:.1f} of {ledger.place.free_bytes / GIGABYTE:.1f} GB"
    figures = {"needs_bytes": ledger.needs_bytes, "free_bytes": ledger.place.free_bytes}
    found = f"a conversation with {model} takes {sizes} free: {ledger.place.name}"
    return Check(name, "ok", found, "", figures)
