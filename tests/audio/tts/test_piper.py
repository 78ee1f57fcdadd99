"""The starter voice: same text same bits, exact word times, nothing clips, anything can be given to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audio.errors import ModelFileError
from audio.protocols import Speech
from audio.tts.piper import FRAME_SAMPLES, PiperTts, _limit_peak, patch_model, patched_model

_HARD = "Dr. Smith paid 3.50 dollars (about $5) in 2026, didn't he? 😀 It was 10:30 — e.g. 20°C, U.S. time..."


def _check_words(speech: Speech, text: str) -> None:
    assert [word.text for word in speech.words] == text.split()
    assert all(text[word.text_start : word.text_end] == word.text for word in speech.words)
    places = [place for word in speech.words for place in (word.start_samples, word.end_samples)]
    assert places == sorted(places)
    assert not places or (places[0] >= 0 and places[-1] <= len(speech.samples))


def test_same_text_same_bits_whatever_came_before(voice: PiperTts) -> None:
    first = voice.synthesize("The moon orbits the Earth.")
    other = voice.synthesize("Something else, and longer than before.")
    again = voice.synthesize("The moon orbits the Earth.")
    np.testing.assert_array_equal(first.samples, again.samples)
    assert first.words == again.words
    assert len(other.samples) != len(first.samples)


def test_a_new_instance_gives_the_same_bits(voice: PiperTts, voice_files: dict[str, Path], tmp_path: Path) -> None:
    other = PiperTts(**voice_files)
    text = "Hello there."
    np.testing.assert_array_equal(voice.synthesize(text).samples, other.synthesize(text).samples)


def test_words_of_a_hard_text(voice: PiperTts) -> None:
    speech = voice.synthesize(_HARD)
    _check_words(speech, _HARD)
    silent = {word.text for word in speech.words if word.start_samples == word.end_samples}
    assert silent == {"😀", "—"}
    longest = max(speech.words, key=lambda word: word.end_samples - word.start_samples)
    assert longest.text in {"2026,", "3.50", "20°C,"}


def test_durations_make_all_samples(voice: PiperTts) -> None:
    for text in ("Hello.", "The capital of France is Paris.", _HARD):
        ids, ranges = voice._encode(voice._phonemes([[word] for word in "a short text".split()]))
        samples, durations = voice.render(ids)
        assert len(durations) == len(ids)
        assert int(durations.sum()) * FRAME_SAMPLES == len(samples)
        assert ranges[-1][1] <= len(ids)
        speech = voice.synthesize(text)
        assert speech.words[-1].end_samples > 0.8 * len(speech.samples) - 0.4 * speech.rate_hz


def test_pauses_belong_to_no_word(voice: PiperTts) -> None:
    """The comma's pause lies between the words, and is quieter than they are."""
    speech = voice.synthesize("Well, then we go.")
    well, then = speech.words[0], speech.words[1]
    gap = speech.samples[well.end_samples : then.start_samples]
    assert len(gap) > 0.05 * speech.rate_hz
    said = speech.samples[well.start_samples : well.end_samples]
    assert np.sqrt(np.mean(gap**2)) < 0.5 * np.sqrt(np.mean(said**2))


def test_cut_behind_a_word_the_words_before_it_are_heard(
    voice: PiperTts, model_path: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The word times are true: audio up to the end of word n holds n words."""
    import soxr

    from audio.asr.registry import create
    from audio.wer import word_errors

    pytest.importorskip("sherpa_onnx")
    names = {"encoder": "encoder_model.ort", "decoder": "decoder_model_merged.ort", "tokenizer": "tokenizer.bin"}
    files = {role: model_path("moonshine-tiny-en", name) for role, name in names.items()}
    asr = create("moonshine", files)
    text = "There are many ways to make a good cup of tea, but the simplest one is this."
    speech = voice.synthesize(text)
    errors = words = 0
    for word in speech.words[7::2]:
        heard = asr.transcribe(soxr.resample(speech.samples[: word.end_samples], speech.rate_hz, 16_000))
        wrong, said = word_errors(text[: word.text_end], heard)
        errors, words = errors + wrong, words + said
    assert errors / words <= 0.1


@pytest.mark.parametrize("text", ["", " ", "😀", "你好，世界。", "... — !", "\n\t"])
def test_nothing_to_say_gives_no_samples(voice: PiperTts, text: str) -> None:
    speech = voice.synthesize(text)
    assert len(speech.samples) == 0
    assert all((word.start_samples, word.end_samples) == (0, 0) for word in speech.words)
    _check_words(speech, text)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(max_codepoint=0x2FFF), max_size=24))
def test_any_text_is_taken(voice: PiperTts, text: str) -> None:
    speech = voice.synthesize(text)
    _check_words(speech, text)
    assert np.max(np.abs(speech.samples), initial=0.0) < 1.0


def test_no_long_silence_before_the_first_word(voice: PiperTts) -> None:
    samples = voice.synthesize("The sky is blue.").samples
    assert int(np.argmax(np.abs(samples) > 0.01)) <= voice.rate_hz * 40 // 1000


def test_peaks_are_limited_without_clipping() -> None:
    loud = np.array([0.5, -2.0, 1.0], dtype=np.float32)
    np.testing.assert_allclose(_limit_peak(loud), [0.2375, -0.95, 0.475], rtol=1e-6)
    quiet = np.array([0.5, -0.9], dtype=np.float32)
    assert _limit_peak(quiet) is quiet


def test_broken_models_are_named(voice_files: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "voice.onnx"
    for content in (b"", b"no model", voice_files["model"].read_bytes()[:1_000_000]):
        broken.write_bytes(content)
        with pytest.raises(ModelFileError, match=r"voice\.onnx.*vivavoce models fetch"):
            patched_model(broken)
    with pytest.raises(ModelFileError, match=r"gone\.onnx"):
        patched_model(tmp_path / "gone.onnx")


@pytest.mark.parametrize("config", ["", "{}", '{"phoneme_id_map": {"_": [0]}}'])
def test_broken_configuration_is_named(voice_files: dict[str, Path], tmp_path: Path, config: str) -> None:
    path = tmp_path / "voice.json"
    path.write_text(config, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"voice\.json"):
        PiperTts(voice_files["model"], path)


def test_a_voice_with_many_speakers_is_refused(voice_files: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads(voice_files["config"].read_text(encoding="utf-8"))
    path = tmp_path / "voice.json"
    path.write_text(json.dumps({**config, "num_speakers": 2}), encoding="utf-8")
    with pytest.raises(ModelFileError, match="one speaker"):
        PiperTts(voice_files["model"], path)


def test_a_graph_that_is_no_piper_voice_is_refused() -> None:
    with pytest.raises(ValueError, match="0 noise and 0 Ceil"):
        patch_model(b"")
