"""Ours, eager and in a captured CUDA graph: what a replay costs, what an append takes from the host, and growth."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from app.bench.kv_bed import Bed, Shape
from app.histogram import quantiles

if TYPE_CHECKING:
    import torch

    from gpu.kv.session import Session

_REPLAYS = 1000
_NODES = 16
_ROUNDS = 20
_FIRST = 128
_COUNTED = 1000
_GROWTH_RUNS = 3
_TAIL = 200
"""The longest steps of a growth run that its row keeps: enough for the p99 of 10,000."""


class Token:
    """One token's keys and values, as each arm takes them: all are views of the same two tensors."""

    def __init__(self, bed: Bed, shape: Shape) -> None:
        self.keys = bed.noise(shape.layers, shape.kv_heads, shape.head_dim)
        self.values = bed.noise(shape.layers, shape.kv_heads, shape.head_dim)
        size = (1, shape.kv_heads, 1, shape.head_dim)
        self.pairs = [(k.view(size), v.view(size)) for k, v in zip(self.keys, self.values, strict=True)]
        self.row_bytes = 2 * self.keys.numel() * self.keys.element_size()

    def is_in(self, rows: torch.Tensor) -> bool:
        """Whether all `rows` of a session are this token's."""
        return bool((rows[:, :, 0] == self.keys).all()) and bool((rows[:, :, 1] == self.values).all())


class EagerAppend:
    """`Session.append`."""

    name = "ours_eager"

    def __init__(self, session: Session, token: Token, tokens: int) -> None:
        self.tokens = tokens
        self.moved_bytes = token.row_bytes * 2
        self._session = session
        self._keys, self._values = token.keys.unsqueeze(0), token.values.unsqueeze(0)

    def reset(self) -> None:
        to_length(self._session, self.tokens)

    def step(self) -> None:
        self._session.append(self._keys, self._values)


class GraphAppend:
    """One captured kernel for keys and values of all layers; the host only counts the token."""

    name = "ours_graph"

    def __init__(self, session: Session, token: Token, tokens: int, graph: Any = None, kernel: Any = None) -> None:
        """Captures where no `graph` is given. GpuError where the kernel cannot be had."""
        self.tokens = tokens
        self.moved_bytes = token.row_bytes * 2
        self._session = session
        self._token = token
        if graph is None:
            from gpu.kv.append_kernel import AppendKernel

            kernel = AppendKernel(session)
            graph = captured(session, lambda: kernel.launch(token.keys, token.values))
        self._kernel, self._graph = kernel, graph
        self.facts = {"way": kernel.way}
        """"torch" where no kernel could be loaded: then its twin was captured, and no figure is made of it."""

    def at(self, tokens: int) -> GraphAppend:
        """The same graph at another length."""
        return GraphAppend(self._session, self._token, tokens, self._graph, self._kernel)

    def reset(self) -> None:
        to_length(self._session, self.tokens)

    def step(self) -> None:
        self._session.extend(1, registers=False)
        self._graph.replay()


class IndexCopyGraph:
    """The same rows and registers with torch's own kernels: one `index_copy_` for all layers, in a graph."""

    name = "index_copy_graph"

    def __init__(self, session: Session, token: Token, tokens: int) -> None:
        import torch

        self.tokens = tokens
        self.moved_bytes = token.row_bytes * 2
        self._session = session
        new, buffer, registers = torch.stack((token.keys, token.values), 1)[None], session.buffer(), session.registers

        def write() -> None:
            buffer.index_copy_(0, registers[:1].long(), new)
            registers[:2].add_(1)

        self._graph = captured(session, write)
        self._captured = write  # the graph does not keep its tensors

    def reset(self) -> None:
        to_length(self._session, self.tokens)

    def step(self) -> None:
        self._session.extend(1, registers=False)
        self._graph.replay()


def to_length(session: Session, tokens: int) -> None:
    """Make the session `tokens` long; rows that come again hold whatever they held."""
    if session.length > tokens:
        session.truncate_to(tokens)
    elif session.length < tokens:
        session.extend(tokens - session.length)


def captured(session: Session, append: Callable[[], object], nodes: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of `nodes` calls of `append`, which was run once before."""
    import torch

    session.extend(1, registers=False)
    append()
    torch.cuda.synchronize()
    return graph_of(append, nodes)


def graph_of(work: Callable[[], object], nodes: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of `work`, which is ready to be captured, `nodes` times."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the watermark thread may go on mapping
        for _ in range(nodes):
            work()
    return graph


def replay_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """1,000 replays back to back: the graph of one append, and graphs with next to nothing in them, in turn."""
    for shape in bed.shapes:
        with bed.arena(shape, _FIRST + _REPLAYS * _NODES + 64) as arena:
            session = arena.session()
            to_length(session, _FIRST + _REPLAYS * _NODES + 32)
            to_length(session, 0)
            yield from _replays(bed, shape, session)


def _replays(bed: Bed, shape: Shape, session: Session) -> Iterator[dict[str, Any]]:
    from gpu.kv.append_kernel import AppendKernel

    token = Token(bed, shape)
    kernel = AppendKernel(session)

    def append() -> None:
        kernel.launch(token.keys, token.values)

    fill = _fill(bed)  # the graphs do not keep their tensors
    graphs = {
        "append": (captured(session, append), 1),
        f"append_x{_NODES}": (captured(session, append, _NODES), _NODES),
        "empty_fill": (graph_of(fill), 0),
    }
    try:
        memset = _memset(bed)
        graphs["empty_memset"] = (graph_of(memset), 0)
    except Exception as error:  # the bindings are another library: the other empty graph is enough
        remark = f"{type(error).__name__}: {error}"
        yield {"scene": "replay", "shape": shape.name, "arm": "empty_memset", "left_out": remark}
    rows = [
        {"scene": "replay", "shape": shape.name, "arm": name, "replays": _REPLAYS, "nodes": nodes or 1, "gpu_us": []}
        for name, (_, nodes) in graphs.items()
    ]
    is_exact = True
    for _ in range(_ROUNDS):
        for (graph, appended), row in zip(graphs.values(), rows, strict=True):
            to_length(session, _FIRST)
            session.extend(appended, registers=False)
            graph.replay()
            to_length(session, _FIRST)
            session.extend(appended * _REPLAYS, registers=False)
            session.rows()[_FIRST:].zero_()
            _, gpu_us = bed.clock.time(graph.replay, _REPLAYS)
            row["gpu_us"].append(round(gpu_us or 0.0, 4))
            if appended:
                session.check()
                is_exact = is_exact and token.is_in(session.rows()[_FIRST:])
    yield from ({**row, "way": kernel.way, "is_exact": is_exact} for row in rows)


def _memset(bed: Bed) -> Callable[[], object]:
    """A memset node of 4 bytes."""
    import torch
    from cuda.bindings import driver

    target = torch.zeros(1, dtype=torch.int32, device=bed.device)

    def work() -> None:
        code = driver.cuMemsetD32Async(target.data_ptr(), 0, 1, torch.cuda.current_stream().cuda_stream)[0]
        if int(code):
            raise RuntimeError(f"cuMemsetD32Async says {code.name}")

    return work


def _fill(bed: Bed) -> Callable[[], object]:
    """A kernel of torch's that writes 4 bytes."""
    import torch

    target = torch.zeros(1, dtype=torch.int32, device=bed.device)
    return lambda: target.fill_(1)


def count_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """1,000 appends while pages come: allocations and waits, counted by torch."""
    for make in (EagerAppend, GraphAppend):
        for shape in bed.shapes:
            with bed.arena(shape, 2 * _COUNTED) as arena:
                session = arena.session()
                arm = make(session, Token(bed, shape), 0)
                arm.step()
                bed.clock.sync()
                pages = arena.stats().pages_in_use
                facts = getattr(arm, "facts", {})
                row = {"scene": "counts", "shape": shape.name, "arm": arm.name, **facts, **_counted(arm.step)}
                bed.clock.sync()
                session.check()
                stats = arena.stats()
                yield {**row, "pages_mapped": stats.pages_in_use - pages, "outruns": stats.outruns}


def _counted(step: Callable[[], object]) -> dict[str, int]:
    import torch

    names = ("allocation.all.allocated", "num_alloc_retries")
    before = torch.cuda.memory_stats()
    syncs = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(_COUNTED):
            try:
                step()
            except RuntimeError:  # what the mode makes of a wait
                syncs += 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    after = torch.cuda.memory_stats()
    allocations, retries = (after[name] - before[name] for name in names)
    return {"tokens": _COUNTED, "syncs": syncs, "allocations": allocations, "alloc_retries": retries}


def growth_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """Steps of a captured graph on a session whose pages the watermark thread maps meanwhile, and on one that has all.

    A step: the host counts the token and launches one graph (the append kernel and 16 matrix products that read
    1 GiB of weights, as a decoder of half a billion parameters does), then waits for it. The larger shape: a page
    is full after 16 tokens.
    """
    shape = bed.shapes[-1]
    weights = bed.noise(*bed.weights)
    inputs, outputs = bed.noise(bed.weights[2], 8), bed.empty(bed.weights[1], 8)

    def read_weights() -> None:
        import torch

        for matrix in weights:
            torch.mm(matrix, inputs, out=outputs)

    read_weights()
    for run in range(_GROWTH_RUNS):
        arms = ("committed", "growing") if run % 2 == 0 else ("growing", "committed")
        for arm in arms:
            yield {"scene": "growth", "run": run, "shape": shape.name, **_growth(bed, shape, arm, read_weights)}


def _growth(bed: Bed, shape: Shape, arm: str, read_weights: Callable[[], None]) -> dict[str, Any]:
    from gpu.kv.append_kernel import AppendKernel

    token, warm, steps = Token(bed, shape), 50, bed.growth_steps
    with bed.arena(shape, steps + warm + 16, watermark="thread") as arena:
        session = arena.session()
        if arm == "committed":
            session.extend(steps + warm + 16)
            session.truncate_to(0)
        kernel = AppendKernel(session)

        def step() -> None:
            kernel.launch(token.keys, token.values)
            read_weights()

        graph = captured(session, step)
        _stepped_us(session, graph, warm)
        pages = arena.stats().pages_in_use
        times_us = _stepped_us(session, graph, steps)
        session.check()
        stats = arena.stats()
        is_exact = token.is_in(session.rows())
    tail = sorted(times_us, reverse=True)[:_TAIL]
    return {
        "arm": arm,
        "way": kernel.way,
        "steps": steps,
        "p50_us": round(quantiles(times_us).p50, 1),
        "tail_us": [round(value, 1) for value in tail],
        "pages_mapped": stats.pages_in_use - pages,
        "outruns": stats.outruns,
        "is_exact": is_exact,
    }


def _stepped_us(session: Session, graph: torch.cuda.CUDAGraph, steps: int) -> list[float]:
    """Wall microseconds of each step, from the host's count to the end on the device."""
    import torch

    stream = torch.cuda.current_stream()
    times_ns = [0] * steps
    gc.collect()
    gc.disable()  # a collection is not the arena's
    try:
        for number in range(steps):
            begun = time.perf_counter_ns()
            session.extend(1, registers=False)
            graph.replay()
            stream.synchronize()
            times_ns[number] = time.perf_counter_ns() - begun
    finally:
        gc.enable()
    return [value / 1000 for value in times_ns]


def tail_p99(row: Mapping[str, Any]) -> float:
    """The p99 of a growth run by nearest rank, from its longest steps alone."""
    return float(row["tail_us"][row["steps"] - math.ceil(0.99 * row["steps"])])
