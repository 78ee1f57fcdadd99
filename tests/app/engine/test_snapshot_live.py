"""An engine that is killed: its successor does not read the conversation again, and nothing is left at the end."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app.models.store import Store

ROOT = Path(__file__).resolve().parents[3]
_LIMIT_S = 60.0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9")
def test_a_new_engine_goes_on_from_the_snapshot(model_store: Store, tmp_path: Path) -> None:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    log, data = tmp_path / "events.jsonl", tmp_path / "data"
    command = [sys.executable, "-m", "app.cli.main", "--no-ui", "--simulate", "--events", str(log)]
    command += ["--journal", str(tmp_path / "journal.jsonl"), "--set", f"paths.data={data}"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=out)

    def until(is_so: Callable[[], object]) -> None:
        until_s = time.monotonic() + _LIMIT_S
        while not is_so():
            assert process.poll() is None, (tmp_path / "out").read_text()
            assert time.monotonic() < until_s, (tmp_path / "out").read_text()
            time.sleep(0.05)

    def count(name: str) -> int:
        lines = log.read_text().splitlines()[:-1] if log.exists() else []
        return sum(json.loads(line)["type"] == name for line in lines)

    folder = data / "cache" / "snapshots"
    try:
        until(lambda: count("agent.said"))
        until(lambda: list(folder.glob("*.kv")))
        children = psutil.Process(process.pid).children()
        engine = max(children, key=lambda child: child.memory_info().rss)
        engine.kill()
        until(lambda: count("process.back"))
        until(lambda: count("agent.said") >= 2)
        process.send_signal(signal.SIGINT)
        process.wait(10)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert "tokens of the conversation need not be read again" in (data / "logs" / "vivavoce.log").read_text()
    assert list(folder.iterdir()) == []
    base = sqlite3.connect(data / "peaks.sqlite")
    stages = {stage for (stage,) in base.execute("SELECT stage FROM peaks")}
    base.close()
    assert {"asr", "tts", "workspace"} <= stages
