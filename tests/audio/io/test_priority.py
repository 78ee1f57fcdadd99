"""Raised priority: what was granted, and that a thread out of control does not keep the machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

from audio.io.priority import one_level_lower, raise_priority

_FIFO = getattr(os, "SCHED_FIFO", None)


def _in_child(work: Any) -> tuple[Any, int | None]:
    """(what it sent, exit code)."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(sender,))
    child.start()
    sender.close()
    try:
        answer = receiver.recv()
    finally:
        child.join(60)
        code = child.exitcode
        child.close()
        receiver.close()
    return answer, code


def _levels(sender: Connection) -> None:
    granted = raise_priority(7)
    policy, level = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    started: list[int] = []

    def note() -> None:
        started.append(os.sched_getparam(0).sched_priority)

    with one_level_lower():
        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
    sender.send((granted, policy, level, started[0], os.sched_getparam(0).sched_priority))


def test_the_level_is_the_one_that_was_asked_for_and_threads_can_get_one_less() -> None:
    (granted, policy, level, callback_level, after), code = _in_child(_levels)
    assert code == 0
    if policy == _FIFO:
        assert (granted, level, callback_level, after) == ("SCHED_FIFO 7", 7, 6, 7)
    else:
        assert granted in ("nice -11", "normal")
        assert (level, callback_level, after) == (0, 0, 0)


def _spin(sender: Connection) -> None:
    sender.send(raise_priority(1))  # below every process that really is in a hurry
    sender.close()
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        pass


def test_a_real_time_process_that_never_waits_is_ended_by_the_system() -> None:
    """Two of them, asking for data that only the other's core could bring, took a whole machine for good."""
    began_s = time.monotonic()
    granted, code = _in_child(_spin)
    if not granted.startswith("SCHED_FIFO"):
        pytest.skip(f"this user gets {granted}")
    assert code == -signal.SIGXCPU
    assert time.monotonic() - began_s < 20
