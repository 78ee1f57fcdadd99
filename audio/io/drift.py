"""Where a sound stream stands by the monotonic clock: its true rate and place, from times of late callbacks.

A callback comes late by anything from microseconds to tens of milliseconds and never early, so the least late one
of many shows where the stream stands. A Kalman filter of a straight line (place and rate; Bar-Shalom, Li and
Kirubarajan, Estimation with Applications to Tracking and Navigation, 2001, 6.2) through these is the stream's clock:
it settles in seconds where callbacks are punctual, takes longer where they are not, and then is steady to microseconds.
"""

from __future__ import annotations

from audio.clock import BLOCK_NS

START_BLOCKS = 20
"""Streams start with a burst or a gap while buffers fill: the line begins behind these."""
_WINDOW_BLOCKS = (25, 200)
"""The least late of so many blocks is one point of the line: of few at first, then of more."""
_GROWTH = 10
"""A window is a tenth of what came before it."""
_JUMP_NS = 5_000_000
"""A smaller step is jitter or drift."""
_JUMP_BLOCKS = 20
"""So many blocks in a row must be late by more than that: a burst that catches up loses nothing."""
_PUNCTUAL_NS = 3_000.0
"""No point of the line is trusted further."""
_PLACE_VARIANCE = 1e12
"""(1 ms)², in ns², where a stream begins or has jumped."""
_RATE_VARIANCE = 1e6
"""(100 ppm)², in (ns a block)²: crystals are as far apart."""
_RATE_WANDER = 1e-4
"""Variance that the rate gains in a block: 0.01 ppm in a second, as crystals warm up."""
_RATE_LIMIT = 1e-3


class StreamClock:
    """Feed it the monotonic time of every 10 ms block at callback entry."""

    def __init__(self) -> None:
        self.blocks = 0
        """Blocks seen."""
        self.block_ns = float(BLOCK_NS)
        """True length of a block."""
        self.due_ns = 0.0
        """When the newest block was due."""
        self.jumps = 0
        """Times that the stream stepped against time: audio was lost, or came twice as fast."""
        self._line = (0.0, 0, self.block_ns)  # what other threads read: stored whole
        self._place_variance, self._covariance, self._rate_variance = _PLACE_VARIANCE, 0.0, _RATE_VARIANCE
        self._window = 0  # blocks in it so far
        self._earliest_ns = self._late_sum_ns = 0.0
        self._late_run = 0
        self._run_ns = 0.0

    @property
    def is_settled(self) -> bool:
        """Enough blocks came for the line to mean something."""
        return self.blocks >= START_BLOCKS

    @property
    def drift_ppm(self) -> float:
        """How much faster than nominal the stream runs, by the monotonic clock."""
        return (BLOCK_NS / self.block_ns - 1) * 1e6

    def place(self, time_ns: float) -> float:
        """Blocks complete at this time, as a real number. Any thread may ask."""
        due_ns, blocks, block_ns = self._line
        return blocks + (time_ns - due_ns) / block_ns

    def observe(self, time_ns: int) -> None:
        """One more block."""
        self.due_ns = float(time_ns) if self.blocks == 0 else self.due_ns + self.block_ns
        self.blocks += 1
        late_ns = time_ns - self.due_ns
        if not self.is_settled:
            self.due_ns += min(late_ns, 0.0)
        elif late_ns < -_JUMP_NS:
            self._jump(late_ns)
        else:
            self._follow(late_ns)
        self._line = (self.due_ns, self.blocks, self.block_ns)

    def _follow(self, late_ns: float) -> None:
        self._note_run(late_ns)
        if self._window == 0:
            self._earliest_ns, self._late_sum_ns = late_ns, 0.0
        self._earliest_ns = min(self._earliest_ns, late_ns)
        self._late_sum_ns += late_ns
        self._window += 1
        if self._late_run == _JUMP_BLOCKS:
            self._jump(self._run_ns)
        elif self._window >= min(max(self.blocks // _GROWTH, _WINDOW_BLOCKS[0]), _WINDOW_BLOCKS[1]):
            self._fit(self._window, self._earliest_ns, self._late_sum_ns / self._window - self._earliest_ns)

    def _note_run(self, late_ns: float) -> None:
        if late_ns <= _JUMP_NS:
            self._late_run = 0
        else:
            self._run_ns = late_ns if self._late_run == 0 else min(self._run_ns, late_ns)
            self._late_run += 1

    def _jump(self, step_ns: float) -> None:
        """The stream stands elsewhere and runs as it did: keep the rate, learn the place again."""
        self.due_ns += step_ns
        self.jumps += 1
        self._place_variance, self._covariance = _PLACE_VARIANCE, 0.0
        self._window = self._late_run = 0

    def _fit(self, blocks: int, error_ns: float, spread_ns: float) -> None:
        """One point of the line: `error_ns` off it, least late of `blocks` that are later by `spread_ns` on average."""
        self._rate_variance += blocks * _RATE_WANDER
        self._place_variance += blocks * (2 * self._covariance + blocks * self._rate_variance)
        self._covariance += blocks * self._rate_variance
        noise = max(2 * spread_ns / blocks, _PUNCTUAL_NS) ** 2  # uniform lateness of up to J: its least is J / n off
        place_gain = self._place_variance / (self._place_variance + noise)
        rate_gain = self._covariance / (self._place_variance + noise)
        self._rate_variance -= rate_gain * self._covariance
        self._covariance *= 1 - place_gain
        self._place_variance *= 1 - place_gain
        self.due_ns += place_gain * error_ns
        length_ns = self.block_ns + rate_gain * error_ns
        self.block_ns = min(max(length_ns, BLOCK_NS * (1 - _RATE_LIMIT)), BLOCK_NS * (1 + _RATE_LIMIT))
        self._window = 0
