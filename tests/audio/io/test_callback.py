"""The callback rule against a plain model, with random generations, mutes, hangs and underruns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.clock import BLOCK_NS
from audio.control import ControlWords
from audio.io.callback import DuplexCallback
from audio.io.records import FLAG_FADED, FLAG_REPLY, FLAG_UNDERRUN, block_dtype, playback_dtype
from audio.ring import RecordRing

_RATE_HZ = 1600
_FRAMES = 16
_FADE = [0.5 + 0.5 * np.cos(np.pi * (i + 1) / _FRAMES) for i in range(_FRAMES)]


@dataclass
class _Record:
    generation: int
    end_frames: int
    is_last: bool
    samples: list[float]


@dataclass
class _Model:
    """The rule in the words of its description, one block at a time."""

    queue: deque[_Record] = field(default_factory=deque)
    generation: int = 0
    reply_frames: int = 0
    was_playing: bool = False
    in_reply: bool = False
    held: float = 0.0

    def block(self, wanted: int, is_silenced: bool) -> tuple[list[float], int]:
        if self.was_playing and (is_silenced or wanted != self.generation):
            self.was_playing = False
            pending = self.queue[0] if self.queue else None
            belongs = pending is not None and pending.generation == self.generation
            base = pending.samples if pending is not None and belongs else [self.held] * _FRAMES
            self._drop(wanted)
            return [b * f for b, f in zip(base, _FADE, strict=True)], FLAG_FADED
        self._drop(wanted)
        if is_silenced:
            return [0.0] * _FRAMES, 0
        if self.queue and self.queue[0].generation == wanted:
            record = self.queue.popleft()
            self.generation, self.reply_frames = record.generation, record.end_frames
            self.was_playing = self.in_reply = not record.is_last
            self.held = record.samples[-1]
            return record.samples, FLAG_REPLY
        if self.in_reply and wanted == self.generation:
            fades, self.was_playing = self.was_playing, False
            return [self.held * f * fades for f in _FADE], FLAG_UNDERRUN | (FLAG_FADED if fades else 0)
        return [0.0] * _FRAMES, 0

    def _drop(self, wanted: int) -> None:
        while self.queue and self.queue[0].generation < wanted:
            self.queue.popleft()


class _Rig:
    def __init__(self) -> None:
        self.mic = RecordRing(block_dtype(_FRAMES), 64)
        self.playback = RecordRing(playback_dtype(_FRAMES), 30)
        self.control = ControlWords()
        self.callback = DuplexCallback(self.mic, self.playback, self.control, _RATE_HZ)
        self.reader = self.mic.reader()
        self.time_ns = 10**15
        self.random = np.random.default_rng(0)

    def push(self, record: _Record) -> None:
        slot = self.playback.slot()
        slot["generation"], slot["end_frames"] = record.generation, record.end_frames
        slot["last"], slot["samples"] = record.is_last, record.samples
        self.playback.commit()

    def block(self) -> tuple[np.ndarray, np.void]:
        near = self.random.standard_normal(_FRAMES).astype(np.float32)
        out = np.full(_FRAMES, np.nan, np.float32)
        self.callback(near, out, self.time_ns)
        (record,) = self.reader.read()
        assert np.array_equal(record["near"], near)
        assert np.array_equal(record["far"], out)
        assert record["time_ns"] == self.time_ns
        self.time_ns += BLOCK_NS
        return out, record


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 6)),
        st.tuples(st.just("bump"), st.integers(1, 2)),
        st.tuples(st.just("mute"), st.booleans()),
        st.tuples(st.just("beat"), st.sampled_from([None, 0.0, 0.499, 0.5, 2.0])),
        st.tuples(st.just("run"), st.integers(1, 5)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(_steps, st.integers(0, 2**31))
def test_every_sample_is_the_models(steps: list[tuple[str, int]], seed: int) -> None:
    rig, model, random = _Rig(), _Model(), np.random.default_rng(seed)
    control = rig.control
    heartbeat_age_s: float | None = None
    pushed_frames, pushing = 0, 0
    index, underruns, was_starving = 0, 0, False
    for action, value in steps:
        if action == "push":
            if pushing != control.generation:
                pushing, pushed_frames = control.generation, 0
            for _ in range(min(value, rig.playback.free())):
                pushed_frames += _FRAMES
                samples = random.uniform(-1, 1, _FRAMES).astype(np.float32).tolist()
                record = _Record(pushing, pushed_frames, bool(random.random() < 0.2), samples)
                rig.push(record)
                model.queue.append(record)
        elif action == "bump":
            control.generation += value
        elif action == "mute":
            control.muted = int(value)
        elif action == "beat":
            heartbeat_age_s = value
        else:
            for _ in range(value):
                hangs = heartbeat_age_s is not None and heartbeat_age_s >= 0.5
                control.heartbeat_ns = 0 if heartbeat_age_s is None else rig.time_ns - round(heartbeat_age_s * 1e9)
                expected, flags = model.block(control.generation, bool(control.muted) or hangs)
                out, record_out = rig.block()
                assert np.allclose(out, expected, atol=1e-6)
                assert record_out["flags"] == flags
                assert record_out["index"] == index
                assert record_out["generation"] == model.generation
                assert record_out["reply_frames"] == model.reply_frames
                assert rig.playback.capacity - rig.playback.free() == len(model.queue)
                index += 1
                if flags & FLAG_REPLY:
                    was_starving = False
                elif flags & FLAG_UNDERRUN and not was_starving:
                    was_starving, underruns = True, underruns + 1
    assert control.blocks == index
    assert control.underruns == underruns


def test_nothing_of_a_stale_generation_sounds_after_one_fade_block() -> None:
    rig = _Rig()
    rig.control.generation = 1
    for n in range(20):
        rig.push(_Record(1, (n + 1) * _FRAMES, False, [0.5] * _FRAMES))
    for _ in range(3):
        rig.block()
    rig.control.generation = 2
    rig.push(_Record(2, _FRAMES, True, [0.25] * _FRAMES))
    faded, record = rig.block()
    assert record["flags"] == FLAG_FADED
    assert np.all(np.diff(faded) < 0)
    assert faded[-1] == 0.0
    assert record["reply_frames"] == 3 * _FRAMES
    fresh, record = rig.block()
    assert np.all(fresh == 0.25)
    assert record["generation"] == 2
    silent, _ = rig.block()
    assert not silent.any()


def test_a_muted_reply_goes_on_where_it_was() -> None:
    rig = _Rig()
    for n in range(4):
        rig.push(_Record(0, (n + 1) * _FRAMES, n == 3, [0.1 * (n + 1)] * _FRAMES))
    rig.block()
    rig.control.muted = 1
    rig.block()
    assert not rig.block()[0].any()
    rig.control.muted = 0
    out, record = rig.block()
    assert np.allclose(out, 0.2)
    assert record["reply_frames"] == 2 * _FRAMES


def test_a_reply_that_ended_is_no_underrun() -> None:
    rig = _Rig()
    rig.push(_Record(0, 10, True, [0.5] * _FRAMES))
    rig.block()
    for _ in range(3):
        out, record = rig.block()
        assert record["flags"] == 0
        assert not out.any()
    assert rig.control.underruns == 0


def test_late_blocks_are_counted() -> None:
    rig = _Rig()
    rig.block()
    rig.block()
    rig.time_ns += 2 * BLOCK_NS
    rig.block()
    assert rig.control.late_blocks == 1


def test_a_callback_goes_on_where_a_dead_one_stopped() -> None:
    rig = _Rig()
    rig.control.generation = 3
    for number in range(6):
        rig.push(_Record(3, _FRAMES * (number + 1), number == 5, [0.1] * _FRAMES))
    for _ in range(4):
        rig.block()
    rig.callback = DuplexCallback(rig.mic, rig.playback, rig.control, _RATE_HZ)
    rig.time_ns += 10**9  # the outage took a second
    records = [rig.block()[1] for _ in range(4)]
    assert [int(record["index"]) for record in records] == [4, 5, 6, 7]
    assert [int(record["reply_frames"]) // _FRAMES for record in records] == [5, 6, 6, 6]
    assert [bool(record["flags"] & FLAG_REPLY) for record in records] == [True, True, False, False]
    assert [int(record["generation"]) for record in records] == [3, 3, 3, 3]
    assert rig.control.blocks == 8
    assert rig.control.lost_frames == _RATE_HZ  # all of the second, and no more
    assert rig.control.late_blocks == 0
