"""What CUDA's virtual memory calls cost: by these figures the size of a page is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from app.bench.kv_bed import Bed
from app.histogram import quantiles
from gpu.kv.pages import PagesError

if TYPE_CHECKING:
    from gpu.kv.pages_vmm import VmmDriver

_MIB = 1 << 20
_SIZES_MIB = (2, 4, 8, 16, 32, 64)
_MOST_BYTES = 1 << 30
_MOST_CALLS = 32
_REPEATS = 5


def driver_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """One row for each call and handle size, then access for many handles at once, then the map of a part."""
    import torch
    from cuda.bindings import driver as api

    from gpu.kv.pages_vmm import CudaDriver

    bed.clock.sync()
    yield from call_rows(CudaDriver(api, torch.cuda.current_device()))


def call_rows(driver: VmmDriver) -> Iterator[dict[str, Any]]:
    """The rows of any driver; whatever it gave is given back."""
    yield {"scene": "driver", "call": "granularity", "bytes": driver.granularity()}
    for size_mib in _SIZES_MIB:
        yield from _size_rows(driver, size_mib * _MIB)
    yield from _access_rows(driver)
    yield _part_row(driver)


def _size_rows(driver: VmmDriver, size: int) -> Iterator[dict[str, Any]]:
    count = min(_MOST_CALLS, _MOST_BYTES // size)
    taken: dict[str, list[float]] = {}
    for repeat in range(_REPEATS):
        for call, times_us in _calls(driver, size, count).items():
            if repeat:  # the first one warms up
                taken.setdefault(call, []).extend(times_us)
    for call, times_us in taken.items():
        found = quantiles(times_us)
        figures = {"p50_us": round(found.p50, 2), "p95_us": round(found.p95, 2), "max_us": round(max(times_us), 2)}
        yield {"scene": "driver", "call": call, "handle_mib": size // _MIB, "calls": len(times_us), **figures}


def _calls(driver: VmmDriver, size: int, count: int) -> dict[str, list[float]]:
    """Microseconds of every call for `count` handles side by side."""
    address = driver.reserve(size * count)
    places = range(address, address + size * count, size)
    handles: list[Any] = []
    taken = {"cuMemCreate": [_us(lambda: handles.append(driver.create(size))) for _ in places]}
    taken["cuMemMap"] = [_us(lambda p=p, h=h: driver.map(p, size, h)) for p, h in zip(places, handles, strict=True)]
    taken["cuMemSetAccess"] = [_us(lambda p=p: driver.set_access(p, size)) for p in places]
    driver.synchronize()
    taken["cuMemUnmap"] = [_us(lambda p=p: driver.unmap(p, size)) for p in places]
    taken["cuMemRelease"] = [_us(lambda h=h: driver.release(h)) for h in handles]
    driver.free(address, size * count)
    return taken


def _access_rows(driver: VmmDriver) -> Iterator[dict[str, Any]]:
    """Access to 32 handles of 2 MiB: one call for all, or one for each."""
    size, count = 2 * _MIB, 32
    taken: dict[str, list[float]] = {"one call": [], "32 calls": []}
    for _ in range(_REPEATS):
        for way, times_us in taken.items():
            address = driver.reserve(size * count)
            handles = [driver.create(size) for _ in range(count)]
            places = range(address, address + size * count, size)
            for place, handle in zip(places, handles, strict=True):
                driver.map(place, size, handle)
            if way == "one call":
                times_us.append(_us(lambda address=address: driver.set_access(address, size * count)))
            else:
                times_us.append(_us(lambda places=places: [driver.set_access(place, size) for place in places]))
            for place in places:
                driver.unmap(place, size)
            for handle in handles:
                driver.release(handle)
            driver.free(address, size * count)
    for way, times_us in taken.items():
        row = {"scene": "driver", "call": f"cuMemSetAccess, {way}", "handle_mib": 2, "handles": count}
        yield {**row, "p50_us": round(quantiles(times_us).p50, 2), "max_us": round(max(times_us), 2)}


def _part_row(driver: VmmDriver) -> dict[str, Any]:
    """Whether 2 MiB of a handle of 4 can be mapped."""
    size = 2 * _MIB
    address = driver.reserve(2 * size)
    handle = driver.create(2 * size)
    said, is_mapped = "", False
    try:
        driver.map(address, size, handle)
        is_mapped = True
        driver.set_access(address, size)
    except PagesError as error:
        said = str(error).splitlines()[0]
    if is_mapped:
        driver.unmap(address, size)
    driver.release(handle)
    driver.free(address, 2 * size)
    return {"scene": "driver", "call": "cuMemMap of a part", "handle_mib": 4, "works": not said, "said": said}


def _us(call: Callable[[], object]) -> float:
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / 1000
