"""The recorder: every block in its place, at any speed of the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from app.recorder.recorder import LOUDSPEAKER, MICROPHONE, Recorder, session_tracks
from audio.block import Float32Array
from audio.errors import AudioFileError
from audio.files import WavWriter
from audio.io.records import MIC_CAPACITY, block_dtype
from audio.ring import RecordRing

BLOCK = 160


def push(ring: RecordRing, index: int) -> None:
    slot = ring.slot()
    slot["index"] = index
    slot["near"] = index / 1000
    slot["far"] = -index / 1000
    ring.commit()


def test_both_sides_are_kept_to_the_bit(tmp_path: Path) -> None:
    ring = RecordRing(block_dtype(BLOCK), MIC_CAPACITY)
    recorder = Recorder(ring, session_tracks(tmp_path, 16_000))
    for index in range(100):
        push(ring, index)
    recorder.close()
    near, rate = sf.read(tmp_path / MICROPHONE, dtype="float32")
    far, _ = sf.read(tmp_path / LOUDSPEAKER, dtype="float32")
    assert rate == 16_000
    np.testing.assert_array_equal(near, np.repeat(np.arange(100, dtype=np.float32) / np.float32(1000), BLOCK))
    np.testing.assert_array_equal(far, -near)
    assert recorder.lost_blocks == 0


def test_blocks_that_came_too_late_for_the_disk_are_silence_in_their_place(tmp_path: Path) -> None:
    ring = RecordRing(block_dtype(BLOCK), MIC_CAPACITY)
    for index in range(MIC_CAPACITY + 50):
        push(ring, index)
    recorder = Recorder(ring, session_tracks(tmp_path, 16_000))
    recorder.close()
    near, _ = sf.read(tmp_path / MICROPHONE, dtype="float32")
    assert len(near) == (MIC_CAPACITY + 50) * BLOCK
    assert recorder.lost_blocks > 0
    assert not near[: recorder.lost_blocks * BLOCK].any()
    assert near[-1] == np.float32((MIC_CAPACITY + 49) / 1000)


def test_a_full_disk_ends_the_recording_tells_why_and_leaves_good_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation goes on: whoever watches `failure` says it."""

    def full(self: WavWriter, samples: Float32Array) -> None:
        if samples[0] < 0 and self.path.name == LOUDSPEAKER and samples[0] <= np.float32(-0.05):
            self.close()
            raise AudioFileError("the disk is full")
        write(self, samples)

    write = WavWriter.write
    monkeypatch.setattr(WavWriter, "write", full)
    ring = RecordRing(block_dtype(BLOCK), MIC_CAPACITY)
    recorder = Recorder(ring, session_tracks(tmp_path, 16_000))
    for index in range(100):
        push(ring, index)
    recorder.close()
    assert recorder.failure == "the disk is full"
    for name, blocks in ((MICROPHONE, 51), (LOUDSPEAKER, 50)):
        assert len(sf.read(tmp_path / name)[0]) == blocks * BLOCK
