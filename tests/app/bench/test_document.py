"""Benchmark documents: a figure that its rows do not give is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.bench import costs, talk
from app.bench.document import Benchmark, check_document, document_text, make_document
from app.conversation.costs import load_costs
from app.errors import AgentError

BENCH = Benchmark(
    "mean", lambda: [], lambda rows: {"mean_ms": sum(r["ms"] for r in rows) / len(rows), "none": float("nan")}
)


def written(tmp_path: Path, **changes: object) -> Path:
    document = make_document(BENCH, [{"ms": 1.0}, {"ms": 2.0}], command="vivavoce bench mean", seed=0, load1=0.1)
    path = tmp_path / "mean.json"
    path.write_text(document_text(document | changes))
    return path


def test_document_has_its_stamp_and_agrees_with_its_rows(tmp_path: Path) -> None:
    path = written(tmp_path)
    document = json.loads(path.read_text())
    assert {"benchmark", "date", "commit", "command", "seed", "hardware", "versions", "load1", "metrics", "rows"} == (
        document.keys()
    )
    assert document["metrics"] == {"mean_ms": 1.5, "none": None}
    assert check_document(path, {"mean": BENCH}) == []


@pytest.mark.parametrize(
    "metrics", [{"mean_ms": 1.4, "none": None}, {"none": None}, {"mean_ms": 1.5, "none": None, "best": 9.0}]
)
def test_typed_figures_are_found(tmp_path: Path, metrics: dict[str, float]) -> None:
    assert len(check_document(written(tmp_path, metrics=metrics), {"mean": BENCH})) == 1


def test_what_is_no_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(AgentError, match="no benchmark document"):
        check_document(path, {"mean": BENCH})


def test_talk_metrics_are_the_promised_ones_and_count_right() -> None:
    echo = {"scene": "echo", "is_prompted": True, "sounded_s": 60.0, "stop_ms": None}
    rows = [
        {"scene": "voice", "voice_to_voice_ms": 900.0, "endpoint_ms": 200.0},
        {"scene": "voice", "voice_to_voice_ms": None},
        {"scene": "framework", "since_decision_ms": 162.0, "stub_ms": 150.0},
        {
            "scene": "hops",
            "late_ms": [1.0] * 98 + [5.0, 25.0],
            "is_busy": [1] * 100,
            "backlog_max": 2,
            "callback_late_ms": [0.2],
        },
        {"scene": "headset", "was_interrupted_by_user": True, "stop_ms": 300.0, "heard_words": 4, "heard_errors": 1},
        {**echo, "was_interrupted_by_user": False, "gave_way": False},
        {**echo, "was_interrupted_by_user": False, "gave_way": True},
        {**echo, "was_interrupted_by_user": True, "gave_way": True, "stop_ms": 400.0},
        {**echo, "was_interrupted_by_user": True, "gave_way": True, "stop_ms": 1400.0},
        {**echo, "was_interrupted_by_user": True, "gave_way": False, "stop_ms": 9000.0},
    ]
    found = talk.metrics(rows)
    promised = {
        "voice_to_voice_p50_ms": 900.0,
        "voice_to_voice_p95_ms": 900.0,
        "framework_p50_ms": 12.0,
        "hop_late_p99_ms": 5.0,
        "barge_in_stop_p95_ms": 300.0,
        "self_interruptions_per_10min": 2.0,
        "interruptions_acted_on": pytest.approx(1 / 3),
        "callback_late_p99_ms": 0.2,
    }
    assert promised.items() <= {key: found[key] for key in promised}.items()
    assert found["questions_unanswered"] == 1
    assert found["hop_backlog_max"] == 2
    assert found["barge_in_heard_wer"] == 0.25


def test_cost_table_is_fitted_above_nine_of_ten_and_reads_back(tmp_path: Path) -> None:
    rows = [
        {"kind": kind, "size": size, "repeat": 1, "first_ms": 10 + 3 * size + wobble, "each_ms": [20.0, 21.0]}
        for kind in ("turn", "asr", "llm", "tts")
        for size in ((0,) if kind == "turn" else (1, 5, 9))
        for wobble in range(10)
    ]
    found = costs.metrics(rows)
    assert found["asr_per_unit_ms"] == pytest.approx(3)
    assert sum(r["first_ms"] <= found["asr_base_ms"] + 3 * r["size"] for r in rows if r["kind"] == "asr") >= 27
    costs.write_table(found, tmp_path / "costs.toml")
    table = load_costs(tmp_path / "costs.toml")
    assert table.charge("tts", 5).first_ms == pytest.approx(found["tts_base_ms"] + 15, abs=0.1)
    assert table.charge("llm", 1).each_ms == pytest.approx(21, abs=0.1)
