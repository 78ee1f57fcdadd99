"""`vivavoce` live, in its real processes, on the simulated device: it leaves when told to, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.journal import Journal
from app.models.store import Store
from audio.io.segments import sweep_stale

ROOT = Path(__file__).resolve().parents[3]
LEAVE_LIMIT_S = 2.0


class Session:
    """A running `vivavoce --simulate` and what its log says so far."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.log = folder / "events.jsonl"
        command = [sys.executable, "-m", "app.cli.main", "--no-ui", "--simulate", "--events", str(self.log)]
        command += ["--journal", str(folder / "journal.jsonl"), *flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.family = psutil.Process(self.process.pid)

    def types(self) -> list[str]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        return [f"{e['type']} {e.get('state', '')}".strip() for e in map(json.loads, lines[:-1])]

    def until(self, wanted: str, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while wanted not in self.types():
            assert self.process.poll() is None, self.process.stderr.read() if self.process.stderr else ""
            assert time.monotonic() < deadline, f"no {wanted!r} in {self.types()[-5:]}"
            time.sleep(0.02)

    def children(self) -> list[psutil.Process]:
        return [child for child in self.family.children(recursive=True) if child.is_running()]

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def session(model_store: Store, tmp_path: Path) -> Iterator[Callable[..., Session]]:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    made: list[Session] = []

    def start(*flags: str) -> Session:
        made.append(Session(tmp_path, *flags))
        return made[-1]

    yield start
    for one in made:
        one.end()


def still_alive(processes: list[psutil.Process], limit_s: float = 1.0) -> list[psutil.Process]:
    """Those that are neither gone nor waiting for an init that does not reap."""
    _, left = psutil.wait_procs(processes, timeout=limit_s)
    return [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def segments_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"vivavoce-{pid}-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "how"),
    [
        ("", signal.SIGINT),
        ("", signal.SIGTERM),
        ("device.opened", signal.SIGINT),
        ("state hearing", signal.SIGTERM),
        ("state thinking", signal.SIGINT),
        ("state speaking", signal.SIGTERM),
        ("state speaking", signal.SIGINT),
    ],
)
def test_leaves_within_two_seconds_in_every_state(
    session: Callable[..., Session], state: str, how: signal.Signals
) -> None:
    one = session()
    if state:
        one.until(state)
    else:
        time.sleep(2.5)  # somewhere in the loading of the models
    children = one.children()
    assert state == "" or len(children) >= 3
    begun = time.monotonic()
    # As a terminal does it: the whole group gets the signal.
    os.killpg(one.process.pid, how) if how == signal.SIGINT else one.process.send_signal(how)
    one.process.wait(10)
    assert time.monotonic() - begun < LEAVE_LIMIT_S
    _, errors = one.process.communicate()
    assert one.process.returncode == 0
    assert errors == ""
    assert still_alive(children) == []
    assert segments_of(one.process.pid) == []
    if state:
        assert one.log.read_text().splitlines()[-1].startswith('{"type": "session.ended"')
    if state == "state speaking":  # what was heard up to now is kept
        assert "agent.said" in one.types()
        assert '"heard"' in (one.log.parent / "journal.jsonl").read_text()


@pytest.mark.slow
def test_killed_face_takes_its_processes_with_it_and_the_next_run_sweeps(session: Callable[..., Session]) -> None:
    one = session()
    one.until("state hearing")
    children = one.children()
    one.process.send_signal(signal.SIGKILL)
    assert still_alive(children, limit_s=3.0) == []
    assert segments_of(one.process.pid)
    one.process.wait()
    assert len(sweep_stale()) >= 4
    assert segments_of(one.process.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_dead_engine_is_replaced_and_the_conversation_goes_on(
    session: Callable[..., Session], how: signal.Signals
) -> None:
    one = session()
    one.until("state speaking")
    engine = max(one.children(), key=lambda child: child.memory_info().rss)
    begun = time.monotonic()
    engine.send_signal(how)
    one.until("process.lost")
    one.until("process.back")
    print(f"an engine after {time.monotonic() - begun:.1f} s")
    answered = one.types().count("agent.said")
    while one.types().count("agent.said") <= answered:  # what it owed, or the next question
        time.sleep(0.05)
        assert time.monotonic() - begun < 60
    children = one.children()
    one.process.send_signal(signal.SIGINT)
    out, errors = one.process.communicate(timeout=10)
    assert (one.process.returncode, errors) == (0, "")
    assert "the engine was lost" in out
    assert "the engine is back after" in out
    assert still_alive(children) == []
    assert segments_of(one.process.pid) == []


@pytest.mark.slow
def test_words_heard_before_the_face_was_killed_are_in_the_journal(session: Callable[..., Session]) -> None:
    one = session()
    one.until("state speaking")
    time.sleep(1.0)
    children = one.children()
    one.process.send_signal(signal.SIGKILL)
    assert still_alive(children, limit_s=3.0) == []
    events = [json.loads(line) for line in one.log.read_text().splitlines() if line.endswith("}")]
    text = " ".join(event["text"] for event in events if event["type"] == "agent.text")
    journal = Journal(one.log.parent / "journal.jsonl")
    (exchange,) = journal.exchanges()
    journal.close()
    assert exchange.user == "What is the capital of France?"
    assert exchange.heard
    assert text.startswith(exchange.heard)
    one.process.wait()
    sweep_stale()


@pytest.mark.slow
def test_scripted_conversation_is_answered_recorded_and_resumed(
    session: Callable[..., Session], tmp_path: Path
) -> None:
    one = session("--record", str(tmp_path / "rec"))
    one.until("agent.said")
    one.process.send_signal(signal.SIGINT)
    out, _ = one.process.communicate(timeout=10)
    assert "you: What is the capital of France?" in out
    assert "agent: " in out
    assert (tmp_path / "rec" / "microphone.wav").stat().st_size > 100_000
    recorded = tmp_path / "rec"
    command = [sys.executable, "-m", "app.cli.main", "replay", "--events", str(recorded / "events.jsonl")]
    command += ["--input", str(recorded / "microphone.wav")]
    replay = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert replay.returncode == 0, replay.stdout + replay.stderr
    assert "same decisions" in replay.stdout
    journal = (tmp_path / "journal.jsonl").read_text()
    assert "What is the capital of France?" in journal
