"""Raised scheduling priority for the processes that must meet 10 ms deadlines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

AUDIO_FIFO_PRIORITY = 10
"""Of the audio process; whoever works for it asks for less."""
_NICE = -11
_SPIN_LIMIT_US = 2_000_000
"""A real-time thread that computes this long without waiting once is out of control, and its process ends.

Two streams whose PortAudio threads span because their sound server could not run, each waiting for the other's
core, took a machine with two cores away from everybody for a quarter of an hour."""


def raise_priority(fifo_priority: int = AUDIO_FIFO_PRIORITY) -> str:
    """Ask for SCHED_FIFO at this level (1 to 99), else for the next best; what this process got, for the log.

    Threads started later inherit it, so call this before a stream is opened. With SCHED_FIFO the system ends this
    process (SIGXCPU) should one of its threads keep a core for 2 s on end.
    """
    if sys.platform == "win32":
        return _raise_on_windows()
    try:
        _limit_spinning()
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(fifo_priority))
        return f"SCHED_FIFO {fifo_priority}"
    except (OSError, AttributeError):  # AttributeError: no such call on this system
        pass  # the next best is asked for below
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        return f"nice {_NICE}"
    except OSError:
        return "normal"


@contextmanager
def one_level_lower() -> Iterator[None]:
    """Threads that are started meanwhile get one level of SCHED_FIFO less than this one, where it has SCHED_FIFO.

    For the thread that calls back: with ALSA's pulse plugin it waits for the plugin's own thread, the child of an
    earlier call, by asking over and over. On the same level it would keep that thread, and ours that watches,
    from the only free core.
    """
    policy = getattr(os, "SCHED_FIFO", None)
    if policy is None or os.sched_getscheduler(0) != policy:
        yield
        return
    level = os.sched_getparam(0).sched_priority
    os.sched_setscheduler(0, policy, os.sched_param(max(1, level - 1)))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, os.sched_param(level))


def _limit_spinning() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    soft = _SPIN_LIMIT_US if hard == resource.RLIM_INFINITY else min(_SPIN_LIMIT_US, hard)
    resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def _raise_on_windows() -> str:
    """PortAudio registers its own thread with MMCSS; this lifts the rest of the process."""
    import ctypes

    high_priority_class = 0x80
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - does not exist for type checkers elsewhere
    done = kernel.SetPriorityClass(kernel.GetCurrentProcess(), high_priority_class)
    return "high priority class" if done else "normal"
