"""Moonshine (Useful Sensors, MIT) through sherpa-onnx: one segment in, its text out.

Knows nothing of turns, partials or voice activity. Decoding is greedy on one thread, so the same samples
give the same text whatever was decoded before.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from audio.block import SAMPLE_RATE_HZ, Float32Array, ms_to_samples
from audio.errors import ModelFileError, NoMemoryError, is_memory_short

FILE_ROLES = ("encoder", "decoder", "tokenizer")
_REINSTALL = "Run `vivavoce models fetch` to replace it"
_MAKE_ROOM = "Free some space, or set TMPDIR to a folder that can be written"
_LEAD_SAMPLES = ms_to_samples(100)
"""Zeros before a segment that starts in the middle of a sound: that can derail the whole text. Nine clean
recordings cut at their first sound had 11 wrong words of 153; with 50 ms and more before it, 2 to 5."""
_ABRUPT_RATIO = 0.1
"""The start is abrupt where its first 50 ms have more than this share of the segment's rms."""
_MIN_SEGMENT_SAMPLES = ms_to_samples(1000)
"""Shorter segments are padded with zeros at the end: the encoder was trained on longer ones."""
_SPECIAL_TOKENS = (b"<unk>", b"<s>", b"</s>")


def read_tokenizer(path: Path) -> list[bytes]:
    """Read Moonshine's `tokenizer.bin`: each token is a length, then its UTF-8 bytes.

    A first length byte of 128 or more is followed by a second one: length = 128 * second + first - 128.

    Raises:
        ModelFileError: missing, cut off, or no Moonshine tokenizer.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}", fix=_REINSTALL) from error
    tokens: list[bytes] = []
    position = 0
    while position < len(data):
        length = data[position]
        position += 1
        if length >= 128 and position < len(data):
            length += data[position] * 128 - 128
            position += 1
        tokens.append(data[position : position + length])
        position += length
    if position != len(data) or tuple(tokens[:3]) != _SPECIAL_TOKENS:
        raise ModelFileError(f"{path} is no complete Moonshine tokenizer", fix=_REINSTALL)
    return tokens


@contextmanager
def tokens_file(tokenizer: Path) -> Iterator[str]:
    """`tokenizer.bin` as sherpa-onnx's `tokens.txt` (base64, tab, id), under a name that is good inside the block.

    Made anew each time, in memory where the system can: sherpa-onnx ends the process on a damaged line, and a
    copy on disk could be damaged, or have no disk to lie on.

    Raises:
        ModelFileError: no Moonshine tokenizer, or no place for a temporary file.
    """
    lines = [f"{base64.b64encode(token).decode()}\t{index}\n" for index, token in enumerate(read_tokenizer(tokenizer))]
    content = "".join(lines).encode()
    with ExitStack() as stack:
        try:
            if hasattr(os, "memfd_create"):
                descriptor = os.memfd_create("moonshine-tokens")
                name = f"/proc/self/fd/{descriptor}"
            else:
                descriptor, name = tempfile.mkstemp(prefix="moonshine-tokens-")
                stack.callback(os.unlink, name)
            written = stack.enter_context(open(descriptor, "wb", buffering=0)).write(content)
        except OSError as error:
            raise ModelFileError(f"no temporary file can be made: {error.strerror}", fix=_MAKE_ROOM) from error
        if written != len(content):
            raise ModelFileError("no temporary file can be made: the disk is full", fix=_MAKE_ROOM)
        yield name


class MoonshineAsr:
    """An `Asr`. Validate new files first (`audio.asr.validate`): sherpa-onnx ends the process on some."""

    def __init__(self, encoder: Path, decoder: Path, tokenizer: Path, *, threads: int = 1) -> None:
        import sherpa_onnx

        self._memory_bytes = 0
        for path in (encoder, decoder, tokenizer):
            if not path.is_file():
                raise ModelFileError(f"missing speech recognition file {path}", fix=_REINSTALL)
            self._memory_bytes += path.stat().st_size
        try:
            with tokens_file(tokenizer) as tokens:
                self._recognizer: Any = sherpa_onnx.OfflineRecognizer.from_moonshine_v2(
                    encoder=str(encoder), decoder=str(decoder), tokens=tokens, num_threads=threads
                )
        except (RuntimeError, MemoryError) as error:
            if is_memory_short(error):
                raise NoMemoryError(f"not enough memory for {encoder.name} and {decoder.name}") from error
            reason = str(error).splitlines()[0][:200] if str(error) else "unknown reason"
            raise ModelFileError(f"cannot load {encoder.name} or {decoder.name}: {reason}", fix=_REINSTALL) from error

    def transcribe(self, samples: Float32Array) -> str:
        """(N,) at 16 kHz to text; no samples give ""."""
        if not len(samples):
            return ""
        tail = max(0, _MIN_SEGMENT_SAMPLES - len(samples))
        lead = _LEAD_SAMPLES if _starts_abruptly(samples) else 0
        padded = np.pad(samples.astype(np.float32, copy=False), (lead, tail))
        stream = self._recognizer.create_stream()
        stream.accept_waveform(SAMPLE_RATE_HZ, padded)
        self._recognizer.decode_stream(stream)
        return str(stream.result.text).strip()

    def memory_bytes(self) -> int:
        """Size of the model files; the runtime's workspace is not counted."""
        return self._memory_bytes


def _starts_abruptly(samples: Float32Array) -> bool:
    start = samples[: ms_to_samples(50)].astype(np.float64)
    whole = samples.astype(np.float64)
    return bool(np.mean(start**2) > _ABRUPT_RATIO**2 * np.mean(whole**2))


def load(files: Mapping[str, Path], *, threads: int) -> MoonshineAsr:
    """Registry entry point; `files` has the roles of `FILE_ROLES`."""
    return MoonshineAsr(files["encoder"], files["decoder"], files["tokenizer"], threads=threads)
