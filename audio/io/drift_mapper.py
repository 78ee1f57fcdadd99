"""The far end on its way from the microphone's clock to the loudspeaker's.

The callback writes a block whenever the microphone has one; the loudspeaker, on a clock and at a rate of its own,
asks for another when it needs it. In between lies a jitter buffer that is read at

    place(t) = far frames that the microphone's clock has counted at time t - depth

for the true time t at which the loudspeaker plays the sample. So what the microphone hears of far sample i lies a
constant number of microphone samples behind i, and the far end recorded beside it is what an echo canceller needs.
Each clock's line (`StreamClock`) carries the integral part of the control, this reader the proportional one: it
closes a difference within seconds, and one that no drift explains at once, under a cross-fade.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from audio.block import HOPS_PER_SECOND, Float32Array
from audio.io.drift import StreamClock
from audio.resample import FractionalResampler

_MARGIN_MS = 10.0
"""By how much a microphone block may be late before the loudspeaker starves."""
_MORE_MS = 5.0
_MARGIN_LIMIT_MS = 80.0
_FOLLOW_S = 2.0
"""Time constant of the reader behind the two clocks' lines."""
_SLEW_LIMIT = 0.002
_JUMP_MS = 3.0
_HISTORY_MS = 500


@dataclass(frozen=True, slots=True)
class SplitStats:
    """How the two clocks get on."""

    fill_ms: float
    """Far end written and not yet played when the loudspeaker asked last."""
    depth_ms: float
    """Constant time from the callback's clock to the loudspeaker's request."""
    drift_ppm: float
    """How much faster the loudspeaker's clock runs than the microphone's."""
    underruns: int
    """Times that the far end was not there when the loudspeaker asked."""
    jumps: int
    """Times that the reader moved at once: a clock stepped, or the depth grew behind an underrun."""
    dropped_ms: float
    """Far end that these jumps left out."""


class DriftMapper:
    """`write` in the microphone's thread, `read` in the loudspeaker's; no lock, no array allocation.

    Args:
        from_hz: microphone's rate, which the far end is written at.
        to_hz: loudspeaker's rate. Both multiples of 100.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz = from_hz
        self._from_frames, self._to_frames = from_hz // HOPS_PER_SECOND, to_hz // HOPS_PER_SECOND
        self._microphone, self._loudspeaker = StreamClock(), StreamClock()
        self._resampler = FractionalResampler(from_hz, to_hz, self._to_frames)
        self._capacity = from_hz * _HISTORY_MS // 1000
        self._mirror = np.zeros(2 * self._capacity, np.float32)  # every sample twice: any run is one view
        self._written = 0
        self._at = 0.0  # far frame that the next `read` begins with
        self._margin_ms = _MARGIN_MS
        angle = np.pi * np.arange(1, self._to_frames + 1) / self._to_frames
        self._fall = (0.5 + 0.5 * np.cos(angle)).astype(np.float32)
        self._rise = 1 - self._fall
        self._second = np.zeros(self._to_frames, np.float32)
        self._held = np.float32(0.0)
        self._is_placed = False
        self._is_sounding = False  # the block before came from the buffer
        self._is_starving = False
        self._underruns = self._jumps = 0
        self._dropped_frames = 0.0

    @property
    def depth_ms(self) -> float:
        """Constant time from the callback's clock to the loudspeaker's request, grown where it proved short."""
        return self._depth * 1000 / self._from_hz

    @property
    def stats(self) -> SplitStats:
        """Any thread may ask."""
        return SplitStats(
            fill_ms=(self._written - self._at) * 1000 / self._from_hz,
            depth_ms=self.depth_ms,
            drift_ppm=(self._microphone.block_ns / self._loudspeaker.block_ns - 1) * 1e6,
            underruns=self._underruns,
            jumps=self._jumps,
            dropped_ms=self._dropped_frames * 1000 / self._from_hz,
        )

    def write(self, far: Float32Array, time_ns: int) -> None:
        """The (B,) that the callback made of the microphone block which arrived at `time_ns`."""
        start = self._written % self._capacity
        first = min(len(far), self._capacity - start)
        for copy in (start, start + self._capacity):
            self._mirror[copy : copy + first] = far[:first]
        rest = len(far) - first
        if rest:
            self._mirror[:rest] = self._mirror[self._capacity : self._capacity + rest] = far[first:]
        self._written += len(far)
        self._microphone.observe(time_ns)

    def read(self, out: Float32Array, time_ns: int) -> None:
        """Fill the loudspeaker's (B,), asked for at `time_ns`. Silence until both clocks have shown themselves."""
        self._loudspeaker.observe(time_ns)
        if not (self._loudspeaker.is_settled and self._microphone.is_settled):
            out.fill(0.0)
            return
        wanted = self._microphone.place(self._loudspeaker.due_ns) * self._from_frames - self._depth
        if not self._is_placed:
            self._is_placed, self._at = True, wanted
        step = self._step(wanted - self._at)
        if abs(wanted - self._at) > _JUMP_MS * self._from_hz / 1000:
            self._jump(wanted, step, out)
        elif self._has(step):
            self._play(step, out)
        else:
            self._starve(out)
        self._at += step * self._to_frames
        self._held = out[-1]

    @property
    def _depth(self) -> float:
        """In far frames: the block being written, the block being read, the filter, and the margin."""
        return 2 * self._from_frames + self._resampler.half_width + self._margin_ms * self._from_hz / 1000

    def _step(self, behind: float) -> float:
        """Far frames per loudspeaker frame: the ratio of the clocks, and a little of what is missing."""
        ratio = self._loudspeaker.block_ns / self._microphone.block_ns
        slew = min(max(behind / (self._from_hz * _FOLLOW_S), -_SLEW_LIMIT), _SLEW_LIMIT)
        return (ratio + slew) * self._from_frames / self._to_frames

    def _has(self, step: float) -> bool:
        """Every sample that the next block needs has been written and not yet overwritten."""
        first = math.floor(self._at) + 1 - self._resampler.half_width
        end = math.floor(self._at + step * self._to_frames) + 1 + self._resampler.half_width
        return first >= max(0, self._written - self._capacity + self._from_frames) and end <= self._written

    def _render(self, step: float, out: Float32Array) -> None:
        first = math.floor(self._at) + 1 - self._resampler.half_width
        start = first % self._capacity
        self._resampler.read(self._mirror[start : start + self._capacity], self._at - first, step, out)

    def _play(self, step: float, out: Float32Array) -> None:
        self._render(step, out)
        if not self._is_sounding:
            out *= self._rise
            if self._is_starving:  # the far end was late and not lost: have more of it next time
                self._margin_ms = min(self._margin_ms + _MORE_MS, _MARGIN_LIMIT_MS)
        self._is_sounding, self._is_starving = True, False

    def _starve(self, out: Float32Array) -> None:
        """Fade out once over the sample held last, then silence; the place moves on, so the delay stays."""
        np.multiply(self._fall, self._held if self._is_sounding else np.float32(0.0), out=out)
        self._underruns += not self._is_starving
        self._is_sounding, self._is_starving = False, True

    def _jump(self, wanted: float, step: float, out: Float32Array) -> None:
        """Cross-fade to the place that is wanted."""
        if self._is_sounding and self._has(step):
            self._render(step, out)
            out *= self._fall
        else:
            np.multiply(self._fall, self._held if self._is_sounding else np.float32(0.0), out=out)
        self._jumps += 1
        self._dropped_frames += max(0.0, wanted - self._at)
        self._at = wanted
        self._is_sounding, self._is_starving = self._has(step), False
        if self._is_sounding:
            self._render(step, self._second)
            self._second *= self._rise
            out += self._second
