"""Policies keep what a plain loop over their definition keeps, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu.errors import GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.policies import EvictionPolicy, KeyDiff, KeyNorm, SinkWindow, SnapKV, evict  # noqa: E402
from gpu.kv.session import Session  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=2, head_dim=6, positions=128)
GROUP, LAST = 3, 8
NewArena = Callable[..., Arena]


@pytest.fixture
def session(new_arena: NewArena, backend_name: str) -> Any:
    arena = new_arena(SPEC, backend=backend_name)
    made = arena.session()
    shape = (2, 90, SPEC.layers, SPEC.kv_heads, SPEC.head_dim)
    both = torch.from_numpy(np.random.default_rng(4).standard_normal(shape, np.float32))
    made.append(*both.to(made.spec.device))
    yield made
    arena.check()
    arena.close()


def queries() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((SPEC.kv_heads * GROUP, LAST, SPEC.head_dim), np.float32) for _ in range(SPEC.layers)]


def by_norm(keys: np.ndarray, layer: int, head: int) -> list[float]:
    return [-math.sqrt(sum(float(x) ** 2 for x in key)) for key in keys]


def by_difference(keys: np.ndarray, layer: int, head: int) -> list[float]:
    unit = [key / np.linalg.norm(key) for key in keys.astype(np.float64)]
    average = sum(unit) / len(unit)
    return [-float(np.dot(key, average) / np.linalg.norm(average)) for key in unit]


def by_age(keys: np.ndarray, layer: int, head: int) -> list[float]:
    return [float(place) for place in range(len(keys))]


def by_attention(keys: np.ndarray, layer: int, head: int) -> list[float]:
    total = np.zeros(len(keys))
    for query_head in range(head * GROUP, (head + 1) * GROUP):
        for number in range(LAST):
            seen = len(keys) - LAST + number + 1
            looks = keys[:seen].astype(np.float64) @ queries()[layer][query_head, number] / math.sqrt(SPEC.head_dim)
            weights = np.exp(looks - looks.max())
            total[:seen] += weights / weights.sum()
    padded = np.concatenate((np.zeros(2), total, np.zeros(2)))
    return [float(padded[place : place + 5].sum()) for place in range(len(keys))]


@pytest.mark.parametrize(
    ("policy", "definition"),
    [
        (lambda device: SinkWindow(), by_age),
        (lambda device: KeyNorm(), by_norm),
        (lambda device: KeyDiff(), by_difference),
        (lambda device: SnapKV([torch.from_numpy(layer).to(device) for layer in queries()]), by_attention),
    ],
    ids=["sink+window", "key-norm", "KeyDiff", "SnapKV"],
)
def test_what_is_kept(
    session: Session, policy: Callable[[str], EvictionPolicy], definition: Callable[..., list[float]]
) -> None:
    before = session.rows().cpu().numpy().copy()
    address = session.keys(0).data_ptr()
    pages = session.pager.committed
    assert evict(session, policy(session.spec.device), 50, sinks=4, recent=20) == 40
    assert session.keys(0).data_ptr() == address
    assert session.pager.committed == pages
    assert (session.length, session.position) == (50, 90)
    after = session.rows().cpu().numpy()
    for layer in range(SPEC.layers):
        for head in range(SPEC.kv_heads):
            scores = definition(before[:, layer, 0, head], layer, head)
            middle = sorted(range(4, 70), key=lambda place: scores[place])[-26:]
            expected = [*range(4), *sorted(middle), *range(70, 90)]
            np.testing.assert_array_equal(after[:, layer, :, head], before[expected][:, layer, :, head])
    assert session.registers.tolist() == [50, 90, 0]
    session.truncate_to(75)
    assert session.length == 35


def test_limits(session: Session) -> None:
    assert evict(session, KeyNorm(), 90) == 0
    assert evict(session, KeyNorm(), 500) == 0
    with pytest.raises(GpuError, match="cannot hold"):
        evict(session, KeyNorm(), 20, sinks=4, recent=17)
    with pytest.raises(GpuError, match="layers"):
        evict(session, SnapKV([]), 50, recent=8)
    with pytest.raises(GpuError, match="cannot keep"):
        session.compact(torch.zeros(2, 2, 91, dtype=torch.int64), 0)
    assert session.length == 90
