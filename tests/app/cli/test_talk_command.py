"""`vivavoce` without a command, around the session: signals, who may read the files, what is said at the start."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

import app.cli.talk as talk_module
from app import events
from app.cli.keyboard import Keyboard
from app.cli.main import main
from app.engine.live import _no_interrupt
from app.samples import sample_questions
from audio.io.identity import DeviceInfo
from audio.io.server import ServerView

ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.mark.parametrize("number", ENDING)
def test_a_request_to_end_and_a_closed_terminal_end_a_session_as_ctrl_c_does(number: signal.Signals) -> None:
    def end() -> None:
        with talk_module._interruptible():
            os.kill(os.getpid(), number)
            signal.pause()

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        end()
    assert signal.getsignal(number) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_under_nohup_a_closed_terminal_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with talk_module._interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system has no signal masks")
def test_children_are_born_deaf_to_what_reaches_the_whole_group() -> None:
    """Ctrl-C and a closed terminal: the face ends the session in order, the children must live to see it."""
    with _no_interrupt():
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert {signal.SIGINT, signal.SIGHUP} <= blocked
    assert not {signal.SIGINT, signal.SIGHUP} & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def hold(args: object, config: object, face: talk_module._Face) -> int:
    """A conversation of one turn."""
    face.emit(events.UserTranscript(0, 1, "a secret", True, 8))
    (Path(os.environ["XDG_DATA_HOME"]) / "sound.wav").write_bytes(b"")
    return 0


def test_what_is_said_can_be_read_by_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever file a conversation makes, here or in a library."""
    monkeypatch.setattr(talk_module, "_talk_live", hold)
    before = os.umask(0o022)
    try:
        assert main(["--events", str(tmp_path / "e.jsonl"), "--record", str(tmp_path / "talk")]) == 0
        (tmp_path / "afterwards").write_text("")
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes.pop("afterwards") == 0o644
    files = {"e.jsonl", "talk/events.jsonl", "data/vivavoce/journal.jsonl", "data/sound.wav"}
    assert modes == {name: 0o600 if name in files else 0o700 for name in {*files, "talk", "data", "data/vivavoce"}}


def test_resuming_what_is_not_there_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(talk_module, "_talk_live", hold)
    (tmp_path / "data").mkdir()
    path = tmp_path / "j.jsonl"
    assert main(["--resume", "--journal", str(path)]) == 0
    assert f"note: there is no conversation in {path}; this is a new one" in capsys.readouterr().out
    assert main(["--resume", "--journal", str(path)]) == 0
    assert "note:" not in capsys.readouterr().out


def test_a_damaged_journal_and_a_misspelt_variable_are_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(talk_module, "_talk_live", hold)
    monkeypatch.setenv("VIVAVOCE_LLM_SEED", "7")
    (tmp_path / "data").mkdir()
    path = tmp_path / "j.jsonl"
    path.write_text('{"session": "1f", "turn": 1, "user": "one"}\nnoise\n')
    assert main(["--resume", "--journal", str(path)]) == 0
    out = capsys.readouterr().out
    assert "warning: the journal was damaged; it is kept as " in out
    assert "note: the variable VIVAVOCE_LLM_SEED is not read." in out


def test_a_log_that_cannot_go_on_is_told_once_and_the_other_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(args: object, config: object, face: talk_module._Face) -> int:
        for turn in range(3):
            face.emit(events.UserTranscript(0, turn, "words", True, 5))
        return 0

    monkeypatch.setattr(talk_module, "_talk_live", talk)
    assert main(["--events", "/dev/full", "--record", str(tmp_path / "talk")]) == 0
    out = capsys.readouterr().out
    assert out.count("error: the event log /dev/full ends here: No space left on device") == 1
    assert (tmp_path / "talk" / "events.jsonl").read_text().count("\n") == 3


def test_typing_is_offered_only_where_something_can_be_typed() -> None:
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "w"), open(os.devnull) as null:
        assert "standard input" in talk_module._hint(Keyboard(pipe))
        assert talk_module._hint(Keyboard(null)) == "listening. Speak or interrupt; Ctrl-C ends."
        terminal = Keyboard(null)
        terminal.is_terminal = True
        assert "type words or /stop, /mute, /unmute, /quit" in talk_module._hint(terminal)


def test_commands_come_through_a_pipe_and_unknown_ones_are_not_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[object] = []
    monkeypatch.setattr(talk_module, "_talk_live", lambda args, config, face: taken.extend(face.typed()) or 0)
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "w") as other:
        other.write("/nonsense\nhello\n/quit\n")
        other.flush()
        monkeypatch.setattr(sys, "stdin", pipe)
        assert main(["--journal", str(tmp_path / "j.jsonl")]) == 0
    assert [str(command) for command in taken] == ["SayText(text='hello')", "Quit()"]
    said = "there is no command /nonsense; there are: /stop, /mute, /unmute, /quit"
    assert said in capsys.readouterr().out


def test_a_simulated_session_writes_no_sound_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Session:
        def __init__(self, *_: object, output: Path | None, **__: object) -> None:
            asked.append(output)
            raise KeyboardInterrupt

    monkeypatch.setattr(talk_module, "LiveSession", Session)
    assert main(["--simulate", "--journal", str(tmp_path / "j.jsonl")]) == 130
    assert main(["--simulate", "--journal", str(tmp_path / "j.jsonl"), "--output", str(tmp_path / "a.wav")]) == 130
    talk_module.close_log()
    assert asked == [None, tmp_path / "a.wav"]
    assert not list(tmp_path.rglob("*.wav"))


def test_a_fast_run_tells_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only there: the others take as long as they last."""
    told: list[int] = []
    monkeypatch.setattr(talk_module.TerminalFace, "tell_progress", lambda self, end: told.append(end))

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    class Session:
        input_end_samples = 0

    for name in ("check_models", "ear_spec", "model_files"):
        monkeypatch.setattr(talk_module, name, lambda *_: None)
    monkeypatch.setattr(talk_module, "open_engines", lambda *_: (None, []))
    monkeypatch.setattr(talk_module, "open_session", lambda *_, **__: Session())
    monkeypatch.setattr(talk_module, "started", stop)
    sample = str(sample_questions()[0].path)
    assert main(["--input", sample]) == 130
    assert told == []
    assert main(["--input", sample, "--fast"]) == 130
    assert len(told) == 1
    assert told[0] > 16_000


def test_a_line_that_is_too_long_is_refused_in_a_sentence_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[object] = []

    def talk(args: object, config: object, face: talk_module._Face) -> int:
        while face.keyboard.is_open:
            taken.extend(face.typed())
        return 0

    monkeypatch.setattr(talk_module, "_talk_live", talk)
    (tmp_path / "words").write_text("é" * 300_000 + "\nhello\n")
    with (tmp_path / "words").open() as words:
        monkeypatch.setattr(sys, "stdin", words)
        assert main(["--journal", str(tmp_path / "j.jsonl")]) == 0
    assert [str(command) for command in taken] == ["SayText(text='hello')"]
    assert capsys.readouterr().out == "warning: a line of more than 16384 bytes was not taken; shorten it\n"


def _device(index: int, name: str, inputs: int, outputs: int) -> DeviceInfo:
    return DeviceInfo(index, name, "ALSA", inputs, outputs, 48_000.0, inputs > 0, outputs > 0)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--input-device", "nonesuch"], "no input device matches 'nonesuch'"),
        (["--output-device", "nonesuch"], "no output device matches 'nonesuch'"),
        (["--set", "asr.model=nonesuch"], "'nonesuch'"),
        (["--set", "asr.model=/no/such/folder"], "there is no such file or folder"),
    ],
)
@pytest.mark.parametrize("has_server", [False, True])
def test_a_name_that_is_wrong_is_told_before_anything_is_promised(
    flags: list[str],
    sentence: str,
    has_server: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    devices = [_device(0, "Mic", 1, 0), _device(1, "Speaker", 0, 2)]
    view = None
    if has_server:  # to which PortAudio passes on any name
        devices.append(_device(2, "pulse", 32, 32))
        view = ServerView("a server", "", "", ())
    monkeypatch.setattr(talk_module, "ask_in_child", lambda *_, **__: devices)
    monkeypatch.setattr(talk_module, "look", lambda: (view, ""))
    assert main(["--journal", str(tmp_path / "j.jsonl"), *flags]) == 2
    talk_module.close_log()
    told = capsys.readouterr()
    assert sentence in told.err
    assert "loading" not in told.out
