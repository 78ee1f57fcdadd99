"""Ways to append one token's keys and values to the caches of all layers: ours and everybody else's.

All arms store the same numbers of the same type and run on the same stream; what they write lies ready on the
device. An arm whose library is not installed is left out, with a remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from app.bench.kv_bed import Arm, Bed, Shape
from app.bench.kv_graph import EagerAppend, GraphAppend, IndexCopyGraph, Token, to_length

if TYPE_CHECKING:
    import torch

    from gpu.kv.session import Session

    _Pairs = list[tuple[torch.Tensor, torch.Tensor]]
    """(keys, values) of each layer."""

_SLACK = 128
"""Rows behind the measured length: more than a batch has steps."""


def append_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """Every arm at every length of every shape; the arms of one length take turns, batch by batch."""
    for shape in bed.shapes:
        for tokens in bed.lengths:
            yield from _length_rows(bed, shape, tokens)
            bed.tidy()


def flat_rows(bed: Bed) -> Iterator[dict[str, Any]]:
    """Ours alone, at all lengths of one session in turn: whether an append costs the same at each."""
    for shape in bed.shapes:
        longest = max(bed.lengths) + _SLACK
        with bed.arena(shape, longest) as arena:
            yield from _flat_rows(bed, shape, arena.session())


def _flat_rows(bed: Bed, shape: Shape, session: Session) -> Iterator[dict[str, Any]]:
    session.extend(max(bed.lengths) + _SLACK)  # every page is there
    to_length(session, bed.lengths[0])
    token, place = Token(bed, shape), {"scene": "flat", "shape": shape.name}
    arms: list[Any] = [EagerAppend(session, token, tokens) for tokens in bed.lengths]
    if bed.on_gpu:
        graphs, remarks = _made([lambda: GraphAppend(session, token, bed.lengths[0])])
        yield from ({**place, **remark} for remark in remarks)
        arms += [graph.at(tokens) for graph in graphs for tokens in bed.lengths]
    yield from _turns(bed, arms, place, bed.batches)
    session.check()


def _length_rows(bed: Bed, shape: Shape, tokens: int) -> Iterator[dict[str, Any]]:
    place = {"scene": "append", "shape": shape.name, "tokens": tokens}
    with bed.arena(shape, tokens + _SLACK) as arena:
        session = arena.session()
        session.extend(tokens + _SLACK)  # every page is there
        to_length(session, tokens)
        token = Token(bed, shape)
        arms, remarks = _made(_makers(bed, shape, tokens, session, token))
        yield from ({**place, **remark} for remark in remarks)
        cold = [CatCold(arm) for arm in arms if isinstance(arm, Cat)] if bed.cold_batches else []
        yield from _turns(bed, [*cold, *arms], place, bed.batches)
        session.check()


def _makers(bed: Bed, shape: Shape, tokens: int, session: Session, token: Token) -> list[Callable[[], Arm]]:
    buffers = _buffers(bed, shape, tokens + _SLACK)
    made: list[Callable[[], Arm]] = [
        lambda: Cat(bed, shape, tokens, token),
        lambda: Slices(buffers, tokens, token),
        lambda: IndexCopy(buffers, tokens, token),
        lambda: Static(shape, tokens, token),
        lambda: Sliding(shape, tokens, token),
        lambda: EagerAppend(session, token, tokens),
    ]
    if bed.on_gpu:
        made += [
            lambda: OmniVram(buffers, tokens, token),
            lambda: IndexCopyGraph(session, token, tokens),
            lambda: GraphAppend(session, token, tokens),
        ]
    return made


def _made(makers: list[Callable[[], Arm]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """(arms, remarks on those that could not be made)."""
    arms: list[Any] = []
    remarks = []
    for make in makers:
        try:
            arms.append(make())
        except Exception as error:  # whatever a library or a driver has against it: the other arms go on
            remarks.append({"left_out": f"{type(error).__name__}: {error}"})
    return arms, remarks


def _turns(bed: Bed, arms: list[Any], place: dict[str, Any], batches: int) -> Iterator[dict[str, Any]]:
    """One row an arm; in each round every arm has one batch, the cold ones only in the first rounds."""
    rows = []
    for arm in arms:
        is_cold = isinstance(arm, CatCold)
        steps = 1 if is_cold else bed.clock.steps_for(arm)
        row = {**place, "arm": arm.name, "tokens": arm.tokens, "steps": steps, "moved_bytes": arm.moved_bytes}
        rows.append({**row, **getattr(arm, "facts", {}), "wall_us": [], "gpu_us": []})
    for number in range(batches):
        for arm, row in zip(arms, rows, strict=True):
            is_cold = isinstance(arm, CatCold)
            if is_cold and number >= bed.cold_batches:
                continue
            wall_us, gpu_us = bed.clock.batch(arm, row["steps"], warm_steps=0 if is_cold else 2)
            row["wall_us"].append(round(wall_us, 3))
            if gpu_us is not None:
                row["gpu_us"].append(round(gpu_us, 3))
    yield from rows


class Cat:
    """`torch.cat` for each tensor, as transformers' DynamicCache does; the allocator has seen these sizes."""

    name = "cat_warm"

    def __init__(self, bed: Bed, shape: Shape, tokens: int, token: Token) -> None:
        size = (1, shape.kv_heads, tokens, shape.head_dim)
        self.tokens = tokens
        self.moved_bytes = token.row_bytes * (tokens + 1) * 2
        self._token = token
        self._base = [(bed.noise(*size), bed.noise(*size)) for _ in range(shape.layers)]
        self._now = list(self._base)

    def reset(self) -> None:
        self._now = list(self._base)

    def step(self) -> None:
        import torch

        now = self._now
        for layer, (key, value) in enumerate(self._token.pairs):
            keys, values = now[layer]
            now[layer] = (torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2))


class CatCold:
    """The same with nothing cached: each tensor's memory comes from the driver."""

    name = "cat_cold"

    def __init__(self, warm: Cat) -> None:
        self.tokens = warm.tokens
        self.moved_bytes = warm.moved_bytes
        self.step = warm.step
        self._warm = warm

    def reset(self) -> None:
        import torch

        self._warm.reset()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _buffers(bed: Bed, shape: Shape, rows: int) -> _Pairs:
    """Head-major, as transformers has them."""
    keys, values = (bed.empty(shape.layers, 1, shape.kv_heads, rows, shape.head_dim) for _ in range(2))
    return list(zip(keys.unbind(0), values.unbind(0), strict=True))


class _Preallocated:
    """Writes into buffers that hold all tokens."""

    def __init__(self, buffers: _Pairs, tokens: int, token: Token) -> None:
        self.tokens = tokens
        self.moved_bytes = token.row_bytes * 2
        self._buffers = buffers
        self._token = token
        self._position = tokens

    def reset(self) -> None:
        self._position = self.tokens


class Slices(_Preallocated):
    """A slice assignment for each tensor of each layer."""

    name = "slices"

    def step(self) -> None:
        position = self._position
        for (keys, values), (key, value) in zip(self._buffers, self._token.pairs, strict=True):
            keys.narrow(2, position, 1).copy_(key)
            values.narrow(2, position, 1).copy_(value)
        self._position = position + 1


class IndexCopy(_Preallocated):
    """`index_copy_` for each tensor of each layer, the position on the device."""

    name = "index_copy"

    def __init__(self, buffers: _Pairs, tokens: int, token: Token) -> None:
        import torch

        super().__init__(buffers, tokens, token)
        self._index = torch.full((1,), tokens, dtype=torch.int64, device=buffers[0][0].device)

    def reset(self) -> None:
        self._index.fill_(self.tokens)

    def step(self) -> None:
        for (keys, values), (key, value) in zip(self._buffers, self._token.pairs, strict=True):
            keys.index_copy_(2, self._index, key)
            values.index_copy_(2, self._index, value)
        self._index.add_(1)


class OmniVram(_Preallocated):
    """Omni-VRAM's `append_to_kv_cache`: one tensor a call, position read back from the device, device sync."""

    name = "omni_vram"

    def __init__(self, buffers: _Pairs, tokens: int, token: Token) -> None:
        import torch

        super().__init__(buffers, tokens, token)
        size, device = (2 * len(buffers),), buffers[0][0].device
        self._counters = torch.full(size, tokens, dtype=torch.int32, device=device).split(1)

    def reset(self) -> None:
        for counter in self._counters:
            counter.fill_(self.tokens)

    def step(self) -> None:
        counters = iter(self._counters)
        for buffers, parts in zip(self._buffers, self._token.pairs, strict=True):
            for buffer, part in zip(buffers, parts, strict=True):
                self._call(buffer, part, next(counters))

    def _call(self, buffer: torch.Tensor, part: torch.Tensor, counter: torch.Tensor) -> None:
        import torch

        position = int(counter.item())
        buffer[:, :, position : position + 1].copy_(part)
        counter.add_(1)
        torch.cuda.synchronize()


class Static:
    """transformers' StaticLayer: `index_copy_` at a position that it computes on the device."""

    name = "static_layer"

    def __init__(self, shape: Shape, tokens: int, token: Token) -> None:
        from transformers.cache_utils import StaticLayer

        self.tokens = tokens
        self.moved_bytes = token.row_bytes * 2
        self._token = token
        self._layers = [StaticLayer(max_cache_len=tokens + _SLACK) for _ in range(shape.layers)]
        self.step()  # it takes its memory at the first token

    def reset(self) -> None:
        for layer in self._layers:
            layer.cumulative_length.fill_(self.tokens)

    def step(self) -> None:
        for layer, (key, value) in zip(self._layers, self._token.pairs, strict=True):
            layer.update(key, value)


class Sliding:
    """transformers' StaticSlidingWindowLayer with a full window of the measured length: it rolls all of it."""

    name = "sliding_layer"

    def __init__(self, shape: Shape, tokens: int, token: Token) -> None:
        from transformers.cache_utils import StaticSlidingWindowLayer

        self.tokens = tokens
        self.moved_bytes = token.row_bytes * tokens * 4
        self._token = token
        self._layers = [
            StaticSlidingWindowLayer(max_cache_len=2 * tokens, sliding_window=tokens) for _ in range(shape.layers)
        ]
        self.step()
        self.reset()

    def reset(self) -> None:
        for layer in self._layers:
            layer.cumulative_length_int = self.tokens

    def step(self) -> None:
        for layer, (key, value) in zip(self._layers, self._token.pairs, strict=True):
            layer.update(key, value)
