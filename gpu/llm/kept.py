"""What a language model has computed of a conversation, held fast for a snapshot while the model goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu.kv.session import Session
from gpu.kv.snapshot import save

if TYPE_CHECKING:
    from gpu.llm.weights.prepare import PreparedModel

_SAMPLE_ELEMENTS = 1024


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
        """What `save` writes, nearly."""
        return len(self.ids) * self.session.spec.row_bytes

    def save(self, path: Path, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """As `gpu.kv.snapshot.save`, from any thread."""
        return save(self.session, path, model=self.identity, ids=self.ids, cuts=self.cuts, stopped=stopped)

    def close(self) -> None:
        """Give the pages back that only this holds."""
        self.session.close()


def identity_of(prepared: PreparedModel, device: str) -> str:
    """What keys depend on beside the tokens: SHA-256 of the weights' beginnings and ends, and of what computes.

    Of gigabytes of weights it reads a few KiB a tensor, as `gpu.llm.weights.prepare.file_stamp` does of a file.
    """
    import torch

    digest = hashlib.sha256(repr((prepared.config, prepared.precision, prepared.tokenizer_json)).encode())
    for name, tensor in sorted(prepared.state.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.reshape(-1)
        for sample in (flat[:_SAMPLE_ELEMENTS], flat[-_SAMPLE_ELEMENTS:]):
            digest.update(sample.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    kind = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu"
    digest.update(f"{kind} {torch.__version__} {torch.get_num_threads()}".encode())
    return digest.hexdigest()
