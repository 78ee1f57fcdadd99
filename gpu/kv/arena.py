"""The KV arena, first version: host (or one plain device) memory, pre-allocated, one buffer per session.

Layout: token-major, `[position][layer][2: K, V][kv_head][head_dim]`. All that one token leaves behind is one
contiguous row, so an append is one write position for all layers, a rollback moves one integer, and an idle
session touches few pages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.errors import GpuError

if TYPE_CHECKING:
    from gpu.kv.session import Session


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """Shape and place of a session's rows. `dtype` and `device` are torch's names ("float32", "cpu", "cuda:0")."""

    layers: int
    kv_heads: int
    head_dim: int
    positions: int
    """Tokens that one session can hold."""
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "positions"):
            if getattr(self, name) < 1:
                raise GpuError(f"KV arena: {name} is {getattr(self, name)}", fix=f"Give {name} >= 1")

    @property
    def row_shape(self) -> tuple[int, int, int, int]:
        """What one token occupies: (layers, 2, kv_heads, head_dim)."""
        return (self.layers, 2, self.kv_heads, self.head_dim)

    @property
    def row_elements(self) -> int:
        """Numbers that one token occupies."""
        return math.prod(self.row_shape)


class Arena:
    """Hands out sessions and knows what they cost. Single-threaded, like the decoder that writes into it."""

    def __init__(self, spec: ArenaSpec, budget_bytes: int | None) -> None:
        self.spec = spec
        self.budget_bytes = budget_bytes
        self._sessions: list[Session] = []

    @classmethod
    def open(cls, spec: ArenaSpec, budget_bytes: int | None = None) -> Arena:
        """Open an arena for sessions of shape `spec`; `budget_bytes` caps all sessions together (None: no cap)."""
        return cls(spec, budget_bytes)

    def session(self) -> Session:
        """Allocate a new empty session of `spec.positions` rows.

        Raises GpuError where it would exceed the budget.
        """
        from gpu.kv.session import Session, allocation_bytes

        wanted = allocation_bytes(self.spec)
        if self.budget_bytes is not None and self.memory_bytes() + wanted > self.budget_bytes:
            raise GpuError(
                f"KV arena: a session needs {wanted} bytes, {self.budget_bytes - self.memory_bytes()} are left",
                fix="Close a session, shorten the context or raise the arena's budget",
            )
        session = Session(self.spec, on_close=self._sessions.remove)
        self._sessions.append(session)
        return session

    def memory_bytes(self) -> int:
        """Bytes reserved by the open sessions."""
        return sum(session.memory_bytes() for session in self._sessions)

    def check(self) -> None:
        """Verify every session's invariants; raises GpuError on the first that is broken."""
        for session in self._sessions:
            session.check()

    def close(self) -> None:
        """Close every session and give the memory back."""
        for session in list(self._sessions):
            session.close()
