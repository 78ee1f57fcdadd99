"""The files and folders that a command line names: none of them twice, each one writable, before anything loads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from app.errors import AgentError
from app.recorder.recorder import LOUDSPEAKER, MICROPHONE

EVENTS = "events.jsonl"
RECORDING = (MICROPHONE, LOUDSPEAKER, EVENTS)
"""What lies in the folder of a recording."""
_WAV_ENDINGS = ("", ".wav", ".wave")
_ANOTHER = "Name another"


def refuse_same(reads: Mapping[str, Path | None], writes: Mapping[str, Path | None]) -> None:
    """AgentError where a file that is written is also read, or is written for two reasons. Keys: the user's words."""
    named = [(name, path, True) for name, path in writes.items() if path is not None]
    named += [(name, path, False) for name, path in reads.items() if path is not None]
    for (one, path, is_written), (other, other_path, _) in combinations(named, 2):
        if is_written and _is_same(path, other_path):
            raise AgentError(f"{one} and {other} are the same file, {path}", fix="Name two files")


def _is_same(one: Path, other: Path) -> bool:
    """Through links, and also where there is no file yet."""
    try:
        if one.samefile(other):
            return not stat.S_ISCHR(one.stat().st_mode)  # everything may go to /dev/null
    except OSError:
        pass  # one of them is not there
    return os.path.realpath(one) == os.path.realpath(other) and not os.path.exists(one)


def check_wav(path: Path) -> None:
    """AgentError where no WAV file can be written to `path`."""
    if path.suffix.lower() not in _WAV_ENDINGS:
        raise AgentError(f"{path} would be a WAV file", fix=f"Name it {path.with_suffix('.wav').name}")
    check_file(path)
    if os.path.exists(path) and not os.path.isfile(path) and str(path) != os.devnull:
        raise AgentError(f"{path} is no regular file", fix=_ANOTHER)


def check_file(path: Path) -> None:
    """AgentError where `path` cannot be written. What is there stays as it is; what is not there is not made."""
    if os.path.isdir(path):
        raise AgentError(f"{path} is a folder", fix="Name a file in it")
    if not os.path.isdir(path.absolute().parent):
        raise AgentError(f"the folder of {path} does not exist", fix="Create it, or name another")
    target = Path(os.path.realpath(path))
    is_new = not os.path.lexists(target)
    with _refusing(path):
        # Not blocking: a pipe without a reader is refused instead of waited for.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o600))
        if is_new:
            target.unlink()


def check_folder(path: Path) -> None:
    """AgentError where no file can be made in `path`, which need not exist and is not made."""
    made = [folder for folder in (path, *path.absolute().parents) if not os.path.lexists(folder)]
    with _refusing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".{os.getpid()}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            probe.unlink()
        finally:
            for folder in made:
                if os.path.isdir(folder):
                    folder.rmdir()


def check_recording(folder: Path) -> None:
    """AgentError where `folder` holds a recording already, or cannot take one."""
    for name in RECORDING:
        if os.path.lexists(folder / name):
            raise AgentError(f"{folder} holds a recording already ({name})", fix="Name another folder")
    check_folder(folder)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise AgentError(f"{path} cannot be written: {reason}", fix=_ANOTHER) from None
