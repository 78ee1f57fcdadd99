"""Prove in a child process that speech recognition files work, before they are loaded in this one.

sherpa-onnx ends the process on a malformed token line and decodes to nothing with a wrong one, so loading
is no proof: a known clip is decoded and its text compared. The proof is kept by content, so the child runs
once per set of files and version.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import wave
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from audio.asr.registry import create
from audio.block import SAMPLE_RATE_HZ, Float32Array
from audio.errors import AudioError, AudioFileError, ModelFileError, NoMemoryError, is_memory_short
from audio.wer import word_errors

_TIMEOUT_S = 60.0
_FIX = "Run `vivavoce models fetch` to replace them"


@dataclass(frozen=True, slots=True)
class KnownClip:
    """A recording (16 kHz, mono, 16 bit WAV) and what is said in it."""

    path: Path
    text: str


def read_clip(path: Path) -> Float32Array:
    """Samples of one of our own 16 kHz mono 16-bit WAV files.

    Raises:
        AudioFileError: missing or of another format.
    """
    try:
        with wave.open(str(path), "rb") as reader:
            if (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) != (SAMPLE_RATE_HZ, 1, 2):
                raise AudioFileError(f"{path} is not 16 kHz mono 16-bit", fix="Restore it from the distribution")
            data = reader.readframes(reader.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise AudioFileError(f"cannot read {path}: {error}", fix="Restore it from the distribution") from error
    return (np.frombuffer(data, dtype="<i2") / 32768.0).astype(np.float32)


def _decode_in_child(answer: Connection, name: str, files: Mapping[str, Path], samples: Float32Array) -> None:
    """Sends (what has gone wrong or None, the text or the reason)."""
    try:
        answer.send((None, create(name, files, threads=1).transcribe(samples)))
    except Exception as error:
        if isinstance(error, NoMemoryError):
            answer.send((NoMemoryError, error.message))
        elif is_memory_short(error):
            answer.send((NoMemoryError, "not enough memory to recognise speech"))
        elif isinstance(error, AudioError):
            answer.send((ModelFileError, str(error)))
        else:
            raise


def _fingerprint(name: str, files: Mapping[str, Path], clip: KnownClip) -> str:
    digest = hashlib.sha256(f"{name}\n{_runtime_version()}\n{clip.text}\n".encode())
    for role, path in sorted([*files.items(), ("clip", clip.path)]):
        digest.update(role.encode())
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise ModelFileError(f"cannot read the {role} file {path}: {error.strerror}", fix=_FIX) from error
    return digest.hexdigest()[:32]


def _runtime_version() -> str:
    try:
        return metadata.version("sherpa-onnx")
    except metadata.PackageNotFoundError:
        return "unknown"


def _transcribe_clip(name: str, files: Mapping[str, Path], samples: Float32Array) -> str:
    """Run the child; ModelFileError where it dies, hangs or refuses the files, NoMemoryError where they do not fit."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, name, dict(files), samples)
    child = context.Process(target=_decode_in_child, args=arguments, name="asr-check", daemon=True)
    names = ", ".join(str(path) for path in files.values())
    child.start()
    sender.close()
    try:
        if not receiver.poll(_TIMEOUT_S):
            child.kill()
            raise ModelFileError(f"the speech recogniser does not answer with {names}", fix=_FIX)
        failure, message = receiver.recv()
    except EOFError:
        child.join()
        reason = f"the speech recogniser ended with code {child.exitcode} on {names}"
        raise ModelFileError(reason, fix=_FIX) from None
    finally:
        receiver.close()
        child.join(timeout=1.0)
        if child.is_alive():
            child.kill()
            child.join()
        child.close()
    if failure is not None:
        raise failure(message)
    return str(message)


def _exists(mark: Path) -> bool:
    try:
        return mark.is_file()
    except OSError:  # a folder that may not be searched
        return False


def validate(name: str, files: Mapping[str, Path], clip: KnownClip, *, cache_dir: Path) -> bool:
    """Check the files of engine `name`; True where the child ran, False where the proof was on record.

    A `cache_dir` that cannot be written keeps no proof: the child runs every time.

    Raises:
        ModelFileError: a file is missing or corrupt, or the clip is not heard as its text.
        NoMemoryError: the memory for the recogniser is not there.
    """
    mark = cache_dir / f"asr-valid-{_fingerprint(name, files, clip)}"
    if _exists(mark):
        return False
    heard = _transcribe_clip(name, files, read_clip(clip.path))
    errors, words = word_errors(clip.text, heard)
    if errors * 4 > words:
        names = ", ".join(str(path) for path in files.values())
        raise ModelFileError(f"the speech recogniser hears {heard!r} for {clip.text!r} with {names}", fix=_FIX)
    with suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return True
