"""The predicted peak against the real one on a GPU: by the driver's figure, and by what was really needed inside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu.telemetry import has_gpu_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu_files(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.timeout(600),
]
_SCRIPT = Path(__file__).with_name("peak_run.py")
_ROOT = Path(__file__).parents[3]
RUNS = [("smollm2-135m", 4, 2048, "plain"), ("llama-3.2-1b", 2, 8192, "vmm"), ("llama-3.1-8b", 1, 8192, "vmm")]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: "-".join(str(part) for part in run))
def run(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Figures of one process that did what was planned."""
    arguments = [sys.executable, str(_SCRIPT), *(str(part) for part in request.param)]
    env = os.environ | {"PYTHONPATH": str(_ROOT)}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500, env=env, cwd=_ROOT)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(request.param, figures)
    return figures | {"model": request.param[0], "sessions": request.param[1], "backend": request.param[3]}


def test_the_driver_sees_what_was_predicted(run: dict[str, Any]) -> None:
    assert run["device_bytes"] == pytest.approx(run["predicted_bytes"], rel=0.05)


def test_and_it_was_needed(run: dict[str, Any]) -> None:
    """The pool makes the driver's figure come true; this counts what lay inside the pool, and the context itself."""
    outside = run["device_bytes"] - run["reserved_bytes"]
    assert outside + run["allocated_bytes"] == pytest.approx(run["predicted_bytes"], rel=0.05)


def test_the_arena_is_as_large_as_planned(run: dict[str, Any]) -> None:
    """With the personas' prefixes, and a fork of every full session."""
    shared = 0 if run["backend"] == "plain" else run["sessions"]
    assert (run["prefixes"], run["forks"]) == (shared, shared)
    planned = run["arena_planned_bytes"]
    assert run["arena_bytes"] <= run["arena_resident_bytes"] <= planned
    assert run["arena_resident_bytes"] == pytest.approx(planned, rel=0.05)


def test_nothing_was_taken_beside_the_pool(run: dict[str, Any]) -> None:
    planned = run["pool_bytes"] + run["small_bytes"]
    assert run["allocated_bytes"] <= planned
    assert run["reserved_bytes"] <= run["cap_bytes"]
    assert run["reserved_bytes"] - planned <= 32 << 20  # small activations, a block of 2 MiB for each kind
