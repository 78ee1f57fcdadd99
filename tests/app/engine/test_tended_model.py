"""One conversation uses the model, one other thread tends it: in turns, and nobody is left waiting for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from harness import Talk

from app import events
from app.bench.stubs import stub_engines
from app.commands import SayText
from app.conversation.desk import LiveRelease
from app.engine import tended_model
from app.engine.tended_model import TendedModel
from gpu.errors import GpuError
from gpu.llm.protocol import Message, SamplingParams

_LIMIT_S = 20.0
ASKED = [Message("user", "hello")]


class Inner:
    """A model that looks, at all that is asked of it, whether it is free for others; `broken` is what fails."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.tended: TendedModel = TendedModel(self)  # type: ignore[arg-type]
        self.free: dict[str, set[bool]] = {}
        self.goes_on_until: Callable[[], bool] = lambda: True
        self.device = "cpu"

    @property
    def context_tokens(self) -> int:
        self._look("context_tokens")
        return 4096

    def count_tokens(self, messages: Sequence[Message]) -> int:
        self._look("count_tokens")
        return 5 * len(messages)

    def warm(self, messages: Sequence[Message]) -> int:
        self._look("warm")
        return 0

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        for piece in ("One ", "two ", "three."):
            self._look("generate")
            yield piece
        while not self.goes_on_until() and not cancelled():
            time.sleep(0.001)
            yield " four"

    def memory_bytes(self) -> int:
        return 0

    def _look(self, name: str) -> None:
        self.free.setdefault(name, set()).add(is_free(self.tended))
        if name == self.broken:
            raise GpuError("the template refuses")


def is_free(model: TendedModel) -> bool:
    """Asked from a thread that neither uses nor tends it."""
    found: list[bool] = []

    def ask() -> None:
        with model.tend(wait=False) as inner:
            found.append(inner is not None)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(_LIMIT_S)
    return found[0]


def until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.002)


def talk_with(inner: Inner, **options: Any) -> Talk:
    return Talk(replace(stub_engines(0.0, 0.0), llm=inner.tended), **options)


def test_from_the_look_at_its_room_to_the_last_piece_the_model_is_the_conversations() -> None:
    inner = Inner()
    one = talk_with(inner)
    one.hop(command=SayText("hello"))
    said = one.until(events.AgentSaid)
    one.hop(command=SayText("and?"))
    one.until(events.AgentSaid)
    one.silence(100)
    one.close()
    assert isinstance(said, events.AgentSaid)
    assert said.text == "One two three."
    assert inner.free == {name: {False} for name in ("context_tokens", "count_tokens", "warm", "generate")}
    assert is_free(inner.tended)
    assert inner.tended.replies == 2


@pytest.mark.parametrize("broken", ["context_tokens", "count_tokens", "generate", "warm"])
def test_what_fails_gives_it_back(broken: str) -> None:
    inner = Inner(broken)
    one = talk_with(inner)
    with suppress(AssertionError):
        for word in ("hello", "and?"):
            one.hop(command=SayText(word))
            one.until(events.AgentSaid, limit_ms=3000)
    one.close()
    assert inner.free[broken] == {False}
    assert is_free(inner.tended)


def test_a_reply_that_is_cut_off_gives_it_back() -> None:
    inner = Inner()
    inner.goes_on_until = lambda: False
    one = talk_with(inner, release=LiveRelease())
    one.hop(command=SayText("hello"))
    until(lambda: "generate" in inner.free)
    assert not is_free(inner.tended)
    one.close()
    assert is_free(inner.tended)


def test_what_was_never_begun_holds_nothing_and_a_look_has_no_effect() -> None:
    model = Inner().tended
    reply = model.generate(ASKED, SamplingParams(), max_tokens=5, cancelled=lambda: False)
    assert model.context_tokens == 4096
    assert model.count_tokens(ASKED) == 5
    assert is_free(model)
    assert model.replies == 0
    next(reply)
    assert not is_free(model)
    reply.close()  # type: ignore[attr-defined]
    assert is_free(model)


def test_a_use_within_a_use_is_the_same_one() -> None:
    model = Inner().tended
    with model.in_use():
        assert len(list(model.generate(ASKED, SamplingParams(), max_tokens=5, cancelled=lambda: False))) == 3
        assert not is_free(model)
        model.warm(ASKED)
        assert not is_free(model)
    assert is_free(model)


def test_who_waits_to_tend_it_is_next_even_where_the_caller_asks_again_at_once() -> None:
    model, order = Inner().tended, list[str]()

    def tend() -> None:
        with model.tend(wait=True) as inner:
            assert inner is not None
            order.append("tended")

    with model.in_use():
        thread = threading.Thread(target=tend)
        thread.start()
        until(lambda: model._waiting == 1)
        with model.in_use():
            order.append("used, for it is the same use")
    with model.in_use():
        order.append("used again")
    thread.join(_LIMIT_S)
    assert order == ["used, for it is the same use", "tended", "used again"]


def test_two_do_not_tend_it_at_once_but_one_may_within_its_own_tending() -> None:
    model = Inner().tended
    with model.hold() as is_held:
        assert is_held
        assert not is_free(model)
        with model.tend(wait=True) as again, model.hold() as is_held_again:
            assert again is not None
            assert is_held_again
        assert not is_free(model)
    assert is_free(model)


def test_a_successor_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tended_model, "_EXCHANGE_LIMIT_S", 0.01)
    inner, other = Inner(), Inner()
    with inner.tended.in_use():
        failed: list[GpuError] = []

        def exchange() -> None:
            try:
                inner.tended.replace(other)  # type: ignore[arg-type]
            except GpuError as error:
                failed.append(error)

        thread = threading.Thread(target=exchange)
        thread.start()
        thread.join(_LIMIT_S)
        assert "not fallen silent" in str(failed[0])
    assert inner.tended.replace(other) is inner  # type: ignore[arg-type,comparison-overlap]
    assert inner.tended._model is other  # type: ignore[comparison-overlap]
