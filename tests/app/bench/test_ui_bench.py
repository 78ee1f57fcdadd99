"""What `bench ui` makes of its rows, by hand."""

from __future__ import annotations

import math

import pytest

from app import events
from app.bench.ui import Size, measure, metrics, token_rows
from app.config.schema import Config
from app.errors import AgentError


def _tokens(pair: int, window: bool, tokens: int, seconds: float) -> dict[str, object]:
    return {"scene": "tokens", "pair": pair, "window": window, "tokens": tokens, "seconds": seconds}


def _second(stall_ms: float, cpu_s: float, *, is_loading: bool = False) -> dict[str, object]:
    row = {"scene": "second", "pair": 0, "window": True, "wall_s": 1.0, "cpu_s": cpu_s, "stall_ms": stall_ms}
    return row | {"is_loading": is_loading}


def test_figures_of_the_window_are_of_the_conversation_and_not_of_its_loading() -> None:
    starts = [{"scene": "start", "pair": pair, "window": True, "up_s": up_s} for pair, up_s in enumerate([1, 9, 2])]
    found = metrics([*starts, _second(500, 0.9, is_loading=True), _second(12, 0.1), _second(31, 0.2)])
    assert found["window_up_s"] == 2
    assert found["ui_stall_max_ms"] == 31
    assert found["ui_cpu_core_fraction"] == pytest.approx(0.15)
    assert found["ui_seconds"] == 2


def test_each_pair_gives_one_ratio_and_half_a_pair_none() -> None:
    rows = [
        *(_tokens(0, True, 30, 1.0), _tokens(0, True, 10, 1.0), _tokens(0, False, 40, 2.0)),  # 20 over 20
        *(_tokens(1, True, 90, 1.0), _tokens(1, False, 100, 1.0)),  # 0.9
        *(_tokens(2, True, 50, 1.0), _tokens(2, False, 40, 1.0)),  # 1.25
        _tokens(3, True, 50, 1.0),
    ]
    found = metrics(rows)
    assert found["pairs"] == 3
    assert found["tokens_with_ui_over_without"] == pytest.approx(1.0)
    assert (found["tokens_ratio_min"], found["tokens_ratio_max"]) == (pytest.approx(0.9), pytest.approx(1.25))


def test_without_rows_nothing_is_claimed() -> None:
    found = metrics([])
    assert math.isnan(found["window_up_s"])
    assert math.isnan(found["ui_cpu_core_fraction"])
    assert math.isnan(found["tokens_with_ui_over_without"])


def test_an_answer_counts_from_its_first_piece_and_only_where_it_is_long_enough() -> None:
    long = [events.Arrival(16_000 + 1600 * n, 7, "llm", n, 0.0) for n in range(11)]
    short = [events.Arrival(100_000 + n, 8, "llm", n, 0.0) for n in range(3)]
    other = [events.Arrival(1600 * n, 9, "tts", n, 0.0) for n in range(20)]
    assert token_rows([*long, *short, *other]) == [{"scene": "tokens", "tokens": 10, "seconds": 1.0}]


def test_without_a_window_it_says_which_command_has_one() -> None:
    with pytest.raises(AgentError, match="vivavoce bench ui"):
        measure(Config.model_construct(), seed=0, size=Size(4, None))
