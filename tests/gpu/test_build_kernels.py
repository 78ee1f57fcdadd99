"""packaging/build_kernels.py: every source for every architecture, once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu.compilers import find_nvcc
from gpu.errors import KernelError
from gpu.kernels import PREBUILT, SOURCES, KernelImages, load_image

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "packaging" / "build_kernels.py"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def nvcc() -> Path:
    try:
        return find_nvcc(os.environ)
    except KernelError as error:
        pytest.skip(str(error))


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """(kind, architecture, code) each, as nvcc lays them out."""
    parts = [
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(code), 0, 0, 0, 0, number).ljust(64, b"\0") + code
        for kind, number, code in entries
    ]
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_contents_of_a_fat_binary(builder: ModuleType) -> None:
    image = fat_binary((2, 75, b"elf" * 40), (2, 120, b"e"), (1, 120, b"ptx"))
    assert builder.contents(image) == {"sm_75", "sm_120", "ptx_120"}
    assert builder.contents(image[:100]) == {"sm_75"}
    assert builder.contents(b"\x7fELF" + bytes(60)) == builder.contents(b"") == set()


@pytest.fixture(scope="module")
def built(builder: ModuleType, nvcc: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of gpu/cuda with everything prebuilt (seven architectures: compiled once for all tests)."""
    folder = tmp_path_factory.mktemp("built") / "cuda"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns(PREBUILT))
    (folder / PREBUILT).mkdir()
    (folder / PREBUILT / "kv_append-0123456789abcdef.fatbin").write_bytes(b"of an older source")
    builder.build_all(nvcc, folder, folder / PREBUILT)
    return folder


def no_compiler() -> Any:
    raise AssertionError("nobody asked for a compiler")


def test_every_kernel_for_every_architecture_where_the_loader_looks(
    builder: ModuleType, built: Path, tmp_path: Path
) -> None:
    names = sorted(path.stem for path in built.glob("*.cu"))
    assert names
    for name in names:
        image = KernelImages(built, tmp_path, no_compiler).prebuilt(name)
        assert image is not None
        assert builder.contents(image) == builder.wanted()
    made = sorted(path.name.split("-")[0] for path in (built / PREBUILT).glob("*.fatbin"))
    assert made == names  # the older one is gone


def test_what_is_up_to_date_is_not_built_again(
    builder: ModuleType, nvcc: Path, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {path: path.stat().st_mtime_ns for path in (built / PREBUILT).iterdir()}
    builder.build_all(nvcc, built, built / PREBUILT)
    assert {path: path.stat().st_mtime_ns for path in (built / PREBUILT).iterdir()} == times
    assert "is up to date" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["pycuda", "cuda.bindings"])
def test_the_driver_takes_the_fat_binary(built: Path, tmp_path: Path, loader: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("pycuda.driver" if loader == "pycuda" else "cuda.bindings.driver")
    from gpu.kernel_loaders import open_loader
    from gpu.kv.append_kernel import AppendKernel
    from gpu.kv.arena import Arena, ArenaSpec

    images = KernelImages(built, tmp_path, no_compiler)
    kernel = load_image(images, open_loader(loader, 0), "kv_append", "prebuilt")  # type: ignore[arg-type]
    spec = ArenaSpec(layers=3, kv_heads=2, head_dim=8, positions=8, device="cuda:0")
    arena = Arena.open(spec)
    session = arena.session()
    append = AppendKernel(session, lambda name, device: kernel)
    assert append.way == loader
    keys = torch.arange(48.0, device="cuda:0").view(3, 2, 8)
    session.extend(1, registers=False)
    append.launch(keys, -keys)
    assert torch.equal(session.rows()[0], torch.stack((keys, -keys), 1))
    arena.check()
    arena.close()


def test_a_source_that_does_not_compile_is_one_sentence(builder: ModuleType, nvcc: Path, tmp_path: Path) -> None:
    (tmp_path / "f.cu").write_text('extern "C" __global__ void f(int* a) { *a = size; }')
    with pytest.raises(KernelError, match='"size" is undefined'):
        builder.build(nvcc, tmp_path / "f.cu", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["f.cu"]


def test_without_nvcc_the_script_says_so(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("CUDA_HOME", "CUDA_PATH")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"],
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("the package nvidia-cuda-nvcc is installed")
    assert done.returncode == 2
    assert done.stderr.startswith("build_kernels: no CUDA compiler")
    assert len(done.stderr.splitlines()) == 1
