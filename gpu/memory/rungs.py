"""The rungs of the degrade ladder that can be carried out today: a smaller window, the language model on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Windowed(Protocol):
    """A language model whose conversation window can be made anew."""

    @property
    def context_tokens(self) -> int:
        """Positions that the session can hold."""
        ...

    def window_bytes(self, context_tokens: int) -> int:
        """What a window of that length holds, as the arena counts it."""
        ...

    def resize_window(self, context_tokens: int) -> None:
        """Replace the session by an empty one of that length; the next turn computes its prompt again.

        Raises GpuError where there is no memory for it; the model then has the window that it had.
        """
        ...


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
        return model.window_bytes(model.context_tokens) - model.window_bytes(self._smaller())

    def apply(self) -> None:
        """Shrink it."""
        self._before_tokens = self._model.context_tokens
        self._model.resize_window(self._smaller())

    def undo(self) -> None:
        """The window that it was."""
        self._model.resize_window(self._before_tokens)

    def _smaller(self) -> int:
        now = self._model.context_tokens
        return min(now, max(self._least_tokens, now // 2))


class CpuRung:
    """The engine starts again with the language model on the CPU, and again on the GPU to take it back."""

    name = "llm on the cpu"

    def __init__(self, held_bytes: Callable[[], int], restart: Callable[[str], None]) -> None:
        """`held_bytes`: what the model holds on the GPU now; `restart(device)` returns when the engine is ready."""
        self._held_bytes = held_bytes
        self._restart = restart

    def frees_bytes(self) -> int:
        """All that it holds there."""
        return self._held_bytes()

    def apply(self) -> None:
        """Leave the GPU."""
        self._restart("cpu")

    def undo(self) -> None:
        """Go back to it."""
        self._restart("cuda")
