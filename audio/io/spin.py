"""Notices that the sound driver waits by asking over and over.

After one underrun, PortAudio's duplex stream on ALSA's pulse plugin never sleeps again: one side has woken it, the
other is not ready, and it takes a third of a core to all of it while the sound goes on as if nothing had happened.
With SCHED_FIFO that starves everybody else on the core, so more sound is lost. Only opening anew helps.
"""

from __future__ import annotations

_WINDOW_S = 1.0
_LIMIT = 0.25
"""Share of a core above the calmest second of this stream."""
_MOST_WINDOWS = 2


class SpinWatch:
    """Asked often; compares the process's use of the processor with what this stream took at its best."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._cpu_s = 0.0
        self._least_share = 1.0
        self._windows = 0

    def is_spinning(self, cpu_s: float, now_s: float) -> bool:
        """`cpu_s`: processor time of this process so far, at the monotonic time `now_s`."""
        if self._since_s is None:
            self._since_s, self._cpu_s = now_s, cpu_s
        lasted_s = now_s - self._since_s
        if lasted_s >= _WINDOW_S:
            share = (cpu_s - self._cpu_s) / lasted_s
            self._since_s, self._cpu_s = now_s, cpu_s
            self._least_share = min(self._least_share, share)
            self._windows = self._windows + 1 if share > self._least_share + _LIMIT else 0
        return self._windows >= _MOST_WINDOWS
