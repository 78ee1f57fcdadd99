"""`vivavoce plan` and the plan that an engine starts by: exit codes, the table, the document, the fallback."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import app.cli.checks.memory as memory_check
import app.cli.plan as command
import app.engine.memory_plan as memory_plan
import gpu.memory.places
from app.cli.main import main
from app.config.load import load_config
from app.config.schema import Config
from app.engine.builder import places
from app.engine.memory_plan import open_peaks, plan_start, request_of, shape_of
from app.errors import ModelStoreError
from app.models.catalog import load_catalog
from app.models.store import Store
from gpu.memory.places import Machine, Place
from gpu.memory.preflight import MemoryPlanError, context_key
from gpu.memory.record import record_context

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and no configuration of the person who runs the tests."""
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "store"))
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """`machine(card_gib, ram_gib)`: what the program finds from now on. Measuring a context finds 500 MiB."""

    def make(card_gib: float | None, ram_gib: float = 32.0) -> Machine:
        host = Place("cpu", "memory", int(64 * GIB), int(ram_gib * GIB), others="other programs")
        cards: tuple[Place, ...] = ()
        if card_gib is not None:
            free = int(card_gib * GIB)
            cards = (Place("cuda", "GPU 0 (Card)", free + GIB, free, "cuda:0", "8.9", "Card", others="process 7"),)
        found = Machine(host, cards)
        monkeypatch.setattr(command, "read_machine", lambda *rest, **more: found)
        monkeypatch.setattr(memory_plan, "read_machine", lambda *rest, **more: found)
        monkeypatch.setattr(command, "ask_in_child", lambda *rest, **more: 500 * MIB)
        return found

    return make


def config(*overrides: str) -> Config:
    return load_config(file=None, env=os.environ, overrides=overrides).config


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_it_fits(machine: Callable[..., Machine], capsys: pytest.CaptureFixture[str]) -> None:
    machine(10)
    assert main(["plan", "--model", "llama-3.2-1b", "--sessions", "2", "--context", "4096"]) == 0
    text = capsys.readouterr().out
    assert "GPU 0 (Card)" in text
    assert "process 7" in text
    assert "2 x 4096 tokens" in text
    assert "It fits; there is room for up to" in text
    code, found = document(capsys, "--model", "llama-3.2-1b")
    assert (code, found["fits"], found["fixes"], found["precision"]) == (0, True, [], "bf16")
    (card, ram) = found["memories"]
    assert card["needs_bytes"] == sum(row["bytes"] for row in card["rows"]) <= card["free_bytes"]
    assert card["others_bytes"] == card["total_bytes"] - card["free_bytes"] == GIB
    assert all(row["origin"] for row in card["rows"] + ram["rows"])


def test_it_does_not_fit_exit_3_and_three_fixes(
    machine: Callable[..., Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(7)
    arguments = ["--model", "smollm2-1.7b", "--sessions", "4", "--context", "8192"]
    assert main(["plan", *arguments]) == 3
    text = capsys.readouterr().out
    assert "missing" in text
    assert [line[:4] for line in text.splitlines()[-3:]] == ["  1.", "  2.", "  3."]
    code, found = document(capsys, *arguments)
    assert (code, found["fits"]) == (3, False)
    assert len(found["fixes"]) == 3
    assert all(fix["frees_bytes"] >= found["short_bytes"] > 0 for fix in found["fixes"])


_SWITCHES = re.compile(r"--set \S+=[\w.-]+|--(?:context|sessions|model) [\w.-]+")
COMMANDS = [
    (None, 1.0, []),
    (None, 0.4, ["--set", "memory.least_context_tokens=256"]),
    (None, 0.9, ["--context", "131072"]),
    (None, 0.9, ["--set", "llm.precision=fp32", "--sessions", "3"]),
    (None, 2.0, ["--model", "llama-3.2-3b", "--context", "131072"]),
    (7, 32.0, ["--model", "smollm2-1.7b", "--sessions", "4", "--context", "8192"]),
    (7, 32.0, ["--model", "llama-3.1-8b", "--set", "llm.context_tokens=16384"]),
    (3, 32.0, ["--set", "llm.model=llama-3.2-1b", "--set", "llm.context_tokens=131072"]),
    (9, 32.0, ["--model", "llama-3.2-3b", "--set", "llm.precision=fp32"]),
    (9.5, 32.0, ["--model", "llama-3.2-3b", "--context", "32768"]),
    (0.5, 1.0, ["--set", "llm.precision=bf16"]),
    (2, 0.5, ["--set", "personas.default.max_history_tokens=2048"]),
]


@pytest.mark.parametrize(("card_gib", "ram_gib", "arguments"), COMMANDS)
def test_every_fix_as_it_is_printed_makes_the_same_command_fit_or_come_nearer(
    card_gib: float | None,
    ram_gib: float,
    arguments: list[str],
    machine: Callable[..., Machine],
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(card_gib, ram_gib)
    code, found = document(capsys, *arguments)
    assert code == 3
    assert len(found["fixes"]) >= 2
    changing = 0
    for fix in found["fixes"]:
        switches = [word for switch in _SWITCHES.findall(fix["text"]) for word in switch.split(" ")]
        is_rest = "emory" in fix["text"] or "lose what holds" in fix["text"]
        assert switches or is_rest, fix
        if not switches:
            continue
        changing += 1
        again_code, again = document(capsys, *arguments, *switches)
        assert again_code == 0 or (is_rest and again["short_bytes"] < found["short_bytes"]), fix
        for given in ("--context", "--model"):  # a flag wins over the configuration's key
            key = {"--context": "llm.context_tokens=", "--model": "llm.model="}[given]
            assert given not in arguments or key not in fix["text"]
    assert changing >= min(2, len(found["fixes"]) - 1)


def test_only_models_that_llm_model_takes_are_proposed(machine: Callable[..., Machine]) -> None:
    names = {row.name for row in load_catalog() if row.role == "llm"}
    where = places(config(), os.environ)
    assert {shape.name for shape in memory_plan.smaller_models(where)} <= names
    machine(None, 6)
    with pytest.raises(MemoryPlanError) as caught:
        plan_start(config("llm.model=llama-3.1-8b"), where)
    proposed = re.findall(r"llm\.model=([\w.-]+)", caught.value.fix)
    assert proposed
    assert set(proposed) <= names
    assert "--sessions" not in caught.value.fix  # a conversation has no such flag


def test_a_gpu_that_is_wanted_and_is_not_there_is_said(
    machine: Callable[..., Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(None)
    assert main(["plan", "--set", "llm.device=cuda"]) == 0
    assert (
        "Note: llm.device is cuda, but there is no GPU here: this is the plan for the CPU." in capsys.readouterr().out
    )
    assert document(capsys)[1]["notes"] == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(20)
def test_a_pipe_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    assert main(["plan", "--model", str(tmp_path / "a.gguf")]) == 2
    assert "no regular file" in capsys.readouterr().err


def test_a_pretended_card_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama-3.1-8b", "--gpu-memory", "8GiB", "--context", "8192"]) == 3
    text = capsys.readouterr().out
    assert "GPU 0 (pretended)" in text
    assert "8030 million parameters" in text
    assert "Traceback" not in text


def test_a_machine_without_a_gpu(machine: Callable[..., Machine], capsys: pytest.CaptureFixture[str]) -> None:
    machine(None, 16)
    code, found = document(capsys)
    assert (code, found["device"], found["precision"]) == (0, "cpu", "int8")
    machine(None, 1)
    code, found = document(capsys)
    assert code == 3
    assert found["fixes"]


def test_the_context_is_measured_once(
    machine: Callable[..., Machine], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(10)
    _, found = document(capsys)
    assert found["memories"][0]["rows"][0] == {
        "name": "cuda context", "bytes": 500 * MIB, "origin": "measured on this kind of GPU",
    }  # fmt: skip
    monkeypatch.setattr(command, "ask_in_child", lambda *rest, **more: pytest.fail("it was measured already"))
    assert document(capsys)[1]["memories"][0]["rows"][0]["bytes"] == 500 * MIB


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "nonsense"], "no language model named 'nonsense'. Give the path of a model, or one of: smollm2"),
        (["--model", "./nothing.gguf"], "there is no such file"),
        (["--set", "llm.device=cuda:3", "--gpu-memory", "8GiB"], "There is no GPU 3"),
        (["--set", "llm.precision=int8", "--gpu-memory", "8GiB"], "int8 does not run on cuda"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


@pytest.mark.parametrize("arguments", [["--gpu-memory", "8x"], ["--gpu-memory", "0"], ["--sessions", "0"],
                                       ["--context", "131073"], ["--context", "1"], ["--context", "255"]])  # fmt: skip
def test_bad_flags(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *arguments])
    assert caught.value.code == 2
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * GIB), ("500MB", 500_000_000), ("7.5 g", 7_500_000_000), ("1024", 1024),
                       ("2ti", 2 << 40)]
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert command.size_bytes(text) == size


def test_a_family_that_does_not_run_yet_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    shape = memory_plan.known_shape("qwen2.5-7b")
    assert shape is not None
    code, found = document(capsys, "--model", "qwen2.5-7b", "--gpu-memory", "24GiB", "--context", "2048")
    assert found["memories"][0]["short_bytes"] == 0
    assert (found["notes"] == []) == shape.is_runnable
    assert code in (0, 3)  # this machine's own RAM decides


def test_a_model_in_the_store_is_read_from_its_file(model_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_STORE", str(model_store.root))
    where = places(config(), os.environ)
    assert shape_of("smollm2-135m", where).parameters == 134_515_008
    path = model_store.parts("smollm2-135m")["model"]
    assert shape_of(str(path), where).name == path.stem


def test_the_starter_set_is_planned_before_it_is_fetched(machine: Callable[..., Machine]) -> None:
    found = machine(None)
    request = request_of(config(), places(config(), os.environ), found)
    assert [stage.name for stage in request.stages] == ["asr", "vad", "turn", "tts"]
    assert all(stage.size_bytes > 1_000_000 for stage in request.stages)
    with pytest.raises(ModelStoreError):
        request_of(config("asr.model=./nowhere"), places(config(), os.environ), found)


def test_an_engine_starts_on_the_gpu_or_falls_back_or_is_refused(machine: Callable[..., Machine]) -> None:
    where = places(config(), os.environ)
    machine(10)
    assert plan_start(config(), where).request.kind == "cuda"
    assert plan_start(config(), where, avoids_gpu=True).request.kind == "cpu"
    assert plan_start(config("llm.device=cpu"), where).request.precision == "int8"
    machine(0.5)
    assert plan_start(config(), where).request.kind == "cpu"  # device = "auto"
    with pytest.raises(MemoryPlanError, match="smollm2-135m does not fit") as caught:
        plan_start(config("llm.device=cuda"), where)
    assert caught.value.exit_code == 3
    machine(0.5, 0.2)
    with pytest.raises(MemoryPlanError, match="are missing"):
        plan_start(config(), where)


def test_peaks_lie_in_the_data_folder(machine: Callable[..., Machine], tmp_path: Path) -> None:
    where = places(config(), os.environ)
    machine(10)
    made = plan_start(config(), where)
    assert record_context(open_peaks(where), made, 512 * MIB)
    assert open_peaks(where).peak(context_key(made.ledgers[0].place, made.request.version)) == 512 * MIB
    assert (tmp_path / "data" / "vivavoce" / "peaks.sqlite").is_file()
    assert plan_start(config(), where).ledgers[0].row("cuda context").size_bytes == 512 * MIB


def test_the_doctors_lines(machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine(10)
    monkeypatch.setattr(memory_check, "read_host", lambda: found.host)
    ram, card, host = memory_check.checks(config())
    assert (ram.name, card.name, host.name) == ("memory", "gpu memory plan", "memory plan")
    assert {ram.status, card.status, host.status} == {"ok"}
    assert card.found.startswith("a conversation with smollm2-135m takes 1.")
    assert "GPU 0 (Card)" in card.found
    _, check = memory_check.checks(config("llm.model=nonsense"))
    assert (check.status, bool(check.fix)) == ("warning", True)
    machine(0.5, 0.2)
    _, check = memory_check.checks(config())
    assert (check.status, bool(check.fix)) == ("problem", True)
    assert check.figures["short_bytes"] > 0


def test_the_doctor_and_the_plan_read_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a control group leaves less than the machine has, nobody may speak of the machine's."""
    limited = Place("cpu", "memory", 3 * GIB, 2 * GIB, others="other programs", note="a control group limits it")
    monkeypatch.setattr(gpu.memory.places, "read_host", lambda: limited)
    monkeypatch.setattr(memory_check, "read_host", lambda: limited)
    ram, need = memory_check.checks(config("llm.device=cpu"))
    assert "2.1 of 3.2 GB available (a control group limits it)" in ram.found
    assert ram.figures["available_bytes"] == need.figures["free_bytes"] == 2 * GIB
    _, found = document(capsys, "--set", "llm.device=cpu")
    assert found["memories"][-1]["free_bytes"] == 2 * GIB
    assert found["memories"][-1]["needs_bytes"] == need.figures["needs_bytes"]
