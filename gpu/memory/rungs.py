"""The rungs of the degrade ladder that can be carried out today: spare pages, a smaller window, the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpu.kv.spec import KvDtype


class Windowed(Protocol):
    """A language model whose conversation window can be made anew."""

    @property
    def window_tokens(self) -> int:
        """Positions that the session can hold."""
        ...

    def window_bytes(self, context_tokens: int) -> int:
        """What of the pages that are held now would be held in a window of that length."""
        ...

    def resize_window(self, context_tokens: int) -> None:
        """Replace the session by one of that length, which holds what fits of the old one's content.

        Raises GpuError where there is no memory for it; the model then has the window that it had.
        """
        ...


class Spared(Protocol):
    """A language model with pages that hold no token of the conversation."""

    def spare_bytes(self) -> int:
        """Pages that were committed ahead, or held tokens of a reply that is over."""
        ...

    def give_spare_back(self) -> None:
        """Give them to the system; they come back with the tokens that need them."""
        ...


class Quantisable(Protocol):
    """A language model that can hold its conversation in one byte a number."""

    def int8_frees_bytes(self) -> int:
        """What would come free; 0 where it is held so already."""
        ...

    def hold_as(self, kv_dtype: KvDtype) -> None:
        """Hold it so from now on.

        Raises GpuError where there is no memory for it; it is then held as before.
        """
        ...


class SpareRung:
    """Pages that hold nothing now."""

    name = "spare pages"

    def __init__(self, model: Spared) -> None:
        self._model = model

    def frees_bytes(self) -> int:
        """All of them."""
        return self._model.spare_bytes()

    def apply(self) -> None:
        """Give them back."""
        self._model.give_spare_back()

    def undo(self) -> None:
        """Nothing to do: the next tokens bring their pages."""


class WindowRung:
    """Half of the window, but never less than `least_tokens`."""

    name = "window"

    def __init__(self, model: Windowed, *, least_tokens: int) -> None:
        self._model = model
        self._least_tokens = least_tokens
        self._before_tokens = 0

    def frees_bytes(self) -> int:
        """The difference of the two windows."""
        model = self._model
        return model.window_bytes(model.window_tokens) - model.window_bytes(self._smaller())

    def apply(self) -> None:
        """Shrink it."""
        self._before_tokens = self._model.window_tokens
        self._model.resize_window(self._smaller())

    def undo(self) -> None:
        """The window that it was."""
        self._model.resize_window(self._before_tokens)

    def _smaller(self) -> int:
        now = self._model.window_tokens
        return min(now, max(self._least_tokens, now // 2))


class KvRung:
    """The conversation in int8, but for its first and its last tokens."""

    name = "kv int8"

    def __init__(self, model: Quantisable) -> None:
        self._model = model

    def frees_bytes(self) -> int:
        """About half of it in bf16, three quarters in float32."""
        return self._model.int8_frees_bytes()

    def apply(self) -> None:
        """Quantise it."""
        self._model.hold_as("int8")

    def undo(self) -> None:
        """As the model computes it; the next turn reads the conversation again."""
        self._model.hold_as("auto")


class CpuRung:
    """The language model is loaded again on the CPU and takes over there, and on the GPU to take it back."""

    name = "llm on the cpu"

    def __init__(self, held_bytes: Callable[[], int], move: Callable[[str], None]) -> None:
        """`held_bytes`: what the model holds on the GPU now; `move(device)` returns when it talks from there."""
        self._held_bytes = held_bytes
        self._move = move

    def frees_bytes(self) -> int:
        """All that it holds there."""
        return self._held_bytes()

    def apply(self) -> None:
        """Leave the GPU."""
        self._move("cpu")

    def undo(self) -> None:
        """Go back to it."""
        self._move("cuda")
