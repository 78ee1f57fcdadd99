"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MEGABYTE = 1e6
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, whether it will do, and the fix."""

    name: str
    status: str
    """`ok`, `warning` (works, but worse than it could) or `problem` (no conversation, or none in real time)."""
    found: str
    fix: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind `found`, for programs; units in the names."""
