"""From scores to the next token."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gpu.errors import GpuError
from gpu.llm.protocol import SamplingParams

if TYPE_CHECKING:
    import torch


class Sampler:
    """Draws the tokens of one reply. Its random numbers are its own: same seed and scores, same tokens."""

    def __init__(self, params: SamplingParams) -> None:
        """Raises GpuError for a parameter outside its range."""
        if params.temperature < 0 or params.top_k < 0 or not 0 < params.top_p <= 1 or params.repetition_penalty <= 0:
            raise GpuError(
                f"Sampling parameters out of range: {params}",
                fix="temperature >= 0, top_k >= 0, 0 < top_p <= 1, repetition_penalty > 0",
            )
        import torch

        self._params = params
        self._generator = torch.Generator().manual_seed(params.seed)

    def next(self, scores: torch.Tensor, seen: Collection[int]) -> int:
        """The next token for float32 `scores` [vocab]; `seen` are the tokens that the repetition penalty is for.

        Order as in Hugging Face: penalty, temperature, top-k, top-p. At temperature 0 the first maximum.
        """
        import torch

        params = self._params
        if params.repetition_penalty != 1.0 and seen:
            scores = penalised(scores, seen, params.repetition_penalty)
        if params.temperature == 0.0:
            return int(scores.argmax())
        keep = min(params.top_k or scores.numel(), scores.numel())
        ranked, order = torch.sort(scores.to("cpu", torch.float32), descending=True, stable=True)
        probabilities = torch.softmax(ranked[:keep] / params.temperature, dim=0).to(torch.float64)
        cumulative = probabilities.cumsum(0)
        # A token stays while those before it have less than top_p: the first one always does.
        nucleus = int((cumulative - probabilities < params.top_p).sum()) if params.top_p < 1.0 else keep
        drawn = torch.rand((), generator=self._generator, dtype=torch.float64) * cumulative[nucleus - 1]
        rank = int(torch.searchsorted(cumulative[:nucleus], drawn, right=True).clamp_max(nucleus - 1))
        return int(order[rank])


def penalised(scores: torch.Tensor, seen: Collection[int], penalty: float) -> torch.Tensor:
    """Scores with those of `seen` divided (positive) or multiplied (negative) by `penalty`, Keskar et al. 2019."""
    import torch

    index = torch.tensor(sorted(set(seen)), dtype=torch.long, device=scores.device)
    chosen = scores[index]
    return scores.index_put((index,), torch.where(chosen > 0, chosen / penalty, chosen * penalty))
