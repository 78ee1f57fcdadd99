"""The file of `--events`: made with its first line, whole lines only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.event_log import EventLog
from app.errors import AgentError


def test_nothing_is_touched_before_the_first_event(tmp_path: Path) -> None:
    path = tmp_path / "talk" / "e.jsonl"
    log = EventLog(path)
    log.close()
    assert not path.parent.exists()
    log = EventLog(path)
    log.write('{"a": "é"}')
    assert path.read_text(encoding="utf-8") == '{"a": "é"}\n'
    log.write("{}")
    log.close()
    log.close()
    assert path.read_text(encoding="utf-8") == '{"a": "é"}\n{}\n'


def test_a_place_that_has_gone_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match="cannot be written: File exists"):
        EventLog(tmp_path / "file" / "e.jsonl").write("{}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_the_callers_to_tell() -> None:
    log = EventLog(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        log.write("{}")
    log.close()


def test_a_disk_that_takes_half_a_line_keeps_the_lines_before_it(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from app.cli.event_log import EventLog\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))\n"
        "log = EventLog(Path(sys.argv[1]))\n"
        "log.write('{\"line\": 1}'); log.write('{\"line\": 2}')\n"
        "try: log.write('{\"line\": 3}')\n"
        "except OSError as error: print(error.strerror)\n"
        "log.close()\n"
    )
    path = tmp_path / "e.jsonl"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("No space left on device\n", "")
    assert path.read_text() == '{"line": 1}\n{"line": 2}\n'
