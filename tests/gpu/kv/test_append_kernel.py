"""Appending by the device's registers: the twin against plain lists, the kernel's source against the twin."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu import kernels
from gpu.errors import GpuError, KernelError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.append_kernel import AppendArguments, AppendKernel  # noqa: E402
from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=128)
WINDOW = WindowSpec(window=40, sinks=3, slack=20, chunk=12, step=5)
NewArena = Callable[..., Arena]

# Threads as the GPU's, one for each: what the kernel's source needs of CUDA.
_SHIM = """
#pragma once
#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __shared__ static  // between blocks too: what the kernel keeps there is the same in all of them
struct uint2 { unsigned int x, y; };
struct uint4 { unsigned int x, y, z, w; };
struct Index { unsigned int x; };
static thread_local Index threadIdx, blockIdx;
static thread_local std::barrier<>* together;
static Index blockDim, gridDim;
static void __syncthreads() { together->arrive_and_wait(); }
static unsigned int take_ticket(unsigned int* ticket) { return std::atomic_ref<unsigned int>(*ticket).fetch_add(1); }
"""
_RUN = """
#include "kv_append.cu"
extern "C" unsigned int arguments_bytes() { return sizeof(KvAppend); }
extern "C" void launch(const KvAppend* a, unsigned int blocks, unsigned int threads) {
    gridDim.x = blocks;
    blockDim.x = threads;
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    std::vector<std::thread> running;
    for (unsigned int block = 0; block < blocks; ++block) {
        barriers.push_back(std::make_unique<std::barrier<>>(threads));
        std::barrier<>* barrier = barriers.back().get();
        for (unsigned int thread = 0; thread < threads; ++thread)
            running.emplace_back([=] {
                threadIdx.x = thread;
                blockIdx.x = block;
                together = barrier;
                kv_append(*a);
            });
    }
    for (auto& thread : running) thread.join();
}
"""


class HostKernel:
    """The kernel's own source, compiled for the CPU: a thread for each of the GPU's."""

    name = "kv_append"
    loader = "host"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.most_blocks = 8
        self.blocks = 0
        self.unit_bytes = 0

    def launch(self, grid: Any, block: Any, args: AppendArguments, shared_bytes: int = 0) -> None:
        self.blocks, self.unit_bytes = min(grid[0], self.most_blocks), args.unit_bytes
        self._library.launch(ctypes.byref(args), self.blocks, block[0])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: it compiles the kernel for the CPU")
    folder = tmp_path_factory.mktemp("kernel")
    shutil.copy(kernels.SOURCES / "kv_append.cu", folder)
    (folder / "ticket.cuh").write_text(_SHIM)
    (folder / "run.cpp").write_text(_RUN)
    made = folder / "kernel.so"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(made), str(folder / "run.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if "barrier" in done.stderr and done.returncode:
        pytest.skip("g++ is too old for <barrier>")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(made))


@pytest.fixture
def arenas(new_arena: NewArena, backend_name: str) -> Iterator[NewArena]:
    made: list[Arena] = []

    def build(spec: ArenaSpec = SPEC, **options: Any) -> Arena:
        made.append(new_arena(spec, backend=backend_name, **options))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()


def no_kernel(name: str, device: str) -> Any:
    raise KernelError("none here")


def on_host(library: ctypes.CDLL) -> Callable[[str, str], HostKernel]:
    return lambda name, device: HostKernel(library)


class Talk:
    """Appends by the registers, and keeps what was appended as a plain list."""

    def __init__(self, session: Session, load: Callable[[str, str], Any]) -> None:
        self.session = session
        self.kernel = AppendKernel(session, load)
        self.rows: list[torch.Tensor] = []
        self._generator = torch.Generator().manual_seed(7)

    def append(self, tokens: int, *, alone: bool = False) -> None:
        spec = self.session.spec
        numbers = torch.randint(-100, 100, (tokens, *spec.row_shape), generator=self._generator)
        new = numbers.to(self.session.buffer().dtype)
        self.session.extend(tokens, registers=False)
        parts = [new[:, :, part].contiguous().to(spec.device) for part in range(spec.parts)]
        self.kernel.launch(*([part[0] for part in parts] if alone else parts))
        self.rows += list(new)

    def truncate(self, position: int) -> None:
        self.session.truncate_to(position)
        del self.rows[position:]

    def holds(self) -> None:
        """Registers and rows are what the list says; behind an eviction the last ones and the sinks."""
        session = self.session
        session.check()
        assert session.position == len(self.rows)
        rows = session.rows().cpu()
        sinks = 0 if session.length == session.position else WINDOW.sinks
        recent = session.length - sinks
        seen = self.rows[:sinks] + (self.rows[-recent:] if recent else [])
        assert torch.equal(rows, torch.stack(seen) if seen else rows[:0])


def drive(talk: Talk, steps: int, seed: int) -> None:
    """Tokens by one and by several, rollbacks and the host's own appends between."""
    chance = random.Random(seed)
    for _ in range(steps):
        room = SPEC.positions - talk.session.length
        step = chance.random()
        if step < 0.5 and room:
            talk.append(1, alone=chance.random() < 0.5)
        elif step < 0.8:
            talk.append(min(room, chance.randrange(0, 9)))
        elif step < 0.9 and room > 2:
            new = torch.full((2, *talk.session.spec.row_shape), 3.0).to(talk.session.rows().dtype)
            parts = [new[:, :, part].to(talk.session.spec.device) for part in range(new.shape[2])]
            talk.session.append(*parts)
            talk.rows += list(new)
        else:
            talk.truncate(max(len(talk.rows) - chance.randrange(0, 12), 0))
        talk.holds()


@pytest.mark.parametrize("seed", range(4))
def test_the_twin_equals_a_plain_list(arenas: NewArena, seed: int) -> None:
    talk = Talk(arenas().session(), no_kernel)
    assert talk.kernel.way == "torch"
    assert talk.kernel.reason == "none here"
    drive(talk, 40, seed)


def test_the_twin_in_a_window(arenas: NewArena) -> None:
    """The ring turns three times; every row must show in both of its places."""
    talk = Talk(arenas().session(window=WINDOW), no_kernel)
    chance = random.Random(1)
    for step in range(90):
        talk.append(chance.randrange(1, 8))
        if step % 9 == 8:
            talk.truncate(len(talk.rows) - chance.randrange(0, 10))
        talk.holds()


@pytest.mark.parametrize("name", ["host", "host-copy"])
@pytest.mark.parametrize("windowed", [False, True])
def test_the_source_of_the_kernel_does_the_same(
    new_arena: NewArena, library: ctypes.CDLL, name: str, windowed: bool
) -> None:
    arena = new_arena(SPEC, backend=name)
    talk = Talk(arena.session(window=WINDOW) if windowed else arena.session(), on_host(library))
    assert talk.kernel.way == "host"
    for step in range(70 if windowed else 30):  # the ring turns
        talk.append(1 + step % 4, alone=step % 4 == 0)
        if step % 9 == 8:
            talk.truncate(len(talk.rows) - 5)
        talk.holds()
    arena.close()


@pytest.mark.parametrize(
    ("shape", "dtype", "unit_bytes", "blocks"),
    [
        ((3, 2, 8), "float32", 16, 1),
        ((3, 1, 12), "bfloat16", 8, 1),
        ((1, 3, 3), "float32", 4, 1),
        ((2, 1, 3), "float16", 2, 1),
        ((2, 1, 5), "int8", 1, 1),
        ((4, 2, 64), "bfloat16", 16, 2),
    ],
)
def test_any_size_of_row_is_moved_as_widely_as_it_can_be(
    new_arena: NewArena, library: ctypes.CDLL, shape: tuple[int, int, int], dtype: str, unit_bytes: int, blocks: int
) -> None:
    spec = ArenaSpec(*shape, positions=64, dtype=dtype, unrotated_keys=dtype == "bfloat16")
    arena = new_arena(spec, backend="host")
    made = HostKernel(library)
    talk = Talk(arena.session(), lambda name, device: made)
    for tokens in (1, 3, 2):
        talk.append(tokens)
        talk.holds()
    assert made.unit_bytes == unit_bytes
    assert made.blocks == blocks
    made.most_blocks = 1  # more than a thread moves at once
    talk.append(5)
    talk.holds()
    arena.close()


def test_arguments_lie_as_the_kernel_reads_them(library: ctypes.CDLL) -> None:
    assert library.arguments_bytes() == ctypes.sizeof(AppendArguments)


def test_odd_addresses_are_moved_in_smaller_pieces(new_arena: NewArena, library: ctypes.CDLL) -> None:
    arena = new_arena(ArenaSpec(2, 2, 8, positions=8), backend="host")
    session, made = arena.session(), HostKernel(library)
    kernel = AppendKernel(session, lambda name, device: made)
    shifted = torch.arange(33.0)[1:].view(2, 2, 8)
    session.extend(1, registers=False)
    kernel.launch(shifted, shifted)
    assert made.unit_bytes == 4
    assert torch.equal(session.rows()[0, :, 0], shifted)
    arena.close()


def test_what_does_not_fit_is_refused_and_changes_nothing(new_arena: NewArena) -> None:
    arena = new_arena(SPEC, backend="host")
    session = arena.session()
    kernel = AppendKernel(session, no_kernel)
    good = torch.zeros(2, 2, 6)
    session.extend(1, registers=False)
    for keys, values, sentence in (
        (good[:1], good[:1], r"keys of shape \(1, 2, 6\)"),
        (good, good.unsqueeze(0), "for all"),
        (good.double(), good.double(), "Give contiguous torch.float32 on cpu"),
        (good, torch.zeros(2, 6, 2).transpose(1, 2), "Give contiguous"),
    ):
        with pytest.raises(GpuError, match=sentence):
            kernel.launch(keys, values)
    with pytest.raises(GpuError, match="un-rotated"):
        kernel.launch(good, good, good)
    assert session.registers.tolist() == [0, 0, 0]
    kernel.launch(good, good)
    arena.check()
    arena.close()
    with pytest.raises(GpuError, match="after close"):
        kernel.launch(good, good)


# On a GPU.


def loaded_by(loader: str) -> Callable[[str, str], Any]:
    """Loads with this loader and compiles anew, or takes what is prebuilt; skips where the loader is not installed."""
    pytest.importorskip("pycuda.driver" if loader == "pycuda" else "cuda.bindings.driver")
    return lambda name, device: kernels.load_kernel(name, device, loader=loader)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["pycuda", "cuda.bindings"])
@pytest.mark.parametrize("backend", ["vmm", "plain-gpu"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 2, 6), "float32"), ((16, 8, 64), "bfloat16"), ((2, 1, 3), "float16"), ((2, 1, 5), "int8")]
)
def test_the_kernel_equals_a_plain_list_on_the_gpu(
    new_arena: NewArena, loader: str, backend: str, shape: tuple[int, int, int], dtype: str
) -> None:
    arena = new_arena(ArenaSpec(*shape, positions=SPEC.positions, dtype=dtype, device="cuda:0"), backend=backend)
    talk = Talk(arena.session(), loaded_by(loader))
    assert talk.kernel.way == loader, talk.kernel.reason
    drive(talk, 60, 3)
    arena.close()


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["pycuda", "cuda.bindings"])
@pytest.mark.parametrize("backend", ["vmm", "plain-gpu"])
def test_the_kernel_in_a_window_on_the_gpu(new_arena: NewArena, loader: str, backend: str) -> None:
    spec = ArenaSpec(layers=16, kv_heads=8, head_dim=64, positions=16, dtype="bfloat16", device="cuda:0")
    arena = new_arena(spec, backend=backend)  # rings of 64 rows: they turn
    talk = Talk(arena.session(window=WINDOW), loaded_by(loader))
    for step in range(120):
        talk.append(1 + step % 7)
        if step % 9 == 8:
            talk.truncate(len(talk.rows) - step % 10)
        talk.holds()
    arena.close()


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["pycuda", "cuda.bindings", "twin"])
def test_one_graph_appends_for_the_whole_conversation(new_arena: NewArena, loader: str) -> None:
    """2,000 replays while pages are mapped under them; then a rollback, and on."""
    spec = ArenaSpec(layers=16, kv_heads=8, head_dim=64, positions=2100, dtype="bfloat16", device="cuda:0")
    arena = new_arena(spec, backend="vmm", watermark="thread")
    session = arena.session()
    kernel = AppendKernel(session, no_kernel if loader == "twin" else loaded_by(loader))
    assert kernel.way == ("torch" if loader == "twin" else loader), kernel.reason
    number = torch.zeros(1, device="cuda:0")
    keys, values = (torch.zeros(16, 8, 64, dtype=torch.bfloat16, device="cuda:0") for _ in range(2))

    def step() -> None:
        keys.copy_(number.to(torch.bfloat16).view(1, 1, 1).expand_as(keys))
        torch.neg(keys, out=values)
        kernel.launch(keys, values)
        number.add_(1).remainder_(251)

    side = torch.cuda.Stream()
    session.extend(1, registers=False)
    with torch.cuda.stream(side):  # what torch loads at the first use of an operation must not be captured
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    for _ in range(1999):
        session.extend(1, registers=False)
        graph.replay()
    session.truncate_to(1900)
    number.fill_(1900 % 251)
    for _ in range(150):
        session.extend(1, registers=False)
        graph.replay()
    torch.cuda.synchronize()
    arena.check()
    wanted = (torch.arange(2050, device="cuda:0") % 251).to(torch.bfloat16).view(-1, 1, 1, 1)
    rows = session.rows()
    assert bool((rows[:, :, 0] == wanted).all())
    assert bool((rows[:, :, 1] == -wanted).all())
    assert arena.stats().pages_in_use >= 2050 * spec.row_bytes // arena.backend.page_bytes
    del graph
    arena.close()


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["pycuda", "cuda.bindings"])
def test_a_launch_allocates_nothing_and_waits_for_nothing(new_arena: NewArena, loader: str) -> None:
    spec = ArenaSpec(layers=4, kv_heads=8, head_dim=128, positions=512, dtype="bfloat16", device="cuda:0")
    arena = new_arena(spec, backend="vmm", watermark="thread")
    session = arena.session()
    kernel = AppendKernel(session, loaded_by(loader))
    new = torch.ones(4, 8, 128, dtype=torch.bfloat16, device="cuda:0")
    session.extend(1, registers=False)
    kernel.launch(new, new)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(400):
            session.extend(1, registers=False)
            kernel.launch(new, new)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    assert bool((session.rows() == 1).all())
    arena.check()
    arena.close()
