"""Virtual microphone and loudspeaker behind a real sound server, for tests without hardware.

`PulseRig` runs the server of `audio_pulse.sh` in a folder of its own and hands out the environment that its
clients need; the caller's environment stays as it is. Devices: `test_mic`, `test_spk`, `test_duplex` in
PortAudio; `mic`, `spk`, `micbus` (play here to be heard by `mic`) and `spk.monitor` on the server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

_HERE = Path(__file__).resolve().parent
_STOP_LIMIT_S = 5.0


def missing_tools() -> str:
    """Why the rig cannot run here, or ""."""
    missing = [tool for tool in ("pulseaudio", "pactl", "paplay", "parecord") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (apt-get install pulseaudio pulseaudio-utils)" if missing else ""


class PulseRig:
    """Started by `start` or as a context manager; `env` is for `subprocess` and `monkeypatch.setenv`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="audio-rig-"))
        self.variables = {
            "XDG_RUNTIME_DIR": str(self.folder),
            "HOME": str(self.folder / "home"),
            "PULSE_SERVER": f"unix:{self.folder / 'native'}",
        }

    @property
    def env(self) -> dict[str, str]:
        """The caller's environment with the rig's variables over it."""
        return {**os.environ, **self.variables}

    def start(self) -> PulseRig:
        """Start the server; it answers when this returns."""
        command = f'. "{_HERE / "audio_pulse.sh"}" start'
        env = {**os.environ, "AUDIO_DIR": str(self.folder)}
        done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=30)
        if done.returncode != 0:
            log = self.folder / "log"
            raise RuntimeError(f"no sound server: {done.stderr} {log.read_text() if log.exists() else ''}")
        _hurry(int((self.folder / "pid").read_text()))
        return self

    def stop(self) -> None:
        """End the server by its process id and remove the folder."""
        pid_file = self.folder / "pid"
        if pid_file.exists():
            _end(int(pid_file.read_text()))
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a client of the server to its end."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=True)

    def say(self, wav: Path) -> subprocess.Popen[bytes]:
        """Play a WAV into the virtual microphone."""
        return subprocess.Popen(["paplay", "--device=micbus", str(wav)], env=self.env)

    def capture(self, wav: Path, rate_hz: int = 48_000) -> subprocess.Popen[bytes]:
        """Record the virtual loudspeaker until the process is terminated."""
        options = ["--device=spk.monitor", f"--rate={rate_hz}", "--channels=1", "--file-format=wav"]
        return subprocess.Popen(["parecord", *options, str(wav)], env=self.env)

    def __enter__(self) -> PulseRig:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _hurry(pid: int) -> None:
    """Keep the server on time on a busy machine, where that is allowed; it sets itself back when it starts."""
    if shutil.which("chrt") is not None:
        command = ["chrt", "--all-tasks", "--fifo", "--pid", "20", str(pid)]
        subprocess.run(command, capture_output=True, check=False)


def _end(pid: int) -> None:
    """Terminate a process that is not our child, and wait until it is gone."""
    for signal_number in (15, 9):
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            return
        limit_s = time.monotonic() + _STOP_LIMIT_S
        while time.monotonic() < limit_s:
            if _has_exited(pid):
                return
            time.sleep(0.02)


def _has_exited(pid: int) -> bool:
    """Gone, or a zombie that whoever inherited it has not noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
