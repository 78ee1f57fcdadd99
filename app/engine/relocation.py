"""Moves the language model between a GPU and the CPU while the conversation goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.engine.tended_model import TendedModel
from gpu.errors import GpuError

if TYPE_CHECKING:
    from gpu.llm.model import LocalLanguageModel


class Relocation:
    """`move` for `gpu.memory.rungs.CpuRung`. It takes seconds; the conversation waits for the exchange alone."""

    def __init__(
        self,
        model: TendedModel,
        home: str,
        load: Callable[[str], LocalLanguageModel],
        missing_bytes: Callable[[], int],
    ) -> None:
        """`home`: the GPU by torch's name. `missing_bytes`: of RAM, for a second model on the CPU; 0 where it fits."""
        self._model = model
        self._home = home
        self._load = load
        self._missing_bytes = missing_bytes

    def move(self, device: str) -> None:
        """To `cpu`, or home. Raises GpuError, with everything where it was, where there is no room."""
        import torch

        if device == "cpu" and (missing := self._missing_bytes()):
            raise GpuError(f"RAM lacks {missing >> 20} MiB for the language model", fix="Close other programs")
        try:
            successor = self._load("cpu" if device == "cpu" else self._home)
            if successor.context_tokens != self._model.window_tokens:
                successor.resize_window(self._model.window_tokens)
        except RuntimeError as error:  # torch's own class, out of memory too
            raise GpuError(str(error).splitlines()[0], fix="Close other programs that use the GPU") from error
        before = self._model.replace(successor)
        before.close()
        del before
        torch.cuda.empty_cache()
