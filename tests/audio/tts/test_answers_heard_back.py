"""Typical answers through splitter, sanitiser and voice are heard back by the recogniser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audio.asr.registry import create
from audio.text.clauses import ClauseSplitter
from audio.text.sanitise import sanitise
from audio.tts.piper import PiperTts
from audio.wer import word_errors

_ANSWERS = (
    "The capital of France is Paris.",
    "There are seven days in a week.",
    "The sky is blue because of the way that sunlight is scattered by the air.",
    "The moon is a celestial body that orbits the Earth, and it's a very important part of our planet's cycle.",
    "I'm not sure what to do.",
    "I'm sorry to hear that you feel sad and lonely today.",
    "A dog has four legs.",
    "Water freezes at zero degrees Celsius.",
    "The largest ocean on Earth is the Pacific Ocean.",
    "You can make a cup of tea by boiling water and adding a tea bag.",
    "My favorite color is blue.",
    "Hello! How can I help you today?",
)


def _say(voice: PiperTts, text: str) -> np.ndarray:
    splitter = ClauseSplitter()
    clauses = splitter.push(text) + splitter.flush()
    return np.concatenate([voice.synthesize(sanitise(clause.text).text).samples for clause in clauses])


def test_pooled_word_error_is_at_most_15_percent(voice: PiperTts, model_path: Callable[[str, str], Path]) -> None:
    """The issue's bound for answers captured at the loudspeaker, here without the room."""
    soxr = pytest.importorskip("soxr")
    pytest.importorskip("sherpa_onnx")
    names = {"encoder": "encoder_model.ort", "decoder": "decoder_model_merged.ort", "tokenizer": "tokenizer.bin"}
    files = {role: model_path("moonshine-tiny-en", name) for role, name in names.items()}
    asr = create("moonshine", files)
    errors = words = 0
    for text in _ANSWERS:
        heard = asr.transcribe(soxr.resample(_say(voice, text), voice.rate_hz, 16_000))
        wrong, said = word_errors(text, heard)
        print(f"{wrong}/{said} {text} | {heard}")
        errors, words = errors + wrong, words + said
    assert errors / words <= 0.15
