"""Lost audio, counted by blocks against time.

Status flags do not tell: a stream that lost a second of input set none of them. What tells is the time at
which block n arrives. A callback can be late for many reasons, but the least late one of a second shows
where the stream stands; when that steps back and stays back, the audio in between is gone.
"""

from __future__ import annotations

from audio.block import HOP_MS, HOPS_PER_SECOND

BLOCK_NS = HOP_MS * 1_000_000
_STARTUP_BLOCKS = HOPS_PER_SECOND // 2
"""Streams start with a burst or a gap while buffers fill: no judgement before this."""
_WINDOW_BLOCKS = HOPS_PER_SECOND
_STEP_NS = 5_000_000
"""A smaller step is jitter or drift."""
_DRIFT_NS = 500_000
"""What a bad sound clock (500 ppm) may drift within one window."""


class LossMeter:
    """Feed it the monotonic time of every 10 ms block; it says how many frames are newly found missing."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._blocks = 0
        self._origin_ns = 0
        self._earliest_ns: int | None = None
        self._baseline_ns: int | None = None

    def observe(self, time_ns: int) -> int:
        """Time of the next block, at callback entry, to frames found lost (mostly 0; known within about 1 s)."""
        block = self._blocks
        self._blocks += 1
        if block < _STARTUP_BLOCKS:
            return 0
        if block == _STARTUP_BLOCKS:
            self._origin_ns = time_ns - block * BLOCK_NS
        late_ns = time_ns - self._origin_ns - block * BLOCK_NS
        if self._earliest_ns is None or late_ns < self._earliest_ns:
            self._earliest_ns = late_ns
        if (block - _STARTUP_BLOCKS) % _WINDOW_BLOCKS != _WINDOW_BLOCKS - 1:
            return 0
        step_ns = self._end_window(self._earliest_ns)
        self._earliest_ns = None
        return round(step_ns * self._rate_hz / 1e9)

    def _end_window(self, earliest_ns: int) -> int:
        """Move the baseline to where the stream stands; the size of a step back, else 0."""
        if self._baseline_ns is None:
            self._baseline_ns = earliest_ns
            return 0
        step_ns = earliest_ns - self._baseline_ns
        if step_ns >= _STEP_NS:
            self._baseline_ns = earliest_ns
            return step_ns
        # Follow the drift, no faster than a clock drifts: slow losses add up until they make a step.
        self._baseline_ns += min(step_ns, _DRIFT_NS)
        return 0
