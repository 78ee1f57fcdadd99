"""The starter speech recogniser's files and one loaded engine for this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audio.asr.moonshine import MoonshineAsr


@pytest.fixture(scope="session")
def moonshine_files(model_path: Callable[[str, str], Path]) -> dict[str, Path]:
    """Role to path."""
    pytest.importorskip("sherpa_onnx")
    names = {"encoder": "encoder_model.ort", "decoder": "decoder_model_merged.ort", "tokenizer": "tokenizer.bin"}
    return {role: model_path("moonshine-tiny-en", name) for role, name in names.items()}


@pytest.fixture(scope="session")
def moonshine(moonshine_files: dict[str, Path]) -> MoonshineAsr:
    """Loaded once; it keeps no state between segments (see the determinism test)."""
    return MoonshineAsr(**moonshine_files)


@pytest.fixture(scope="session")
def samples_dir() -> Path:
    """The shipped spoken questions."""
    return Path(__file__).resolve().parents[3] / "assets" / "samples"
