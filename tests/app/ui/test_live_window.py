"""The real window on the real engine, processes and all; only the sound device is a simulated one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PySide6.QtCore import QSettings, Qt, QTimer
from PySide6.QtWidgets import QApplication

import app.ui.application
import app.ui.session
from app import events
from app.cli.main import build_parser
from app.commands import SayText, SetMuted
from app.config.load import load_config
from app.models.store import Store
from app.paths import assets_dir
from app.ui.application import Program
from app.ui.failed_panel import FailedPanel
from app.ui.panel import Panel
from app.ui.registry import PanelSpec, panel_specs
from app.viewmodel.base import ViewModel
from app.viewmodel.conversation import ConversationView, Line
from app.viewmodel.latency import Latency
from app.viewmodel.settings import SettingsModel
from audio.errors import AudioFileError
from audio.files import WavWriter
from audio.io.device import SimulatedSpec

ROOT = Path(__file__).resolve().parents[3]
LOAD_LIMIT_MS = 60_000
ANSWER_LIMIT_MS = 30_000
STALL_LIMIT_MS = 250.0
LEAVE_LIMIT_S = 3.0
QUESTION = "What is the capital of France?"


class Rig:
    """A program under way, as its user sees it."""

    def __init__(self, program: Program, qtbot: Any) -> None:
        self.program, self.qtbot = program, qtbot
        self.window = program.window
        self.family = psutil.Process()
        self.stall_ms, self._last_s = 0.0, time.monotonic()
        self._timer = QTimer()
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_tick)
        self._timer.start(10)

    def _on_tick(self) -> None:
        now_s = time.monotonic()
        self.stall_ms = max(self.stall_ms, (now_s - self._last_s) * 1000)
        self._last_s = now_s

    def until(self, wanted: Callable[[], object], limit_ms: int = ANSWER_LIMIT_MS) -> None:
        self.qtbot.waitUntil(lambda: bool(wanted()), timeout=limit_ms)

    def model(self, kind: type[Any]) -> Any:
        return next(model for model in self.window.models if isinstance(model, kind))

    @property
    def talk(self) -> ConversationView:
        return self.model(ConversationView)  # type: ignore[no-any-return]

    @property
    def panel(self) -> Any:
        return self.window.panel("conversation")

    def lines(self, kind: str) -> list[Line]:
        return [line for line in self.talk.lines if line.kind == kind]

    def until_running(self) -> None:
        self.until(lambda: self.talk.session_state == "running", LOAD_LIMIT_MS)

    def ask(self, question: str = QUESTION) -> None:
        self.until(lambda: self.panel.input.isEnabled() and self.panel.send_button.isEnabled())
        self.panel.input.setText(question)
        self.qtbot.keyClick(self.panel.input, Qt.Key.Key_Return)

    def answer_to(self, question: str) -> Line | None:
        """The reply behind the last line that has this question, when something of it was heard."""
        lines = self.talk.lines
        at = max((i for i, line in enumerate(lines) if line.kind == "user" and line.text == question), default=-1)
        replies = [line for line in lines[at + 1 :] if line.kind == "agent"] if at >= 0 else []
        return replies[0] if replies and replies[0].heard_chars else None

    def children(self) -> list[psutil.Process]:
        return [
            child
            for child in self.family.children(recursive=True)
            if "resource_tracker" not in " ".join(child.cmdline())
        ]

    def pid_of(self, name: str) -> int:
        session = self.program._runner._session  # type: ignore[union-attr]
        return session.pids[name]  # type: ignore[union-attr]

    def close(self) -> None:
        """As the user does; all that ran is gone then."""
        children = self.children()
        self.window.close()
        assert not self.window.isVisible()
        self.until(lambda: self.program._runner is None)
        _, left = psutil.wait_procs(children, timeout=2.0)
        assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
        assert list(Path("/dev/shm").glob(f"vivavoce-{os.getpid()}-*")) == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_store: Store) -> Path:
    """A user who has models and nothing else."""
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    monkeypatch.setenv("VIVAVOCE_STORE", str(model_store.root))
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def begin(home: Path, qtbot: Any, qapp: QApplication) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def start(*flags: str) -> Rig:
        args = build_parser().parse_args(["--simulate", *flags])
        loaded = load_config(file=None, env=os.environ)
        settings = QSettings(str(home / "window.ini"), QSettings.Format.IniFormat)
        rig = Rig(Program(qapp, args, loaded, settings), qtbot)
        made.append(rig)
        rig.program.begin()
        return rig

    yield start
    for rig in made:
        rig._timer.stop()
        if rig.program._runner is not None:
            rig.close()
        rig.window.close()
        rig.window.deleteLater()


class _Broken(Panel):
    def refresh(self) -> None:
        raise RuntimeError("a plug-in's bug")


class _BrokenModel(ViewModel):
    def take(self, event: events.Event) -> None:
        raise RuntimeError("another plug-in's bug")


@pytest.mark.slow
def test_talk_type_and_stop_with_a_full_disk_and_a_broken_panel(
    begin: Callable[..., Rig], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: WavWriter, samples: Any) -> None:
        raise AudioFileError("the disk is full")

    broken = PanelSpec("broken", "Broken", "bottom", lambda _: ViewModel(), _Broken)
    deaf = PanelSpec("deaf", "Deaf", "bottom", lambda _: _BrokenModel(), Panel)
    monkeypatch.setattr(app.ui.application, "panel_specs", lambda: [*panel_specs(), deaf, broken])
    monkeypatch.setattr(WavWriter, "write", full)
    rig = begin("--record", str(home / "talk"))
    rig.window._shown[-1].dock.raise_()  # type: ignore[union-attr]
    rig.until(lambda: isinstance(rig.window.panel("broken"), FailedPanel))
    rig.until_running()
    assert isinstance(rig.window.panel("deaf"), FailedPanel)
    rig.until(lambda: "the recording stopped: the disk is full" in rig.window._problem_label.text())
    rig.until(lambda: rig.lines("user") and rig.lines("user")[0].is_over)
    rig.until(lambda: rig.lines("agent") and rig.lines("agent")[0].heard_chars)
    assert rig.lines("agent")[0].text
    rig.until(lambda: rig.model(Latency).turns)

    rig.window.activateWindow()
    rig.qtbot.keyClick(rig.window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
    assert rig.program.context.theme.name == "dark"
    rig.qtbot.keyClick(rig.window, Qt.Key.Key_L, Qt.KeyboardModifier.ControlModifier)
    assert rig.window._language.name == ("zh" if (assets_dir() / "i18n" / "zh.qm").exists() else "en")

    rig.ask()
    rig.until(lambda: rig.answer_to(QUESTION))
    rig.qtbot.keyClick(rig.panel.input, Qt.Key.Key_Escape)
    reply = rig.answer_to(QUESTION)
    assert reply is not None
    rig.until(lambda: reply.is_over, 5000)
    rig.close()


@pytest.mark.slow
def test_a_killed_engine_and_another_persona_keep_the_conversation(
    begin: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.ui.session, "live_device", lambda *_: SimulatedSpec(rate_hz=48_000))  # nobody speaks
    rig = begin()
    rig.program.send(SetMuted(True))  # while it loads
    rig.until_running()
    rig.until(lambda: rig.talk.is_muted)
    rig.ask()
    rig.until(lambda: rig.answer_to(QUESTION))

    status, label = rig.window._status, rig.window._problem_label
    rig.stall_ms = 0.0
    os.kill(rig.pid_of("engine"), signal.SIGKILL)
    rig.until(lambda: status.problem and label.text() == status.problem)
    rig.until(lambda: not status.problem and not label.text(), LOAD_LIMIT_MS)
    assert rig.stall_ms < STALL_LIMIT_MS
    rig.ask("And of Spain?")
    rig.until(lambda: rig.answer_to("And of Spain?"))

    settings: SettingsModel = rig.model(SettingsModel)
    other = next(name for name in settings.personas if name != settings.setting("persona").value)
    settings.set_value("persona", other)
    assert settings.apply()
    rig.program.send(SayText("And of Italy?"))  # the old conversation has been told to end
    rig.until(lambda: rig.talk.session_state != "running")
    rig.until_running()
    assert rig.program.context.loaded.config.persona == other
    rig.until(lambda: rig.answer_to("And of Italy?"))
    assert rig.talk.is_muted
    assert [line.text for line in rig.lines("user")] == [QUESTION, "And of Spain?", "And of Italy?"]
    rig.close()


def test_leaving_while_it_loads_waits_for_nothing(begin: Callable[..., Rig]) -> None:
    rig = begin()
    rig.until(lambda: len(rig.children()) >= 2)
    begun_s = time.monotonic()
    rig.close()
    assert time.monotonic() - begun_s < LEAVE_LIMIT_S
    assert rig.program.problem == ""


def test_beginning_anew_while_it_loads_waits_for_nothing(begin: Callable[..., Rig]) -> None:
    rig = begin()
    rig.until(lambda: len(rig.children()) >= 2)
    first = rig.program._runner
    begun_s = time.monotonic()
    rig.window.restart_wanted()
    rig.until(lambda: rig.program._runner is not first)
    assert time.monotonic() - begun_s < LEAVE_LIMIT_S
    assert rig.talk.session_state == "loading"


def test_without_models_the_window_says_what_is_missing(
    begin: Callable[..., Rig], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_STORE", str(home / "nothing"))
    rig = begin()
    rig.until(lambda: "models fetch" in rig.window._problem_label.text())
    assert rig.talk.session_state == "ended"
    assert "models fetch" in rig.program.problem
    monkeypatch.undo()


# -- the command ------------------------------------------------------------------------------------------------


class Command:
    """`vivavoce` in a process of its own."""

    def __init__(self, *flags: str, **variables: str) -> None:
        screen = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
        env = {name: value for name, value in os.environ.items() if name not in screen} | variables
        code = "from app.entry import main; import sys; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *flags],
            cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def result(self, limit_s: float = 30.0) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)."""
        try:
            out, errors = self.process.communicate(timeout=limit_s)
        finally:
            self.process.kill()
        kept = [line for line in errors.splitlines() if not line.startswith("This plugin does not support")]
        return self.process.returncode, out, "\n".join(kept)


def test_a_wrong_configuration_is_one_sentence_and_no_window(home: Path) -> None:
    code, out, errors = Command("--set", "llm.seed=maybe", QT_QPA_PLATFORM="offscreen").result()
    assert (code, out, len(errors.splitlines())) == (2, "", 1)
    assert errors.startswith("vivavoce: ")
    assert "llm.seed" in errors


def test_without_a_screen_it_is_the_terminal(home: Path) -> None:
    code, out, errors = Command("--simulate", VIVAVOCE_STORE=str(home / "nothing")).result()
    assert code == 2
    assert "simulated room" in out  # what only the terminal prints
    assert errors.startswith("vivavoce: ")
    assert "models fetch" in errors


def test_a_screen_that_does_not_answer_leads_to_the_terminal(home: Path) -> None:
    code, out, errors = Command("--simulate", DISPLAY=":97", VIVAVOCE_STORE=str(home / "nothing")).result()
    assert code == 2
    assert "simulated room" in out
    note, reason = errors.splitlines()
    assert note == "note: no window opens on this screen; Vivavoce talks in the terminal"
    assert "models fetch" in reason


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to catch")
def test_of_two_copies_the_second_shows_the_first(home: Path) -> None:
    first = Command("--simulate", QT_QPA_PLATFORM="offscreen")
    try:
        family = psutil.Process(first.process.pid)
        deadline = time.monotonic() + 30
        while len(family.children(recursive=True)) < 2:  # the window is open, and loads
            assert first.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = family.children(recursive=True)
        code, out, errors = Command("--simulate", QT_QPA_PLATFORM="offscreen").result()
        assert (code, errors) == (0, "")
        assert "open already" in out
        first.process.send_signal(signal.SIGTERM)
        assert first.result() == (0, "", "")
        _, left = psutil.wait_procs(children, timeout=2.0)
        assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
        assert list(Path("/dev/shm").glob(f"vivavoce-{first.process.pid}-*")) == []
    finally:
        first.process.kill()
        first.process.wait()
