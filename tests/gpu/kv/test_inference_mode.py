"""Who opens a session under `torch.inference_mode` may go on outside of it, and the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.append_kernel import AppendKernel  # noqa: E402
from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.snapshot import restore, save  # noqa: E402
from gpu.kv.spec import BodySpec  # noqa: E402
from gpu.kv.window import WindowSession, WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=8, positions=200)
BODY = BodySpec("int8", block=8, sinks=3, recent=10, slack=9, chunk=20)
SHAPE = WindowSpec(window=40, sinks=3, slack=20, chunk=20, step=5)
NewArena = Callable[..., Arena]
Make = Callable[[Arena, Path], Session]


def append(session: Session, count: int) -> None:
    spec = session.spec
    numbers = torch.ones(count, spec.layers, spec.kv_heads, spec.head_dim, device=session.registers.device)
    session.append(numbers, numbers)


def filled(arena: Arena, window: WindowSpec | None = None) -> Session:
    session = arena.session() if window is None else arena.session(window=window)
    for _ in range(4):
        append(session, 20)
    return session


def begun(arena: Arena) -> Session:
    prefix = arena.prefixes.add(range(80), filled(arena))
    return arena.session(prefix=prefix)


def woken(arena: Arena) -> Session:
    session = filled(arena)
    session.park()
    session.use()
    return session


def saved(arena: Arena, path: Path) -> Session:
    save(filled(arena), path, model="abc")
    return restore(arena, path, model="abc").session


def resized(arena: Arena) -> Session:
    session = filled(arena, SHAPE)
    assert isinstance(session, WindowSession)
    session.resize(20)
    return session


MAKES: dict[str, Make] = {
    "filled": lambda arena, path: filled(arena),
    "fork": lambda arena, path: filled(arena).fork(70),
    "prefix": lambda arena, path: begun(arena),
    "parked": lambda arena, path: woken(arena),
    "snapshot": saved,
    "window": lambda arena, path: filled(arena, SHAPE),
    "window's fork": lambda arena, path: filled(arena, SHAPE).fork(),
    "window resized": lambda arena, path: resized(arena),
}


@pytest.fixture
def arenas(new_arena: NewArena, backend_name: str) -> Iterator[Callable[[ArenaSpec], Arena]]:
    made: list[Arena] = []

    def build(spec: ArenaSpec) -> Arena:
        made.append(new_arena(spec, backend=backend_name))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()


def use(session: Session) -> None:
    """Everything that changes a session."""
    append(session, 5)
    session.truncate_to(session.position - 3)
    session.write(0, session.extend(1), *torch.ones(2, 1, 2, 8, device=session.registers.device))
    if session.spec.body is None:
        new = torch.ones(2, 2, 8, device=session.registers.device)
        kernel = AppendKernel(session)
        session.extend(1, registers=False)
        kernel.launch(new, new)
    append(session.fork(), 2)
    for _ in range(3):
        append(session, 20)
    session.park()
    append(session, 1)
    session.truncate_to(0)
    append(session, 2)
    assert float(session.keys(0).sum()) == float(session.values(1).sum()) == 2 * 2 * 8


@pytest.mark.parametrize("inside", [True, False], ids=["opened-inside", "opened-outside"])
@pytest.mark.parametrize("kind", [*MAKES, "quantised", "quantised fork", "quantised prefix", "quantised snapshot"])
def test_a_session_crosses_the_border(
    arenas: Callable[[ArenaSpec], Arena], tmp_path: Path, kind: str, inside: bool
) -> None:
    name = kind.removeprefix("quantised").strip() or "filled"
    with torch.inference_mode(inside):
        arena = arenas(replace(SPEC, body=BODY) if kind.startswith("quantised") else SPEC)
        session = MAKES[name](arena, tmp_path / "talk.kv")
    with torch.inference_mode(not inside):
        use(session)
    use(session)
