"""What may be drawn, how often, and that a seed repeats it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the sampler is torch")

from gpu.errors import GpuError  # noqa: E402
from gpu.llm.protocol import SamplingParams  # noqa: E402
from gpu.llm.sampler import Sampler, penalised  # noqa: E402

SCORES = torch.tensor([1.0, 3.0, 2.0, -1.0, 0.0])


def draws(params: SamplingParams, count: int, scores: torch.Tensor = SCORES) -> list[int]:
    sampler = Sampler(params)
    return [sampler.next(scores, []) for _ in range(count)]


def test_greedy_is_the_first_maximum() -> None:
    assert draws(SamplingParams(), 1) == [1]
    assert draws(SamplingParams(), 1, torch.tensor([0.0, 5.0, 5.0])) == [1]


def test_temperature_gives_the_softmax_distribution() -> None:
    count = 20_000
    params = SamplingParams(temperature=1.5, seed=7)
    frequencies = torch.bincount(torch.tensor(draws(params, count)), minlength=5) / count
    expected = torch.softmax(SCORES / 1.5, 0)
    deviation = (frequencies - expected).abs() / (expected * (1 - expected) / count).sqrt()
    assert float(deviation.max()) < 4.0  # standard errors


def test_top_k_keeps_the_best_k_in_proportion() -> None:
    count = 20_000
    drawn = torch.bincount(torch.tensor(draws(SamplingParams(temperature=1.0, top_k=2, seed=3), count)), minlength=5)
    assert drawn[[0, 3, 4]].sum() == 0
    expected = float(torch.softmax(SCORES[[1, 2]], 0)[0])
    assert abs(float(drawn[1]) / count - expected) < 4 * (expected * (1 - expected) / count) ** 0.5


@pytest.mark.parametrize(("top_p", "allowed"), [(0.1, {1}), (0.66, {1, 2}), (0.95, {0, 1, 2}), (1.0, {0, 1, 2, 3, 4})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, allowed: set[int]) -> None:
    """Softmax of the scores, best first: .632 .233 .086 .031 .012 (sums .632 .865 .951 .983 1)."""
    assert set(draws(SamplingParams(temperature=1.0, top_p=top_p, seed=1), 4000)) == allowed


def test_same_seed_same_tokens_and_no_shared_state() -> None:
    params = SamplingParams(temperature=1.0, seed=42)
    expected = draws(params, 50)
    torch.manual_seed(999)
    first, second = Sampler(params), Sampler(params)
    mixed = [(first.next(SCORES, []), second.next(SCORES, [])) for _ in range(50)]
    assert [a for a, _ in mixed] == [b for _, b in mixed] == expected
    assert draws(SamplingParams(temperature=1.0, seed=43), 50) != expected


def test_repetition_penalty_divides_positive_and_multiplies_negative() -> None:
    scores = torch.tensor([2.0, -2.0, 4.0, 1.0])
    assert penalised(scores, [0, 1, 0], 2.0).tolist() == [1.0, -4.0, 4.0, 1.0]
    assert scores.tolist() == [2.0, -2.0, 4.0, 1.0]


def test_repetition_penalty_changes_the_choice() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=1.6))
    assert sampler.next(SCORES, []) == 1
    assert sampler.next(SCORES, [1]) == 2


def test_penalty_equals_transformers() -> None:
    processors = pytest.importorskip("transformers").generation.logits_process
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0))
    seen = [3, 7, 7, 49]
    reference = processors.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), scores.clone()[None])[0]
    assert torch.equal(penalised(scores, seen, 1.3), reference)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=-0.1),
        SamplingParams(top_k=-1),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=1.1),
        SamplingParams(repetition_penalty=0.0),
    ],
)
def test_parameters_out_of_range_are_refused(params: SamplingParams) -> None:
    with pytest.raises(GpuError, match="out of range"):
        Sampler(params)
