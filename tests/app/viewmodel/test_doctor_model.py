"""The doctor's lines come in while the checks still run; nothing waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from app.cli.checks.check import Check
from app.viewmodel.doctor import DoctorModel


def _poll_until_idle(model: DoctorModel) -> None:
    deadline = time.monotonic() + 20
    while model.is_running and time.monotonic() < deadline:
        model.poll()
        time.sleep(0.005)
    assert not model.is_running


def test_lines_come_in_one_by_one() -> None:
    may_go_on, asked = threading.Event(), []

    def checks(is_quick: bool) -> Iterator[Check]:
        asked.append(is_quick)
        yield Check("cpu", "ok", "2")
        assert may_go_on.wait(20)
        yield Check("gpu", "warning", "none", "Buy one")

    model = DoctorModel(checks)
    model.run(is_quick=True)
    model.run(is_quick=False)  # one run at a time
    deadline = time.monotonic() + 20
    while not model.lines and time.monotonic() < deadline:
        model.poll()
    assert [line.finding.name for line in model.lines] == ["cpu"]
    assert model.is_running
    assert not model.is_complete
    may_go_on.set()
    _poll_until_idle(model)
    assert model.is_complete
    assert model.counts == {"ok": 1, "warning": 1, "problem": 0}
    assert all(line.took_ms >= 0 for line in model.lines)
    assert asked == [True]
    model.run(is_quick=False)
    _poll_until_idle(model)
    assert (len(model.lines), asked) == (2, [True, False])


def test_stopped_after_the_check_that_is_under_way() -> None:
    started, may_go_on = threading.Event(), threading.Event()

    def checks(is_quick: bool) -> Iterator[Check]:
        started.set()
        assert may_go_on.wait(20)
        yield Check("cpu", "ok", "2")
        yield Check("never", "problem", "asked")

    model = DoctorModel(checks)
    model.run(is_quick=True)
    assert started.wait(20)
    model.stop()
    may_go_on.set()
    _poll_until_idle(model)
    assert [line.finding.name for line in model.lines] == ["cpu"]
    assert not model.is_complete


def test_a_check_that_raises_is_not_swallowed() -> None:
    def checks(is_quick: bool) -> Iterator[Check]:
        yield Check("cpu", "ok", "2")
        raise RuntimeError("a fault of ours")

    model = DoctorModel(checks)
    model.run(is_quick=True)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        _poll_until_idle(model)
    assert not model.is_running
