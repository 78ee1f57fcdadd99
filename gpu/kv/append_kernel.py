"""Appending by the device's registers: one launch for keys and values of all layers, the host's numbers play no part.

So the launch can be captured once and replayed for a whole conversation. The kernel is gpu/cuda/kv_append.cu; the twin
does the same in torch on the CPU and where no kernel can be loaded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpu.errors import GpuError, KernelError
from gpu.kernel_loaders import Kernel
from gpu.kernels import load_kernel
from gpu.kv.session import Session
from gpu.kv.spec import torch_dtype

if TYPE_CHECKING:
    import torch

_COPYING_THREADS = 256
_COUNTING_THREADS = 32
_MOST_BLOCKS = 512
_WIDEST_BYTES = 16
_MOST_UNITS = 2**31 - 1


class AppendArguments(ctypes.Structure):
    """`struct KvAppend` of the kernel."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("unrotated", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("registers", ctypes.c_void_p),
        ("ticket", ctypes.c_void_p),
        ("ring_rows", ctypes.c_longlong),
        ("tokens", ctypes.c_int),
        ("layers", ctypes.c_int),
        ("parts", ctypes.c_int),
        ("part_units", ctypes.c_int),
        ("unit_bytes", ctypes.c_int),
    )


class AppendKernel:
    """Writes rows at the place that the session's registers name, and counts length and position on the device.

    The host's part comes before it, for every launch and every replay: `session.extend(tokens, registers=False)` makes
    the rows writable and counts for the host. Without it the row may have no page, which is a fault of the process.

    A captured graph holds the addresses of what it was captured with: keep `keys`, `values` and this object alive, and
    capture again where they move (`plain` pages after `Arena.wake`) or the ring shrinks (`WindowSession.resize` on a
    backend that does not alias).
    """

    def __init__(self, session: Session, load: Callable[[str, str], Kernel] = load_kernel) -> None:
        """Where `load` raises KernelError (on the CPU always) the twin works, and `reason` says why."""
        import torch

        self.reason = ""
        """Why the twin works, or ""."""
        self._session = session
        self._kernel: Kernel | None = None
        device = session.registers.device
        try:
            self._kernel = load("kv_append", str(device))
        except KernelError as error:
            self.reason = str(error)
        self._dtype = torch_dtype(session.spec.dtype)
        with torch.inference_mode(False):
            self._ticket = torch.zeros(1, dtype=torch.int32, device=device)
        self._arguments = AppendArguments(
            registers=session.registers.data_ptr(),
            ticket=self._ticket.data_ptr(),
            layers=session.spec.layers,
            parts=session.spec.parts,
        )

    @property
    def way(self) -> str:
        """Who works: "pycuda", "cuda.bindings" or "torch" (the twin)."""
        return "torch" if self._kernel is None else self._kernel.loader

    def launch(self, keys: torch.Tensor, values: torch.Tensor, unrotated: torch.Tensor | None = None) -> None:
        """Queue it on the current stream. Each contiguous, [layers, kv_heads, head_dim] or [tokens, ...] of these.

        GpuError where shape, dtype, device or layout are not the session's.
        """
        sources = [part for part in (keys, values, unrotated) if part is not None]
        tokens = self._tokens_of(sources)
        if not tokens:
            return
        rows = self._session.buffer()
        pager = self._session.pager
        ring_rows = rows.shape[0] // 2 if pager.mirrored and not pager.backend.aliases else 0
        if self._kernel is None:
            append_by_registers(rows, self._session.registers, sources, ring_rows)
        else:
            self._launch(self._kernel, sources, rows, tokens, ring_rows)

    def _launch(
        self, kernel: Kernel, sources: Sequence[torch.Tensor], rows: torch.Tensor, tokens: int, ring_rows: int
    ) -> None:
        spec, arguments = self._session.spec, self._arguments
        addresses = [source.data_ptr() for source in sources]
        part_bytes = spec.kv_heads * spec.head_dim * rows.element_size()
        unit_bytes = math.gcd(_WIDEST_BYTES, part_bytes, rows.data_ptr(), *addresses)
        units = tokens * spec.row_bytes // unit_bytes
        if units > _MOST_UNITS:
            raise GpuError(f"KV append: {tokens} tokens are too many for one launch", fix="Append fewer at once")
        arguments.keys, arguments.values = addresses[:2]
        arguments.unrotated = addresses[2] if len(addresses) > 2 else None
        arguments.rows = rows.data_ptr()
        arguments.ring_rows, arguments.tokens = ring_rows, tokens
        arguments.part_units, arguments.unit_bytes = part_bytes // unit_bytes, unit_bytes
        blocks = min(-(-units // _COPYING_THREADS), _MOST_BLOCKS)
        kernel.launch((blocks, 1, 1), (_COPYING_THREADS + _COUNTING_THREADS, 1, 1), arguments)

    def _tokens_of(self, sources: Sequence[torch.Tensor]) -> int:
        spec, first = self._session.spec, sources[0]
        wanted = (spec.layers, spec.kv_heads, spec.head_dim)
        shape = tuple(first.shape)
        if len(sources) != spec.parts:
            raise GpuError("KV append: un-rotated keys given or missing", fix="Give them where the arena keeps them")
        if shape[-3:] != wanted or len(shape) > 4 or any(source.shape != first.shape for source in sources):
            raise GpuError(f"KV append: keys of shape {shape}", fix=f"Use {wanted}, or tokens before these, for all")
        for source in sources:
            if source.dtype != self._dtype or source.device != self._ticket.device or not source.is_contiguous():
                raise GpuError(
                    f"KV append: {source.dtype} on {source.device}",
                    fix=f"Give contiguous {self._dtype} on {self._ticket.device}",
                )
        return 1 if len(shape) == 3 else shape[0]


def append_by_registers(
    rows: torch.Tensor, registers: torch.Tensor, sources: Sequence[torch.Tensor], ring_rows: int
) -> None:
    """What the kernel does, in torch: no host number but the shapes, no wait, so it can be captured too.

    `rows` [rows, layers, parts, kv_heads, head_dim], `registers` int32 (length, position, first row), `sources` one
    tensor a part, [layers, kv_heads, head_dim] or [tokens, ...]; `ring_rows` as in the kernel.
    """
    import torch

    new = torch.stack([source.view(-1, *source.shape[-3:]) for source in sources], 2)
    tokens = new.shape[0]
    place = registers[0].long() + registers[2] + torch.arange(tokens, device=rows.device)
    rows.index_copy_(0, place, new)
    if ring_rows:
        rows.index_copy_(0, torch.where(place < ring_rows, place + ring_rows, place - ring_rows), new)
    registers[:2].add_(tokens)
