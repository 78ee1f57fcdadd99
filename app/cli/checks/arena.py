"""What the conversation's keys and values would lie in: the arena's page backend, and why it is not a better one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from app.cli.checks.check import Check
from app.cli.probe import ask_in_child
from app.config.schema import Config
from gpu.device import choose_device
from gpu.kv.backends import open_backend
from gpu.kv.pages_vmm import open_vmm
from gpu.telemetry import has_gpu_files

_CHILD_LIMIT_S = 60.0
_PAGES = {
    "vmm": "pages of GPU memory, mapped as the conversation grows",
    "plain": "one block of GPU memory for each session",
    "host": "pages of RAM, taken as the conversation grows",
}


def checks(config: Config) -> Iterator[Check]:
    """One line."""
    if config.llm.device == "cpu" or not has_gpu_files():
        found = found_backend("cpu", "llm.device is cpu" if has_gpu_files() else "there is no NVIDIA GPU")
    else:
        found = ask_in_child(partial(found_backend, config.llm.device), timeout_s=_CHILD_LIMIT_S)
    if found is None:
        yield Check("kv arena", "warning", "the child that looked for pages died", "Check the driver with nvidia-smi")
    else:
        yield arena(*found)


def found_backend(wanted: str, why_cpu: str = "") -> tuple[str, str]:
    """(backend, why it is not `vmm` or "") for the device that `wanted` leads to. Starts CUDA unless on the CPU."""
    device, problem = choose_device(wanted)
    if device == "cpu":
        why_cpu = why_cpu or problem or open_vmm("cuda:0")[1]
    backend, reason = open_backend("auto", device)
    backend.close()
    return backend.name, "; ".join(part for part in (why_cpu, reason) if part)


def arena(backend: str, reason: str) -> Check:
    """What was found."""
    found = f"{backend}: {_PAGES[backend]}{f' ({reason})' if reason else ''}"
    if backend != "plain":
        return Check("kv arena", "ok", found, "", {"backend": backend})
    fix = "It works, but gives nothing back under pressure; install cuda-bindings, or a newer driver"
    return Check("kv arena", "warning", found, fix, {"backend": backend})
