"""Page backends to test, and a CUDA driver for machines without one: as strict as the real one, over host memory."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec
from gpu.kv.backends import open_backend
from gpu.kv.pages import OutOfPagesError, PageBackend, PagesError
from gpu.kv.pages_host import LinuxMapper, tensor_at
from gpu.kv.pages_vmm import VmmBackend

PAGE_BYTES = 4096
BACKENDS = [
    "host",
    "host-copy",
    "plain",
    "fake-vmm",
    pytest.param("vmm", marks=pytest.mark.gpu),
    pytest.param("plain-gpu", marks=pytest.mark.gpu),
]


class FakeDriver:
    """Refuses what CUDA refuses (mapping twice, unmapping nothing, freeing a range in use) and counts what is left.

    Stricter than CUDA in one thing: whoever unmaps must have waited (`synchronize`) since the last `queue_work`.
    """

    def __init__(self, page_bytes: int = 4096, physical_pages: int = 1 << 20) -> None:
        self._page_bytes = page_bytes
        self._mapper = LinuxMapper(page_bytes)
        self.physical_pages = physical_pages
        self.live: set[int] = set()
        self.mapped: dict[int, int] = {}
        self.accessible: set[int] = set()
        self.reserved: dict[int, int] = {}
        self.syncs = 0
        self.refuse_maps_after: int | None = None
        self._busy = False

    def queue_work(self) -> None:
        """Something that may use any page now runs on the device."""
        self._busy = True

    def granularity(self) -> int:
        return self._page_bytes

    def reserve(self, size: int) -> int:
        address = self._mapper.reserve(size)
        self.reserved[address] = size
        return address

    def free(self, address: int, size: int) -> None:
        if self.reserved.get(address) != size or any(address <= place < address + size for place in self.mapped):
            raise PagesError("CUDA_ERROR_INVALID_VALUE: freed a range that is in use or unknown")
        del self.reserved[address]
        self._mapper.free(address, size)

    def create(self, size: int) -> int:
        assert size == self._page_bytes
        if len(self.live) >= self.physical_pages:
            raise OutOfPagesError("CUDA_ERROR_OUT_OF_MEMORY")
        handle = self._mapper.create()
        self.live.add(handle)
        return handle

    def release(self, handle: int) -> None:
        if handle not in self.live:
            raise PagesError("CUDA_ERROR_INVALID_VALUE: released twice")
        self.live.remove(handle)
        if handle not in self.mapped.values():
            self._mapper.destroy(handle)

    def map(self, address: int, size: int, handle: int) -> None:
        if self.refuse_maps_after is not None:
            self.refuse_maps_after -= 1
            if self.refuse_maps_after < 0:
                raise OutOfPagesError("CUDA_ERROR_OUT_OF_MEMORY")
        inside = any(begin <= address and address + size <= begin + length for begin, length in self.reserved.items())
        if address in self.mapped or not inside or handle not in self.live:
            raise PagesError("CUDA_ERROR_INVALID_VALUE: mapped twice, outside a range or without memory")
        self.mapped[address] = handle
        self._mapper.map(address, handle)

    def set_access(self, address: int, size: int) -> None:
        places = range(address, address + size, self._page_bytes)
        if any(place not in self.mapped for place in places):
            raise PagesError("CUDA_ERROR_INVALID_VALUE: access to what is not mapped")
        self.accessible.update(places)

    def unmap(self, address: int, size: int) -> None:
        if self._busy:
            raise PagesError("illegal address: unmapped under queued work")
        if address not in self.mapped or size != self._page_bytes:
            raise PagesError("CUDA_ERROR_INVALID_VALUE: nothing is mapped there")
        handle = self.mapped.pop(address)
        self.accessible.discard(address)
        self._mapper.unmap(address)
        if handle not in self.live and handle not in self.mapped.values():
            self._mapper.destroy(handle)

    def synchronize(self) -> None:
        self.syncs += 1
        self._busy = False

    def enter_thread(self) -> None:
        """No context here."""

    def tensor(self, address: int, size: int, on_death: Any) -> Any:
        if address not in self.accessible:
            raise PagesError("CUDA_ERROR_INVALID_VALUE: torch asks for the first byte's device")
        return tensor_at(address, size, on_death)


def make_backend(name: str, *, capacity_pages: int | None = None) -> PageBackend:
    """A backend of that name, with pages of 4 KiB where it is not the GPU that decides."""
    if name == "fake-vmm":
        if not sys.platform.startswith("linux"):
            pytest.skip("the fake driver maps host memory as Linux does")
        return VmmBackend(FakeDriver(), "cpu")
    if name == "vmm":
        return open_backend("vmm", "cuda:0")[0]
    if name == "plain-gpu":
        size = None if capacity_pages is None else capacity_pages * PAGE_BYTES
        return open_backend("plain", "cuda:0", page_bytes=PAGE_BYTES, capacity_bytes=size)[0]
    size = None if capacity_pages is None else capacity_pages * PAGE_BYTES
    return open_backend(name, "cpu", page_bytes=PAGE_BYTES, capacity_bytes=size)[0]  # type: ignore[arg-type]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[PageBackend]:
    made = make_backend(request.param)
    yield made
    assert made.check() == []
    made.close()
    assert made.pages_in_use == 0


@pytest.fixture
def fake_driver() -> type[FakeDriver]:
    return FakeDriver


@pytest.fixture
def new_backend() -> Callable[..., PageBackend]:
    """`new_backend(name)`: as `make_backend`."""
    return make_backend


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def new_arena() -> Callable[..., Arena]:
    """`new_arena(spec, backend=..., budget_bytes=..., ahead_bytes=..., watermark="inline")`."""

    def build(
        spec: ArenaSpec,
        *,
        backend: str,
        budget_bytes: int | None = None,
        ahead_bytes: int | None = None,
        watermark: str = "inline",
    ) -> Arena:
        capacity = None if budget_bytes is None else -(-budget_bytes // PAGE_BYTES)
        pages = make_backend(backend, capacity_pages=capacity)
        if backend in ("vmm", "plain-gpu"):
            spec = dataclasses.replace(spec, device="cuda:0")
        threaded = watermark == "thread"
        return Arena(spec, pages, budget_bytes=budget_bytes, ahead_bytes=ahead_bytes, threaded=threaded)

    return build
