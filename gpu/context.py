"""PyCUDA beside torch: both in the device's primary context, PyCUDA's only while it is used.

Never `pycuda.autoinit` (it makes a context of its own). A context that is still on PyCUDA's stack when the process ends
aborts it, so every push here has its pop.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpu.errors import KernelError

if TYPE_CHECKING:
    import torch

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: does not wait for the legacy stream, as torch's streams do not."""


class PrimaryContext:
    """The primary context of one GPU in PyCUDA's hands, for the one thread that makes the CUDA calls."""

    def __init__(self, index: int) -> None:
        """KernelError where PyCUDA is not installed or finds no such GPU. Starts torch's context first."""
        try:
            import pycuda.driver as driver
        except ImportError as error:
            raise KernelError(f"PyCUDA does not import: {_first_line(error)}", fix="Install the extra gpu") from error
        import torch

        torch.cuda.synchronize(index)
        self.driver: Any = driver
        self.index = index
        try:
            driver.init()
            self._context = driver.Device(index).retain_primary_context()
        except driver.Error as error:
            raise KernelError(f"PyCUDA finds no GPU {index}: {_first_line(error)}", fix="Update the driver") from error
        # PyCUDA's own destructor would detach it as if it were no primary one, which CUDA refuses.
        weakref.finalize(self, self._context.detach)
        with self.current():
            self._stream = driver.Stream(_NON_BLOCKING)
        self._shown: torch.cuda.Stream | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the calling thread's context for a while."""
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    @property
    def stream(self) -> torch.cuda.Stream:
        """PyCUDA's stream as torch sees it. Capture a graph on it and kernels are captured without a detour."""
        import torch

        if self._shown is None:
            made: torch.cuda.Stream = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call]
                self._stream.handle, device=f"cuda:{self.index}"
            )
            self._shown = made
        return self._shown

    @contextmanager
    def launching(self) -> Iterator[Any]:
        """PyCUDA's name for a stream whose work comes in the order of torch's current stream.

        PyCUDA cannot launch on a stream that it did not make. The legacy stream needs none, ours is at hand; for any
        other the work is forked to ours and joined again, which in a captured graph costs no node.
        """
        import torch

        theirs = torch.cuda.current_stream(self.index)
        if theirs.cuda_stream == 0:
            with self.current():
                yield None
            return
        forked = theirs.cuda_stream != self._stream.handle
        if forked:
            self.stream.wait_stream(theirs)
        with self.current():
            yield self._stream
        if forked:
            theirs.wait_stream(self.stream)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
