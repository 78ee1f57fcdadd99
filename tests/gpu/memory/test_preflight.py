"""Verdicts on cards of 8 to 24 GiB, added up by hand; laws that hold for every plan; fixes that really fix."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.errors import GpuError
from gpu.memory.fixes import Switches, fixes, require_fit
from gpu.memory.places import Machine
from gpu.memory.preflight import (
    MemoryPlanError,
    PeakKey,
    Request,
    StageNeed,
    context_key,
    most_sessions,
    plan,
    workspace_key,
)
from gpu.memory.shapes import KNOWN_SHAPES, ModelShape, known_shape

GIB = 1 << 30
MIB = 1 << 20
MachineOf = Callable[..., Machine]


def shape(name: str) -> ModelShape:
    found = known_shape(name)
    assert found is not None
    return found


# card, held by others, model, sessions, window, and by hand in GiB: weights (parameters x 2 bytes), arena
# (tokens x layers x 2 x KV heads x head size x 2 bytes), context 0.625, reserve (a 32nd of the card); fits?
BY_HAND = [
    (8, 0.6, "llama-3.2-1b", 1, 8192, 2.302, 0.250, True),
    (8, 0.6, "llama-3.2-1b", 4, 16384, 2.302, 2.000, True),
    (8, 0.6, "llama-3.2-1b", 8, 32768, 2.302, 8.000, False),
    (8, 0.6, "llama-3.2-3b", 1, 2048, 5.984, 0.219, True),
    (8, 0.6, "llama-3.2-3b", 1, 8192, 5.984, 0.875, False),
    (8, 0.6, "qwen2.5-7b", 1, 2048, 14.185, 0.109, False),
    (8, 0.6, "smollm2-1.7b", 1, 8192, 3.188, 1.500, True),
    (8, 0.6, "smollm2-1.7b", 3, 8192, 3.188, 4.500, False),
    (12, 0.6, "llama-3.2-3b", 4, 8192, 5.984, 3.500, True),
    (12, 0.6, "llama-3.2-3b", 8, 8192, 5.984, 7.000, False),
    (12, 0.6, "llama-3.1-8b", 1, 2048, 14.957, 0.250, False),
    (16, 0.0, "qwen2.5-7b", 1, 8192, 14.185, 0.438, True),
    (16, 0.6, "qwen2.5-7b", 1, 8192, 14.185, 0.438, False),
    (16, 0.6, "smollm2-1.7b", 6, 8192, 3.188, 9.000, True),
    (24, 0.6, "llama-3.1-8b", 4, 8192, 14.957, 4.000, True),
    (24, 0.6, "llama-3.1-8b", 8, 8192, 14.957, 8.000, False),
    (24, 0.6, "qwen2.5-7b", 4, 32768, 14.185, 7.000, True),
    (24, 0.6, "qwen2.5-0.5b", 64, 4096, 0.920, 3.000, True),
    (24, 0.6, "smollm2-135m", 100, 8192, 0.251, 17.578, True),
    (24, 10.0, "llama-3.1-8b", 1, 8192, 14.957, 1.000, False),  # free memory counts, not the card's size
]


@pytest.mark.parametrize(("card", "held", "model", "sessions", "window", "weights", "arena", "fits"), BY_HAND)
def test_verdicts_by_hand(machine_of: MachineOf, card: float, held: float, model: str, sessions: int, window: int,
                          weights: float, arena: float, fits: bool) -> None:  # fmt: skip
    made = plan(Request(shape(model), "bf16", "cuda", sessions, window), machine_of(card, held))
    ledger = made.ledgers[0]
    assert ledger.row("weights").size_bytes == pytest.approx(weights * GIB, abs=0.03 * GIB)
    # Each session to whole pages of 160 to 320 tokens, and two more for a prefix and a snapshot.
    rounded, token = ledger.row("kv arena").size_bytes / GIB - arena, arena / (sessions * window)
    assert sessions * 2 * 160 * token - 0.002 < rounded < sessions * 3 * (320 * token + 2 / 1024) + 0.002
    assert made.arena_bytes == ledger.row("kv arena").size_bytes
    assert ledger.row("reserve").size_bytes == card / 32 * GIB
    by_hand = weights + arena + rounded + 0.625 + card / 32
    assert 0.0 < ledger.needs_bytes / GIB - by_hand < 0.3  # the workspace and the rotary tables
    assert made.fits is fits
    assert ledger.place.others_bytes == pytest.approx(held * GIB, abs=2)
    assert ledger.short_bytes == max(0, ledger.needs_bytes - ledger.place.free_bytes)


requests = st.builds(
    Request,
    shape=st.sampled_from(KNOWN_SHAPES),
    precision=st.just("bf16"),
    kind=st.sampled_from(["cuda", "cpu"]),
    sessions=st.integers(1, 64),
    context_tokens=st.integers(1, 131072),
    kv_dtype=st.sampled_from(["auto", "int8", "fp8"]),
)


@given(request=requests, more=st.integers(1, 5000), card=st.floats(0.5, 140))
def test_more_never_needs_less(machine_of: MachineOf, request: Request, more: int, card: float) -> None:
    machine = machine_of(card)
    ledger = plan(request, machine).ledgers[0]
    for changed, row in (
        (replace(request, sessions=request.sessions + 1), "kv arena"),
        (replace(request, context_tokens=request.context_tokens + more), ""),
        (replace(request, precision="fp32"), "weights"),
        (replace(request, shape=replace(request.shape, layers=request.shape.layers + 1)), "weights"),
    ):
        larger = plan(changed, machine).ledgers[0]
        assert not row or larger.row(row).size_bytes > ledger.row(row).size_bytes
        if row != "weights":
            assert larger.needs_bytes >= ledger.needs_bytes  # equal only in RAM, where converting may be the peak
            assert request.kind == "cpu" or not row or larger.needs_bytes > ledger.needs_bytes
        elif request.kind == "cuda":  # rows of another size may fill their pages better
            needs = [each.needs_bytes - each.row("kv arena").size_bytes for each in (ledger, larger)]
            assert needs[1] > needs[0]


@given(request=requests, card=st.floats(1, 100), held=st.floats(0, 1), host=st.floats(1, 200))
def test_more_free_memory_never_turns_a_yes_into_a_no(
    machine_of: MachineOf, request: Request, card: float, held: float, host: float
) -> None:
    worse, better = machine_of(card, held, host), machine_of(card, held / 2, host)
    assert plan(request, worse).fits <= plan(request, better).fits
    assert plan(request, worse).short_bytes >= plan(request, better).short_bytes


@given(request=requests, card=st.floats(0.1, 30), held=st.floats(0, 1), host=st.floats(0.1, 60))
def test_every_refusal_has_three_fixes_that_make_it_fit(
    machine_of: MachineOf, request: Request, card: float, held: float, host: float
) -> None:
    made = plan(request, machine_of(card, min(held, card * 0.9), host))
    ways = fixes(made, KNOWN_SHAPES)
    if made.fits:
        assert ways == []
        return
    least = Request(shape("smollm2-135m"), "int8", "cpu", 1, 256)
    assert len(ways) == len({way.text for way in ways})
    assert len(ways) == 3 or (not plan(least, made.machine).fits and len(ways) > 0)
    for way in ways:
        again = plan(way.plan.request, way.plan.machine)  # not what the fix says of itself: planned anew
        assert again.fits, way.text
        assert way.frees_bytes > 0
        assert way.plan.machine == made.machine or "memory" in way.text.lower() or "lose what" in way.text


def test_fixes_are_the_mildest_first_and_name_the_switch(machine_of: MachineOf) -> None:
    made = plan(Request(shape("smollm2-1.7b"), "bf16", "cuda", 4, 8192), machine_of(8, 0.6))
    texts = [way.text for way in fixes(made, KNOWN_SHAPES)]
    assert texts[0].startswith("A smaller window: --set llm.context_tokens=")
    assert texts[1] == "Fewer sessions: --sessions 2"
    assert "--set llm.device=cpu" in texts[2]
    window = int(texts[0].rpartition("=")[2])
    assert not plan(replace(made.request, context_tokens=window + 256), made.machine).fits  # the largest that does


def test_wide_weights_are_offered_narrower(machine_of: MachineOf) -> None:
    made = plan(Request(shape("llama-3.2-3b"), "fp32", "cuda", 1, 2048), machine_of(8))
    (narrow,) = (way for way in fixes(made, KNOWN_SHAPES) if "llm.precision=bf16" in way.text)
    assert narrow.frees_bytes == pytest.approx(6.2 * GIB, rel=0.02)  # half of 3213 million x 4, and of the arena
    on_cpu = plan(Request(shape("llama-3.1-8b"), "bf16", "cpu", 1, 2048), machine_of(host_gib=14))
    assert any("llm.precision=int8" in way.text for way in fixes(on_cpu, KNOWN_SHAPES))


def test_a_long_conversation_is_offered_in_eight_bits(machine_of: MachineOf) -> None:
    request, machine = Request(shape("llama-3.2-3b"), "bf16", "cuda", 1, 32768), machine_of(9.5)
    made = plan(request, machine)
    (way,) = (way for way in fixes(made, KNOWN_SHAPES) if "llm.kv_dtype=int8" in way.text)
    arenas = [each.ledgers[0].row("kv arena") for each in (made, way.plan)]
    assert arenas[1].size_bytes < 0.63 * arenas[0].size_bytes
    assert arenas[1].origin.startswith("1 x 32768 tokens as int8")
    again = plan(replace(request, kv_dtype="int8", context_tokens=131072), machine)
    assert not any("kv_dtype" in other.text for other in fixes(again, KNOWN_SHAPES))


def test_without_anything_smaller_it_says_what_to_close(machine_of: MachineOf) -> None:
    """Nothing but memory helps, and others hold enough of it."""
    made = plan(Request(shape("smollm2-135m"), "bf16", "cuda", 1, 256), machine_of(8, 7.6, host_gib=0.8))
    ways = fixes(made)
    assert len(ways) == 2  # there is neither a smaller model nor a smaller window
    assert "llm.device=cpu" in ways[0].text  # gives most up, so least must be closed
    assert "other programs" in ways[0].text
    assert ways[1].text.startswith("Close what holds")
    assert "process 7: a game" in ways[1].text


def test_where_nothing_is_enough_it_says_what_comes_nearest_and_the_rest(machine_of: MachineOf) -> None:
    """A starter set on a machine that is far too small: one session already, weights as small as they get."""
    made = plan(Request(shape("smollm2-135m"), "int8", "cpu", 1, 2048), machine_of(host_gib=0.3))
    ways = fixes(made, [shape("smollm2-135m")], switches=Switches(least_tokens=1024))
    texts = [way.text for way in ways]
    assert any(text.startswith("A smaller window: --set llm.context_tokens=1024; and ") for text in texts)
    assert texts[-1].startswith(("More memory: ", "Close what holds"))
    assert len(ways) == len(set(texts)) >= 2
    assert not any("--sessions" in text for text in texts)
    missing = [way.plan.request != made.request and plan(way.plan.request, made.machine).short_bytes for way in ways]
    assert all(short < made.short_bytes for short in missing)


def test_no_window_is_proposed_that_the_configuration_refuses(machine_of: MachineOf) -> None:
    made = plan(Request(shape("smollm2-1.7b"), "bf16", "cuda", 1, 8192), machine_of(4.9))
    (window,) = (way.plan.request.context_tokens for way in fixes(made) if "A smaller window" in way.text[:16])
    least = Switches(least_tokens=window + 1, window="--context ")
    assert not any(way.text.startswith("A smaller window") and way.plan.machine == made.machine
                   for way in fixes(made, switches=least))  # fmt: skip
    exact = Switches(least_tokens=window, window="--context ")
    assert f"A smaller window: --context {window}" in [way.text for way in fixes(made, switches=exact)]


def test_refusal_is_an_error_with_shortfall_and_fixes(machine_of: MachineOf) -> None:
    made = plan(Request(shape("llama-3.1-8b"), "bf16", "cuda", 1, 8192), machine_of(12, 1.0))
    with pytest.raises(MemoryPlanError, match=r"GPU 0 \(Card\) has 11.00 GiB free, 17.0\d GiB are needed") as caught:
        require_fit(made, KNOWN_SHAPES)
    assert caught.value.exit_code == 3
    assert caught.value.short_bytes == made.short_bytes > 6 * GIB
    assert caught.value.fix.count("; or ") == 2
    roomy = plan(made.request, machine_of(24))
    assert require_fit(roomy) is roomy


def test_the_cpu_path_counts_program_and_speech_models_too(machine_of: MachineOf) -> None:
    stages = (StageNeed("asr", 88 * MIB, "estimate"), StageNeed("tts", 126 * MIB, "estimate"))
    request = Request(shape("smollm2-135m"), "int8", "cpu", 1, 1024, stages=stages)
    (ledger,) = plan(request, machine_of(host_gib=4)).ledgers
    names = [row.name for row in ledger.rows]
    assert names == ["program", "weights", "kv arena", "workspace", "loading", "asr", "tts", "reserve"]
    assert ledger.row("weights").size_bytes == pytest.approx(134.5e6 + 1024 * 64 * 4 * 2, rel=0.01)
    assert ledger.row("kv arena").size_bytes == (7 + 2) * 160 * 46080  # 1024 rows of 45 KiB, in pages of 160
    assert plan(request, machine_of(host_gib=4)).fits
    assert not plan(request, machine_of(host_gib=1)).fits


def test_ram_refuses_what_the_card_would_take(machine_of: MachineOf) -> None:
    """16 GB of weights pass through RAM on their way to the card."""
    made = plan(Request(shape("llama-3.1-8b"), "bf16", "cuda", 1, 2048), machine_of(24, host_gib=8))
    gpu, ram = made.ledgers
    assert gpu.short_bytes == 0 < ram.short_bytes
    assert not made.fits


def test_peaks_replace_estimates_and_only_raise_counts(machine_of: MachineOf) -> None:
    request = Request(shape("llama-3.2-1b"), "bf16", "cuda", 1, 2048, version="torch 1")
    machine = machine_of(12)
    card = machine.gpus[0]
    counted = plan(request, machine).ledgers[0].row("workspace").size_bytes
    peaks: dict[PeakKey, int] = {context_key(card, "torch 1"): 511 * MIB, workspace_key(request, card): 1}
    ledger = plan(request, machine, peaks.get).ledgers[0]
    assert ledger.row("cuda context").size_bytes == 511 * MIB
    assert "measured" in ledger.row("cuda context").origin
    assert ledger.row("workspace").size_bytes == counted  # a run that never filled its window proves nothing
    peaks[workspace_key(request, card)] = 2 * counted
    assert plan(request, machine, peaks.get).ledgers[0].row("workspace").size_bytes == 2 * counted
    other = replace(request, version="torch 2")
    assert plan(other, machine, peaks.get).ledgers[0].row("cuda context").size_bytes == 640 * MIB


def test_window_is_cut_to_what_the_model_was_trained_for(machine_of: MachineOf) -> None:
    made = plan(Request(shape("smollm2-135m"), "bf16", "cuda", 1, 100_000), machine_of(24))
    assert made.ledgers[0].row("kv arena").size_bytes == (30 + 2) * 6 * MIB  # 180 MiB of rows, in pages of 6 MiB
    assert "cut to the model's 8192" in made.ledgers[0].row("kv arena").origin


def test_room_for_sessions_is_exact(machine_of: MachineOf) -> None:
    request, machine = Request(shape("llama-3.2-1b"), "bf16", "cuda", 1, 8192), machine_of(12, 0.6)
    count = most_sessions(request, machine)
    assert plan(replace(request, sessions=count), machine).fits
    assert not plan(replace(request, sessions=count + 1), machine).fits
    assert most_sessions(request, machine_of(1)) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"sessions": 0}, "at least one session"), ({"precision": "int8"}, "int8 does not run on cuda")],
)
def test_requests_without_sense_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GpuError, match=sentence):
        replace(Request(shape("llama-3.2-1b"), "bf16", "cuda"), **changes)


def test_a_gpu_that_is_not_there_is_one_sentence(machine_of: MachineOf) -> None:
    with pytest.raises(GpuError, match="There is no GPU 1"):
        plan(Request(shape("llama-3.2-1b"), "bf16", "cuda", gpu=1), machine_of(8))


def test_planning_is_arithmetic(machine_of: MachineOf) -> None:
    request, machine = Request(shape("llama-3.1-8b"), "bf16", "cuda", 2, 8192), machine_of(24)
    begin_s = time.perf_counter()
    for _ in range(50):
        plan(request, machine)
    assert (time.perf_counter() - begin_s) / 50 < 0.02
