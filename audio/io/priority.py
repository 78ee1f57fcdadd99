"""Raised scheduling priority for the processes that must meet 10 ms deadlines."""

from __future__ import annotations

import os
import sys

_FIFO_PRIORITY = 10
_NICE = -11


def raise_priority() -> str:
    """Ask for the highest class that this process may have; what it got, for the log.

    Threads started later inherit it, so call this before a stream is opened.
    """
    if sys.platform == "win32":
        return _raise_on_windows()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
        return f"SCHED_FIFO {_FIFO_PRIORITY}"
    except (OSError, AttributeError):  # AttributeError: no such call on this system
        pass  # the next best is asked for below
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        return f"nice {_NICE}"
    except OSError:
        return "normal"


def _raise_on_windows() -> str:
    """PortAudio registers its own thread with MMCSS; this lifts the rest of the process."""
    import ctypes

    high_priority_class = 0x80
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - does not exist for type checkers elsewhere
    done = kernel.SetPriorityClass(kernel.GetCurrentProcess(), high_priority_class)
    return "high priority class" if done else "normal"
