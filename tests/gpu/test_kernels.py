"""The loader's contract: what is compiled, once, kept, refused, and how a launch reaches torch's current stream."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu import compilers, kernels
from gpu.compilers import NvccCompiler, NvrtcCompiler, find_nvcc
from gpu.context import PrimaryContext
from gpu.errors import KernelError
from gpu.kernel_loaders import BindingsLoader, PyCudaLoader, open_loader
from gpu.kernels import KernelImages, default_cache, kernel_source, load_image, load_kernel, source_hash

SOURCE = '// the kernel\n#include "shape.cuh"\nextern "C" __global__ void twice(const Shape s) {}\n'
HEADER = "#pragma once\nstruct Shape { int size; };\n"
ROOT = Path(__file__).resolve().parents[2]


class FakeCompiler:
    """Its cubin says what it was given."""

    def __init__(self, version: str = "fakec 1.0") -> None:
        self.version = version
        self.calls: list[str] = []

    def compile(self, source: str, name: str, architecture: str) -> bytes:
        self.calls.append(architecture)
        return f"{name} {architecture} {source_hash(source)} {self.version}".encode()


class FakeLoader:
    """Refuses the images that it is told to refuse."""

    name = "fake"

    def __init__(self, capability: tuple[int, int] = (9, 0), refused: bytes = b"") -> None:
        self.capability = capability
        self.refused = refused

    def load(self, image: bytes, name: str) -> Any:
        if image == self.refused:
            raise KernelError("kernel twice: cuModuleLoadData says CUDA_ERROR_NO_BINARY_FOR_GPU")
        return SimpleNamespace(name=name, image=image)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "cuda"
    (folder / "prebuilt").mkdir(parents=True)
    (folder / "twice.cu").write_text(SOURCE)
    (folder / "shape.cuh").write_text(HEADER)
    return folder


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


@pytest.fixture
def images(sources: Path, tmp_path: Path, compiler: FakeCompiler) -> KernelImages:
    return KernelImages(sources, tmp_path / "cache", lambda: compiler)


def prebuild(sources: Path, content: bytes = b"fat") -> None:
    (sources / "prebuilt" / f"twice-{source_hash(kernel_source(sources / 'twice.cu'))}.fatbin").write_bytes(content)


def test_headers_are_part_of_the_source_once(sources: Path) -> None:
    (sources / "more.cuh").write_text('#pragma once\n#include "shape.cuh"\nstruct More {};\n')
    (sources / "twice.cu").write_text('#include "more.cuh"\n' + SOURCE)
    text = kernel_source(sources / "twice.cu")
    assert text.count("struct Shape") == text.count("struct More") == 1
    assert "#include" not in text
    assert "#pragma" not in text
    assert text.index("struct Shape") < text.index("struct More") < text.index("__global__")


def test_a_header_that_is_missing_is_named(sources: Path) -> None:
    (sources / "shape.cuh").unlink()
    with pytest.raises(KernelError, match=r"shape\.cuh is not readable"):
        kernel_source(sources / "twice.cu")


def test_compiled_once_then_read(images: KernelImages, compiler: FakeCompiler, sources: Path, tmp_path: Path) -> None:
    first = images.compiled("twice", (9, 0), "fake")
    assert images.compiled("twice", (9, 0), "fake") == first
    assert KernelImages(sources, tmp_path / "cache", lambda: compiler).compiled("twice", (9, 0), "fake") == first
    assert compiler.calls == ["sm_90"]


def test_every_part_of_the_key_counts(
    images: KernelImages, compiler: FakeCompiler, sources: Path, tmp_path: Path
) -> None:
    made = {images.compiled("twice", (9, 0), "fake")}
    made.add(images.compiled("twice", (8, 6), "fake"))
    made.add(
        KernelImages(sources, tmp_path / "cache", lambda: FakeCompiler("fakec 2.0")).compiled("twice", (9, 0), "fake")
    )
    images.compiled("twice", (9, 0), "another")
    (sources / "shape.cuh").write_text(HEADER.replace("int", "long"))
    made.add(images.compiled("twice", (9, 0), "fake"))
    assert len(made) == 4
    assert compiler.calls == ["sm_90", "sm_86", "sm_90", "sm_90"]


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-1], lambda whole: whole[:9] + b"?" + whole[10:], lambda _: b""]
)
def test_a_corrupt_file_is_compiled_again(
    images: KernelImages, compiler: FakeCompiler, tmp_path: Path, damage: Any
) -> None:
    first = images.compiled("twice", (9, 0), "fake")
    (path,) = (tmp_path / "cache").glob("*.cubin")
    path.write_bytes(damage(path.read_bytes()))
    assert images.compiled("twice", (9, 0), "fake") == first
    assert images.compiled("twice", (9, 0), "fake") == first
    assert len(compiler.calls) == 2
    assert not [left for left in path.parent.iterdir() if left.suffix not in (".cubin", ".lock")]


def test_a_folder_that_cannot_be_made_costs_only_the_cache(
    sources: Path, compiler: FakeCompiler, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    images = KernelImages(sources, tmp_path / "file" / "cache", lambda: compiler)
    assert images.compiled("twice", (9, 0), "fake") == images.compiled("twice", (9, 0), "fake")
    assert len(compiler.calls) == 2


def test_a_full_disk_costs_only_the_cache(
    images: KernelImages, compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernels.os, "replace", full)
    assert images.compiled("twice", (9, 0), "fake") == images.compiled("twice", (9, 0), "fake")
    assert len(compiler.calls) == 2
    assert not list((tmp_path / "cache").glob("twice*[!k]"))  # nothing but the lock


def test_threads_compile_once(sources: Path, tmp_path: Path) -> None:
    class Slow(FakeCompiler):
        def compile(self, source: str, name: str, architecture: str) -> bytes:
            time.sleep(0.2)
            return super().compile(source, name, architecture)

    compiler, made = Slow(), []

    def work() -> None:
        made.append(KernelImages(sources, tmp_path / "cache", lambda: compiler).compiled("twice", (9, 0), "fake"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert len(compiler.calls) == 1


_PROCESS = """
import sys, time
from pathlib import Path
from gpu.kernels import KernelImages
class Compiler:
    version = "slow 1"
    def compile(self, source, name, architecture):
        with open(sys.argv[2] + "/compiled", "a") as file:
            file.write("x")
        time.sleep(0.3)
        return b"cubin"
images = KernelImages(Path(sys.argv[1]), Path(sys.argv[2]), Compiler)
assert images.compiled("twice", (9, 0), "fake") == b"cubin"
"""


def test_processes_compile_once(sources: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    command = [sys.executable, "-c", _PROCESS, str(sources), str(folder)]
    started = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
    assert (folder / "compiled").read_text() == "x"


def test_prebuilt_is_preferred_and_needs_no_compiler(sources: Path, tmp_path: Path) -> None:
    def none() -> Any:
        raise AssertionError("nobody asked for a compiler")

    prebuild(sources)
    images = KernelImages(sources, tmp_path / "cache", none)
    assert load_image(images, FakeLoader(), "twice", "").image == b"fat"
    assert load_image(images, FakeLoader(), "twice", "prebuilt").image == b"fat"


def test_prebuilt_from_another_source_is_not_taken(images: KernelImages, compiler: FakeCompiler, sources: Path) -> None:
    prebuild(sources)
    (sources / "twice.cu").write_text(SOURCE + "// changed\n")
    assert load_image(images, FakeLoader(), "twice", "").image != b"fat"
    assert compiler.calls == ["sm_90"]


def test_what_the_driver_refuses_is_compiled_for_this_gpu(images: KernelImages, sources: Path) -> None:
    prebuild(sources)
    loader = FakeLoader(capability=(12, 1), refused=b"fat")
    assert b"sm_121" in load_image(images, loader, "twice", "").image
    with pytest.raises(KernelError, match="NO_BINARY_FOR_GPU"):
        load_image(images, loader, "twice", "prebuilt")


def test_jit_takes_nothing_prebuilt(images: KernelImages, sources: Path) -> None:
    prebuild(sources)
    assert load_image(images, FakeLoader(), "twice", "jit").image != b"fat"


def test_offline_without_a_prebuilt_kernel(images: KernelImages, compiler: FakeCompiler) -> None:
    with pytest.raises(KernelError, match=r"not prebuilt\. Run `make kernels`"):
        load_image(images, FakeLoader(), "twice", "prebuilt")
    assert compiler.calls == []


def test_an_old_gpu_and_an_unknown_kernel_are_refused(images: KernelImages) -> None:
    with pytest.raises(KernelError, match=r"compute capability 7\.0, kernels need 7\.5"):
        load_image(images, FakeLoader(capability=(7, 0)), "twice", "")
    with pytest.raises(KernelError, match="no kernel 'thrice'"):
        load_image(images, FakeLoader(), "thrice", "")


def test_the_switch_is_read_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_KERNELS", "off")
    with pytest.raises(KernelError, match="switched off"):
        load_kernel("kv_append", "cuda:0")
    monkeypatch.setenv("VIVAVOCE_KERNELS", "fast")
    with pytest.raises(KernelError, match=r"'fast'\. Use prebuilt, jit or off"):
        load_kernel("kv_append", "cuda:0")


def test_no_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("VIVAVOCE_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(KernelError, match="torch finds no NVIDIA GPU"):
        load_kernel("kv_append", "cuda:0")
    with pytest.raises(KernelError, match="do not run on cpu"):
        load_kernel("kv_append", "cpu")


def test_the_cache_lies_where_the_user_wants_it(tmp_path: Path) -> None:
    assert default_cache({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "vivavoce" / "kernels"
    assert default_cache({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "vivavoce" / "kernels"


def test_nvcc_is_found_or_its_absence_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_pip_folders", lambda: [tmp_path / "nvidia"])
    (tmp_path / "nvidia" / "cu13").mkdir(parents=True)
    with pytest.raises(KernelError, match=r"nvcc is not on PATH.*pip install nvidia-cuda-nvcc"):
        find_nvcc({"PATH": str(tmp_path)})
    for folder in (tmp_path / "nvidia" / "cu13", tmp_path / "home"):
        nvcc = folder / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text("#!/bin/sh\n")
        nvcc.chmod(0o755)
    assert find_nvcc({"PATH": ""}) == tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    assert find_nvcc({"PATH": "", "CUDA_HOME": str(tmp_path / "home")}) == tmp_path / "home" / "bin" / "nvcc"
    assert find_nvcc({"PATH": str(tmp_path / "home" / "bin")}) == tmp_path / "home" / "bin" / "nvcc"


def real_compiler(which: str) -> Any:
    """NVRTC or nvcc of this machine; skips where it has none."""
    try:
        if which == "nvcc":
            return NvccCompiler(find_nvcc(compilers.os.environ))
        return NvrtcCompiler(pytest.importorskip("cuda.bindings.nvrtc", reason="comes with torch's CUDA builds"))
    except KernelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("which", ["nvcc", "nvrtc"])
def test_real_compilers_make_cubins_and_complain_in_one_sentence(which: str) -> None:
    compiler = real_compiler(which)
    assert compiler.version.split()[0] == which
    for path in sorted(kernels.SOURCES.glob("*.cu")):
        assert compiler.compile(kernel_source(path), path.stem, "sm_90")[:4] == b"\x7fELF"
    with pytest.raises(KernelError, match='"size" is undefined') as caught:
        compiler.compile('extern "C" __global__ void f(int* a) { *a = size; }', "f", "sm_90")
    assert "\n" not in str(caught.value)


class FakeNvrtc:
    """Compiles what contains `good`."""

    def __init__(self) -> None:
        self.alive = 0

    def nvrtcVersion(self) -> tuple[int, int, int]:
        return 0, 13, 1

    def nvrtcCreateProgram(self, source: bytes, name: bytes, *_: Any) -> tuple[int, bytes]:
        self.alive += 1
        return 0, source

    def nvrtcCompileProgram(self, program: bytes, count: int, options: list[bytes]) -> tuple[Any]:
        assert options[-1] == b"-arch=sm_90"
        assert count == len(options)
        return (0,) if b"good" in program else (Code(6, "NVRTC_ERROR_COMPILATION"),)

    def nvrtcGetCUBINSize(self, program: bytes) -> tuple[int, int]:
        return 0, 5

    def nvrtcGetCUBIN(self, program: bytes, image: bytes) -> tuple[int]:
        ctypes.memmove(image, b"cubin", 5)
        return (0,)

    def nvrtcGetProgramLogSize(self, program: bytes) -> tuple[int, int]:
        return 0, 30

    def nvrtcGetProgramLog(self, program: bytes, log: bytes) -> tuple[int]:
        ctypes.memmove(log, b"warning: x\nbad.cu: error: y\n\0\0", 30)
        return (0,)

    def nvrtcDestroyProgram(self, program: bytes) -> None:
        self.alive -= 1


class Code(int):
    """A result of the driver with its name."""

    name: str

    def __new__(cls, value: int, name: str) -> Code:
        made = super().__new__(cls, value)
        made.name = name
        return made


def test_nvrtc_programs_are_destroyed_whatever_happens() -> None:
    api = FakeNvrtc()
    compiler = NvrtcCompiler(api)
    assert compiler.version == "nvrtc 13.1"
    assert compiler.compile("good", "f", "sm_90") == b"cubin"
    with pytest.raises(KernelError, match=r"kernel f: nvrtc 13\.1 says bad\.cu: error: y\. Report it"):
        compiler.compile("wrong", "f", "sm_90")
    assert api.alive == 0


class Arguments(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("count", ctypes.c_int))


class FakeDriver:
    """`cuda.bindings.driver`: keeps a stack of contexts and reads the launch's parameters as CUDA does."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.launches: list[tuple[Any, ...]] = []
        self.refuse: dict[str, Code] = {}

    def cuCtxPushCurrent(self, context: str) -> tuple[int]:
        self.stack.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, str]:
        return 0, self.stack.pop()

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        assert self.stack
        return (self.refuse["load"],) if "load" in self.refuse else (0, image.decode())

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:
        return 0, f"{module}:{name.decode()}"

    def cuLaunchKernel(self, function: str, *numbers: int) -> tuple[Any, ...]:
        assert self.stack
        *shape, shared, stream, pointers, extra = numbers
        first = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[0]
        given = Arguments.from_buffer_copy(ctypes.string_at(first, ctypes.sizeof(Arguments)))
        self.launches.append((function, tuple(shape), shared, stream, given.first, given.count, extra))
        return (self.refuse.get("launch", 0),)


def test_bindings_launch_on_the_current_stream_in_the_primary_context() -> None:
    driver = FakeDriver()
    stream = [7]
    loader = BindingsLoader(driver, (9, 0), lambda: stream[0], "primary")
    kernel = loader.load(b"image", "twice")
    assert (kernel.name, kernel.loader) == ("twice", "cuda.bindings")
    arguments = Arguments(4096, 3)
    kernel.launch((2, 1, 1), (64, 1, 1), arguments, 16)
    stream[0], arguments.count = 8, 4
    kernel.launch((1, 1, 1), (32, 1, 1), arguments)
    assert driver.launches == [
        ("image:twice", (2, 1, 1, 64, 1, 1), 16, 7, 4096, 3, 0),
        ("image:twice", (1, 1, 1, 32, 1, 1), 0, 8, 4096, 4, 0),
    ]
    assert driver.stack == []


def test_what_the_driver_says_is_in_the_sentence() -> None:
    driver = FakeDriver()
    loader = BindingsLoader(driver, (9, 0), lambda: 0, "primary")
    kernel = loader.load(b"image", "twice")
    driver.refuse = {"load": Code(209, "NO_BINARY"), "launch": Code(1, "INVALID_VALUE")}
    with pytest.raises(KernelError, match=r"kernel twice: cuModuleLoadData says NO_BINARY\. Update"):
        loader.load(b"image", "twice")
    with pytest.raises(KernelError, match="cuLaunchKernel says INVALID_VALUE"):
        kernel.launch((1, 1, 1), (32, 1, 1), Arguments())
    assert driver.stack == []


class FakePyCuda(ModuleType):
    """`pycuda.driver`: contexts on a stack, functions that keep what they were launched with."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pycuda.driver")
        self.stack: list[Any] = []
        self.log: list[Any] = []
        self.refuses = False
        driver = self

        class Context:
            def push(self) -> None:
                driver.stack.append(self)

            def pop(self) -> None:
                assert driver.stack.pop() is self

            def detach(self) -> None:
                driver.log.append("detached")

        self.Device = lambda index: SimpleNamespace(retain_primary_context=Context)
        self.Stream = lambda flags: SimpleNamespace(handle=500 + flags)

    def init(self) -> None:
        self.log.append("init")

    def module_from_buffer(self, image: bytes) -> Any:
        assert self.stack
        return SimpleNamespace(get_function=lambda name: SimpleNamespace(_launch_kernel=self._launch))

    def _launch(self, grid: Any, block: Any, arguments: Arguments, shared: int, stream: Any) -> None:
        assert self.stack
        if self.refuses:
            raise self.Error("cuLaunchKernel failed: invalid argument")
        self.log.append((grid, block, arguments.count, shared, stream and stream.handle))


class FakeStream:
    def __init__(self, handle: int, log: list[Any]) -> None:
        self.cuda_stream = handle
        self._log = log

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self.cuda_stream} waits for {other.cuda_stream}")


@pytest.fixture
def pycuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePyCuda]:
    torch = pytest.importorskip("torch")
    driver, package = FakePyCuda(), ModuleType("pycuda")
    package.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: FakeStream(handle, driver.log))
    yield driver
    assert driver.stack == []  # else the process aborts at its end


@contextmanager
def current_stream(handle: int, log: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda index: FakeStream(handle, log))
        yield


def test_pycuda_launches_in_the_order_of_torchs_stream(pycuda: FakePyCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = PyCudaLoader(PrimaryContext(0), (9, 0)).load(b"image", "twice")
    launched = ((2, 1, 1), (64, 1, 1), 3, 0)
    for handle, log in (
        (0, [(*launched, None)]),  # the legacy stream
        (501, [(*launched, 501)]),  # PyCUDA's own, non-blocking
        (9, ["501 waits for 9", (*launched, 501), "9 waits for 501"]),
    ):
        pycuda.log.clear()
        with current_stream(handle, pycuda.log, monkeypatch):
            kernel.launch((2, 1, 1), (64, 1, 1), Arguments(1, 3))
        assert pycuda.log == log


def test_pycuda_leaves_its_stack_empty_when_a_launch_fails(pycuda: FakePyCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = PyCudaLoader(PrimaryContext(0), (9, 0)).load(b"image", "twice")
    pycuda.refuses = True
    with current_stream(501, pycuda.log, monkeypatch), pytest.raises(KernelError, match=r"invalid argument\. Update"):
        kernel.launch((1, 1, 1), (32, 1, 1), Arguments())


def test_the_primary_context_is_given_back_as_one(pycuda: FakePyCuda) -> None:
    context = PrimaryContext(0)
    assert "detached" not in pycuda.log
    del context
    assert pycuda.log[-1] == "detached"


def test_no_loader_at_all_names_both_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for name in ("pycuda", "pycuda.driver", "cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(KernelError, match=r"PyCUDA does not import.*cuda\.bindings is not installed"):
        open_loader("auto", 0)
    with pytest.raises(KernelError, match="no kernel loader 'cupy'"):
        open_loader("cupy", 0)  # type: ignore[arg-type]
