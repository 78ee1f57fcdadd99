"""The session's views equal a plain list of tokens' keys, whatever was done to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu.errors import ArenaFullError, GpuError

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Mark, Session  # noqa: E402

SPEC = ArenaSpec(layers=2, kv_heads=3, head_dim=4, positions=24)


def rows(tokens: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((tokens, *SPEC.row_shape), np.float32))


def assert_holds(session: Session, expected: list[torch.Tensor]) -> None:
    assert session.length == len(expected)
    for layer in range(SPEC.layers):
        for which, view in enumerate((session.keys(layer), session.values(layer))):
            assert view.shape == (1, SPEC.kv_heads, len(expected), SPEC.head_dim)
            for position, row in enumerate(expected):
                assert torch.equal(view[0, :, position], row[layer, which])


class SessionMachine(RuleBasedStateMachine):
    """Append (whole rows or layer by layer), mark, roll back and truncate, against a list."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Arena.open(SPEC).session()
        self.model: list[torch.Tensor] = []
        self.marks: list[tuple[Mark, list[torch.Tensor]]] = []

    @rule(tokens=st.integers(0, 7), seed=st.integers(0, 1000), by_layer=st.booleans())
    def append(self, tokens: int, seed: int, by_layer: bool) -> None:
        new = rows(tokens, seed)
        if len(self.model) + tokens > SPEC.positions:
            with pytest.raises(ArenaFullError):
                self.session.append(new)
            return
        if by_layer:
            start = self.session.extend(tokens)
            for layer in range(SPEC.layers):
                self.session.write(layer, start, new[:, layer, 0], new[:, layer, 1])
        else:
            self.session.append(new)
        self.model += list(new)

    @rule()
    def mark(self) -> None:
        self.marks.append((self.session.mark(), list(self.model)))

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        mark, then = data.draw(st.sampled_from(self.marks))
        still_there = len(self.model) >= len(then) and all(a is b for a, b in zip(self.model, then, strict=False))
        if still_there:
            self.session.rollback(mark)
            self.model = list(then)
        else:
            with pytest.raises(GpuError, match="stale"):
                self.session.rollback(mark)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.model)))
        self.session.truncate_to(position)
        self.model = self.model[:position]

    @invariant()
    def equals_the_list(self) -> None:
        self.session.check()
        assert_holds(self.session, self.model)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_no_allocation_and_no_copy_per_token() -> None:
    session = Arena.open(SPEC).session()
    session.append(rows(1, 0))
    address = session.keys(0).data_ptr()
    for seed in range(1, SPEC.positions):
        session.append(rows(1, seed))
        assert session.keys(0).data_ptr() == address
    assert session.keys(0).untyped_storage().data_ptr() == session.values(1).untyped_storage().data_ptr()


def test_attention_on_a_view_equals_attention_on_a_copy() -> None:
    session = Arena.open(SPEC).session()
    session.append(rows(9, 1))
    session.append(rows(8, 2))
    query = torch.randn(1, SPEC.kv_heads, 2, SPEC.head_dim, generator=torch.Generator().manual_seed(1))
    attend = torch.nn.functional.scaled_dot_product_attention
    keys, values = session.keys(1), session.values(1)
    torch.testing.assert_close(attend(query, keys, values), attend(query, keys.clone(), values.clone()))


@pytest.mark.parametrize("position", [-1, 5])
def test_truncating_outside_the_live_length_is_refused(position: int) -> None:
    session = Arena.open(SPEC).session()
    session.append(rows(4, 0))
    with pytest.raises(GpuError, match="cannot truncate"):
        session.truncate_to(position)
    assert session.length == 4


def test_writing_past_the_live_length_is_refused() -> None:
    session = Arena.open(SPEC).session()
    start = session.extend(2)
    new = rows(3, 0)
    with pytest.raises(GpuError, match="live length"):
        session.write(0, start, new[:, 0, 0], new[:, 0, 1])


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(GpuError, match="shape"):
        Arena.open(SPEC).session().append(torch.zeros(1, 2, 2, 3, 5))


def test_budget_and_memory() -> None:
    bytes_each = SPEC.positions * SPEC.row_elements * 4
    arena = Arena.open(SPEC, budget_bytes=2 * bytes_each)
    first = arena.session()
    arena.session()
    assert arena.memory_bytes() == 2 * bytes_each
    with pytest.raises(GpuError, match="budget"):
        arena.session()
    first.close()
    assert arena.memory_bytes() == bytes_each
    arena.session()
    arena.check()
    arena.close()
    assert arena.memory_bytes() == 0
    with pytest.raises(GpuError, match="after close"):
        first.append(rows(1, 0))


def test_check_notices_a_broken_length() -> None:
    session = Arena.open(SPEC).session()
    session._base_address += 64
    with pytest.raises(GpuError, match="buffer moved"):
        session.check()


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "positions"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(GpuError, match=field):
        ArenaSpec(**{"layers": 1, "kv_heads": 1, "head_dim": 1, "positions": 1, field: 0})
