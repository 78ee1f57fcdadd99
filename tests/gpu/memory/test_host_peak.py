"""What a stage holds for itself: neither what others left in the heap nor pages of files."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.memory.host_peak import resident_bytes

MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells private memory apart")


def grown_by(load: Callable[[], object]) -> tuple[float, object]:
    """MiB, and what was loaded."""
    before = resident_bytes()
    loaded = load()
    return (resident_bytes() - before) / MIB, loaded


def small_pieces(count: int) -> list[bytes]:
    """From the heap that keeps what was freed: pieces under the size that is mapped by itself."""
    return [os.urandom(16 << 10) for _ in range(count)]


def test_what_was_dropped_before_or_meanwhile_does_not_count() -> None:
    left_behind = small_pieces(64 * 64)
    del left_behind  # 64 MiB that the next stage would fill without growing
    grown, kept = grown_by(lambda: small_pieces(32 * 64))
    assert 28 < grown < 40

    def wasteful() -> list[bytes]:
        scratch = small_pieces(64 * 64)
        kept = small_pieces(8 * 64)
        del scratch
        return kept

    assert 6 < grown_by(wasteful)[0] < 24
    assert kept


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(48 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        grown, _ = grown_by(lambda: sum(pages[at] for at in range(0, len(pages), 4096)))
    assert grown < 8
