"""Which page backend an arena gets, and why it is not a better one."""

from __future__ import annotations

from typing import Literal

from gpu.kv.pages import PageBackend, PagesError
from gpu.kv.pages_host import GRANULARITY_BYTES, open_host
from gpu.kv.pages_plain import PLAIN_GRANULARITY_BYTES, PlainBackend
from gpu.kv.pages_vmm import open_vmm
from gpu.kv.spec import page_bytes_for

BackendName = Literal["auto", "vmm", "plain", "host", "host-copy"]


def open_backend(
    name: BackendName,
    device: str,
    *,
    capacity_bytes: int | None = None,
    page_bytes: int | None = None,
    row_bytes: int = 1,
) -> tuple[PageBackend, str]:
    """(backend, why it is not the best of its device or "").

    "auto" is `host` on the CPU; elsewhere `vmm`, or `plain` with the reason. `capacity_bytes` is what `plain` takes
    at once (None: as sessions come); `row_bytes` is what a token takes. PagesError where a backend that was asked for
    by name is not to be had.
    """
    if name not in ("auto", "vmm", "plain", "host", "host-copy"):
        raise PagesError(f"KV arena: there is no page backend {name!r}", fix="Use auto, vmm, plain, host or host-copy")
    on_cpu = device.split(":")[0] == "cpu"
    if name in ("host", "host-copy") and not on_cpu:
        raise PagesError(f"KV arena: {name} pages are host memory, the arena is on {device}", fix="Use auto")
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise PagesError(f"KV arena: there is no GPU for {device}", fix="Use cpu, or gpu.device.choose_device()")
    if name in ("host", "host-copy") or (name == "auto" and on_cpu):
        size = page_bytes or page_bytes_for(row_bytes, GRANULARITY_BYTES)
        return open_host(size, aliases=False if name == "host-copy" else None)
    reason = ""
    if name != "plain":
        made, reason = None, "the arena is on the CPU"
        if not on_cpu:
            made, reason = open_vmm(device, page_bytes, row_bytes=row_bytes)
        if made is not None:
            return made, ""
        if name == "vmm":
            raise PagesError(f"KV arena: no vmm pages, {reason}", fix="Use auto, which falls back to plain")
    size = page_bytes or page_bytes_for(row_bytes, GRANULARITY_BYTES if on_cpu else PLAIN_GRANULARITY_BYTES)
    return PlainBackend(size, device, None if capacity_bytes is None else max(1, capacity_bytes // size)), reason
