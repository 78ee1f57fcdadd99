"""The arena of one conversation: opened whole or not at all, and filled from another that is held otherwise."""

from __future__ import annotations

from dataclasses import replace

from gpu.errors import GpuError
from gpu.kv.arena import Arena
from gpu.kv.codes import body_of, coded_spec
from gpu.kv.session import Session
from gpu.kv.spec import ArenaSpec


def open_session(spec: ArenaSpec) -> tuple[Arena, Session]:
    """An arena and its session. Raises GpuError, with nothing left open, where there is no memory for them."""
    arena: Arena | None = None
    try:
        arena = Arena.open(spec)
        return arena, arena.session()
    except (GpuError, RuntimeError) as error:
        if arena is not None:
            arena.close()
        if isinstance(error, GpuError):
            raise
        raise refused(error) from error


def quantise(source: Session, target: Session) -> None:
    """Append all of `source` to an empty session with a quantised body, piece by piece.

    Raises GpuError where there is no memory for it.
    """
    rows, step = source.rows(), body_of(target.spec).chunk
    try:
        for begin in range(0, rows.shape[0], step):
            piece = rows[begin : begin + step]
            target.append(piece[:, :, 0], piece[:, :, 1])
    except RuntimeError as error:
        raise refused(error) from error


def session_bytes(spec: ArenaSpec, tokens: int, page_bytes: int) -> int:
    """Bytes of the pages of a session of `spec` that is full with `tokens`."""
    spec = replace(spec, positions=tokens)
    rows = tokens if spec.body is None else spec.body.exact_rows(tokens)
    pages = -(-rows * spec.row_bytes // page_bytes)
    if spec.body is not None:
        codes = coded_spec(spec)
        pages += -(-codes.positions * codes.row_bytes // page_bytes)
    return pages * page_bytes


def refused(error: RuntimeError) -> GpuError:
    """torch's own class for whatever fails, out of memory too, as ours."""
    return GpuError(str(error).splitlines()[0], fix="Close other programs")
