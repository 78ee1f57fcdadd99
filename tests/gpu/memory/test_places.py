"""Free memory as the driver and the system tell it: other processes, slices, hidden GPUs, containers. NVML is fake."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu.telemetry as telemetry
from gpu.memory.places import Machine, address_space, read_host, read_machine, visible_gpus
from gpu.telemetry import DriverInfo, GpuInfo, GpuProcess, MigInstance, TelemetryError, read_gpus

GIB = 1 << 30
NOT_SUPPORTED = 3
ANSWERS = (
    "Init_v2", "Shutdown", "DeviceGetCount_v2", "SystemGetCudaDriverVersion_v2", "SystemGetDriverVersion",
    "DeviceGetHandleByIndex_v2", "DeviceGetName", "DeviceGetCudaComputeCapability", "DeviceGetMemoryInfo",
    "DeviceGetUUID", "DeviceGetComputeRunningProcesses_v3", "DeviceGetGraphicsRunningProcesses_v3",
    "DeviceGetMigMode", "DeviceGetMaxMigDeviceCount", "DeviceGetMigDeviceHandleByIndex",
)  # fmt: skip


def gpu(index: int, free_gib: float = 7.0, name: str = "Card", **more: Any) -> GpuInfo:
    return GpuInfo(index, name, "8.9", 8 * GIB, int(free_gib * GIB), uuid=f"GPU-{index}aaa", **more)


class FakeNvml:
    """Answers like the driver for a list of GPUs; handles are 1, 2, ..., those of slices 101, 102, ..."""

    class nvmlErrorString:
        restype: object = None

        def __new__(cls, code: int) -> bytes:  # type: ignore[misc]
            return b"fault"

    def __init__(self, gpus: list[GpuInfo], missing: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        for name in ANSWERS:
            if name not in missing:
                setattr(self, f"nvml{name}", getattr(self, f"_{name}"))

    def _gpu(self, handle: Any) -> GpuInfo:
        return self.gpus[handle.value - 1]

    def _slot(self, handle: Any) -> MigInstance:
        return [slot for gpu in self.gpus for slot in gpu.mig or ()][handle.value - 101]

    def _Init_v2(self) -> int:
        return 0

    def _Shutdown(self) -> int:
        return 0

    def _DeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def _SystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 13000
        return 0

    def _SystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.1"
        return 0

    def _DeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def _DeviceGetName(self, handle: Any, text: Any, size: int) -> int:
        text.value = self._gpu(handle).name.encode()
        return 0

    def _DeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = (int(part) for part in self._gpu(handle).compute_capability.split("."))
        return 0

    def _DeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        place = self._slot(handle) if handle.value > 100 else self._gpu(handle)
        memory._obj.total, memory._obj.free = place.total_bytes, place.free_bytes
        return 0

    def _DeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:
        text.value = (self._slot(handle) if handle.value > 100 else self._gpu(handle)).uuid.encode()
        return 0

    def _DeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, rows: Any) -> int:
        processes = self._gpu(handle).processes
        count._obj.value = len(processes)
        for row, process in zip(rows, processes, strict=False):
            row.pid = process.pid
            row.used = ctypes.c_ulonglong(-1).value if process.used_bytes is None else process.used_bytes
        return 0

    def _DeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, rows: Any) -> int:
        return self._DeviceGetComputeRunningProcesses_v3(handle, count, rows)

    def _DeviceGetMigMode(self, handle: Any, mode: Any, pending: Any) -> int:
        if self._gpu(handle).mig is None:
            return NOT_SUPPORTED
        mode._obj.value = 1
        return 0

    def _DeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        count._obj.value = 7
        return 0

    def _DeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, slot: Any) -> int:
        before = sum(len(gpu.mig or ()) for gpu in self.gpus[: handle.value - 1])
        if index >= len(self._gpu(handle).mig or ()):
            return NOT_SUPPORTED
        slot._obj.value = 101 + before + index
        return 0


def machine(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, **env: str) -> Machine:
    monkeypatch.setattr(telemetry, "_library", lambda name: nvml)
    return read_machine(env, has_gpu=lambda: True)


def test_other_processes_are_named_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    held = (GpuProcess(10, 600 << 20), GpuProcess(20, None), GpuProcess(30, 2 * GIB))
    nvml = FakeNvml([gpu(0, 4.5, processes=held)])
    (card,) = machine(monkeypatch, nvml).gpus
    assert (card.total_bytes, card.free_bytes, card.others_bytes) == (8 * GIB, int(4.5 * GIB), int(3.5 * GIB))
    assert card.others == "process 30: 2048 MiB, process 10: 600 MiB"
    assert (card.device, card.capability, card.model) == ("cuda:0", "8.9", "Card")
    assert read_gpus().gpus[0].processes == held


def test_a_driver_that_names_nobody_still_tells_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside a container, or with a driver that lacks the newer calls."""
    optional = ANSWERS[ANSWERS.index("DeviceGetUUID") :]
    (card,) = machine(monkeypatch, FakeNvml([gpu(0, 5.0)], missing=optional)).gpus
    assert card.free_bytes == 5 * GIB
    assert "outside of this container" in card.others


def test_of_a_sliced_gpu_only_the_slice_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = (MigInstance("MIG-one", 2 * GIB, GIB), MigInstance("MIG-two", 4 * GIB, 3 * GIB))
    nvml = FakeNvml([gpu(0, mig=slots)])
    (card,) = machine(monkeypatch, nvml).gpus
    assert (card.total_bytes, card.free_bytes) == (2 * GIB, GIB)
    assert "slice of Card" in card.name
    (card,) = machine(monkeypatch, nvml, CUDA_VISIBLE_DEVICES="MIG-two").gpus
    assert card.free_bytes == 3 * GIB
    assert machine(monkeypatch, nvml, CUDA_VISIBLE_DEVICES="MIG-three").gpus == ()


def test_a_gpu_that_is_to_be_sliced_and_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine(monkeypatch, FakeNvml([gpu(0, mig=())]))
    assert found.gpus == ()
    assert "nvidia-smi mig" in found.note


@pytest.mark.parametrize(
    ("visible", "free_gib"),
    [
        (None, [1, 2, 3]),
        ("2,0", [3, 1]),
        ("GPU-1", [2]),
        ("1,9,0", [2]),  # CUDA stops at the first that is not there
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_as_cuda_reads_them(visible: str | None, free_gib: list[int]) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    places, note = visible_gpus([gpu(0, 1), gpu(1, 2), gpu(2, 3)], env)
    assert [place.free_bytes // GIB for place in places] == free_gib
    assert [place.device for place in places] == [f"cuda:{index}" for index in range(len(free_gib))]
    assert bool(note) == (not free_gib)
    assert "hides every GPU" in note or not note


def test_numbers_of_unlike_gpus_are_named_as_uncertain() -> None:
    cards = [gpu(0), gpu(1, name="Other")]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in visible_gpus(cards, {})[1]
    assert visible_gpus(cards, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[1] == ""
    assert visible_gpus(cards, {"CUDA_VISIBLE_DEVICES": "GPU-1"})[1] == ""


def test_a_container_that_hides_the_drivers_library_is_asked_through_cuda() -> None:
    def hidden() -> DriverInfo:
        raise TelemetryError("the NVIDIA driver's management library is missing", fix="Install the NVIDIA driver")

    found = read_machine({}, read=hidden, has_gpu=lambda: True, ask_cuda=lambda: [("Card", "8.9", 8 * GIB, 6 * GIB)])
    assert [(place.device, place.free_bytes, place.model) for place in found.gpus] == [("cuda:0", 6 * GIB, "Card")]
    assert "who else holds memory is not known" in found.note
    silent = read_machine({}, read=hidden, has_gpu=lambda: True)
    assert silent.gpus == ()
    assert "CUDA does not start" in silent.note
    assert read_machine({}, has_gpu=lambda: False).note == ""


def groups(root: Path, version: int, limit: str, used: int, cache: int, path: str = "/a/b") -> tuple[Path, Path]:
    """A tree of control groups with the limit one level above this process's own."""
    own = root / "own"
    own.write_text(f"0::{path}\n" if version == 2 else f"4:memory:{path}\n0::/\n", encoding="utf-8")
    folder = root / "groups" / ("" if version == 2 else "memory") / Path(path).parent.relative_to("/")
    folder.mkdir(parents=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(limit, encoding="ascii")
    (folder / names[1]).write_text(str(used), encoding="ascii")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n", encoding="ascii")
    return root / "groups", own


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts_and_its_file_cache_does_not(tmp_path: Path, version: int) -> None:
    mib = 1 << 20
    place = read_host(*groups(tmp_path, version, str(300 * mib), 200 * mib, 50 * mib))
    assert (place.total_bytes, place.free_bytes) == (300 * mib, 150 * mib)
    assert "limits" in place.note


def test_a_limit_on_addresses_counts_without_those_that_are_never_touched(tmp_path: Path) -> None:
    none = tmp_path / "none"
    place = read_host(none, none, lambda: GIB + (200 << 20))
    assert (place.total_bytes, place.free_bytes) == (GIB + (200 << 20), 200 << 20)
    assert "ulimit -v" in place.note
    assert read_host(none, none, lambda: 300_000 << 10).free_bytes == 0
    assert read_host(none, none, lambda: 1 << 50).note == ""


def test_the_limit_of_this_process_is_read() -> None:
    resource = pytest.importorskip("resource", reason="only Unix limits addresses")
    found = subprocess.run(
        ["sh", "-c", f"ulimit -v 3000000; exec {sys.executable} -c "
         "'from gpu.memory.places import address_space; print(address_space())'"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert int(found.stdout) == 3_000_000 << 10
    is_free = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert (address_space() is None) == is_free


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", "nonsense"])
def test_no_limit_leaves_the_systems_figure(tmp_path: Path, limit: str) -> None:
    place = read_host(*groups(tmp_path, 2, limit, 1, 1))
    assert place.note == ""
    assert 0 < place.free_bytes <= place.total_bytes
    assert read_host(tmp_path / "none", tmp_path / "none").note == ""
