"""The conversation's language model, on which others may work while it answers nobody: pages, window, snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu.errors import GpuError
from gpu.kv.census import Census
from gpu.kv.spec import KvDtype
from gpu.llm.protocol import Message, SamplingParams

if TYPE_CHECKING:
    from gpu.llm.model import LocalLanguageModel

_EXCHANGE_LIMIT_S = 60.0
"""A reply that takes longer than this is rare, and whoever waits for its end holds memory for two models."""


class TendedModel:
    """Implements `gpu.llm.protocol.LanguageModel` for one caller, and `tend` for a second thread.

    In use is the model within `in_use`, by which a caller covers the making of a prompt and all that follows, and of
    its own accord for as long as it generates or warms: no window shrinks under a prompt that was made for it.
    Whoever tends it keeps a caller waiting, so it must be brief; whoever waits to tend it is next when a use ends.
    """

    def __init__(self, model: LocalLanguageModel) -> None:
        self._model = model
        self._changed = threading.Condition()
        self._uses = 0  # nested ones of the one caller
        self._tender: int | None = None  # its thread
        self._waiting = 0  # tenders
        self.replies = 0
        """How many were asked for."""

    # -- the conversation's -------------------------------------------------------------------------------------

    @property
    def context_tokens(self) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        return self._model.context_tokens

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """See `app.conversation.speaker.SharedModel`. Nested uses are one."""
        with self._changed:
            self._changed.wait_for(lambda: self._uses or (self._tender is None and not self._waiting))
            self._uses += 1
        try:
            yield
        finally:
            with self._changed:
                self._uses -= 1
                self._changed.notify_all()

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        return self._model.count_tokens(messages)

    def warm(self, messages: Sequence[Message]) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        with self.in_use():
            return self._model.warm(messages)

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        """See `gpu.llm.protocol.LanguageModel`."""
        with self.in_use():
            self.replies += 1
            yield from self._model.generate(messages, sampling, max_tokens=max_tokens, cancelled=cancelled)

    def memory_bytes(self) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        return self._model.memory_bytes()

    # -- the second thread's ------------------------------------------------------------------------------------

    @contextmanager
    def tend(self, *, wait: bool, limit_s: float | None = None) -> Iterator[LocalLanguageModel | None]:
        """The model for oneself; None where it is in use and one does not `wait` (for `limit_s` at most).

        Within one's own tending it is there at once.
        """
        is_nested = self._tender == threading.get_ident()
        is_mine = is_nested or self._take(wait=wait, limit_s=limit_s)
        try:
            yield self._model if is_mine else None
        finally:
            if is_mine and not is_nested:
                with self._changed:
                    self._tender = None
                    self._changed.notify_all()

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """See `gpu.memory.rungs.Tended`."""
        with self.tend(wait=False) as model:
            yield model is not None

    def enter_thread(self) -> None:
        """This thread will tend the model."""
        self._model.enter_thread()

    def replace(self, successor: LocalLanguageModel) -> LocalLanguageModel:
        """Let another model take over between two replies; returns the old one.

        Raises GpuError where a reply takes too long.
        """
        with self.tend(wait=True, limit_s=_EXCHANGE_LIMIT_S) as model:
            if model is None:
                raise GpuError("The language model has not fallen silent", fix="It is tried again later")
            self._model = successor
        return model

    @property
    def device(self) -> str:
        """Where the model lies, by torch's name."""
        return self._model.device

    @property
    def window_tokens(self) -> int:
        """Positions that the session can hold."""
        return self._model.context_tokens

    def weights_bytes(self) -> int:
        """Bytes of weights and tables."""
        return self._model.weights_bytes()

    def census(self) -> Census:
        """See `LocalLanguageModel.census`."""
        return self._model.census()

    @property
    def prompt_tokens(self) -> int:
        """See `gpu.memory.rungs.Windowed`."""
        return self._model.prompt_tokens

    @property
    def kv_dtype(self) -> KvDtype:
        """How the conversation is held."""
        return self._model.kv_dtype

    def page_bytes(self, device: str) -> int:
        """Bytes of pages that the model has on `device`."""
        return self._model.page_bytes() if self._model.device == device else 0

    def memory_bytes_on(self, device: str) -> int:
        """Bytes of weights and arena on `device`."""
        return self._model.memory_bytes() if self._model.device == device else 0

    def spare_bytes(self) -> int:
        """See `gpu.memory.rungs.Spared`."""
        return self._model.spare_bytes()

    def give_spare_back(self) -> None:
        """See `gpu.memory.rungs.Spared`."""
        with self.tend(wait=True) as model:
            assert model is not None
            model.give_spare_back()

    def int8_frees_bytes(self) -> int:
        """See `gpu.memory.rungs.Quantisable`."""
        return self._model.int8_frees_bytes()

    def int8_takes_bytes(self) -> int:
        """See `gpu.memory.rungs.Quantisable`."""
        return self._model.int8_takes_bytes()

    def hold_as(self, kv_dtype: KvDtype) -> None:
        """See `gpu.memory.rungs.Quantisable`."""
        with self.tend(wait=True) as model:
            assert model is not None
            model.hold_as(kv_dtype)

    def window_bytes(self, context_tokens: int) -> int:
        """See `gpu.memory.rungs.Windowed`."""
        return self._model.window_bytes(context_tokens)

    def resize_window(self, context_tokens: int) -> None:
        """See `gpu.memory.rungs.Windowed`."""
        with self.tend(wait=True) as model:
            assert model is not None
            model.resize_window(context_tokens)

    def _take(self, *, wait: bool, limit_s: float | None) -> bool:
        def is_free() -> bool:
            return not self._uses and self._tender is None

        with self._changed:
            if wait:
                self._waiting += 1
                try:
                    self._changed.wait_for(is_free, limit_s)
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()
            if not is_free():
                return False
            self._tender = threading.get_ident()
            return True
