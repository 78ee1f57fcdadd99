"""What a plain session forgets when it must: policies score rows, `evict` compacts in place, so addresses stay.

Scores are per layer and KV head: each head keeps rows of its own. The first rows (sinks) and the most recent ones
are kept by all, whatever they score; to the recent ones the session can still be truncated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpu.errors import GpuError
from gpu.kv.session import Session

if TYPE_CHECKING:
    import torch


class EvictionPolicy(Protocol):
    """Says which rows matter."""

    def scores(self, session: Session) -> torch.Tensor:
        """float [layers, kv_heads, length]: rows with higher scores are kept."""


def evict(session: Session, policy: EvictionPolicy, keep: int, *, sinks: int = 4, recent: int = 64) -> int:
    """Keep `keep` rows of each head; returns how many went. Nothing is allocated in the arena and nothing moves away.

    Raises GpuError where `keep` has no room for sinks and recent rows.
    """
    import torch

    length = session.length
    recent = min(recent, length)
    sinks = min(sinks, length - recent)
    if keep >= length:
        return 0
    if keep < sinks + recent:
        raise GpuError(f"KV eviction: {keep} rows cannot hold {sinks} sinks and {recent} recent", fix="Keep more")
    scores = policy.scores(session).float().clone()
    scores[..., :sinks] = float("inf")
    scores[..., length - recent :] = float("inf")
    kept = torch.topk(scores, keep, dim=-1).indices.sort(dim=-1).values
    session.compact(kept, tail=recent)
    return length - keep


@dataclass(frozen=True, slots=True)
class SinkWindow:
    """The newest rows count most, so with `evict`'s sinks: sinks and a window (Xiao et al. 2023)."""

    def scores(self, session: Session) -> torch.Tensor:
        import torch

        spec = session.spec
        ages = torch.arange(session.length, dtype=torch.float32, device=spec.device)
        return ages.expand(spec.layers, spec.kv_heads, -1)


@dataclass(frozen=True, slots=True)
class KeyNorm:
    """Keys of small norm draw much attention (Devoto et al. 2024)."""

    def scores(self, session: Session) -> torch.Tensor:
        import torch

        return torch.stack([-session.keys(layer)[0].float().norm(dim=-1) for layer in range(session.spec.layers)])


@dataclass(frozen=True, slots=True)
class KeyDiff:
    """Keys unlike the average key are worth keeping (Park et al. 2025)."""

    def scores(self, session: Session) -> torch.Tensor:
        import torch

        out = []
        for layer in range(session.spec.layers):
            keys = torch.nn.functional.normalize(session.keys(layer)[0].float(), dim=-1)
            average = keys.mean(dim=1, keepdim=True)
            out.append(-torch.nn.functional.cosine_similarity(keys, average, dim=-1))
        return torch.stack(out)


@dataclass(frozen=True, slots=True)
class SnapKV:
    """Rows that the last queries looked at, smoothed over neighbours (Li et al. 2024)."""

    queries: Sequence[torch.Tensor]
    """Of each layer the last queries, rotated: [heads, n, head_dim], for the session's last n rows."""
    kernel: int = 5
    """Rows that the smoothing spans; odd."""

    def scores(self, session: Session) -> torch.Tensor:
        import torch

        if len(self.queries) != session.spec.layers:
            raise GpuError(f"SnapKV: queries of {len(self.queries)} layers", fix=f"Give {session.spec.layers}")
        return torch.stack([self._layer(session, layer, queries) for layer, queries in enumerate(self.queries)])

    def _layer(self, session: Session, layer: int, queries: torch.Tensor) -> torch.Tensor:
        import torch

        spec, length, last = session.spec, session.length, queries.shape[1]
        grouped = queries.float().view(spec.kv_heads, -1, last, spec.head_dim)
        keys = session.keys(layer)[0].float().unsqueeze(1)
        looks = grouped @ keys.transpose(-1, -2) / spec.head_dim**0.5
        future = torch.ones(last, length, dtype=torch.bool, device=looks.device).triu_(length - last + 1)
        weights = looks.masked_fill(future, float("-inf")).softmax(dim=-1).mean(dim=(1, 2))
        return torch.nn.functional.avg_pool1d(weights, self.kernel, stride=1, padding=self.kernel // 2)
