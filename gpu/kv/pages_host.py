"""Pages of host memory: one memfd mapped where it is needed, or anonymous memory and copies where there is none."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu.kv.pages import OutOfPagesError, PageBackend, PageRange, PagesError

if TYPE_CHECKING:
    import torch

GRANULARITY_BYTES = mmap.PAGESIZE
"""What a page must be a multiple of. The system commits so much of it at a time, at first touch."""

_FALLOC_KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


def open_host(page_bytes: int, *, aliases: bool | None = None) -> tuple[PageBackend, str]:
    """(backend, why it copies instead of aliasing or ""). `aliases` False asks for the copying one."""
    reason = _why_no_memfd(page_bytes)
    if aliases is not False and not reason:
        try:
            return HostBackend(page_bytes), ""
        except OSError as error:
            reason = f"the system gives no anonymous file: {error.strerror}"
    return CopyingHostBackend(page_bytes), reason if aliases is not False else "asked for"


def _why_no_memfd(page_bytes: int) -> str:
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        return "this system has no memfd, so shared pages are copies"
    if page_bytes % mmap.PAGESIZE:
        return f"pages of {page_bytes} bytes are no multiple of the system's {mmap.PAGESIZE}"
    return ""


class LinuxMapper:
    """The five calls that the mapping needs, which Python's `mmap` does not offer: fixed addresses."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        self._file = os.memfd_create("kv-arena", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._file_pages = 0
        self._free: list[int] = []

    def reserve(self, size: int) -> int:
        """Address of `size` bytes that hold nothing."""
        return self._mmap(None, size, mmap.PROT_READ & 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)

    def free(self, address: int, size: int) -> None:
        """Give addresses and whatever is mapped there back."""
        self._libc.munmap(address, size)

    def create(self) -> int:
        """A page of zeros: its number in the file."""
        if self._free:
            return self._free.pop()
        os.ftruncate(self._file, (self._file_pages + 1) * self._page_bytes)
        self._file_pages += 1
        return self._file_pages - 1

    def resident_bytes(self) -> int:
        """What the system committed of the file: the parts of pages that somebody touched."""
        return os.fstat(self._file).st_blocks * 512

    def destroy(self, page: int) -> None:
        """Give the page's memory back."""
        offset = page * self._page_bytes
        if self._libc.fallocate(self._file, _FALLOC_KEEP_SIZE_AND_PUNCH_HOLE, offset, self._page_bytes):
            _refuse("cannot give a page back")
        self._free.append(page)

    def map(self, address: int, page: int) -> None:
        """Show a page at a reserved address."""
        flags = mmap.MAP_SHARED | _MAP_FIXED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        self._mmap(address, self._page_bytes, protection, flags, self._file, page * self._page_bytes)

    def unmap(self, address: int) -> None:
        """Make the address hold nothing again."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._mmap(address, self._page_bytes, 0, flags, -1, 0)

    def _mmap(self, address: int | None, size: int, protection: int, flags: int, file: int, offset: int) -> int:
        found = self._libc.mmap(address, size, protection, flags, file, offset)
        if found is None or found == _MAP_FAILED:
            _refuse("cannot map memory")
        return int(found)


def tensor_at(address: int, size: int, on_death: Any) -> torch.Tensor:
    """uint8 tensor over host addresses; `on_death()` runs when the last tensor over them is gone."""
    import torch

    buffer = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(buffer, on_death).atexit = False
    return torch.frombuffer(buffer, dtype=torch.uint8)


class HostBackend(PageBackend):
    """A memfd whose pages are mapped, several times where wanted, into reserved addresses."""

    name = "host"
    aliases = True
    keeps_addresses = True
    frees_ranges = True

    def __init__(self, page_bytes: int) -> None:
        super().__init__(page_bytes, "cpu")
        self._mapper = LinuxMapper(page_bytes)

    def make_place(self, pages: int) -> tuple[int, torch.Tensor]:
        size = pages * self.page_bytes
        address = self._mapper.reserve(size)
        mapper = self._mapper
        return address, tensor_at(address, size, lambda: mapper.free(address, size))

    def tensor_over(self, range_: PageRange) -> torch.Tensor:
        memory: torch.Tensor = range_.place[1]
        return memory

    def give_place_back(self, range_: PageRange) -> None:
        range_.place = None

    def make_page(self) -> int:
        return self._mapper.create()

    def destroy_page(self, handle: int) -> None:
        self._mapper.destroy(handle)

    def map(self, range_: PageRange, slot: int, handles: Sequence[int]) -> None:
        begin = range_.place[0] + slot * self.page_bytes
        for number, handle in enumerate(handles):
            try:
                self._mapper.map(begin + number * self.page_bytes, handle)
            except PagesError:
                for done in range(number):
                    self._mapper.unmap(begin + done * self.page_bytes)
                raise

    def unmap(self, range_: PageRange, slot: int) -> None:
        self._mapper.unmap(range_.place[0] + slot * self.page_bytes)

    def resident_bytes(self) -> int:
        return self._mapper.resident_bytes()


class CopyingHostBackend(PageBackend):
    """Anonymous memory, one block a range, committed by the system at first touch. Sharing copies.

    Here `resident_bytes` is a bound: no system tells cheaply which parts of anonymous memory were touched.
    """

    name = "host"
    aliases = False
    keeps_addresses = True
    frees_ranges = True

    def __init__(self, page_bytes: int) -> None:
        super().__init__(page_bytes, "cpu")

    def make_place(self, pages: int) -> mmap.mmap:
        try:
            return mmap.mmap(-1, pages * self.page_bytes)
        except (OSError, OverflowError) as error:
            raise OutOfPagesError(f"KV pages: no memory for {pages} pages ({error})", fix=_FIX) from error

    def tensor_over(self, range_: PageRange) -> torch.Tensor:
        import torch

        return torch.frombuffer(range_.place, dtype=torch.uint8)

    def give_place_back(self, range_: PageRange) -> None:
        range_.place = None  # freed with the last tensor over it

    def make_page(self) -> int:
        return 0  # the range's own memory; there is nothing to find again

    def destroy_page(self, handle: int) -> None:
        """Its memory went back in `unmap`."""

    def map(self, range_: PageRange, slot: int, handles: Sequence[int]) -> None:
        """The memory is where it is shown."""

    def unmap(self, range_: PageRange, slot: int) -> None:
        begin, end = slot * self.page_bytes, (slot + 1) * self.page_bytes
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end and hasattr(mmap, "MADV_DONTNEED"):
            range_.place.madvise(mmap.MADV_DONTNEED, begin, end - begin)


_FIX = "Lower the number of sessions or the context, or close other programs"


def _refuse(what: str) -> None:
    code = ctypes.get_errno()
    message = f"KV pages: {what} ({os.strerror(code)})"
    raise (OutOfPagesError if code in (errno.ENOMEM, errno.ENOSPC) else PagesError)(message, fix=_FIX)
