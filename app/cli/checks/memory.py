"""Whether what the configuration would load fits into the memory that is free now."""

from __future__ import annotations

import os
from collections.abc import Iterator

from app.cli.checks.check import GIGABYTE, Check
from app.config.schema import Config
from app.engine.builder import places
from app.engine.memory_plan import plan_start
from app.errors import AgentError
from gpu.errors import GpuError
from gpu.memory.preflight import MemoryPlanError


def checks(config: Config) -> Iterator[Check]:
    """One line."""
    try:
        made = plan_start(config, places(config, os.environ))
    except MemoryPlanError as error:
        yield Check("memory plan", "problem", error.message, error.fix, {"short_bytes": error.short_bytes})
        return
    except (AgentError, GpuError) as error:
        yield Check("memory plan", "warning", error.message, error.fix or "See: vivavoce plan")
        return
    ledger = made.ledgers[0]
    sizes = f"{ledger.needs_bytes / GIGABYTE:.1f} of {ledger.place.free_bytes / GIGABYTE:.1f} GB"
    figures = {"needs_bytes": ledger.needs_bytes, "free_bytes": ledger.place.free_bytes}
    yield Check("memory plan", "ok", f"{made.request.shape.name} takes {sizes} free: {ledger.place.name}", "", figures)
