"""The checks of `vivavoce doctor`. A check never raises: what it cannot find out it reports."""

from __future__ import annotations

from collections.abc import Iterator

from app.cli.checks import arena, gpu, memory, models, sound, speed, system
from app.cli.checks.check import Check
from app.config.load import Loaded


def all_checks(loaded: Loaded, *, quick: bool) -> Iterator[Check]:
    """Every check, in the order in which a person would mend things; `quick` measures no model."""
    config = loaded.config
    yield from system.checks(loaded)
    yield from models.checks(config)
    yield from sound.checks(config)
    yield from gpu.checks()
    yield from arena.checks(config)
    yield from memory.checks(config)
    speeds = [] if quick else speed.measured(config)
    yield from speed.checks(config, speeds)
