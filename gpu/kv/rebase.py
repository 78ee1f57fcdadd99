"""Positions near the model's limit: turn the window's keys back, rarely, and so that nothing adds up.

Keys are stored as attention reads them, rotated by their position (Su et al. 2021, half-split layout). In fp32 they
can be turned on in place: 100 times cost 3e-7. In 16 bits each turn would round again (4.8 % after 100), so there the
arena keeps the keys un-rotated too and every re-base starts from those. The sinks keep their positions 0, 1, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu.errors import GpuError
from gpu.kv.window import WindowSession

if TYPE_CHECKING:
    import torch


def rebase(session: WindowSession, frequencies: Sequence[float], *, limit: int, room: int) -> int:
    """Make sure that the next `room` tokens have rope positions below `limit`; returns by how many they fell.

    Does nothing (0) while there is room. `frequencies` are the model's, radians a position, head_dim / 2 of them.
    Raises GpuError for 16-bit keys without un-rotated ones, and where window, slack and room exceed the limit.
    """
    if session.rope_position + room <= limit:
        return 0
    sinks, oldest = session.shape.sinks, session.oldest()
    delta = oldest - sinks - session.shift
    if session.rope_position - delta + room > limit or delta <= 0:
        raise GpuError(
            f"KV window: {session.position - oldest} tokens and {room} more exceed the model's {limit} positions",
            fix="Open the session with a smaller window or slack",
        )
    from_unrotated = session.spec.unrotated_keys
    if not from_unrotated and session.spec.dtype != "float32":
        raise GpuError(
            f"KV window: {session.spec.dtype} keys cannot be turned without loss",
            fix="Open the arena with unrotated_keys=True, or in float32",
        )
    session.own_store()
    turn = _Turn(frequencies, session.spec.device)
    rows, hidden = session.rows(), session.position - session.length
    pieces = [(sinks + hidden, rows.narrow(0, sinks, session.length - sinks), True)]
    pieces += [(token, saved, False) for token, saved in session.undone_rows(oldest, sinks + hidden)]
    for token, piece, in_ring in pieces:
        _turn_rows(session, turn, piece, token - session.shift - delta if from_unrotated else None, delta, in_ring)
    session.set_shift(session.shift + delta)
    return delta


def _turn_rows(
    session: WindowSession, turn: _Turn, rows: torch.Tensor, position: int | None, delta: int, in_ring: bool
) -> None:
    """Turn the keys of `rows` [n, *row_shape]: to `position`.. from un-rotated ones, or (None) back by `delta`."""
    import torch

    count = rows.shape[0]
    for layer in range(session.spec.layers):
        keys = rows[:, layer, 0]
        if position is None:
            turned = turn(keys, torch.full((1,), -delta, dtype=torch.float64))
        else:
            turned = turn(rows[:, layer, 2], torch.arange(position, position + count, dtype=torch.float64))
        if in_ring:
            session.replace_keys(layer, turned)
        else:
            keys.copy_(turned)


class _Turn:
    """Rotary embedding in fp32, with angles in fp64."""

    def __init__(self, frequencies: Sequence[float], device: str) -> None:
        import torch

        self._frequencies = torch.tensor(list(frequencies), dtype=torch.float64)
        self._device = device

    def __call__(self, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """fp32 [n, kv_heads, head_dim] of `keys` turned by `positions` ([n] or [1])."""
        import torch

        angles = torch.outer(positions, self._frequencies).to(self._device)
        cos, sin = (table.float().unsqueeze(1) for table in (angles.cos(), angles.sin()))
        low, high = keys.float().chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
