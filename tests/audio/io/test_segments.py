"""Shared memory of our own: attached by others, removed by its maker alone, swept when the maker has died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from audio.errors import AudioError
from audio.io.segments import Segment, attach, sweep_stale

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
_ROOT = Path(__file__).resolve().parents[3]


def _exists(segment: Segment) -> bool:
    return (Path("/dev/shm") / segment.ref.name).exists()


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=_ROOT, capture_output=True, text=True)


def test_both_sides_see_the_same_bytes() -> None:
    segment = Segment("test", 100)
    other = attach(segment.ref)
    assert bytes(segment.buffer) == bytes(100)
    other[7] = 42
    assert segment.buffer[7] == 42
    segment.unlink()
    segment.unlink()
    assert not _exists(segment)
    other[8] = 1
    assert segment.buffer[8] == 1, "memory stays as long as somebody looks into it"
    with pytest.raises(FileNotFoundError):
        attach(segment.ref)


def test_an_attached_process_that_dies_removes_nothing() -> None:
    segment = Segment("test", 64)
    code = (
        "import os, sys; from audio.io.segments import SegmentRef, attach\n"
        "attach(SegmentRef(sys.argv[1], 64))[0] = 9\nos._exit(1) if sys.argv[2] == 'hard' else None"
    )
    for manner in ("hard", "soft"):
        done = _python(code, segment.ref.name, manner)
        assert done.stderr == ""
        assert segment.buffer[0] == 9
        assert _exists(segment)
    segment.unlink()


def test_a_maker_that_forgets_leaves_nothing_and_says_nothing() -> None:
    code = "from audio.io.segments import Segment\ns = Segment('test', 64)\nprint(s.ref.name)"
    done = _python(code)
    assert done.stderr == ""
    assert not (Path("/dev/shm") / done.stdout.strip()).exists()


def test_segments_of_the_dead_are_swept_and_those_of_the_living_stay() -> None:
    code = (
        "import os\nfrom audio.io.segments import Segment\n"
        "s = Segment('test', 64)\nprint(s.ref.name, flush=True)\nos._exit(1)"
    )
    stale = _python(code).stdout.strip()
    ours = Segment("test", 64)
    assert (Path("/dev/shm") / stale).exists()
    assert stale in sweep_stale()
    assert not (Path("/dev/shm") / stale).exists()
    assert _exists(ours)
    ours.unlink()


def test_more_than_there_is_is_refused_in_a_sentence() -> None:
    with pytest.raises(AudioError, match="shared memory"):
        Segment("test", 1 << 50)
    assert not [path for path in Path("/dev/shm").glob(f"vivavoce-{os.getpid()}-*")]
