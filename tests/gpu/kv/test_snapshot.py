"""Snapshots: a session goes on from the file as if nothing had happened, and nothing else is taken for one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.errors import GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec, QuotaError  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.snapshot import SnapshotError, restore, save  # noqa: E402
from gpu.kv.spec import BodySpec  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=128)
SHAPE = WindowSpec(window=40, sinks=3, slack=20, chunk=12, step=5)
NewArena = Callable[..., Arena]


@pytest.fixture
def arenas(new_arena: NewArena, backend_name: str) -> Iterator[NewArena]:
    made: list[Arena] = []

    def build(spec: ArenaSpec = SPEC, **options: Any) -> Arena:
        made.append(new_arena(spec, backend=backend_name, **options))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()
        assert arena.backend.pages_in_use == 0


def append(session: Session, count: int, seed: int) -> None:
    shape = (session.spec.parts, count, session.spec.layers, session.spec.kv_heads, session.spec.head_dim)
    parts = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))
    session.append(*parts.to(session.spec.device, getattr(torch, session.spec.dtype)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_a_session_goes_on(arenas: NewArena, tmp_path: Path, dtype: str, count: int) -> None:
    spec = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=128, dtype=dtype, unrotated_keys=dtype == "bfloat16")
    arena, other = arenas(spec), arenas(spec)
    session = arena.session()
    append(session, count, 1)
    path = tmp_path / "talk.kv"
    assert save(session, path, model="abc", ids=range(count)) == path.stat().st_size
    again = restore(other, path, model="abc")
    assert again.ids == tuple(range(count))
    for each in (session, again.session):
        append(each, 7, 2)
        each.truncate_to(min(count, 90) + 3)
        append(each, 2, 3)
    assert torch.equal(session.rows().cpu(), again.session.rows().cpu())
    assert again.session.registers.tolist() == session.registers.tolist()
    assert [entry.name for entry in tmp_path.iterdir()] == ["talk.kv"]


def test_an_endless_session_goes_on_and_back(arenas: NewArena, tmp_path: Path) -> None:
    arena, other = arenas(), arenas()
    session = arena.session(window=SHAPE)
    for turn in range(25):
        append(session, 7, turn)
    session.set_shift(33)
    save(session, tmp_path / "talk.kv", model="abc")
    again = restore(other, tmp_path / "talk.kv", model="abc").session
    assert again.rope_position == 175 - 33
    for each in (session, again):
        each.truncate_to(157)
    assert torch.equal(session.rows().cpu(), again.rows().cpu())
    for turn in range(20):
        for each in (session, again):
            append(each, 5, 100 + turn)
        assert torch.equal(session.rows().cpu(), again.rows().cpu())
        again.check()


def test_a_compacted_session_knows_what_it_lost(arenas: NewArena, tmp_path: Path) -> None:
    session = arenas().session()
    append(session, 50, 1)
    keep = torch.tensor([0, 1, *range(40, 50)]).expand(2, 2, 12).to(session.spec.device)
    session.compact(keep, tail=10)
    save(session, tmp_path / "talk.kv", model="abc")
    again = restore(arenas(), tmp_path / "talk.kv", model="abc").session
    assert (again.position, again.length) == (50, 12)
    with pytest.raises(GpuError, match="evicted"):
        again.truncate_to(39)


def _cut_end(content: bytearray) -> bytearray:
    return content[:-1]


def _flip(place: int) -> Callable[[bytearray], bytearray]:
    def damage(content: bytearray) -> bytearray:
        content[place] ^= 0x10
        return content

    return damage


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_cut_end, "damaged"),
        (_flip(-5), "damaged"),
        (_flip(-2000), "damaged"),
        (_flip(30), "damaged"),
        (_flip(8), "format"),
        (_flip(0), "no snapshot"),
        (lambda content: content[:11], "no snapshot"),
        (lambda content: content[:40], "damaged"),
        (lambda content: bytearray(), "no snapshot"),
        (lambda content: content + b"x", "damaged"),
    ],
)
def test_damage_is_noticed(
    new_arena: NewArena, tmp_path: Path, damage: Callable[[bytearray], bytearray], sentence: str
) -> None:
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    append(session, 60, 1)
    path = tmp_path / "talk.kv"
    save(session, path, model="abc")
    path.write_bytes(damage(bytearray(path.read_bytes())))
    before = arena.stats()
    with pytest.raises(SnapshotError, match=sentence) as caught:
        restore(arena, path, model="abc")
    assert caught.value.fix
    assert arena.stats() == before
    arena.close()


def test_a_file_cut_anywhere_is_no_snapshot(new_arena: NewArena, tmp_path: Path) -> None:
    """As a disk leaves it that lost its power, whatever the file system promised."""
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    append(session, 60, 1)
    path = tmp_path / "talk.kv"
    size = save(session, path, model="abc", ids=range(60), cuts=(20, 60))
    whole, before = path.read_bytes(), arena.stats()
    for length in [*range(0, 400), *range(400, size, 61), size - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotError):
            restore(arena, path, model="abc")
    assert arena.stats() == before
    path.write_bytes(whole)
    assert restore(arena, path, model="abc").cuts == (20, 60)


@pytest.mark.parametrize(
    ("model", "spec", "sentence"),
    [
        ("other", SPEC, "another model"),
        ("abc", ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=128, dtype="bfloat16"), "bfloat16"),
        ("abc", ArenaSpec(layers=2, kv_heads=2, head_dim=8, positions=128), "rows of"),
        ("abc", ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=59), "holds 60 tokens"),
    ],
)
def test_what_is_not_ours_is_refused(
    new_arena: NewArena, tmp_path: Path, model: str, spec: ArenaSpec, sentence: str
) -> None:
    session = new_arena(SPEC, backend="host").session()
    append(session, 60, 1)
    save(session, tmp_path / "talk.kv", model="abc")
    arena = new_arena(spec, backend="host")
    with pytest.raises(SnapshotError, match=sentence):
        restore(arena, tmp_path / "talk.kv", model=model)
    assert arena.stats().sessions == 0


BODY = BodySpec("int8", block=8, sinks=3, recent=10, slack=9, chunk=12)


@pytest.mark.parametrize("code", [None, "int8", "fp8"])
@pytest.mark.parametrize("count", [12, 61, 96, 127])
def test_an_arena_that_is_too_small_is_refused_and_one_that_fits_is_not(
    new_arena: NewArena, tmp_path: Path, code: Any, count: int
) -> None:
    """By one token: however few of them are rows of their own."""
    spec = replace(SPEC, body=None if code is None else replace(BODY, code=code))
    session = new_arena(spec, backend="host").session()
    for begin in range(0, count, 12):
        append(session, min(12, count - begin), begin)
    save(session, tmp_path / "talk.kv", model="abc")
    small = new_arena(replace(spec, positions=count - 1), backend="host")
    with pytest.raises(SnapshotError, match=f"holds {count} tokens, a session of the arena {count - 1}"):
        restore(small, tmp_path / "talk.kv", model="abc")
    assert small.stats().sessions == small.backend.pages_in_use == 0
    exact = new_arena(replace(spec, positions=count), backend="host")
    again = restore(exact, tmp_path / "talk.kv", model="abc").session
    assert torch.equal(again.rows(), session.rows())
    assert again.position == again.capacity
    exact.check()


def test_no_room_and_no_file_are_said(new_arena: NewArena, tmp_path: Path) -> None:
    session = new_arena(SPEC, backend="host").session()
    append(session, 60, 1)
    save(session, tmp_path / "talk.kv", model="abc")
    arena = new_arena(SPEC, backend="host", budget_bytes=2 * 4096)
    with pytest.raises(QuotaError):
        restore(arena, tmp_path / "talk.kv", model="abc")
    assert arena.stats().pages_in_use == 0
    with pytest.raises(SnapshotError, match="Cannot read"):
        restore(arena, tmp_path / "missing.kv", model="abc")


def test_a_full_disk_leaves_the_old_snapshot(
    new_arena: NewArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    append(session, 60, 1)
    path = tmp_path / "talk.kv"
    save(session, path, model="abc")
    append(session, 1, 2)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SnapshotError, match="No space left"):
            save(session, path, model="abc")
    assert [entry.name for entry in tmp_path.iterdir()] == ["talk.kv"]
    assert restore(arena, path, model="abc").session.length == 60


_WRITER = """
import sys
from pathlib import Path
import torch
from gpu.kv.arena import Arena, ArenaSpec
from gpu.kv.snapshot import save
session = Arena.open(ArenaSpec(layers=2, kv_heads=2, head_dim=64, positions=4096)).session()
path = Path(sys.argv[1])
number = 0
while True:
    number = number % 4000 + 1
    session.truncate_to(0)
    rows = torch.full((number, 2, 2, 64), float(number))
    session.append(rows, rows)
    save(session, path, model="abc", ids=[number])
    print(number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9")
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path, rng = tmp_path / "talk.kv", random.Random(5)
    arena = Arena.open(ArenaSpec(layers=2, kv_heads=2, head_dim=64, positions=4096))
    for _ in range(3):
        root = Path(__file__).resolve().parents[3]
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, cwd=root)
        assert writer.stdout is not None
        for _ in range(rng.randint(2, 30)):
            assert writer.stdout.readline()
        time.sleep(rng.random() * 0.02)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = restore(arena, path, model="abc")
        number = found.ids[0]
        assert found.session.length == number
        assert bool((found.session.rows() == float(number)).all())
        found.session.close()
