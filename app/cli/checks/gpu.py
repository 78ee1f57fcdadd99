"""NVIDIA GPU, driver, CUDA, virtual memory, torch and PyCUDA."""

from __future__ import annotations

from collections.abc import Iterator

from app.cli.checks.check import GIGABYTE, Check
from app.cli.probe import ask_in_child
from gpu.telemetry import CudaState, GpuInfo, TelemetryError, has_gpu_files, probe_cuda, read_gpus

_CHILD_LIMIT_S = 60.0
_CPU_MEANWHILE = "until then everything runs on the CPU"


def checks() -> Iterator[Check]:
    """One line where there is no GPU."""
    if not has_gpu_files():
        yield Check("gpu", "ok", "no NVIDIA GPU: CPU path")
        return
    try:
        driver = read_gpus()
    except TelemetryError as error:
        yield Check("gpu", "warning", f"there is one, but {error.message}", f"{error.fix}; {_CPU_MEANWHILE}")
        return
    yield from (_gpu(gpu) for gpu in driver.gpus)
    figures = {"driver": driver.version, "cuda": driver.cuda_version}
    yield Check("gpu driver", "ok", f"{driver.version}, for CUDA up to {driver.cuda_version}", "", figures)
    state = ask_in_child(probe_cuda, timeout_s=_CHILD_LIMIT_S)
    if state is None:
        fix = f"Check the driver with nvidia-smi; {_CPU_MEANWHILE}"
        yield Check("cuda", "warning", "the child that started it died", fix)
        return
    yield from libraries(state)


def _gpu(gpu: GpuInfo) -> Check:
    memory = f"{gpu.free_bytes / GIGABYTE:.1f} of {gpu.total_bytes / GIGABYTE:.1f} GB free"
    figures = {
        "compute_capability": gpu.compute_capability,
        "free_bytes": gpu.free_bytes,
        "total_bytes": gpu.total_bytes,
    }
    found = f"{gpu.name}, {memory}, compute capability {gpu.compute_capability}"
    return Check(f"gpu {gpu.index}", "ok", found, "", figures)


def libraries(state: CudaState) -> Iterator[Check]:
    """What a process that starts CUDA found."""
    if state.problem:
        yield Check("cuda", "warning", state.problem, f"Check the driver with nvidia-smi; {_CPU_MEANWHILE}")
    elif all(state.vmm):
        yield Check("cuda", "ok", "starts; virtual memory management is supported", figures={"vmm": True})
    else:
        fix = "The conversation's memory is allocated at once instead of page by page; a newer driver may help"
        yield Check("cuda", "warning", "starts, without virtual memory management", fix, {"vmm": False})
    if not state.torch_version:
        pass  # the list of libraries says so
    elif state.torch_sees_gpu:
        yield Check("torch on the gpu", "ok", f"{state.torch_version}, CUDA {state.torch_cuda_version}")
    else:
        build = f"built for CUDA {state.torch_cuda_version}" if state.torch_cuda_version else "a build without CUDA"
        fix = f"Install a CUDA build of torch that this driver runs; {_CPU_MEANWHILE}"
        yield Check("torch on the gpu", "warning", f"{state.torch_version} ({build}) does not see it", fix)
    if state.pycuda_version:
        yield Check("pycuda", "ok", state.pycuda_version)
    else:
        fix = "Install the extra `gpu`; until then our own kernels are not used"
        yield Check("pycuda", "warning", "not installed", fix)
