"""Where memory is and how much of it is free now: the GPUs that CUDA would show this process, and the machine's RAM.

Free memory is read live and never concluded from the total: on a total of 8 GiB a desktop may hold 2. Read without
starting CUDA. What cannot be known is said in `note`, in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu.memory.needs import DeviceKind
from gpu.telemetry import DriverInfo, GpuInfo, GpuProcess, MigInstance, TelemetryError, has_gpu_files, read_gpus

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


_NEVER_TOUCHED_BYTES = 1 << 30
"""Addresses that an engine takes and no RAM: libraries, stacks, heaps of threads. Measured: 0.95 GiB."""


def address_space() -> int | None:
    """Bytes of addresses that a process may take (`ulimit -v`), None where nothing limits them."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


@dataclass(frozen=True, slots=True)
class Place:
    """One memory to plan for."""

    kind: DeviceKind
    name: str
    """As in `GPU 0 (NVIDIA GeForce RTX 4070)` or `memory`."""
    total_bytes: int
    free_bytes: int
    device: str = "cpu"
    """torch's name, as in `cuda:0`."""
    capability: str = ""
    """Compute capability of a GPU, as in `8.9`."""
    model: str = ""
    """The GPU's product name, by which peaks are recorded."""
    others: str = ""
    """Who holds the rest, as far as the system tells."""
    note: str = ""
    processes: tuple[GpuProcess, ...] = ()
    """Those that the driver names: none in RAM, on a slice or in a container."""

    @property
    def others_bytes(self) -> int:
        """Held by other programs, by the desktop and by the driver itself."""
        return max(0, self.total_bytes - self.free_bytes)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a plan may put things. `gpus` in torch's order: number 0 is `cuda:0`."""

    host: Place
    gpus: tuple[Place, ...] = ()
    note: str = ""
    """Why there is no GPU although there are signs of one, or what its figures leave out."""


def read_machine(
    env: Mapping[str, str],
    *,
    ask_cuda: Callable[[], list[tuple[str, str, int, int]] | None] = lambda: None,
    read: Callable[[], DriverInfo] = read_gpus,
    has_gpu: Callable[[], bool] = has_gpu_files,
) -> Machine:
    """What is there and free now; never raises.

    `ask_cuda` is the way out where the driver's management library is hidden, as in many containers: it runs
    `cuda_memory` in a short-lived child, because the answer costs a CUDA context.
    """
    host = read_host()
    if not has_gpu():
        return Machine(host)
    try:
        gpus, note = visible_gpus(read().gpus, env)
    except TelemetryError as error:
        found = ask_cuda()
        if not found:
            return Machine(host, (), f"there is a GPU, but {error.message}, and CUDA does not start")
        note = f"{error.message}: who else holds memory is not known"
        places = (
            Place("cuda", f"GPU {index} ({name})", total, free, f"cuda:{index}", capability, name, note=note)
            for index, (name, capability, total, free) in enumerate(found)
        )
        return Machine(host, tuple(places), note)
    return Machine(host, gpus, note)


def cuda_memory() -> list[tuple[str, str, int, int]]:
    """(name, compute capability, total, free bytes) of each GPU that torch sees. Only for a child: starts CUDA."""
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        found.append((torch.cuda.get_device_name(index), f"{major}.{minor}", total, free))
    return found


def visible_gpus(gpus: Sequence[GpuInfo], env: Mapping[str, str]) -> tuple[tuple[Place, ...], str]:
    """The GPUs or slices that CUDA shows under `CUDA_VISIBLE_DEVICES`, in its order, and a sentence or "".

    CUDA stops at the first entry that names nothing; of sliced GPUs it shows one slice, the first if none is named.
    """
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        names = [str(gpu.index) for gpu in gpus]
    else:
        names = [name.strip() for name in listed.split(",")]
    chosen: list[tuple[GpuInfo, MigInstance | None]] = []
    for name in names:
        found = _named(name, gpus)
        if found is None:
            break
        if found[1] is not None:  # CUDA computes on one slice and on nothing beside it
            chosen = [found]
            break
        if found[0].mig is None:
            chosen.append(found)
    places = tuple(_place(index, gpu, slot) for index, (gpu, slot) in enumerate(chosen))
    return places, _visibility_note(gpus, env, names, places)


def _named(name: str, gpus: Sequence[GpuInfo]) -> tuple[GpuInfo, MigInstance | None] | None:
    """The GPU of an index or UUID (or its beginning), and its slice."""
    if name.startswith("MIG-"):
        slots = [(gpu, slot) for gpu in gpus for slot in gpu.mig or () if slot.uuid.startswith(name)]
        return slots[0] if len(slots) == 1 else None
    if name.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    else:
        found = [gpu for gpu in gpus if name.isdecimal() and gpu.index == int(name)]
    if len(found) != 1:
        return None
    return found[0], (found[0].mig[0] if found[0].mig else None)


def _place(index: int, gpu: GpuInfo, slot: MigInstance | None) -> Place:
    name = f"GPU {index} ({gpu.name})" if slot is None else f"GPU {index} (a slice of {gpu.name})"
    memory = gpu if slot is None else slot
    return Place(
        "cuda",
        name,
        memory.total_bytes,
        memory.free_bytes,
        f"cuda:{index}",
        gpu.compute_capability,
        gpu.name,
        others=_others(gpu) if slot is None else "whoever else uses this slice",
        processes=gpu.processes if slot is None else (),
    )


def _others(gpu: GpuInfo) -> str:
    known = [process for process in gpu.processes if process.used_bytes]
    if not known:
        return "the driver does not say who (a desktop, or processes outside of this container)"
    most = sorted(known, key=lambda process: -(process.used_bytes or 0))[:3]
    return ", ".join(f"process {process.pid}: {(process.used_bytes or 0) >> 20} MiB" for process in most)


def _visibility_note(
    gpus: Sequence[GpuInfo], env: Mapping[str, str], names: Sequence[str], places: Sequence[Place]
) -> str:
    if gpus and not places:
        if "CUDA_VISIBLE_DEVICES" in env:
            return f"CUDA_VISIBLE_DEVICES={env['CUDA_VISIBLE_DEVICES']} hides every GPU from this program"
        return "the GPU is cut into slices (MIG) and has none; make one with nvidia-smi mig"
    differ = len({gpu.name for gpu in gpus}) > 1
    if differ and any(name.isdecimal() for name in names) and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return "the GPUs differ and CUDA numbers the fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
    return ""


def read_host(
    cgroups: Path = _CGROUPS, own_group: Path = _OWN_GROUP, address_space: Callable[[], int | None] = address_space
) -> Place:
    """RAM that a new process can have: the system's figure, or what the container or `ulimit -v` leaves if it is less.

    `address_space`: the limit in bytes, None where there is none.
    """
    import psutil

    memory = psutil.virtual_memory()
    total, free, note = int(memory.total), int(memory.available), ""
    for limit, left in _group_limits(cgroups, own_group):
        if limit < memory.total:
            total, free, note = min(total, limit), min(free, left), "a container or control group limits it"
    addresses = address_space()
    if addresses is not None and addresses - _NEVER_TOUCHED_BYTES < free:
        total, free = min(total, addresses), max(0, addresses - _NEVER_TOUCHED_BYTES)
        note = "the limit on a process's addresses (ulimit -v) allows no more"
    return Place("cpu", "memory", total, free, others="other programs", note=note)


def _group_limits(root: Path, own_group: Path) -> Iterator[tuple[int, int]]:
    """(limit, what it leaves) of this process's control group and of each one above it, version 2 or 1."""
    layouts = (
        ("", root, "memory.max", "memory.current", "inactive_file"),
        ("memory", root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    try:
        lines = [line.split(":", 2) for line in own_group.read_text(encoding="utf-8").splitlines()]
    except OSError:  # no control groups here
        return
    for controller, base, limit_name, used_name, cache_name in layouts:
        own = next((path for _, name, path in lines if name == controller), None)
        if own is None:
            continue
        folder = base / own.strip("/")
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # a group without a limit ("max"), or of another namespace
                limit, used = (int((group / name).read_text(encoding="ascii")) for name in (limit_name, used_name))
                stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                # Pages of files that nobody reads are given up before anything is refused.
                yield limit, max(0, limit - used + int(stat.get(cache_name, 0)))
            if group == base:
                break
