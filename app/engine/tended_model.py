"""The conversation's language model, on which others may work while it answers nobody: pages, window, snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu.kv.spec import KvDtype
from gpu.llm.protocol import Message, SamplingParams

if TYPE_CHECKING:
    from gpu.llm.model import LocalLanguageModel


class TendedModel:
    """Implements `gpu.llm.protocol.LanguageModel` for one caller, and `tend` for a second thread.

    In use is the model from the caller's look at `context_tokens`, by which a prompt is cut, to the end of the reply
    or of `warm`: no window shrinks under a prompt that was made for it. Whoever tends it keeps a caller waiting, so it
    must be brief.
    """

    def __init__(self, model: LocalLanguageModel) -> None:
        self._model = model
        self._changed = threading.Condition()
        self._is_used = False
        self._is_tended = False
        self.replies = 0
        """How many were asked for."""

    # -- the conversation's -------------------------------------------------------------------------------------

    @property
    def context_tokens(self) -> int:
        """See `gpu.llm.protocol.LanguageModel`; the caller now makes a prompt."""
        self._begin()
        return self._model.context_tokens

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        return self._model.count_tokens(messages)

    def warm(self, messages: Sequence[Message]) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        self._begin()
        try:
            return self._model.warm(messages)
        finally:
            self._end()

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        """See `gpu.llm.protocol.LanguageModel`."""
        self._begin()
        self.replies += 1
        try:
            yield from self._model.generate(messages, sampling, max_tokens=max_tokens, cancelled=cancelled)
        finally:
            self._end()

    def memory_bytes(self) -> int:
        """See `gpu.llm.protocol.LanguageModel`."""
        return self._model.memory_bytes()

    def _begin(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_tended)
            self._is_used = True

    def _end(self) -> None:
        with self._changed:
            self._is_used = False
            self._changed.notify_all()

    # -- the second thread's ------------------------------------------------------------------------------------

    @contextmanager
    def tend(self, *, wait: bool) -> Iterator[LocalLanguageModel | None]:
        """The model for oneself; None where it is in use and one does not `wait`."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: not self._is_used)
            self._is_tended = not self._is_used
        try:
            yield self._model if self._is_tended else None
        finally:
            with self._changed:
                self._is_tended = False
                self._changed.notify_all()

    def replace(self, successor: LocalLanguageModel) -> LocalLanguageModel:
        """Let another model take over between two replies; returns the old one."""
        with self.tend(wait=True):
            before, self._model = self._model, successor
        return before

    @property
    def window_tokens(self) -> int:
        """Positions that the session can hold, for those who make no prompt."""
        return self._model.context_tokens

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
