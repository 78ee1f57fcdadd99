"""What the machine's NVIDIA GPUs are and have, without starting CUDA here.

`read_gpus` asks NVML, the driver's own management library, through ctypes: it comes with every driver, creates no
context and holds no memory. `probe_cuda` asks CUDA, torch and PyCUDA, which do: run it in a short-lived child.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.errors import GpuError

_NAME_BYTES = 96
_MOST_PROCESSES = 256
_NOT_TOLD = 2**64 - 1
"""NVML's figure for a process whose memory it does not know (Windows, some containers)."""
_MIG_ENABLED = 1
_CUDA_ATTRIBUTE_VMM = 102
"""CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED."""


class TelemetryError(GpuError):
    """NVML is not there or refuses."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    used_bytes: int | None
    """None: the driver does not tell."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of a GPU with memory of its own."""

    uuid: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as the driver sees it."""

    index: int
    name: str
    compute_capability: str
    """As in `9.0`."""
    total_bytes: int
    free_bytes: int
    uuid: str = ""
    processes: tuple[GpuProcess, ...] = ()
    """Those that the driver names: none in a container, whose processes it numbers otherwise."""
    mig: tuple[MigInstance, ...] | None = None
    """Its slices where it is cut up (then CUDA sees one of these, never the whole); None where it is not."""


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """The driver and its GPUs."""

    version: str
    cuda_version: str
    """The newest CUDA that the driver runs, as in `13.0`."""
    gpus: tuple[GpuInfo, ...]


@dataclass(frozen=True, slots=True)
class CudaState:
    """What a process that starts CUDA finds. An empty version: not installed."""

    vmm: tuple[bool, ...]
    """For each device: whether it maps physical pages into virtual ranges on demand."""
    problem: str
    """Why CUDA does not start, or ""."""
    torch_version: str
    torch_cuda_version: str
    """Empty for a build without CUDA."""
    torch_sees_gpu: bool
    pycuda_version: str


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def has_gpu_files() -> bool:
    """Whether the system shows signs of an NVIDIA GPU; without them there is nothing to ask."""
    if sys.platform == "win32":
        return _library("nvml.dll") is not None
    return any(Path("/dev").glob("nvidia[0-9]*"))


def read_gpus() -> DriverInfo:
    """Driver, GPUs and their memory now; takes some milliseconds.

    Raises:
        TelemetryError: there is no NVML, or it does not start, with the fix.
    """
    with _nvml() as nvml:
        count = ctypes.c_uint()
        _check(nvml, nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        cuda = ctypes.c_int()
        _check(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda)))
        version = ctypes.create_string_buffer(_NAME_BYTES)
        _check(nvml, nvml.nvmlSystemGetDriverVersion(version, _NAME_BYTES))
        gpus = tuple(_gpu(nvml, index) for index in range(count.value))
        return DriverInfo(version.value.decode(), f"{cuda.value // 1000}.{cuda.value % 1000 // 10}", gpus)


def probe_cuda() -> CudaState:
    """Start CUDA, import torch and PyCUDA, look. Only for a child that ends afterwards."""
    vmm, problem = _vmm_support()
    torch_version, torch_cuda, sees_gpu = "", "", False
    try:
        import torch

        torch_version, torch_cuda = str(torch.__version__), torch.version.cuda or ""
        sees_gpu = bool(torch.cuda.is_available())
    except ImportError:
        pass  # not installed: the empty version says so
    try:
        import pycuda

        pycuda_version = str(pycuda.VERSION_TEXT)
    except ImportError:
        pycuda_version = ""
    return CudaState(vmm, problem, torch_version, torch_cuda, sees_gpu, pycuda_version)


@contextmanager
def _nvml() -> Iterator[Any]:
    nvml = _library("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    if nvml is None:
        raise TelemetryError("the NVIDIA driver's management library is missing", fix="Install the NVIDIA driver")
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    _check(nvml, nvml.nvmlInit_v2())
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> GpuInfo:
    handle = ctypes.c_void_p()
    _check(nvml, nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _check(nvml, nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES))
    major, minor, memory = ctypes.c_int(), ctypes.c_int(), _Memory()
    _check(nvml, nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)))
    _check(nvml, nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    return GpuInfo(
        index,
        name.value.decode(),
        f"{major.value}.{minor.value}",
        int(memory.total),
        int(memory.free),
        uuid=_uuid(nvml, handle),
        processes=_processes(nvml, handle),
        mig=_mig(nvml, handle),
    )


# What follows is told by some drivers, systems and containers only: without it the figures above still hold.


def _uuid(nvml: Any, handle: Any) -> str:
    text = ctypes.create_string_buffer(_NAME_BYTES)
    return text.value.decode() if _told(nvml, "nvmlDeviceGetUUID", handle, text, _NAME_BYTES) else ""


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Those that compute and those that draw; one that does both is named once, with the larger figure."""
    found: dict[int, int | None] = {}
    for call in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
        count, rows = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        if not _told(nvml, call, handle, ctypes.byref(count), rows):
            continue
        for row in rows[: count.value]:
            used = None if row.used == _NOT_TOLD else int(row.used)
            found[int(row.pid)] = max((used, found.get(int(row.pid))), key=lambda value: value or 0)
    return tuple(GpuProcess(pid, used) for pid, used in sorted(found.items()))


def _mig(nvml: Any, handle: Any) -> tuple[MigInstance, ...] | None:
    mode, pending, count = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    if not _told(nvml, "nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending)):
        return None
    if mode.value != _MIG_ENABLED:
        return None
    _told(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(count))
    found = []
    for index in range(count.value):
        slot, memory = ctypes.c_void_p(), _Memory()
        if not _told(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index, ctypes.byref(slot)):
            continue  # no instance in this place
        if _told(nvml, "nvmlDeviceGetMemoryInfo", slot, ctypes.byref(memory)):
            found.append(MigInstance(_uuid(nvml, slot), int(memory.total), int(memory.free)))
    return tuple(found)


def _told(nvml: Any, call: str, *arguments: Any) -> bool:
    """Whether this driver has the call and answers it."""
    function = getattr(nvml, call, None)
    return function is not None and function(*arguments) == 0


def _check(nvml: Any, code: int) -> None:
    if code:
        reason = nvml.nvmlErrorString(code).decode()
        raise TelemetryError(f"the NVIDIA driver does not answer: {reason}", fix="Check it with nvidia-smi")


def _vmm_support() -> tuple[tuple[bool, ...], str]:
    """From the driver itself, which needs neither torch nor a context."""
    cuda = _library("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    if cuda is None:
        return (), "the CUDA driver library is missing"
    code = cuda.cuInit(0)
    if code:
        return (), f"CUDA does not start (error {code})"
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, value = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetAttribute(ctypes.byref(value), _CUDA_ATTRIBUTE_VMM, device)
        found.append(bool(value.value))
    return tuple(found), ""


def _library(name: str) -> Any:
    """The shared library, None where it is not installed."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
