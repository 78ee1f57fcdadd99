"""Compile every gpu/cuda/*.cu into one fat binary, for machines without a compiler. Needs nvcc and no GPU.

    build_kernels.py [--check] [--out FOLDER]

The file is named after the hash of its source, headers included; gpu/kernels.py takes it only for this very source.
What was built from the same source with the same options and compiler is not built again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpu.compilers import OPTIONS, find_nvcc, nvcc_version, run_nvcc
from gpu.errors import KernelError
from gpu.kernels import PREBUILT, SOURCES, kernel_source, source_hash

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
"""Turing to Blackwell; other GPUs of the same generation run the code of the next lower number."""
_OPTIONS = (*OPTIONS, "-O3", "--fatbin")
_MAGIC = 0xBA55ED50
_KINDS = {1: "ptx", 2: "sm"}
_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of the header, bytes of all entries
_ENTRY = struct.Struct("<HHIQIIHHI")  # kind, -, bytes of the entry's header, of its code, -, -, -, -, architecture


def main(arguments: Sequence[str]) -> int:
    """Exit code 2 and one sentence where something is missing or does not compile."""
    parser = argparse.ArgumentParser(description="Compile the CUDA kernels for every GPU that we know.")
    parser.add_argument("--check", action="store_true", help="compile everything and keep nothing")
    parser.add_argument("--out", type=Path, default=SOURCES / PREBUILT, help="folder of the fat binaries")
    given = parser.parse_args(arguments)
    try:
        nvcc = find_nvcc(os.environ)
        print(f"Compiling with {nvcc}, version {nvcc_version(nvcc)}, for sm_{', sm_'.join(map(str, ARCHITECTURES))}.")
        if given.check:
            with tempfile.TemporaryDirectory(prefix="vivavoce-") as folder:
                build_all(nvcc, SOURCES, Path(folder))
        else:
            build_all(nvcc, SOURCES, given.out)
    except KernelError as error:
        print(f"build_kernels: {error}", file=sys.stderr)
        return 2
    return 0


def build_all(nvcc: Path, sources: Path, out: Path) -> list[Path]:
    """The fat binary of each source, in `out`; says what it does. KernelError where one does not compile."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for path in sorted(sources.glob("*.cu")):
        begin = time.perf_counter()
        target, is_new = build(nvcc, path, out)
        what = f"compiled in {time.perf_counter() - begin:.1f} s" if is_new else "is up to date"
        print(f"{path.name}: {what}, {target.name}, {target.stat().st_size / 1024:.0f} KiB")
        made.append(target)
    return made


def build(nvcc: Path, path: Path, out: Path) -> tuple[Path, bool]:
    """(fat binary of one source, whether it was compiled now). Older ones of the same name are deleted."""
    source = kernel_source(path)
    target = out / f"{path.stem}-{source_hash(source)}.fatbin"
    key_file = target.with_suffix(".key")
    key = json.dumps([source, _OPTIONS, ARCHITECTURES, nvcc_version(nvcc)])
    key = hashlib.sha256(key.encode()).hexdigest()
    if target.is_file() and key_file.is_file() and key_file.read_text(encoding="utf-8") == key:
        return target, False
    with tempfile.TemporaryDirectory(dir=out) as folder:
        flat, image = Path(folder, path.name), Path(folder, target.name)
        flat.write_text(source, encoding="utf-8")
        run_nvcc([str(nvcc), *_OPTIONS, *_targets(), "-o", str(image), str(flat)], path.stem)
        held = contents(image.read_bytes())
        if held != wanted():
            raise KernelError(f"{path.name}: the fat binary holds {sorted(held)}", fix="Use a CUDA toolkit of 13.0")
        for old in out.glob(f"{path.stem}-*"):
            old.unlink()
        os.replace(image, target)
    key_file.write_text(key, encoding="utf-8")
    return target, True


def wanted() -> set[str]:
    """What a fat binary must hold, as `contents` says it."""
    return {*(f"sm_{number}" for number in ARCHITECTURES), f"ptx_{ARCHITECTURES[-1]}"}


def contents(image: bytes) -> set[str]:
    """What a fat binary holds, as {"sm_90", "ptx_120"}; empty where it is none."""
    found: set[str] = set()
    if len(image) < _HEADER.size or _HEADER.unpack_from(image)[0] != _MAGIC:
        return found
    _, _, place, size = _HEADER.unpack_from(image)
    end = min(len(image), place + size)
    while place + _ENTRY.size <= end:
        kind, _, header_bytes, code_bytes, *_, architecture = _ENTRY.unpack_from(image, place)
        found.add(f"{_KINDS.get(kind, f'kind {kind}')}_{architecture}")
        place += header_bytes + code_bytes
    return found


def _targets() -> list[str]:
    """For each architecture its own code, and the last one's PTX for GPUs that are not built yet."""
    last = ARCHITECTURES[-1]
    codes = {number: f"sm_{number}" for number in ARCHITECTURES} | {last: f"[sm_{last},compute_{last}]"}
    return [f"-gencode=arch=compute_{number},code={code}" for number, code in codes.items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
