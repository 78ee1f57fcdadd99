"""CUDA kernels: `load_kernel(name, device)` gives what launches `name` of gpu/cuda/`name`.cu. The contract:

- **Prebuilt first.** packaging/build_kernels.py puts one fat binary per file into gpu/cuda/prebuilt, named after the
  hash of its source, so one that was built from another source is never taken. Where there is none, or the driver
  refuses it, the source is compiled for the GPU at hand (NVRTC, else nvcc) and kept in the cache.
- **Key of the cache**: source with its headers, options, architecture, compiler and version, loader. Nothing else
  changes what comes out, so nothing is ever invalidated by hand.
- **Lock**: one compiles, others (threads or processes) wait for it and read what it wrote. Files are written beside
  their place and renamed. A file whose checksum is wrong is compiled again. A folder that cannot be written costs the
  cache, not the kernel.
- **Failure**: KernelError, one sentence with the fix, never another exception; the caller then uses the torch twin.
- **VIVAVOCE_KERNELS**: `prebuilt` never compiles (offline, no compiler), `jit` never takes prebuilt ones, `off` loads
  nothing. Unset: as above.
- **GPUs** below compute capability 7.5 are refused: the fat binaries and today's compilers begin there.

A loaded kernel stays for the life of the process and is shared by all who ask for it. See docs/kernels.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu.compilers import OPTIONS, Compiler, find_compiler
from gpu.errors import KernelError
from gpu.kernel_loaders import Kernel, KernelLoader, LoaderName, open_loader

SOURCES = Path(__file__).resolve().parent / "cuda"
PREBUILT = "prebuilt"
"""Folder beside the sources."""
LOWEST_CAPABILITY = (7, 5)
MODES = ("", "prebuilt", "jit", "off")
_INCLUDE = re.compile(r'^[ \t]*#include[ \t]+"([^"]+)"[ \t]*$', re.MULTILINE)
_MAGIC = b"VVK1"
_DIGEST_BYTES = 32


def load_kernel(
    name: str, device: str, *, loader: LoaderName = "auto", mode: str | None = None, cache: Path | None = None
) -> Kernel:
    """The kernel `name` for torch's `device` ("cuda:0"), as the contract above says; KernelError where it is not to be.

    `mode` None is VIVAVOCE_KERNELS, `cache` None is `default_cache`.
    """
    chosen = os.environ.get("VIVAVOCE_KERNELS", "") if mode is None else mode
    if chosen not in MODES:
        raise KernelError(f"VIVAVOCE_KERNELS is {chosen!r}", fix="Use prebuilt, jit or off, or unset it")
    if chosen == "off":
        raise KernelError("CUDA kernels are switched off", fix="Unset VIVAVOCE_KERNELS")
    return _load_once(name, _index_of(device), loader, chosen, cache or default_cache(os.environ))


def default_cache(env: Mapping[str, str]) -> Path:
    """Where compiled kernels are kept: the user's cache folder, then vivavoce/kernels. Creates nothing."""
    base = env.get("XDG_CACHE_HOME") or (env.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else Path(env.get("HOME") or Path.home()) / ".cache") / "vivavoce" / "kernels"


def kernel_source(path: Path) -> str:
    """The file, its own headers once in the place of their first `#include`: what is hashed and compiled."""
    return _flatten(path, set())


def source_hash(source: str) -> str:
    """Short hash that a prebuilt file carries in its name."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


class KernelImages:
    """Code for the GPU by name: prebuilt or compiled and cached. Knows no GPU."""

    def __init__(self, sources: Path, cache: Path, find: Callable[[], Compiler]) -> None:
        """`find` is asked for the compiler only when something must be compiled."""
        self._sources = sources
        self._cache = cache
        self._find = functools.cache(find)

    def prebuilt(self, name: str) -> bytes | None:
        """The fat binary that was built from this very source, or None."""
        path = self._sources / PREBUILT / f"{name}-{source_hash(self._source(name))}.fatbin"
        try:
            return path.read_bytes()
        except OSError:
            return None

    def compiled(self, name: str, capability: tuple[int, int], loader: str) -> bytes:
        """A cubin for GPUs of `capability`, from the cache or compiled now; KernelError where it does not compile."""
        source, compiler = self._source(name), self._find()
        architecture = f"sm_{capability[0]}{capability[1]}"
        key = json.dumps([source, OPTIONS, architecture, compiler.version, loader])
        path = self._cache / f"{name}-{architecture}-{source_hash(key)}.cubin"
        found = _read_checked(path)
        if found is not None:
            return found
        if not _make_folder(self._cache):
            return compiler.compile(source, name, architecture)
        from filelock import FileLock

        with FileLock(path.with_suffix(".lock")):
            found = _read_checked(path)  # by who had the lock before
            if found is None:
                found = compiler.compile(source, name, architecture)
                _write_checked(path, found)
        return found

    def _source(self, name: str) -> str:
        path = self._sources / f"{name}.cu"
        if not path.is_file():
            raise KernelError(f"there is no kernel {name!r} in {self._sources}", fix="Install the program again")
        return kernel_source(path)


def load_image(images: KernelImages, loader: KernelLoader, name: str, mode: str) -> Kernel:
    """The kernel by `mode` (as VIVAVOCE_KERNELS); KernelError that says what was tried."""
    if loader.capability < LOWEST_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (loader.capability, LOWEST_CAPABILITY))
        raise KernelError(f"the GPU has compute capability {have}, kernels need {need}", fix="Use a newer GPU")
    refusal = "it is not prebuilt"
    image = images.prebuilt(name) if mode != "jit" else None
    if image is not None:
        try:
            return loader.load(image, name)
        except KernelError as error:  # no code for this GPU in it, or built by a toolkit that is newer than the driver
            refusal = error.message
    if mode == "prebuilt":
        raise KernelError(f"kernel {name}: {refusal}", fix="Run `make kernels`, or unset VIVAVOCE_KERNELS")
    return loader.load(images.compiled(name, loader.capability, loader.name), name)


@functools.cache
def _load_once(name: str, index: int, loader: LoaderName, mode: str, cache: Path) -> Kernel:
    return load_image(KernelImages(SOURCES, cache, find_compiler), _loader_of(loader, index), name, mode)


@functools.cache
def _loader_of(loader: LoaderName, index: int) -> KernelLoader:
    return open_loader(loader, index)


def _index_of(device: str) -> int:
    import torch

    place = torch.device(device)
    if place.type != "cuda":
        raise KernelError(f"CUDA kernels do not run on {device}", fix="Nothing is needed there")
    if not torch.cuda.is_available():
        raise KernelError("torch finds no NVIDIA GPU", fix="vivavoce doctor says why")
    return torch.cuda.current_device() if place.index is None else place.index


def _flatten(path: Path, seen: set[Path]) -> str:
    seen.add(path)

    def content(match: re.Match[str]) -> str:
        header = path.parent / match[1]
        return "" if header in seen else _flatten(header, seen)

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise KernelError(f"kernel source {path} is not readable", fix="Install the program again") from error
    return _INCLUDE.sub(content, text).replace("#pragma once\n", "")


def _make_folder(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _read_checked(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    begin = len(_MAGIC) + _DIGEST_BYTES
    image = content[begin:]
    return image if content[:begin] == _MAGIC + hashlib.sha256(image).digest() else None


def _write_checked(path: Path, image: bytes) -> None:
    """All of it or nothing; a disk without room costs the cache only."""
    written: str | None = None
    try:
        descriptor, written = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(image).digest() + image)
        os.replace(written, path)
    except OSError:
        if written is not None:
            Path(written).unlink(missing_ok=True)
