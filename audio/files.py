"""Audio files: any WAV or FLAC in as mono float32, and a WAV writer that survives interruption."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from audio.block import Float32Array
from audio.errors import AudioFileError

MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 384_000
_READ_FRAMES = 4096
_BYTES_PER_FRAME = 8
"""Of a file that is read: its samples as float32, once in parts and once as a whole."""
_DEVICE_BYTES_PER_S = 48_000 * 8
"""The same at the rate of the device that plays it."""
_FIX = "Give a WAV or FLAC file that an audio player can play"

Subtype = Literal["PCM_16", "FLOAT"]


def read_audio(path: str | os.PathLike[str]) -> tuple[Float32Array, int]:
    """The whole file as ((N,) mono float32, rate in Hz); several channels are averaged.

    A truncated file gives the samples that are there.

    Raises:
        AudioFileError: missing, no regular file, unreadable, no audio, no whole sample, values that are no numbers, or
            more than fits into memory.
    """
    name = os.fspath(path)
    _check_readable(name)
    import soundfile

    try:
        with soundfile.SoundFile(name) as file:
            rate_hz = int(file.samplerate)
            _check_size(name, int(file.frames), rate_hz)
            samples = _read_mono(file)
    except (soundfile.LibsndfileError, TypeError, ValueError):  # TypeError: a name that libsndfile takes for raw
        raise AudioFileError(f"{name} is no audio file that we can read", fix=_FIX) from None
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        fix = f"Resample it to a rate between {MIN_RATE_HZ} and {MAX_RATE_HZ} Hz"
        raise AudioFileError(f"{name} has a sample rate of {rate_hz} Hz", fix=fix)
    if len(samples) == 0:
        raise AudioFileError(f"{name} holds no audio sample", fix=_FIX)
    if not np.isfinite(samples).all():
        raise AudioFileError(f"{name} holds samples that are no finite numbers", fix="Export it again as 16-bit WAV")
    return samples, rate_hz


def _check_readable(name: str) -> None:
    if not os.path.exists(name):
        raise AudioFileError(f"{name} does not exist", fix="Check the path")
    if os.path.isdir(name):
        raise AudioFileError(f"{name} is a directory", fix="Give one audio file")
    if not os.path.isfile(name):
        raise AudioFileError(f"{name} is no regular file", fix="Save the sound to a file, and give that")
    if os.path.getsize(name) == 0:
        raise AudioFileError(f"{name} is empty", fix=_FIX)
    if not os.access(name, os.R_OK):
        raise AudioFileError(f"{name} may not be read", fix="Give yourself read permission")


def _check_size(name: str, frames: int, rate_hz: int) -> None:
    """Refuse what would fill the memory: the system kills a program that tries, without a word."""
    duration_s = frames / max(1, rate_hz)
    wanted, free = frames * _BYTES_PER_FRAME + duration_s * _DEVICE_BYTES_PER_S, available_bytes()
    if wanted > free:
        raise AudioFileError(
            f"{name} lasts {duration_s / 3600:.1f} h, which takes {wanted / 1e9:.1f} GB of memory; "
            f"{free / 1e9:.1f} GB are free",
            fix="Give a part of it",
        )


def available_bytes() -> int:
    """Memory that a program may still take; where the system does not say, more than there can be."""
    found = 1 << 62
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):  # not Linux
        pass
    try:
        import resource
    except ImportError:  # Windows
        return found
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return found if limit == resource.RLIM_INFINITY else min(found, limit)


def _read_mono(file: Any) -> Float32Array:
    """All frames up to the end or the first damaged one, averaged over the channels."""
    import soundfile

    parts: list[Float32Array] = []
    while True:
        try:
            frames = file.read(_READ_FRAMES, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:  # a truncated FLAC: what was decoded before stays
            break
        if len(frames) == 0:
            break
        parts.append(frames[:, 0].copy() if frames.shape[1] == 1 else frames.mean(axis=1, dtype=np.float32))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


class WavWriter:
    """Streams a WAV file whose header is right after every `flush`, so an interrupted program leaves a good file.

    Args:
        rate_hz: sample rate; a flush happens by itself after each second of audio.
        subtype: `PCM_16` (clipped at full scale) or `FLOAT`.

    Raises:
        AudioFileError: the file cannot be created; also of `write`, `flush` and `close`: it cannot go on. What
            was written till then is a good file, and it is closed.
    """

    def __init__(
        self, path: str | os.PathLike[str], rate_hz: int, subtype: Subtype = "PCM_16", channels: int = 1
    ) -> None:
        self.path = Path(path)
        self._rate_hz = rate_hz
        self._is_float = subtype == "FLOAT"
        self._channels = channels
        self._data_bytes = 0
        self._pending = bytearray()
        try:
            self._file = open(self.path, "wb", buffering=0)  # a buffer that cannot be written could not be closed
        except OSError as error:
            reason = (error.strerror or "unknown reason").lower()
            raise AudioFileError(f"{path} cannot be written: {reason}", fix="Choose another place") from None
        self.flush()

    def write(self, samples: Float32Array) -> None:
        """Append (N,) for one channel, (N, channels) for more."""
        if samples.shape[1:] != (() if self._channels == 1 else (self._channels,)):
            raise ValueError(f"{self._channels} channels expected, got shape {samples.shape}")
        data: npt.NDArray[Any]
        if self._is_float:
            data = samples.astype("<f4")
        else:
            data = np.clip(np.rint(samples * 32768.0), -32768, 32767).astype("<i2")
        self._pending += data.tobytes()
        if len(self._pending) >= self._rate_hz * self._frame_bytes:
            self.flush()

    def flush(self) -> None:
        """Write everything out and make the header say how much there is."""
        try:
            self._file.seek(0, os.SEEK_END)
            self._put(self._pending)
            self._data_bytes += len(self._pending)
            self._pending.clear()
            self._file.seek(0)
            self._put(self._header())
        except (OSError, ValueError) as error:  # ValueError: it was closed when the disk was full
            self._give_up()
            reason = (getattr(error, "strerror", None) or "the disk is full").lower()
            raise AudioFileError(f"{self.path} ends too early: {reason}", fix="Free some disk space") from None

    def close(self) -> None:
        """Flush and close; closing twice is harmless."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    @property
    def _frame_bytes(self) -> int:
        return (4 if self._is_float else 2) * self._channels

    def _put(self, data: bytes | bytearray) -> None:
        """All of it: a disk that fills takes a part first."""
        while data:
            data = data[self._file.write(data) :]

    def _give_up(self) -> None:
        """Leave a file of whole frames whose header is right."""
        self._pending.clear()
        if self._file.closed:
            return
        with suppress(OSError):
            head = len(self._header())
            self._data_bytes = max(0, os.fstat(self._file.fileno()).st_size - head) // self._frame_bytes
            self._data_bytes *= self._frame_bytes
            self._file.truncate(head + self._data_bytes)
            self._file.seek(0)
            self._put(self._header())
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _header(self) -> bytes:
        """RIFF header; sizes saturate at 4 GiB, where readers go by the length of the file."""
        frame_bytes = self._frame_bytes
        sample_bytes = frame_bytes // self._channels
        code = 3 if self._is_float else 1
        layout = (code, self._channels, self._rate_hz, self._rate_hz * frame_bytes, frame_bytes, 8 * sample_bytes)
        chunks = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, *layout)
        if self._is_float:  # formats other than PCM must state their length in frames
            chunks += b"fact" + struct.pack("<II", 4, min(self._data_bytes // frame_bytes, 0xFFFFFFFF))
        chunks += b"data" + struct.pack("<I", min(self._data_bytes, 0xFFFFFFFF))
        return b"RIFF" + struct.pack("<I", min(len(chunks) + self._data_bytes, 0xFFFFFFFF)) + chunks
