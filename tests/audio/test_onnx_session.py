"""What ONNX Runtime refuses: a damaged file is one thing, want of memory another."""

from __future__ import annotations

from pathlib import Path

import pytest

from audio.errors import AudioError, ModelFileError, NoMemoryError
from audio.onnx_session import open_session


class Failure(Exception):
    """As the library's own classes: straight below Exception."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Failure("std::bad_alloc"), NoMemoryError),
        (Failure("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of size 9"), NoMemoryError),
        (MemoryError(), NoMemoryError),
        (Failure("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Protobuf parsing failed."), ModelFileError),
    ],
)
def test_want_of_memory_is_no_damaged_model(
    error: Exception, kind: type[AudioError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08")
    with pytest.raises(kind) as caught:
        open_session(path, model="a model")
    assert ("fetch" in caught.value.fix) == (kind is ModelFileError)
    assert getattr(caught.value, "exit_code", 2) == (3 if kind is NoMemoryError else 2)
