"""What a language model has computed of a conversation, held fast for a snapshot while the model goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu.kv.quantised import QuantisedSession
from gpu.kv.session import Session
from gpu.kv.snapshot import save

if TYPE_CHECKING:
    from gpu.llm.weights.prepare import PreparedModel

_SAMPLE_ELEMENTS = 1024
_STRIDED_ELEMENTS = 64
"""Of what lies between the beginning and the end of a tensor."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A fork of the model's session, cut behind the last whole chunk: it shares pages and costs no copy."""

    session: Session
    ids: tuple[int, ...]
    cuts: tuple[int, ...]
    identity: str
    """Of the model, as `identity_of`."""

    @property
    def size_bytes(self) -> int:
        """What `save` writes, but for the header."""
        codes = self.session.body.written_bytes() if isinstance(self.session, QuantisedSession) else 0
        return self.session.written_bytes() + codes

    def save(self, path: Path, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """As `gpu.kv.snapshot.save`, from any thread."""
        return save(self.session, path, model=self.identity, ids=self.ids, cuts=self.cuts, stopped=stopped)

    def close(self) -> None:
        """Give the pages back that only this holds."""
        self.session.close()


def stamp_of(path: Path) -> str:
    """Sizes and times of change (ns) of a weights file, or of those in a folder: who edits one makes another model."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in (file.stat() for file in files))


def identity_of(prepared: PreparedModel, device: str, stamp: str = "") -> str:
    """What keys depend on beside the tokens: SHA-256 of samples of the weights, and of what computes.

    Of gigabytes of weights it reads a few KiB a tensor: its beginning, its end, and single numbers all over it. So
    weights that differ in few places may seem the same, unless `stamp` (`stamp_of` their files) tells them apart.
    """
    import torch

    parts = (prepared.config, prepared.precision, prepared.tokenizer_json, stamp)
    digest = hashlib.sha256(repr(parts).encode())
    for name, tensor in sorted(prepared.state.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.reshape(-1)
        strided = flat[:: max(1, flat.numel() // _STRIDED_ELEMENTS)]
        for sample in (flat[:_SAMPLE_ELEMENTS], flat[-_SAMPLE_ELEMENTS:], strided):
            digest.update(sample.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    kind = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu"
    digest.update(f"{kind} {torch.__version__} {torch.get_num_threads()}".encode())
    return digest.hexdigest()
