"""The rungs of the degrade ladder that can be carried out today: spare pages, a smaller window, int8, the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from gpu.kv.spec import KvDtype

QUESTION_TOKENS = 256
"""Room that a window leaves for a question that is longer than the last one."""


class Tended(Protocol):
    """A language model on which a second thread works while it answers nobody."""

    @property
    def device(self) -> str:
        """Where it lies now, by torch's name."""
        ...

    def hold(self) -> AbstractContextManager[bool]:
        """Keep it for this thread, without waiting; False where it is in use."""
        ...


class Windowed(Tended, Protocol):
    """A language model whose conversation window can be made smaller."""

    @property
    def window_tokens(self) -> int:
        """Positions that the session can hold."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Of the last prompt, what no shorter history leaves out: the persona and the question."""
        ...

    def window_bytes(self, context_tokens: int) -> int:
        """What of the pages that are held now would be held in a window of that length."""
        ...

    def resize_window(self, context_tokens: int) -> None:
        """Let the session hold so many positions from now on, and keep what fits of its content, where it is."""
        ...


class Spared(Tended, Protocol):
    """A language model with pages that hold no token of the conversation."""

    def spare_bytes(self) -> int:
        """Pages that were committed ahead, or held tokens of a reply that is over."""
        ...

    def give_spare_back(self) -> None:
        """Give them to the system; they come back with the tokens that need them."""
        ...


class Quantisable(Tended, Protocol):
    """A language model that can hold its conversation in one byte a number."""

    def int8_frees_bytes(self) -> int:
        """What would come free; 0 where it is held so already."""
        ...

    def int8_takes_bytes(self) -> int:
        """What is needed beside the conversation as it is held now, until it is quantised."""
        ...

    def hold_as(self, kv_dtype: KvDtype) -> None:
        """Hold it so from now on.

        Raises GpuError where there is no memory for it; it is then held as before.
        """
        ...


class _ModelRung:
    """Frees memory of the device on which the model lies when the rung is made; elsewhere it has nothing to free."""

    is_repeatable = False

    def __init__(self, model: Tended) -> None:
        self._tended = model
        self._home = model.device

    @property
    def is_home(self) -> bool:
        """Whether the model lies there now."""
        return self._tended.device == self._home

    def takes_bytes(self) -> int:
        """Nothing."""
        return 0

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """As `Tended.hold`; False also where the model is elsewhere."""
        with self._tended.hold() as is_held:
            yield is_held and self.is_home


class SpareRung(_ModelRung):
    """Pages that hold nothing now."""

    name = "spare pages"
    is_repeatable = True

    def __init__(self, model: Spared) -> None:
        super().__init__(model)
        self._model = model

    def frees_bytes(self) -> int:
        """All of them."""
        return self._model.spare_bytes() if self.is_home else 0

    def apply(self) -> None:
        """Give them back."""
        self._model.give_spare_back()

    def undo(self) -> None:
        """Nothing to do: the next tokens bring their pages."""


class WindowRung(_ModelRung):
    """Half of the window, but never less than `least_tokens`, nor than the prompt and a reply of `reply_tokens`."""

    name = "window"

    def __init__(self, model: Windowed, *, least_tokens: int, reply_tokens: int = 0) -> None:
        super().__init__(model)
        self._model = model
        self._least_tokens = least_tokens
        self._reply_tokens = reply_tokens
        self._before_tokens = 0

    def frees_bytes(self) -> int:
        """The difference of the two windows."""
        model = self._model
        return model.window_bytes(model.window_tokens) - model.window_bytes(self._smaller()) if self.is_home else 0

    def apply(self) -> None:
        """Shrink it."""
        self._before_tokens = self._model.window_tokens
        self._model.resize_window(self._smaller())

    def undo(self) -> None:
        """The window that it was."""
        self._model.resize_window(self._before_tokens)

    def _smaller(self) -> int:
        now, prompt = self._model.window_tokens, self._model.prompt_tokens + self._reply_tokens + QUESTION_TOKENS
        return min(now, max(self._least_tokens, prompt, now // 2))


class KvRung(_ModelRung):
    """The conversation in int8, but for its first and its last tokens."""

    name = "kv int8"

    def __init__(self, model: Quantisable) -> None:
        super().__init__(model)
        self._model = model

    def frees_bytes(self) -> int:
        """About half of it in bf16, three quarters in float32."""
        return self._model.int8_frees_bytes() if self.is_home else 0

    def takes_bytes(self) -> int:
        """The quantised conversation stands beside the other one until it is whole."""
        return self._model.int8_takes_bytes()

    def apply(self) -> None:
        """Quantise it."""
        self._model.hold_as("int8")

    def undo(self) -> None:
        """As the model computes it; the next turn reads the conversation again."""
        self._model.hold_as("auto")


class CpuRung:
    """The language model is loaded again on the CPU and takes over there, and on the GPU to take it back."""

    name = "llm on the cpu"
    is_repeatable = False

    def __init__(self, held_bytes: Callable[[], int], move: Callable[[str], None]) -> None:
        """`held_bytes`: what the model holds on the GPU now; `move(device)` returns when it talks from there."""
        self._held_bytes = held_bytes
        self._move = move

    def frees_bytes(self) -> int:
        """All that it holds there."""
        return self._held_bytes()

    def takes_bytes(self) -> int:
        """Nothing there; `move` looks at the memory that it moves to."""
        return 0

    def hold(self) -> AbstractContextManager[bool]:
        """The model talks on while its successor loads: `move` itself waits for the exchange."""
        return nullcontext(True)

    def apply(self) -> None:
        """Leave the GPU."""
        self._move("cpu")

    def undo(self) -> None:
        """Go back to it."""
        self._move("cuda")
