"""What a job costs on the sample clock when it is charged instead of timed.

A table gives, per kind of job, `base_ms + per_unit_ms * size` until the first result and `each_ms` for
every further one. Costs are functions of the request alone, so the release index of a result is known
before it is computed and does not depend on the machine. `assets/costs.toml` is the committed table,
fitted by `vivavoce bench costs` on the starter models.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.errors import AgentError

UNITS: Mapping[str, str] = {
    "turn": "decisions (size is not used)",
    "asr": "seconds of audio",
    "llm": "characters of new prompt",
    "tts": "characters of text",
}


@dataclass(frozen=True, slots=True)
class Charge:
    """Cost of one job in milliseconds."""

    first_ms: float
    each_ms: float


@dataclass(frozen=True, slots=True)
class KindCost:
    """One row of the table."""

    base_ms: float
    per_unit_ms: float
    each_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CostTable:
    """Rows by kind of job; `measured` charges each job what it took here and now."""

    name: str
    rows: Mapping[str, KindCost]
    is_measured: bool = False

    def charge(self, kind: str, size: float) -> Charge:
        """Cost of a job of `kind` over `size` units (see `UNITS`)."""
        row = self.rows[kind]
        return Charge(row.base_ms + row.per_unit_ms * size, row.each_ms)


def zero_costs() -> CostTable:
    """Everything is free: the framework alone."""
    return CostTable("zero", dict.fromkeys(UNITS, KindCost(0.0, 0.0)))


def measured_costs() -> CostTable:
    """Every job is charged its own run time on this machine."""
    return CostTable("measured", dict.fromkeys(UNITS, KindCost(0.0, 0.0)), is_measured=True)


def load_costs(path: Path) -> CostTable:
    """Read a table.

    Raises:
        AgentError: the file is missing, no TOML, or a row or number is.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        rows = {
            kind: KindCost(
                float(document[kind]["base_ms"]),
                float(document[kind]["per_unit_ms"]),
                float(document[kind].get("each_ms", 0.0)),
            )
            for kind in UNITS
        }
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AgentError(f"cost table {path} cannot be read: {error}", fix="Name a TOML file") from None
    except (KeyError, TypeError, ValueError) as error:
        raise AgentError(
            f"cost table {path} is incomplete: {error}",
            fix=f"Give base_ms and per_unit_ms for each of {', '.join(UNITS)}",
        ) from None
    return CostTable(path.name, rows)
