"""Pages of CUDA's virtual memory: reserved addresses, physical pages mapped on demand, one page in many places.

Uses the primary context, which torch uses. Mapping does not wait for a busy GPU, and a captured graph may write into
a page that was mapped after the capture; unmapping under a kernel's feet is a fault, so every unmap follows a fence.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpu.kv.pages import OutOfPagesError, PageBackend, PageRange, PagesError
from gpu.kv.spec import page_bytes_for

if TYPE_CHECKING:
    import torch

_FIX = "Lower the number of sessions or the context, or close other programs that use the GPU"


class VmmDriver(Protocol):
    """The few driver calls that the backend makes. Addresses and sizes in bytes; a page's handle is opaque."""

    def granularity(self) -> int:
        """Bytes that a page must be a multiple of."""

    def reserve(self, size: int) -> int:
        """Address of a free range."""

    def free(self, address: int, size: int) -> None:
        """Give a reserved range back; nothing is mapped in it."""

    def create(self, size: int) -> Any:
        """A physical allocation's handle; OutOfPagesError where there is no memory."""

    def release(self, handle: Any) -> None:
        """Give the handle back; the memory goes when it is mapped nowhere."""

    def map(self, address: int, size: int, handle: Any) -> None:
        """Map a whole allocation at a free reserved address; not yet accessible."""

    def set_access(self, address: int, size: int) -> None:
        """Make mapped addresses readable and writable for the device."""

    def unmap(self, address: int, size: int) -> None:
        """Unmap what `map` mapped there."""

    def synchronize(self) -> None:
        """Wait for everything queued on the device."""

    def enter_thread(self) -> None:
        """Make the context current in the calling thread."""

    def tensor(self, address: int, size: int, on_death: Any) -> torch.Tensor:
        """uint8 tensor over the range; `on_death()` runs when the last tensor over it is gone."""


class VmmBackend(PageBackend):
    """Reference counts are `PageBackend`'s; here are the driver's rules and the clean-up after the last tensor."""

    name = "vmm"
    aliases = True
    keeps_addresses = True
    frees_ranges = True

    def __init__(self, driver: VmmDriver, device: str, page_bytes: int | None = None) -> None:
        granularity = driver.granularity()
        size = granularity if page_bytes is None else page_bytes
        if size % granularity:
            raise PagesError(
                f"KV pages: {size} bytes are no multiple of the GPU's {granularity}", fix="Give a multiple"
            )
        super().__init__(size, device)
        self._driver = driver
        self._handles: dict[int, Any] = {}
        # Where the program forgets the arena instead of closing it.
        weakref.finalize(self, _release_all, driver, self._handles).atexit = False

    def make_place(self, pages: int) -> _Place:
        return _Place(self._driver, self._driver.reserve(pages * self.page_bytes), pages, self.page_bytes)

    def tensor_over(self, range_: PageRange) -> torch.Tensor:
        place: _Place = range_.place
        place.has_tensor = True
        return self._driver.tensor(place.address, range_.pages * self.page_bytes, place.free)

    def give_place_back(self, range_: PageRange) -> None:
        if not range_.place.has_tensor:
            range_.place.free()

    def make_page(self) -> Any:
        handle = self._driver.create(self.page_bytes)
        self._handles[id(handle)] = handle
        return handle

    def destroy_page(self, handle: Any) -> None:
        del self._handles[id(handle)]
        self._driver.release(handle)

    def map(self, range_: PageRange, slot: int, handles: Sequence[Any]) -> None:
        place: _Place = range_.place
        mapped: list[int] = []
        try:
            for number, handle in enumerate(handles, slot):
                self._driver.map(place.address + number * self.page_bytes, self.page_bytes, handle)
                mapped.append(number)
            self._driver.set_access(place.address + slot * self.page_bytes, len(handles) * self.page_bytes)
        except PagesError:
            for number in mapped:
                self._driver.unmap(place.address + number * self.page_bytes, self.page_bytes)
            raise
        place.mapped.update(mapped)

    def unmap(self, range_: PageRange, slot: int) -> None:
        place: _Place = range_.place
        self._driver.unmap(place.address + slot * self.page_bytes, self.page_bytes)
        place.mapped.discard(slot)

    def fence(self) -> None:
        self._driver.synchronize()

    def enter_thread(self) -> None:
        self._driver.enter_thread()


class _Place:
    """A reserved range; `free` unmaps what is still mapped, once."""

    def __init__(self, driver: VmmDriver, address: int, pages: int, page_bytes: int) -> None:
        self.address = address
        self.mapped: set[int] = set()
        self.has_tensor = False
        self._driver = driver
        self._pages = pages
        self._page_bytes = page_bytes
        self._freed = False

    def free(self) -> None:
        if self._freed:
            return
        self._freed = True
        if self.mapped:
            self._driver.synchronize()
        for slot in sorted(self.mapped):
            self._driver.unmap(self.address + slot * self._page_bytes, self._page_bytes)
        self.mapped.clear()
        self._driver.free(self.address, self._pages * self._page_bytes)


def _release_all(driver: VmmDriver, handles: dict[int, Any]) -> None:
    for handle in handles.values():
        driver.release(handle)
    handles.clear()


def open_vmm(device: str, page_bytes: int | None = None, *, row_bytes: int = 1) -> tuple[VmmBackend | None, str]:
    """(backend, ""), or (None, why there is none: one sentence). `row_bytes`: of a token, for the size of a page."""
    try:
        import torch
    except ImportError:
        return None, "torch is not installed"
    if not torch.cuda.is_available():
        return None, "torch finds no NVIDIA GPU"
    try:
        from cuda.bindings import driver
    except ImportError:
        return None, "cuda.bindings is not installed (it comes with torch's CUDA builds)"
    place = torch.device(device)
    index = torch.cuda.current_device() if place.index is None else place.index
    try:
        torch.cuda.synchronize(index)  # starts the primary context
        made = CudaDriver(driver, index)
        size = page_bytes or page_bytes_for(row_bytes, made.granularity())
        return VmmBackend(made, f"cuda:{index}", size), ""
    except (PagesError, RuntimeError) as error:
        return None, str(error).splitlines()[0]


class CudaDriver:
    """`cuda.bindings.driver` behind `VmmDriver`."""

    def __init__(self, api: Any, index: int) -> None:
        """`api` is the module. PagesError where the driver is too old or has no virtual memory management."""
        self._api = api
        self._index = index
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", index)
        attribute = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        if not int(self._call("cuDeviceGetAttribute", attribute, self._device)):
            raise PagesError("the GPU or its driver has no virtual memory management", fix="Install a newer driver")
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        location = api.CUmemLocation()
        location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = index
        self._properties = api.CUmemAllocationProp()
        self._properties.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = location
        self._access = api.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    def granularity(self) -> int:
        minimum = self._api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._properties, minimum))

    def reserve(self, size: int) -> int:
        return int(self._call("cuMemAddressReserve", size, 0, 0, 0))

    def free(self, address: int, size: int) -> None:
        self._call("cuMemAddressFree", address, size)

    def create(self, size: int) -> Any:
        return self._call("cuMemCreate", size, self._properties, 0)

    def release(self, handle: Any) -> None:
        self._call("cuMemRelease", handle)

    def map(self, address: int, size: int, handle: Any) -> None:
        self._call("cuMemMap", address, size, 0, handle, 0)

    def set_access(self, address: int, size: int) -> None:
        self._call("cuMemSetAccess", address, size, [self._access], 1)

    def unmap(self, address: int, size: int) -> None:
        self._call("cuMemUnmap", address, size)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self._index)

    def enter_thread(self) -> None:
        import torch

        torch.cuda.set_device(self._index)
        self._call("cuCtxSetCurrent", self._context)

    def tensor(self, address: int, size: int, on_death: Any) -> torch.Tensor:
        import torch

        shown = _Shown(address, size)
        weakref.finalize(shown, on_death).atexit = False
        return torch.as_tensor(shown, device=f"cuda:{self._index}")

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._api, name, None)
        if function is None:
            raise PagesError(f"the driver interface has no {name}", fix="Install a newer NVIDIA driver")
        try:
            code, *results = function(*arguments)
        except RuntimeError as error:
            raise PagesError(
                f"{name} is not there: {str(error).splitlines()[0]}", fix="Install a newer driver"
            ) from error
        if int(code):
            out_of_memory = code == self._api.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            raise (OutOfPagesError if out_of_memory else PagesError)(f"KV pages: {name} says {code.name}", fix=_FIX)
        return results[0] if results else None


class _Shown:
    """What torch asks for a device array."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
