"""The CPU is always there: whatever CUDA does, a device is chosen that computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="devices are torch's")

from gpu.device import choose_device  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def test_the_cpu_is_taken_at_its_word() -> None:
    assert choose_device("cpu") == ("cpu", "")


def test_no_gpu_is_no_problem_unless_one_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == ("cpu", "")
    device, reason = choose_device("cuda")
    assert device == "cpu"
    assert "no NVIDIA GPU" in reason


@pytest.mark.parametrize("wanted", ["auto", "cuda", "cuda:1"])
def test_cuda_that_does_not_initialise_ends_on_the_cpu_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", fail)
    device, reason = choose_device(wanted)
    assert device == "cpu"
    assert reason.endswith("does not start: CUDA error: out of memory")


def test_a_gpu_that_computes_wrong_results_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(8))
    assert choose_device("auto") == ("cpu", "cuda:0 computes wrong results")


@pytest.mark.gpu
def test_a_gpu_that_is_there_is_taken_and_one_that_is_hidden_is_not() -> None:
    assert choose_device("auto") == ("cuda:0", "")
    device, reason = choose_device("cuda:99")
    assert (device, bool(reason)) == ("cpu", True)
    probe = "from gpu.device import choose_device; print(*choose_device('auto'))"
    for visible in ("", "-1", "99"):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["cpu"], done.stdout + done.stderr
