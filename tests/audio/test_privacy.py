"""Nothing leaves the machine: no library that we load keeps an identifier or looks up a host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ModelPath = Callable[[str, str], Path]
ROOT = Path(__file__).resolve().parents[2]
_OPEN = """
import sys
from pathlib import Path
from audio.onnx_session import open_session
open_session(Path(sys.argv[1]), model="silero-vad")
"""
_BARE = """
import sys
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1])
"""


def _files_after(code: str, model: Path, home: Path) -> list[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    env |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code, str(model)], env=env, check=True, capture_output=True)
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def test_no_identifier_is_kept_and_nobody_is_called(model_path: ModelPath, tmp_path: Path) -> None:
    """The library makes its device id and its queue when a session is opened; without them there is no report."""
    model = model_path("silero-vad", "silero_vad.onnx")
    (tmp_path / "ours").mkdir()
    assert _files_after(_OPEN, model, tmp_path / "ours") == []


def test_the_check_sees_what_the_bare_library_does(model_path: ModelPath, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    found = _files_after(_BARE, model_path("silero-vad", "silero_vad.onnx"), tmp_path / "bare")
    if not found:
        pytest.skip("this build of onnxruntime keeps nothing")
    assert any("onnxruntime" in name for name in found)
