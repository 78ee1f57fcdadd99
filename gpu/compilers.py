"""Who compiles CUDA source: NVRTC inside this process (it comes with torch's CUDA builds), or nvcc."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gpu.errors import KernelError

OPTIONS = ("-std=c++17",)
"""What both compilers are told; optimisation is nvcc's default for device code and NVRTC's only one."""
_TIMEOUT_S = 300
_FIX = "Report it; VIVAVOCE_KERNELS=off does without"


class Compiler(Protocol):
    """Compiles one source without includes for one architecture."""

    version: str
    """Name and version, for the key of the cache."""

    def compile(self, source: str, name: str, architecture: str) -> bytes:
        """A cubin for `architecture` ("sm_90"); KernelError with the compiler's first complaint."""


class NvrtcCompiler:
    """`cuda.bindings.nvrtc`."""

    def __init__(self, api: Any) -> None:
        """`api` is the module; KernelError where its library is missing."""
        self._api = api
        try:
            major, minor = self._call("nvrtc", "nvrtcVersion")
        except RuntimeError as error:  # the bindings are there, the library is not
            raise KernelError(f"NVRTC does not load: {_first_line(error)}", fix="Install torch's CUDA build") from error
        self.version = f"nvrtc {major}.{minor}"

    def compile(self, source: str, name: str, architecture: str) -> bytes:
        api = self._api
        (program,) = self._call(name, "nvrtcCreateProgram", source.encode(), f"{name}.cu".encode(), 0, [], [])
        try:
            options = [option.encode() for option in (*OPTIONS, f"-arch={architecture}")]
            code, *_ = api.nvrtcCompileProgram(program, len(options), options)
            if int(code):
                raise KernelError(
                    f"kernel {name}: {self.version} says {self._complaint(program) or code.name}", fix=_FIX
                )
            (size,) = self._call(name, "nvrtcGetCUBINSize", program)
            image = bytes(size)
            self._call(name, "nvrtcGetCUBIN", program, image)
        finally:
            api.nvrtcDestroyProgram(program)
        return image

    def _complaint(self, program: Any) -> str:
        (size,) = self._call("nvrtc", "nvrtcGetProgramLogSize", program)
        log = bytes(size)
        self._call("nvrtc", "nvrtcGetProgramLog", program, log)
        return _first_complaint(log.rstrip(b"\0").decode(errors="replace"))

    def _call(self, name: str, function: str, *arguments: Any) -> list[Any]:
        results: list[Any]
        code, *results = getattr(self._api, function)(*arguments)
        if int(code):
            raise KernelError(f"kernel {name}: {function} says {code.name}", fix="Install torch's CUDA build again")
        return results


class NvccCompiler:
    """The compiler of the CUDA toolkit, in a child process."""

    def __init__(self, nvcc: Path) -> None:
        self._nvcc = nvcc
        self.version = f"nvcc {nvcc_version(nvcc)}"

    def compile(self, source: str, name: str, architecture: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="vivavoce-") as folder:
            given, made = Path(folder, f"{name}.cu"), Path(folder, f"{name}.cubin")
            given.write_text(source, encoding="utf-8")
            run_nvcc([str(self._nvcc), *OPTIONS, "-cubin", f"-arch={architecture}", "-o", str(made), str(given)], name)
            return made.read_bytes()


def find_compiler() -> Compiler:
    """NVRTC where it is, else nvcc; KernelError where there is neither."""
    try:
        from cuda.bindings import nvrtc

        return NvrtcCompiler(nvrtc)
    except (ImportError, KernelError):
        return NvccCompiler(find_nvcc(os.environ))


def find_nvcc(env: Mapping[str, str]) -> Path:
    """nvcc from PATH, CUDA_HOME, CUDA_PATH or the pip package nvidia-cuda-nvcc; KernelError where there is none."""
    found = shutil.which("nvcc", path=env.get("PATH", ""))
    if found:
        return Path(found)
    name = "nvcc.exe" if os.name == "nt" else "nvcc"
    folders = [Path(env[variable]) for variable in ("CUDA_HOME", "CUDA_PATH") if env.get(variable)]
    for place in _pip_folders():
        folders += sorted(place.iterdir())  # nvidia/cu13, nvidia/cuda_nvcc
    for folder in folders:
        if (folder / "bin" / name).is_file():
            return folder / "bin" / name
    raise KernelError(
        "no CUDA compiler: nvcc is not on PATH, in CUDA_HOME or in the package nvidia-cuda-nvcc",
        fix="Install the CUDA toolkit, or `pip install nvidia-cuda-nvcc`",
    )


def nvcc_version(nvcc: Path) -> str:
    """As in `13.0.88`."""
    found = re.search(r"V([0-9.]+)", run_nvcc([str(nvcc), "--version"], "version"))
    if found is None:
        raise KernelError(f"{nvcc} does not tell its version", fix="Repair the CUDA toolkit")
    return found[1]


def run_nvcc(command: list[str], name: str) -> str:
    """What it printed; KernelError with its first complaint where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(
            f"kernel {name}: nvcc does not run: {_first_line(error)}", fix="Repair the toolkit"
        ) from error
    if done.returncode:
        raise KernelError(f"kernel {name}: nvcc says {_first_complaint(done.stderr) or done.returncode}", fix=_FIX)
    return done.stdout


def _pip_folders() -> list[Path]:
    found = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (found.submodule_search_locations or [])] if found else []


def _first_complaint(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
