"""The conversation's keys on disk: written while nobody waits, found by the engine that comes after a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
pytest.importorskip("tokenizers", reason="makes the tokenizer")

from tiny_model import tiny_prepared  # noqa: E402

from app.engine.snapshots import SnapshotKeeper, open_snapshot_file, remove_snapshot_file, resume  # noqa: E402
from app.engine.tended_model import TendedModel  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402

TALK = [Message("user", "one two three " * 20), Message("assistant", "four")]
LONGER = [*TALK, Message("user", "five"), Message("assistant", "six")]


class World:
    """A keeper whose clock and idleness the test sets."""

    def __init__(self, folder: Path, **options: int) -> None:
        self.now_s, self.is_idle = 0.0, True
        self.path = folder / "talk.kv"
        self.inner = LocalLanguageModel(tiny_prepared(), context_tokens=1024)
        self.model = TendedModel(self.inner)
        self.keeper = SnapshotKeeper(self.model, self.path, lambda: self.is_idle, clock_s=lambda: self.now_s, **options)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_written_once_for_each_new_word_and_not_too_often(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.model.warm(TALK)
    assert world.keeper.look()
    assert not world.keeper.look()
    world.now_s = 100.0
    assert not world.keeper.look(), "nothing is new"
    world.model.warm(LONGER)
    assert world.keeper.look()
    world.model.warm(TALK)
    world.now_s += 9.0
    assert not world.keeper.look()
    world.now_s += 1.0
    assert world.keeper.look()
    again = LocalLanguageModel(tiny_prepared(), context_tokens=1024)
    assert again.resume(world.path) == len(world.inner.held_ids)
    world.inner._arena.check()
    assert world.inner._arena.stats().sessions == 1, "nothing is left of what was held for the file"


def test_a_conversation_that_is_to_be_read_again_leaves_the_file_that_is_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not world.keeper.look(), "there is nothing to keep yet"
    world.model.warm(TALK)
    assert world.keeper.look()
    whole = world.path.read_bytes()
    world.model.hold_as("int8")
    world.model.hold_as("auto")
    world.now_s = 100.0
    assert not world.keeper.look()
    assert world.path.read_bytes() == whole


def test_never_while_somebody_waits(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.model.warm(TALK)
    world.is_idle = False
    assert not world.keeper.look()
    world.is_idle = True
    reply = world.model.generate(LONGER[:3], SamplingParams(), max_tokens=5, cancelled=lambda: False)
    next(reply)
    assert not world.keeper.look(), "the model is in use"
    list(reply)
    asked = iter([True, False, False])
    world.keeper._is_idle = lambda: next(asked)
    assert not world.keeper.look(), "somebody began to speak while it was written"
    assert list(tmp_path.iterdir()) == []
    world.keeper._is_idle = lambda: True
    assert world.keeper.look()


def test_a_large_one_is_left_out_and_a_full_disk_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = World(tmp_path, largest_bytes=1000)
    large.model.warm(TALK)
    assert not large.keeper.look()
    world = World(tmp_path)
    world.model.warm(TALK)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert not world.keeper.look()
    assert not world.keeper.look(), "it is not tried again and again"
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_the_sessions_own_and_goes_with_it(tmp_path: Path) -> None:
    path = open_snapshot_file(tmp_path)
    assert path.parent.stat().st_mode & 0o077 == 0
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, alive = int(done.stdout), os.getppid()
    names = [f"{dead}.kv", f".{dead}.kv.{dead}.tmp", f"{alive}.kv", f".{os.getpid()}.kv.5.tmp"]
    for name in names:
        (path.parent / name).write_bytes(b"x")
    assert open_snapshot_file(tmp_path) == path
    assert [entry.name for entry in path.parent.iterdir()] == [f"{alive}.kv"]
    path.write_bytes(b"x")
    path.with_name(f".{path.name}.77.tmp").write_bytes(b"x")
    remove_snapshot_file(path)
    remove_snapshot_file(path)
    assert [entry.name for entry in path.parent.iterdir()] == [f"{alive}.kv"]


def test_a_new_engine_goes_on_and_what_is_no_snapshot_costs_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World(tmp_path)
    world.model.warm(TALK)
    assert world.keeper.look()
    fresh = LocalLanguageModel(tiny_prepared(), context_tokens=1024)
    assert not resume(fresh, tmp_path / "missing.kv")
    assert resume(fresh, world.path)
    assert fresh.held_ids == world.inner.held_ids
    caplog.clear()
    world.path.write_bytes(world.path.read_bytes()[:1000])
    assert not resume(fresh, world.path)
    assert [record.message for record in caplog.records] == [
        "the conversation is read again: talk.kv is damaged: its checksum does not match"
    ]
