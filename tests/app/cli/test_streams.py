"""Standard streams that are closed, full, or go to a reader who has left; limits of the system that are too low."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import app.cli.main as main_module
from app.cli import bench
from app.cli.main import main
from app.config.load import load_config
from app.crash import describe_crash
from app.errors import AgentError
from app.models.store import Store

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VIVAVOCE", "PYTHONUNBUFFERED"))}
    return {**kept, **{f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "STATE")}}


def shell(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`vivavoce` in the command stands for this program; its exit code is that of the shell."""
    text = command.replace("vivavoce", f"{sys.executable} -m app.cli.main", 1)
    return subprocess.run(
        ["bash", "-c", text], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["config keys", "config show", "--version", "models list --json"])
def test_a_full_disk_behind_the_output_is_one_sentence_and_exit_code_2(
    command: str, environment: dict[str, str]
) -> None:
    """Short outputs fail only when Python empties its buffer at the end."""
    done = shell(f"vivavoce {command} > /dev/full", environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the standard output cannot be written: No space left on device. Free some disk space" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str, environment: dict[str, str]) -> None:
    done = shell(f"vivavoce config show {closed}", environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("llm.seed" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_an_error_is_not_printed_among_the_results(environment: dict[str, str]) -> None:
    """With the stream for errors closed, Python would print it to the standard output."""
    done = shell("vivavoce config show --set llm.seed=x 2>&-", environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_file_does_not_take_the_place_of_a_closed_stream(environment: dict[str, str]) -> None:
    """Else what a library prints lands in the journal; a child must find the stream too."""
    code = (
        "import os, subprocess, sys\n"
        "from app.cli.main import _prepare_streams\n"
        "_prepare_streams()\n"
        "file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "assert file > 2, file\n"
        "os.write(1, b'noise')\n"
        "assert subprocess.run(['sh', '-c', 'echo noise; echo noise >&2; read x']).returncode == 1\n"
        "print('words'); print('words', file=sys.stderr); assert sys.stdin.read() == ''\n"
        "sys.exit(7)\n"
    )
    target = Path(environment["XDG_DATA_HOME"]).parent / "file"
    command = ["bash", "-c", 'exec "$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, code, str(target)]
    assert subprocess.run(command, cwd=ROOT, env=environment, timeout=60, check=False).returncode == 7
    assert target.read_bytes() == b""


def test_a_terminal_that_cannot_show_a_character_shows_another(environment: dict[str, str]) -> None:
    environment["PYTHONIOENCODING"] = "ascii"
    done = shell("vivavoce config show --set personas.default.prompt=日本", environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'prompt = "??"' in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="`ulimit -v` is Linux's")
@pytest.mark.parametrize("limit_kib", [300_000, 700_000])
def test_too_little_memory_is_exit_3_and_no_damaged_model(
    limit_kib: int, environment: dict[str, str], model_store: Store
) -> None:
    """Whoever meets the limit first, the plan, a library or a model: it is said to be memory."""
    if any(model_store.state(model) != "in place" for model in model_store.catalog.starters()):
        pytest.skip("the starter set is not in the store")
    environment["VIVAVOCE_STORE"] = str(model_store.root)
    done = shell(f"ulimit -v {limit_kib}; vivavoce --simulate < /dev/null", environment)
    assert done.returncode == 3, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("vivavoce: "))
    assert "not enough memory" in line or "does not fit: memory has" in line
    assert "fetch" not in line.lower()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "x", "/a/file"), "/a/file: no space left on device. Free some disk space"),
        (OSError(errno.EROFS, "x", "/a"), "/a: read-only file system. Choose a place that you may write to"),
        (PermissionError(errno.EACCES, "x", "/a"), "/a: permission denied. Choose a place that you may write to"),
        (OSError(errno.EMFILE, "x"), "too many open files. Raise the limit on open files (ulimit -n 1024)"),
        (MemoryError(), "not enough memory. Close other programs, or raise the limit (ulimit -v)"),
        (ImportError("libtorch.so: failed to map\nmore", name="torch._C"),
         "a library cannot be loaded: libtorch.so: failed to map. Install it again (make run), or allow more memory "
         "(ulimit -v)"),
        (RuntimeError("can't start new thread"),
         "no more threads are allowed. Close other programs, or raise the limit (ulimit -u)"),
    ],
)  # fmt: skip
def test_what_the_machine_is_to_blame_for_is_no_bug(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object, loaded: object) -> int:
        raise error

    monkeypatch.setattr(main_module, "talk_in_terminal", fail)
    assert main([]) == (3 if isinstance(error, MemoryError) else 2)
    assert capsys.readouterr().err == f"vivavoce: {sentence}\n"


@pytest.mark.parametrize(
    "error", [ImportError("cannot import x", name="app.x"), OSError(errno.ENOENT, "x"), RuntimeError("x")]
)
def test_a_bug_stays_one(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object, loaded: object) -> int:
        raise error

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(main_module, "talk_in_terminal", fail)
    assert main([]) == 1
    assert "This is a bug" in capsys.readouterr().err


def test_too_few_open_files_in_a_child_is_no_bug_either() -> None:
    sentence = describe_crash(OSError(errno.EMFILE, "Too many open files"))
    assert sentence == "too many open files. Raise the limit on open files (ulimit -n 1024)"


def test_a_benchmark_does_not_run_before_its_document_can_be_written(tmp_path: Path) -> None:
    config = load_config(file=None, env={"HOME": str(tmp_path)}).config
    for name in ("json", "table"):
        args = argparse.Namespace(name="costs", json=None, table=None)
        setattr(args, name, tmp_path / "no" / "t.json")
        with pytest.raises(AgentError, match=r"the folder of .* does not exist"):
            bench.run(args, config)
