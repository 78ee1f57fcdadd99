"""What a user typed or switched while no engine was there reaches the next one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from app import events
from app.commands import SayText, SetMuted
from app.config.load import load_config
from app.engine.live import LiveSession
from app.engine.process import StubSpec
from app.models.store import Store
from audio.io.device import SimulatedSpec

_LIMIT_S = 60.0


@pytest.fixture
def live(model_store: Store) -> Iterator[tuple[LiveSession, list[events.Event]]]:
    """A session on stub engines and a silent simulated device; the ear is the real one."""
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    log: list[events.Event] = []
    config = load_config(file=None, env=os.environ).config
    session = LiveSession(config, SimulatedSpec(), log.append, stub=StubSpec(first_token_ms=10, tts_ms=10))
    session.start()
    yield session, log
    session.stop()


def _until(session: LiveSession, condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        assert session.poll(0.02) is None


@pytest.mark.slow
def test_typed_words_and_mute_are_kept_while_the_engine_is_dead(live: tuple[LiveSession, list[events.Event]]) -> None:
    session, log = live
    os.kill(session.pids["engine"], signal.SIGKILL)
    _until(session, lambda: any(isinstance(event, events.ProcessLost) for event in log))
    session.send(SayText("are you there?"))
    session.send(SetMuted(True))
    _until(session, lambda: any(isinstance(event, events.AgentSaid) for event in log))
    taken = [(event.name, event.argument) for event in log if isinstance(event, events.CommandTaken)]
    assert taken == [("mute", "on"), ("say", "are you there?")]
    finals = [event.text for event in log if isinstance(event, events.UserTranscript)]
    assert finals == ["are you there?"]
    lost = [(event.process, event.reason) for event in log if isinstance(event, events.ProcessLost)]
    assert lost == [("engine", "the engine process ended by itself (exit code -9)")]
