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
        """To `cpu`, or home, with the window of the moment, held as it is held now.

        Raises GpuError, with everything where it was, where there is no room.
        """
        import torch

        if device == "cpu" and (missing := self._missing_bytes()):
            raise GpuError(f"RAM lacks {missing >> 20} MiB for the language model", fix="Close other programs")
        problem = self._exchange("cpu" if device == "cpu" else self._home)
        torch.cuda.empty_cache()  # now that no reference is left to what went
        if problem:
            raise GpuError(problem, fix="Close other programs that use the GPU")

    def _exchange(self, device: str) -> str:
        """Load the successor and let it take over; why it did not, or ""."""
        successor: LocalLanguageModel | None = None
        try:
            successor = self._load(device)
            successor.hold_as(self._model.kv_dtype)
            successor.resize_window(self._model.window_tokens)
            before = self._model.replace(successor)
        except (RuntimeError, GpuError) as error:  # torch's own class, out of memory too
            if successor is not None:
                successor.close()
            return error.message if isinstance(error, GpuError) else str(error).splitlines()[0]
        before.close()
        return ""
