"""Rooms, voices and signal-to-noise ratios for the ear's tests and measurements. Not a test module."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

RATE = 16_000
HOP = 160
DATA = Path(os.environ.get("VIVAVOCE_TEST_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
BULK_DELAY = RATE * 60 // 1000
"""Between callback and loudspeaker plus microphone and callback: a usual pair of 30 ms buffers."""


def read(name: str) -> np.ndarray:
    """Samples of one 16 kHz recording of the test data."""
    import soundfile

    samples, rate = soundfile.read(DATA / name, dtype="float32")
    assert rate == RATE
    return samples


def active_db(samples: np.ndarray) -> float:
    """Level of the frames that are at most 30 dB under the loudest."""
    frames = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    power = (frames.astype(np.float64) ** 2).mean(1)
    return float(10 * np.log10(power[power > power.max() * 1e-3].mean()))


def at_level(samples: np.ndarray, level_db: float) -> np.ndarray:
    """The same sound with this active level in dBFS."""
    return (samples * 10 ** ((level_db - active_db(samples)) / 20)).astype(np.float32)


def onset(samples: np.ndarray) -> int:
    """Start of the first 30 ms that are at most 14 dB under the active level: where the first word is heard.

    Lower would find the room noise of some recordings, half a second early.
    """
    frames = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    level = 10 * np.log10((frames.astype(np.float64) ** 2).mean(1) + 1e-12)
    loud = level > active_db(samples) - 14
    return int(np.argmax(loud[:-2] & loud[1:-1] & loud[2:])) * HOP


def room_echo(far: np.ndarray, rir: str, erl_db: float, drive: float = 2.0) -> np.ndarray:
    """What the microphone gets of `far`: loudspeaker (soft clipping), measured room, bulk delay, ERL.

    `erl_db`: how far the echo's active level lies under that of `far`.
    """
    loudspeaker = np.tanh(drive * far) / drive
    response = read(f"rir/{rir}.wav")
    size = 1 << int(np.ceil(np.log2(len(far) + len(response))))
    echo = np.fft.irfft(np.fft.rfft(loudspeaker, size) * np.fft.rfft(response, size), size)[: len(far)]
    echo = np.concatenate([np.zeros(BULK_DELAY), echo])[: len(far)]
    return at_level(echo, active_db(far) - erl_db)


def hiss(count: int, level_db: float, seed: int = 0) -> np.ndarray:
    """White noise: no microphone is digitally silent."""
    return (np.random.default_rng(seed).standard_normal(count) * 10 ** (level_db / 20)).astype(np.float32)


def mixed(speech: np.ndarray, noise: np.ndarray, snr_db: float, offset: int = 0) -> np.ndarray:
    """Speech in a piece of noise, by the active level of the one and the mean level of the other."""
    piece = np.resize(noise[offset:], len(speech))
    mean_db = 10 * np.log10(np.mean(piece.astype(np.float64) ** 2))
    return (speech + piece * 10 ** ((active_db(speech) - snr_db - mean_db) / 20)).astype(np.float32)
