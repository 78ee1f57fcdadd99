"""The arithmetic against the real things: tensors that the decoder holds, and every allocation that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu.memory.needs import (
    PAGE_BYTES,
    PRECISIONS_ON,
    PREFILL_TOKENS,
    allocated_bytes,
    kv_bytes,
    kv_page_bytes,
    loading_bytes,
    row_bytes,
    weights_bytes,
    workspace_bytes,
)
from gpu.memory.shapes import KNOWN_SHAPES, ModelShape

torch = pytest.importorskip("torch", reason="the decoder is torch")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.spec import BodySpec, body_for  # noqa: E402
from gpu.llm import prompts  # noqa: E402
from gpu.llm.config import FAMILIES, LlamaConfig  # noqa: E402
from gpu.llm.weights.prepare import prepare  # noqa: E402
from gpu.llm.weights.raw import RawModel, expected_shape  # noqa: E402

GROUPED = ModelShape("grouped", "llama", 2048, 576, 1536, 2, 9, 3, 64, True, 8192)
SINGLE = ModelShape("single", "llama", 4000, 256, 1024, 2, 4, 4, 64, False, 8192)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that `work` held at once, of what it allocated itself; from the profiler's list of allocations."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        work()
    held = most = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def spec_of(shape: ModelShape, precision: str, positions: int, kv_dtype: Any = "auto") -> ArenaSpec:
    """What the decoder opens an arena for."""
    dtype = "bfloat16" if precision == "bf16" else "float32"
    sizes = (shape.layers, shape.kv_heads, shape.head_dim)
    return ArenaSpec(*sizes, positions, dtype, body=body_for(kv_dtype))


def test_published_parameter_counts() -> None:
    millions = {shape.name: round(shape.parameters / 1e6, 1) for shape in KNOWN_SHAPES}
    assert millions == {
        "smollm2-135m": 134.5, "smollm2-360m": 361.8, "smollm2-1.7b": 1711.4, "llama-3.2-1b": 1235.8,
        "llama-3.2-3b": 3212.7, "llama-3.1-8b": 8030.3, "qwen2.5-0.5b": 494.0, "qwen2.5-7b": 7615.6,
    }  # fmt: skip


@pytest.mark.parametrize("shape", [GROUPED, SINGLE], ids=lambda shape: shape.name)
@pytest.mark.parametrize("precision", PRECISIONS_ON["cpu"])
def test_weights_are_what_the_decoder_holds(decoder_of: Any, shape: ModelShape, precision: Any) -> None:
    decoder = decoder_of(shape, precision, 1000)
    # At int8 the decoder's own figure counts norms that it has folded away: some kilobytes.
    assert weights_bytes(shape, precision, 1000, "cpu") == pytest.approx(decoder.memory_bytes(), rel=1.5e-3)
    if precision != "int8":
        assert weights_bytes(shape, precision, 1000, "cpu") == decoder.memory_bytes()


@pytest.mark.parametrize("shape", [GROUPED, SINGLE], ids=lambda shape: shape.name)
@pytest.mark.parametrize("precision", PRECISIONS_ON["cpu"])
@pytest.mark.parametrize("positions", [256, 3000])
def test_workspace_is_what_a_forward_pass_allocates(
    decoder_of: Any, shape: ModelShape, precision: Any, positions: int
) -> None:
    """Never less than measured, and at most a fifth more."""
    torch.set_num_threads(1)
    decoder = decoder_of(shape, precision, positions)
    dtype = str(decoder.dtype).removeprefix("torch.")
    session = Arena.open(ArenaSpec(shape.layers, shape.kv_heads, shape.head_dim, positions, dtype)).session()
    session.extend(positions - PREFILL_TOKENS)
    ids = list(range(PREFILL_TOKENS))
    measured = peak_bytes(lambda: decoder.logits(decoder.forward(ids, session)[-1:]))
    assert measured <= workspace_bytes(shape, precision, positions, "cpu") <= 1.2 * measured


def test_the_longest_chunk_is_the_models() -> None:
    assert PREFILL_TOKENS == prompts._CHUNK_TOKENS


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_row_is_the_arenas(precision: Any, kind: Any) -> None:
    page = kv_page_bytes(GROUPED, precision, kind)
    arena = Arena.open(spec_of(GROUPED, precision, 700), page_bytes=page)
    held = arena.session().memory_bytes()
    arena.close()
    assert held - page < 700 * row_bytes(GROUPED, precision) <= held
    assert kv_bytes(GROUPED, precision, 1, 700, kind=kind) == held + 2 * page
    assert kv_bytes(GROUPED, precision, 3, 700, kind=kind) == 3 * (held + 2 * page)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("shape", KNOWN_SHAPES, ids=lambda shape: shape.name)
def test_a_page_is_the_arenas(shape: ModelShape, precision: Any) -> None:
    arena = Arena.open(spec_of(shape, precision, 700))
    assert arena.backend.page_bytes == kv_page_bytes(shape, precision, "cpu")
    assert not kv_page_bytes(shape, precision, "cuda") % PAGE_BYTES
    arena.close()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("positions", [300, 4096])
def test_quantised_sessions_and_their_workspace_are_the_arenas(precision: Any, kv_dtype: Any, positions: int) -> None:
    arena = Arena.open(spec_of(GROUPED, precision, positions, kv_dtype))
    empty, page = arena.memory_bytes(), arena.backend.page_bytes
    session = arena.session()
    own = session.pager.range.pages
    held = arena.memory_bytes() - empty
    assert held + (2 * own + 2) * page == kv_bytes(GROUPED, precision, 1, positions, kv_dtype, "cpu")
    plain = workspace_bytes(GROUPED, precision, positions, "cpu")
    assert workspace_bytes(GROUPED, precision, positions, "cpu", kv_dtype=kv_dtype) == plain + empty
    arena.close()


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("persona", [100, 300, 600])
@pytest.mark.parametrize("positions", [1024, 2048, 4096])
def test_the_arena_keeps_to_its_plan(positions: int, persona: int, kv_dtype: Any) -> None:
    """A persona kept as a prefix, a fork for a snapshot all the time, every position written: nobody is refused."""
    planned = kv_bytes(GROUPED, "bf16", 2, positions, kv_dtype, "cpu")
    arena, most = Arena.open(spec_of(GROUPED, "bf16", positions, kv_dtype), planned), 0
    keys = torch.zeros(100, GROUPED.layers, GROUPED.kv_heads, GROUPED.head_dim, dtype=torch.bfloat16)

    def append(session: Session, count: int) -> None:
        for begin in range(0, count, len(keys)):
            part = keys[: min(len(keys), count - begin)]
            session.append(part, part)

    sessions = [arena.session() for _ in range(2)]
    for number, session in enumerate(sessions):
        append(session, persona)
        arena.prefixes.add(range(number, number + persona), session)
    while sessions[0].position < positions:
        forks = [session.fork() for session in sessions]
        for session in sessions:
            append(session, min(300, positions - session.position))
        most = max(most, arena.stats().pages_in_use * arena.backend.page_bytes)
        for fork in forks:
            fork.close()
    assert arena.stats().prefixes == 2
    assert 0.7 * planned < most <= planned
    assert kv_dtype != "auto" or most == planned
    arena.check()
    arena.close()


@pytest.mark.parametrize("positions", [3000])
def test_the_pass_over_a_quantised_session_keeps_to_its_workspace(decoder_of: Any, positions: int) -> None:
    torch.set_num_threads(1)
    decoder = decoder_of(GROUPED, "bf16", positions)
    sizes = (GROUPED.layers, GROUPED.kv_heads, GROUPED.head_dim)
    arena = Arena.open(ArenaSpec(*sizes, positions, "bfloat16", body=BodySpec("int8")))
    session = arena.session()
    for _ in range((positions - PREFILL_TOKENS) // PREFILL_TOKENS):
        session.extend(PREFILL_TOKENS)
    room = arena.memory_bytes() - session.memory_bytes()
    measured = room + peak_bytes(lambda: decoder.logits(decoder.forward(list(range(PREFILL_TOKENS)), session)[-1:]))
    assert measured <= workspace_bytes(GROUPED, "bf16", positions, "cpu", kv_dtype="int8") <= 1.3 * measured


@pytest.mark.parametrize("shape", [GROUPED, SINGLE], ids=lambda shape: shape.name)
@pytest.mark.parametrize("precision", PRECISIONS_ON["cpu"])
def test_loading_is_what_converting_allocates(shape: ModelShape, precision: Any) -> None:
    """Beside the tensors that are read from the file, which are counted here as they are allocated."""
    names = ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim")
    config = LlamaConfig(FAMILIES[0], *(getattr(shape, name) for name in names), rope_theta=1e4, rms_eps=1e-5,
                         tied_embeddings=shape.tied_embeddings, max_positions=8192)  # fmt: skip
    raw = RawModel(config, "{}", None, "", "", lambda name, layer: torch.ones(expected_shape(config, name)))
    kept: list[Any] = []
    measured = peak_bytes(lambda: kept.append(prepare(raw, precision)))
    assert 0.97 * measured <= loading_bytes(shape, precision) <= 1.4 * measured


def test_small_tensors_fill_blocks_of_two_mebibytes() -> None:
    mib = 1 << 20
    assert allocated_bytes([3 * mib + 1]) == (3 * mib + 512, 0)
    assert allocated_bytes([700 * 1024] * 2) == (0, 2 * mib)
    assert allocated_bytes([700 * 1024] * 3) == (0, 4 * mib)  # two of them fit into a block
    assert allocated_bytes([]) == (0, 0)
