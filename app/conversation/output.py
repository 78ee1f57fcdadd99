"""The way of a reply's samples from the voice to the playback ring: resample, cut into blocks, run 300 ms ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from audio.block import Float32Array
from audio.control import ControlWords
from audio.resample import StreamResampler
from audio.ring import RecordRing


class ReplyOutput(Protocol):
    """Where a reply's audio goes."""

    rate_hz: int

    def begin(self, generation: int, source_rate_hz: int) -> None:
        """A new reply; whatever belongs to older generations is stopped and dropped."""
        ...

    def add(self, samples: Float32Array) -> None:
        """More audio of the reply, at its source rate."""
        ...

    def end(self) -> int:
        """No more audio follows. Returns the reply's length in device frames."""
        ...

    def stop(self, generation: int) -> None:
        """Stop what is playing: only audio of `generation` (none yet) may play from now on."""
        ...

    def pump(self) -> None:
        """Hand blocks on as far as the ring has room."""
        ...


class _Cutter:
    """One reply: samples at the voice's rate in, device blocks out. The last block, padded, only after `end`."""

    def __init__(self, source_rate_hz: int, rate_hz: int) -> None:
        self._resampler = StreamResampler(source_rate_hz, rate_hz)
        self._block = rate_hz // 100
        self._pending: deque[Float32Array] = deque()
        self._pending_frames = 0
        self._is_ended = False
        self.total_frames = 0
        self.taken_frames = 0

    @property
    def has_block(self) -> bool:
        """Whether `take` has something to give."""
        return self._pending_frames >= (1 if self._is_ended else self._block)

    @property
    def is_last(self) -> bool:
        """Whether what was taken last ends the reply."""
        return self._is_ended and self._pending_frames == 0

    def add(self, samples: Float32Array) -> None:
        """A whole clause: nothing of it is held back, however late the next one is."""
        self._append(self._resampler.finish(samples))

    def end(self) -> None:
        self._is_ended = True

    def take(self, out: Float32Array) -> None:
        """Fill `out` (block,) with the next frames and zeros behind the last."""
        wanted = min(len(out), self._pending_frames)
        filled = 0
        while filled < wanted:
            head = self._pending[0]
            used = min(len(head), wanted - filled)
            out[filled : filled + used] = head[:used]
            filled += used
            if used == len(head):
                self._pending.popleft()
            else:
                self._pending[0] = head[used:]
        out[wanted:] = np.float32(0.0)
        self._pending_frames -= wanted
        self.taken_frames += wanted

    def _append(self, samples: Float32Array) -> None:
        if len(samples):
            self._pending.append(samples)
            self._pending_frames += len(samples)
            self.total_frames += len(samples)


def _put(ring: RecordRing, generation: int, cutter: _Cutter) -> None:
    """Move the cutter's next block to the ring."""
    record = ring.slot()
    cutter.take(record["samples"])
    record["generation"] = generation
    record["end_frames"] = cutter.taken_frames
    record["last"] = cutter.is_last
    ring.commit()


class RingOutput:
    """`ReplyOutput` on the shared playback ring. The ring's capacity is how far ahead it may run."""

    def __init__(self, ring: RecordRing, control: ControlWords, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._ring = ring
        self._control = control
        self._generation = 0
        self._cutter: _Cutter | None = None

    def begin(self, generation: int, source_rate_hz: int) -> None:
        """See `ReplyOutput`."""
        self.stop(generation)
        self._cutter = _Cutter(source_rate_hz, self.rate_hz)

    def add(self, samples: Float32Array) -> None:
        """See `ReplyOutput`."""
        assert self._cutter is not None
        self._cutter.add(samples)

    def end(self) -> int:
        """See `ReplyOutput`."""
        assert self._cutter is not None
        self._cutter.end()
        return self._cutter.total_frames

    def stop(self, generation: int) -> None:
        """See `ReplyOutput`."""
        self._control.generation = self._generation = generation
        self._cutter = None

    def pump(self) -> None:
        """See `ReplyOutput`."""
        while self._cutter is not None and self._cutter.has_block and self._ring.free():
            _put(self._ring, self._generation, self._cutter)

    def before_block(self, block: int) -> None:
        """Called ahead of every device block of a local session; a replay decides here what the block plays."""


@dataclass(frozen=True, slots=True)
class PlayedFrom:
    """From this block on the device played `generation`, faded it, or neither: one `playback` event of a log."""

    block: int
    generation: int
    plays: bool
    fades: bool


class ReplayOutput(RingOutput):
    """Plays block by block what a log says was played.

    When a live engine's block reached a live callback is not reproducible, and neither is when a stop word did;
    the log has both. So a reply stays at hand until the log ends it, and the stop word is stored for the block
    in which the log has the fade.
    """

    def __init__(self, ring: RecordRing, control: ControlWords, rate_hz: int, log: Sequence[PlayedFrom]) -> None:
        super().__init__(ring, control, rate_hz)
        self._log = deque(log)
        self._entry = PlayedFrom(0, 0, False, False)
        self._cutters: dict[int, _Cutter] = {}

    def begin(self, generation: int, source_rate_hz: int) -> None:
        """See `ReplyOutput`."""
        super().begin(generation, source_rate_hz)
        assert self._cutter is not None
        self._cutters[generation] = self._cutter

    def stop(self, generation: int) -> None:
        """Nothing stops before the log says so."""
        self._generation = generation
        self._cutter = None

    def pump(self) -> None:
        """Nothing runs ahead."""

    def before_block(self, block: int) -> None:
        """Leave ring and stop word as the live callback found them."""
        while self._log and self._log[0].block <= block:
            self._entry = self._log.popleft()
        entry, cutter = self._entry, self._cutters.get(self._entry.generation)
        is_stopped = self._generation != entry.generation
        has_next = cutter is not None and cutter.has_block
        # A fade without a stop, over audio that was there: the engine's heartbeat had failed, or the user muted.
        self._control.muted = int(entry.fades and not is_stopped and has_next)
        if entry.plays or entry.fades:
            self._control.generation = self._generation if entry.fades and is_stopped else entry.generation
            if has_next and self._ring.free() == self._ring.capacity:
                assert cutter is not None
                _put(self._ring, entry.generation, cutter)
        if not entry.plays and not self._control.muted:
            for old in [key for key in self._cutters if key < self._generation]:
                del self._cutters[old]
