"""A face that is killed takes nothing with it: its engine writes what was asked and heard, whatever lay in the pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
import pytest

from app.commands import SayText
from app.config.load import load_config
from app.conversation.history import Exchange
from app.conversation.resume import ResumePoint
from app.engine.handle import EngineProcess
from app.engine.process import HOP_CAPACITY, Attach, EngineSpec, JournalRef, StubSpec
from app.journal import Journal
from audio.control import ControlWords
from audio.ear import HOP_DTYPE
from audio.io.callback import DuplexCallback
from audio.io.device import StreamFormat
from audio.io.records import PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.io.segments import Segment, SegmentRef, attach
from audio.ring import RecordRing

RATE_HZ = 16_000
FRAMES = RATE_HZ // 100
SESSION = "abc"
_WORD_BLOCKS = 20  # the stub voice takes 200 ms a word
_LIMIT_S = 30.0


class _Device:
    """Ear and sound device of the test: blocks in step with the clock, hops without sound in them."""

    def __init__(self) -> None:
        playback = playback_dtype(FRAMES)
        self._segments = {
            "hops": Segment("hops", RecordRing.nbytes(HOP_DTYPE, HOP_CAPACITY)),
            "playback": Segment("playback", RecordRing.nbytes(playback, PLAYBACK_CAPACITY)),
            "control": Segment("control", ControlWords.NBYTES),
        }
        self.refs = {role: segment.ref for role, segment in self._segments.items()}
        self.control = ControlWords(self._segments["control"].buffer)
        self._hops = RecordRing(HOP_DTYPE, HOP_CAPACITY, self._segments["hops"].buffer)
        self._mic = RecordRing(block_dtype(FRAMES), 64)
        self._blocks = self._mic.reader()
        ring = RecordRing(playback, PLAYBACK_CAPACITY, self._segments["playback"].buffer)
        self._callback = DuplexCallback(self._mic, ring, self.control, RATE_HZ)
        self._out = np.zeros(FRAMES, np.float32)
        self.heard_blocks = 0
        self.control.running = 1

    def play_until(self, is_over: Callable[[], bool]) -> None:
        until_s = time.monotonic() + _LIMIT_S
        while not is_over():
            assert time.monotonic() < until_s
            self._callback(np.zeros(FRAMES, np.float32), self._out, time.monotonic_ns())
            (block,) = self._blocks.read()
            slot = self._hops.slot()
            slot["block"], slot["onset_samples"] = block["index"], -1
            slot["index_samples"] = int(block["index"]) * FRAMES
            for name in ("generation", "reply_frames", "flags"):
                slot[name] = block[name]
            self._hops.commit()
            self.heard_blocks = int(block["reply_frames"]) // FRAMES
            time.sleep(0.01)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.unlink()


@pytest.fixture
def device() -> Iterator[_Device]:
    made = _Device()
    yield made
    made.close()


def _deaf_face(journal: Path, refs: dict[str, SegmentRef], engine_pid: Synchronized[int]) -> None:
    """Starts an engine, asks something, and reads none of its events."""
    control = ControlWords(attach(refs["control"]))
    engine = EngineProcess()
    config = load_config(file=None, env={}).config
    stub, snapshot = StubSpec(first_token_ms=5.0, tts_ms=5.0), journal.with_name("talk.kv")
    engine.start(EngineSpec(config, JournalRef(journal, SESSION), stub, snapshot=snapshot))
    engine.wait_ready()
    stream = StreamFormat(RATE_HZ, FRAMES, "in", "out", "simulated", 0.0)
    engine.attach(Attach(stream, refs["hops"], refs["playback"], refs["control"], ResumePoint()), control)
    engine.send(SayText("is it late"))
    engine_pid.value = engine.pid
    time.sleep(60.0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("die_after", ["a word", "the reply"])
@pytest.mark.parametrize("later_blocks", [0, 2 * _WORD_BLOCKS + 3], ids=["silent at once", "sounds on"])
@pytest.mark.timeout(120)
def test_what_lay_in_the_pipe_is_written(device: _Device, tmp_path: Path, die_after: str, later_blocks: int) -> None:
    path, snapshot = tmp_path / "journal.jsonl", tmp_path / "talk.kv"
    snapshot.write_bytes(b"what the model had read")
    context = multiprocessing.get_context("spawn")
    engine_pid = context.Value("i", 0)
    face = context.Process(target=_deaf_face, args=(path, device.refs, engine_pid))
    face.start()
    words = "It is time to talk.".split()
    wanted = len(words) * _WORD_BLOCKS if die_after == "the reply" else 2 * _WORD_BLOCKS - 5
    try:
        device.play_until(lambda: device.heard_blocks >= wanted)
    finally:
        os.kill(face.pid or 0, signal.SIGKILL)
        face.join()
        face.close()
    last = min(device.heard_blocks + later_blocks, len(words) * _WORD_BLOCKS)
    device.play_until(lambda: device.heard_blocks >= last)
    device.control.running = 0
    until_s = time.monotonic() + _LIMIT_S
    while _is_alive(engine_pid.value) and time.monotonic() < until_s:
        time.sleep(0.02)
    journal = Journal(path)
    exchanges = journal.exchanges()
    journal.close()
    assert not snapshot.exists()  # nobody comes back to it
    heard_words = round(device.heard_blocks / _WORD_BLOCKS)  # heard with the middle of the word
    assert exchanges == [Exchange("is it late", " ".join(words[:heard_words]))]
