"""Pages and rows: what an endless session's ring takes, for every model that we know."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec
from gpu.kv.pages_host import GRANULARITY_BYTES
from gpu.kv.spec import page_bytes_for
from gpu.kv.window import WindowSpec
from gpu.memory.shapes import KNOWN_SHAPES, ModelShape, known_shape

GPU_GRANULARITY_BYTES = 2 << 20
WINDOWS = [512, 700, 1024, 2048, 4096]
each_shape = pytest.mark.parametrize("shape", KNOWN_SHAPES, ids=lambda shape: shape.name)
each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
each_device = pytest.mark.parametrize("granularity", [GRANULARITY_BYTES, GPU_GRANULARITY_BYTES], ids=["host", "gpu"])


def spec_of(shape: ModelShape, dtype: str) -> ArenaSpec:
    return ArenaSpec(shape.layers, shape.kv_heads, shape.head_dim, 4096, dtype)


def ring_share(spec: ArenaSpec, window: int, granularity: int) -> float:
    """Rows of a ring over what its window needs."""
    shape, page_bytes = WindowSpec(window=window), page_bytes_for(spec.row_bytes, granularity)
    rows = shape.ring_rows(spec, page_bytes)
    assert not rows * spec.row_bytes % page_bytes
    return rows / (shape.sinks + window + shape.chunk - 1)


@each_device
@each_dtype
@each_shape
def test_a_page_is_160_to_320_tokens_or_the_smallest(shape: ModelShape, dtype: str, granularity: int) -> None:
    row_bytes = spec_of(shape, dtype).row_bytes
    size = page_bytes_for(row_bytes, granularity)
    assert not size % granularity
    assert 160 * row_bytes <= size <= 320 * row_bytes
    assert -(-2000 * row_bytes // size) <= 16  # of a fork at 2,000 tokens


@pytest.mark.parametrize("window", WINDOWS)
@each_dtype
@pytest.mark.parametrize(
    ("shape", "granularity"),
    [
        pytest.param(shape, granularity, id=f"{shape.name}-{granularity}")
        for shape in KNOWN_SHAPES
        for granularity in (GRANULARITY_BYTES, GPU_GRANULARITY_BYTES)
        if (shape.name, granularity) != ("smollm2-135m", GPU_GRANULARITY_BYTES)  # the next test
    ],
)
def test_a_ring_takes_little_more_than_its_window(shape: ModelShape, dtype: str, granularity: int, window: int) -> None:
    assert ring_share(spec_of(shape, dtype), window, granularity) <= 1.5


@pytest.mark.parametrize("window", WINDOWS)
@each_dtype
def test_two_spare_layers_let_the_smallest_models_rows_meet_a_gpus_pages(dtype: str, window: int) -> None:
    """As docs/arena.md says; rows of 45 x 512 bytes need 45 pages, whatever their size."""
    shape = known_shape("smollm2-135m")
    assert shape is not None
    spec = spec_of(shape, dtype)
    assert spec.row_bytes % (45 * 512) == 0
    assert ring_share(spec, 512, GPU_GRANULARITY_BYTES) > 2
    assert ring_share(replace(spec, layers=32), window, GPU_GRANULARITY_BYTES) <= 1.5


@pytest.mark.parametrize("window", [64, 512])
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b"])
def test_an_endless_session_stops_growing_there(name: str, window: int) -> None:
    shape = known_shape(name)
    assert shape is not None
    arena = Arena.open(spec_of(shape, "float32"))
    session = arena.session(window=WindowSpec(window=window))
    for _ in range(20):
        session.extend(200)
    size, needed = arena.backend.page_bytes, 4 + window + 255
    store = 4 + 64 + 16  # rows: the sinks and what a rollback needs
    assert session.pager.charged_pages * size < (needed + store) * arena.spec.row_bytes + 3 * size
    arena.check()
    arena.close()


def test_rows_of_no_size_that_a_page_divides_get_the_smallest_page() -> None:
    assert page_bytes_for(1, 4096) == 4096
    assert page_bytes_for(4096, 4096) == 160 * 4096
    assert page_bytes_for(4096 * 5000 + 1, 4096) % 4096 == 0
