"""The command line: parsing, exit codes, one sentence for every error, nothing heavy for `--version`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import app.cli.main as main_module
from app.cli.main import build_parser, main
from app.errors import AgentError
from app.version import VERSION
from audio.errors import DeviceError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No configuration, store or log of the person who runs the tests."""
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("VIVAVOCE_STORE", raising=False)
    return tmp_path


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_version_imports_nothing_heavy_and_starts_no_process() -> None:
    code = (
        "import sys, subprocess, os, multiprocessing.process as p\n"
        "def refuse(*a, **k): raise AssertionError('started a process')\n"
        "p.BaseProcess.start = subprocess.Popen.__init__ = os.fork = refuse\n"
        "from app.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'numpy', 'pydantic', 'torch', 'onnxruntime', 'sounddevice'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"vivavoce {VERSION}\n"), done.stderr


def test_version_is_one_quick_process() -> None:
    """CPU seconds rather than the clock, so that a busy machine does not fail it."""
    process = psutil.Popen([sys.executable, "-m", "app.cli.main", "--version"], stdout=subprocess.DEVNULL)
    times = process.cpu_times()
    while process.poll() is None:
        assert process.children() == []
        try:
            times = process.cpu_times()
        except psutil.Error:  # it ended between the two calls
            break
    process.wait(10)
    assert times.user + times.system < 0.3


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_configuration_file_counts_before_and_after_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[llm]\nseed = 4711\n")
    option = ["--config", str(file)]
    assert main([*option, "config", "show"] if place == "before" else ["config", "show", *option]) == 0
    assert "4711" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["before", "after"])
def test_keys_count_before_and_after_the_command(capsys: pytest.CaptureFixture[str], place: str) -> None:
    option = ["--set", "llm.seed=4711"]
    assert main([*option, "config", "show"] if place == "before" else ["config", "show", *option]) == 0
    assert "4711" in capsys.readouterr().out


def test_a_frozen_program_does_not_spawn_itself_for_ever_freeze_support_comes_first() -> None:
    """Without it every child of a frozen program is the program again."""
    import ast
    import inspect

    (function,) = ast.parse(inspect.getsource(main)).body
    assert isinstance(function, ast.FunctionDef)
    first = function.body[1]  # after the docstring
    assert ast.unparse(first) == "multiprocessing.freeze_support()"


def test_flags_of_every_level_are_collected() -> None:
    args = build_parser().parse_args(["--set", "a=1", "models", "--set", "b=2", "fetch", "--set", "c=3", "x"])
    assert args.overrides == ["a=1", "b=2", "c=3"]
    assert args.names == ["x"]
    assert "overrides" not in build_parser().parse_args([])


def test_talk_flags() -> None:
    flags = [
        "--no-ui",
        "--input",
        "q.wav",
        "--output",
        "a.wav",
        "--events",
        "e.jsonl",
        "--fast",
        "--cost",
        "fixed:t.json",
    ]
    args = build_parser().parse_args(flags)
    assert (args.no_ui, args.fast, args.cost) == (True, True, "fixed:t.json")
    assert (args.input, args.output, args.events) == (Path("q.wav"), Path("a.wav"), Path("e.jsonl"))


@pytest.mark.parametrize("flags", [["--cost", "free"], ["--cost", "fixed:"], ["--seed", "-1"], ["--seed", "x"],
                                   ["nonsense"], ["models"], ["replay"], ["--inp", "x"]])  # fmt: skip
def test_bad_command_lines_exit_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_short_flags_set_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(main_module, "talk_in_terminal", lambda args, loaded: seen.append(loaded.config) or 0)
    flags = [
        "--set",
        "llm.seed=1",
        "--seed",
        "2",
        "--persona",
        "brief",
        "--input-device",
        "mic",
        "--output-device",
        "spk",
    ]
    assert main(flags) == 0
    (config,) = seen
    assert (config.llm.seed, config.persona, config.audio.input, config.audio.output) == (2, "brief", "mic", "spk")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (AgentError("It broke", fix="Mend it"), 2, "vivavoce: It broke. Mend it\n"),
        (DeviceError("No microphone", device="mic", fix="Plug it in"), 2, "vivavoce: No microphone. Plug it in\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_known_errors_are_one_sentence(
    error: BaseException, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object, loaded: object) -> int:
        raise error

    monkeypatch.setattr(main_module, "talk_in_terminal", fail)
    assert main([]) == code
    assert capsys.readouterr().err == sentence


def test_a_bug_goes_to_the_log(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "talk_in_terminal", lambda args, loaded: 1 // 0)
    assert main([]) == 1
    line = capsys.readouterr().err
    log = own_folders / "state" / "vivavoce" / "crash.log"
    assert "ZeroDivisionError" in line
    assert str(log) in line
    assert line.count("\n") == 1
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_wrong_key_exits_2_without_traceback() -> None:
    done = _run("config", "check", "--set", "llm.sed=1")
    assert done.returncode == 2
    assert done.stderr == "vivavoce: Unknown configuration key llm.sed (flag --set llm.sed=1). Did you mean llm.seed?\n"


def test_config_show_tells_origins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "llm.seed=7"]) == 0
    assert "llm.seed = 7    # flag --set llm.seed=7" in capsys.readouterr().out
    assert main(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["llm.seed"] == {"value": 0, "origin": "default"}
    assert main(["config", "keys"]) == 0
    assert "llm.temperature\n    0: always the most likely token\n    Allowed: a number" in capsys.readouterr().out


def test_output_into_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m app.cli.main config keys | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
