"""What `bench kv` measures on: the device, shapes of models, how much of everything, and the stopwatch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gpu.kv.arena import Arena, ArenaSpec

if TYPE_CHECKING:
    import torch

_BATCH_US = 8000.0
"""A batch of appends takes about this long: its one sync weighs little, and the arms take turns often."""
_MOST_STEPS = 50


@dataclass(frozen=True, slots=True)
class Shape:
    """What one token of a model leaves behind, and its query heads."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    heads: int


@dataclass(frozen=True, slots=True)
class Bed:
    """The device and the sizes that fit it."""

    device: str
    dtype: str
    shapes: tuple[Shape, ...]
    lengths: tuple[int, ...]
    batches: int
    """Batches of each arm."""
    cold_batches: int
    """Batches (of one append) with an empty allocator; 0: there is no such arm."""
    persona_tokens: int = 2000
    fork_tokens: tuple[int, ...] = (2000,)
    window: int = 1024
    policy_tokens: int = 8192
    snapshot_tokens: int = 8192
    growth_steps: int = 10_000
    weights: tuple[int, int, int] = (16, 4096, 8192)
    """Matrices that a step reads beside its append: 1 GiB in 16 bits, a decoder of half a billion parameters."""
    clock: Clock = field(default_factory=lambda: Clock(on_gpu=False))

    @property
    def on_gpu(self) -> bool:
        """Whether it is CUDA's."""
        return self.device.startswith("cuda")

    def spec(self, shape: Shape, positions: int) -> ArenaSpec:
        """The arena's terms for sessions of `positions` tokens."""
        return ArenaSpec(shape.layers, shape.kv_heads, shape.head_dim, positions, self.dtype, self.device)

    @contextmanager
    def arena(self, shape: Shape, positions: int, **options: Any) -> Iterator[Arena]:
        """An arena with the device's best pages, closed afterwards."""
        arena = Arena.open(self.spec(shape, positions), **options)
        try:
            yield arena
        finally:
            arena.close()

    def tidy(self) -> None:
        """What follows begins with the memory that this began with."""
        gc.collect()
        if self.on_gpu:
            import torch

            with suppress(RuntimeError):  # a device that failed says so again where it is used
                torch.cuda.empty_cache()

    def noise(self, *size: int) -> torch.Tensor:
        """Random numbers of the bed's kind."""
        import torch

        return torch.randn(*size, dtype=getattr(torch, self.dtype), device=self.device)

    def empty(self, *size: int) -> torch.Tensor:
        """As `noise`, not filled."""
        import torch

        return torch.empty(*size, dtype=getattr(torch, self.dtype), device=self.device)


def gpu_bed(device: str) -> Bed:
    """Shapes of Llama 3.2 1B and 3.1 8B in bfloat16."""
    return Bed(
        device,
        "bfloat16",
        (Shape("1b", 16, 8, 64, 32), Shape("8b", 32, 8, 128, 32)),
        (128, 1024, 8192, 32768),
        batches=30,
        cold_batches=5,
        fork_tokens=(2000, 8192, 32768),
        clock=Clock(on_gpu=True),
    )


def host_bed() -> Bed:
    """A shape of its own, small enough for any machine: the figures are not those of a GPU."""
    shape = Shape("small", 4, 2, 64, 8)
    return Bed("cpu", "float32", (shape,), (128, 1024), 10, 0, policy_tokens=1024, snapshot_tokens=2048, window=128)


class Arm(Protocol):
    """One way to append a token to all layers."""

    name: str
    tokens: int
    """The length that is measured."""
    moved_bytes: int
    """Read and written for one token."""

    def reset(self) -> None:
        """Back to that length."""

    def step(self) -> None:
        """Append one token."""


class Clock:
    """Wall time, and on a GPU time between CUDA events."""

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu

    def sync(self) -> None:
        """Wait for everything queued."""
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()

    def steps_for(self, arm: Arm) -> int:
        """Steps that make a batch."""
        wall_us, _ = self.batch(arm, 3)
        return max(1, min(_MOST_STEPS, int(_BATCH_US / wall_us)))

    def batch(self, arm: Arm, steps: int, warm_steps: int = 2) -> tuple[float, float | None]:
        """(wall, GPU) microseconds a step, behind steps that do not count; one sync at the end."""
        arm.reset()
        for _ in range(warm_steps):
            arm.step()
        arm.reset()
        return self.time(arm.step, steps)

    def time(self, work: Callable[[], object], times: int) -> tuple[float, float | None]:
        """(wall, GPU) microseconds of one `work`, of `times` back to back."""
        if not self._on_gpu:
            begun = time.perf_counter()
            for _ in range(times):
                work()
            return (time.perf_counter() - begun) * 1e6 / times, None
        import torch

        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        first.record()
        for _ in range(times):
            work()
        last.record()
        torch.cuda.synchronize()
        wall_us = (time.perf_counter() - begun) * 1e6 / times
        return wall_us, first.elapsed_time(last) * 1e3 / times

    def once(self, work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
        """(milliseconds from an idle device until `work` is done there too, what it returned)."""
        self.sync()
        begun = time.perf_counter()
        made = work(*arguments)
        self.sync()
        return (time.perf_counter() - begun) * 1e3, made
