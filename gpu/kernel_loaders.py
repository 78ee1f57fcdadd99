"""Two ways to load a compiled kernel and to launch it on torch's current stream: PyCUDA, and NVIDIA's own bindings.

The bindings come with torch's CUDA builds, so most machines have them; PyCUDA has no wheels and is an extra.
Modules are never unloaded: a captured graph may hold their functions for as long as the process lives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from gpu.context import PrimaryContext
from gpu.errors import KernelError

LoaderName = Literal["auto", "pycuda", "cuda.bindings"]
Dimensions = tuple[int, int, int]


class Kernel(Protocol):
    """A kernel on one GPU, ready to launch."""

    name: str
    loader: str
    """ "pycuda" or "cuda.bindings"."""

    def launch(self, grid: Dimensions, block: Dimensions, args: ctypes.Structure, shared_bytes: int = 0) -> None:
        """Queue it on torch's current stream of its GPU; may be captured. `args` is copied before this returns.

        `args` mirrors the one struct that the kernel takes by value. KernelError where the driver refuses.
        """


class KernelLoader(Protocol):
    """Turns code for the GPU into kernels."""

    name: str
    capability: tuple[int, int]
    """Of the GPU, as (9, 0)."""

    def load(self, image: bytes, name: str) -> Kernel:
        """The kernel `name` of a cubin or fat binary; KernelError where the driver refuses the image."""


class PyCudaLoader:
    """PyCUDA in the primary context."""

    name = "pycuda"

    def __init__(self, context: PrimaryContext, capability: tuple[int, int]) -> None:
        self.capability = capability
        self._context = context

    def load(self, image: bytes, name: str) -> Kernel:
        error = self._context.driver.Error
        try:
            with self._context.current():
                module = self._context.driver.module_from_buffer(image)
                return _PyCudaKernel(name, module.get_function(name), self._context)
        except error as problem:
            raise _refused(name, problem) from problem


class _PyCudaKernel:
    loader = "pycuda"

    def __init__(self, name: str, function: Any, context: PrimaryContext) -> None:
        self.name = name
        self._function = function
        self._context = context

    def launch(self, grid: Dimensions, block: Dimensions, args: ctypes.Structure, shared_bytes: int = 0) -> None:
        try:
            with self._context.launching() as stream:
                self._function._launch_kernel(grid, block, args, shared_bytes, stream)
        except self._context.driver.Error as error:
            raise _refused(self.name, error) from error


class BindingsLoader:
    """`cuda.bindings.driver` in the primary context."""

    name = "cuda.bindings"

    def __init__(self, api: Any, capability: tuple[int, int], stream: Callable[[], int], context: Any) -> None:
        """`api` is the module, `stream()` the handle of torch's current stream, `context` the primary one."""
        self.capability = capability
        self._api = api
        self._stream = stream
        self._context = context

    def load(self, image: bytes, name: str) -> Kernel:
        with self.current():
            module = self.call(name, "cuModuleLoadData", image)
            function = self.call(name, "cuModuleGetFunction", module, name.encode())
        return _BindingsKernel(name, function, module, self)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context the calling thread's for a while: a thread that used no GPU before has none."""
        self.call("context", "cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self.call("context", "cuCtxPopCurrent")

    def launch(self, name: str, function: Any, dimensions: tuple[int, ...], shared_bytes: int, pointers: int) -> None:
        """`pointers` is the address of an array with the address of each parameter."""
        with self.current():
            self.call(name, "cuLaunchKernel", function, *dimensions, shared_bytes, self._stream(), pointers, 0)

    def call(self, name: str, function: str, *arguments: Any) -> Any:
        """The driver's answer; KernelError with its name for what went wrong."""
        code, *results = getattr(self._api, function)(*arguments)
        if int(code):
            raise _refused(name, f"{function} says {code.name}")
        return results[0] if results else None


class _BindingsKernel:
    loader = "cuda.bindings"

    def __init__(self, name: str, function: Any, module: Any, loader: BindingsLoader) -> None:
        self.name = name
        self._function = function
        self._module = module
        self._loader = loader

    def launch(self, grid: Dimensions, block: Dimensions, args: ctypes.Structure, shared_bytes: int = 0) -> None:
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        self._loader.launch(self.name, self._function, (*grid, *block), shared_bytes, ctypes.addressof(pointers))


def open_loader(wanted: LoaderName, index: int) -> KernelLoader:
    """The loader of that name for GPU `index`; "auto" is PyCUDA where it is installed, else NVIDIA's bindings.

    KernelError, with every reason, where there is none.
    """
    if wanted not in ("auto", "pycuda", "cuda.bindings"):
        raise KernelError(f"there is no kernel loader {wanted!r}", fix="Use auto, pycuda or cuda.bindings")
    reasons: list[str] = []
    for name, open_it in (("pycuda", _open_pycuda), ("cuda.bindings", _open_bindings)):
        if wanted in ("auto", name):
            try:
                return open_it(index)
            except KernelError as error:
                reasons.append(error.message)
    raise KernelError(f"no way to load CUDA kernels: {'; '.join(reasons)}", fix="Install torch's CUDA build or PyCUDA")


def _open_pycuda(index: int) -> KernelLoader:
    import torch

    return PyCudaLoader(PrimaryContext(index), torch.cuda.get_device_capability(index))


def _open_bindings(index: int) -> KernelLoader:
    import torch

    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise KernelError("cuda.bindings is not installed", fix="Install torch's CUDA build") from error
    torch.cuda.synchronize(index)  # starts the primary context
    code, device = driver.cuDeviceGet(index)
    context = None
    if not int(code):
        code, context = driver.cuDevicePrimaryCtxRetain(device)
    if int(code):
        raise KernelError(f"the driver gives no context for GPU {index}: {code.name}", fix="Update the driver")
    capability = torch.cuda.get_device_capability(index)
    return BindingsLoader(driver, capability, lambda: torch.cuda.current_stream(index).cuda_stream, context)


def _refused(name: str, problem: object) -> KernelError:
    first = (str(problem).splitlines() or [type(problem).__name__])[0]
    return KernelError(f"kernel {name}: {first}", fix="Update the NVIDIA driver, or set VIVAVOCE_KERNELS=off")
