"""What an engine says of its memory: the figures are the model's and the machine's own, and come with little work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
pytest.importorskip("tokenizers", reason="makes the tokenizer")

from tiny_model import ROW_BYTES, tiny_prepared  # noqa: E402

from app import events  # noqa: E402
from app.config.load import load_config  # noqa: E402
from app.engine.live import LiveSession  # noqa: E402
from app.engine.memory_reporter import MemoryReporter  # noqa: E402
from app.engine.pressure_guard import HostMemory, PressureGuard, limits  # noqa: E402
from app.engine.tended_model import TendedModel  # noqa: E402
from app.models.store import Store  # noqa: E402
from audio.io.device import SimulatedSpec  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402
from gpu.memory.rungs import SpareRung, WindowRung  # noqa: E402

TALK = [Message("user", "word " * 250), Message("assistant", "yes")]  # some 1,300 tokens
_LIMIT_S = 60.0


@pytest.fixture
def model() -> Iterator[TendedModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield TendedModel(LocalLanguageModel(tiny_prepared(), context_tokens=2048))
    torch.set_num_threads(before)


def guard_of(model: TendedModel, told: list[events.Event]) -> PressureGuard:
    memory = HostMemory(model)
    rungs = [SpareRung(model), WindowRung(model, least_tokens=512)]
    return PressureGuard(memory, limits(1_048_576, memory.total_bytes()), rungs, lambda news: told.append(news(0)))


def test_figures_are_the_models_own(model: TendedModel) -> None:
    told: list[events.Event] = []
    reporter = MemoryReporter(model, None, lambda news: told.append(news(7)))
    persona = Message("system", "be brief " * 60)
    model.warm([persona])
    model.warm([persona, *TALK])
    reporter.look()
    (state,) = told
    assert isinstance(state, events.MemoryState)
    assert (state.at_samples, state.device, state.level, state.rungs_given, state.rungs_open) == (7, "cpu", "", [], {})
    assert 0 < state.free_bytes < state.total_bytes
    assert 0 < state.weights_bytes < state.engine_bytes < state.total_bytes
    assert state.pages * state.page_bytes == model.page_bytes("cpu")
    (talk,), (prefix,) = state.sessions, state.prefixes
    pages, shared, room, tokens = talk
    assert tokens == state.live_tokens > 1300
    assert (state.window_tokens, room) == (2048, -(-2048 * ROW_BYTES // state.page_bytes))
    assert pages == -(-tokens * ROW_BYTES // state.page_bytes)
    assert shared == prefix[1] == state.shared_pages
    assert 60 * len("be brief ") <= prefix[3] < 60 * len("be brief ") + 30, "a token a byte, and the template's own"


def test_nothing_new_is_not_told_twice(model: TendedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[events.Event] = []
    monkeypatch.setattr("app.engine.memory_reporter.resident_bytes", lambda: 5)
    monkeypatch.setattr("app.engine.memory_reporter.read_host", lambda: HostFigures())
    reporter = MemoryReporter(model, None, lambda news: told.append(news(len(told))))
    for _ in range(3):
        reporter.look()
    assert len(told) == 1
    model.warm(TALK)
    reporter.look()
    assert [event.at_samples for event in told] == [0, 1]


class HostFigures:
    total_bytes, free_bytes = 1 << 30, 1 << 29


def test_what_is_given_up_and_what_could_be_is_told(model: TendedModel) -> None:
    told: list[events.Event] = []
    guard = guard_of(model, told)
    reporter = MemoryReporter(model, guard, lambda news: told.append(news(0)))
    model.warm(TALK)
    reporter.look()
    assert isinstance(before := told[-1], events.MemoryState)
    assert (before.level, before.rungs_given) == ("calm", [])
    assert before.rungs_open["window"] == model.window_bytes(2048) - model.window_bytes(1024) > 0
    guard.look()
    guard.look()
    reporter.look()
    assert isinstance(after := told[-1], events.MemoryState)
    assert after.level == "critical"
    assert "window" in after.rungs_given
    assert after.window_tokens == 1024
    assert after.pages < before.pages


def test_a_reading_takes_little_time_while_the_model_works(model: TendedModel) -> None:
    told: list[events.Event] = []
    reporter = MemoryReporter(model, guard_of(model, told), lambda news: told.append(news(0)))
    model.warm(TALK)
    reply = model.generate([*TALK, Message("user", "and")], SamplingParams(), max_tokens=60, cancelled=lambda: False)
    took_ms = []
    for _ in reply:
        begun_s = time.thread_time()
        reporter.look()
        took_ms.append((time.thread_time() - begun_s) * 1000)
    print(f"median {statistics.median(took_ms):.2f} ms of processor time in {len(took_ms)} readings")
    assert len(took_ms) >= 60
    assert statistics.median(took_ms) < 3.0  # 0.5 ms on a quiet machine


@pytest.mark.slow
def test_a_real_engine_tells_of_its_memory(model_store: Store, tmp_path: Path) -> None:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    told: list[events.Event] = []
    config = load_config(file=None, env={}, overrides=[f"paths.data={tmp_path}"]).config
    session = LiveSession(config, SimulatedSpec(), told.append)
    try:
        session.start()
        until_s = time.monotonic() + _LIMIT_S
        while not any(isinstance(event, events.MemoryState) for event in told):
            assert session.poll(0.05) is None
            assert time.monotonic() < until_s
    finally:
        session.stop()
    state = next(event for event in told if isinstance(event, events.MemoryState))
    llm = next(e.memory_bytes for e in told if isinstance(e, events.StageBackend) and e.stage == "llm")
    assert 0 < state.weights_bytes < llm
    assert state.window_tokens == config.llm.context_tokens
    assert state.live_tokens > 0, "the persona is read before the conversation begins"
    assert state.level in ("calm", "tight", "critical")


@pytest.mark.gpu
def test_on_a_gpu_the_figures_are_the_drivers() -> None:
    """What torch and the driver have given to this process, and no more than the driver says is in use."""
    told: list[events.Event] = []
    model = TendedModel(LocalLanguageModel(tiny_prepared(), device="cuda:0", context_tokens=2048))
    model.warm(TALK)
    reporter = MemoryReporter(model, None, lambda news: told.append(news(0)))
    took_ms = []
    for _ in range(50):
        begun_s = time.perf_counter()
        reporter.look()
        took_ms.append((time.perf_counter() - begun_s) * 1000)
    print(f"median {statistics.median(took_ms):.3f} ms a reading")
    state = told[-1]
    assert isinstance(state, events.MemoryState)
    assert state.device == "cuda:0"
    assert state.total_bytes == torch.cuda.mem_get_info(0)[1]
    assert 0 < state.weights_bytes < state.engine_bytes <= state.total_bytes - state.free_bytes
    assert state.pages > 0
    assert state.sessions[0][3] == state.live_tokens > 1300
    assert statistics.median(took_ms) < 5.0
