"""Make the spoken questions of the scripted conversation anew: `python tools/make_samples.py [--check]`.

Speaks each line with flite's voice `rms` (Debian package `flite`; CMU ARCTIC, free for any use), which is not
the agent's voice, and writes 16 kHz mono 16-bit WAV files and `index.toml` to `assets/samples`. `--check`
writes nothing but hears the files with the starter ASR and exits with 1 where a word is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
import wave
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "assets" / "samples"
VOICE = "rms"
LICENCE = "Free for any use (CMU ARCTIC rms; spoken by flite)"
LINES = (
    ("question_capital.wav", "What is the capital of France?"),
    ("question_week.wav", "How many days are in a week?"),
    ("question_color.wav", "What is your favorite color?"),
    ("question_mountain.wav", "What is the tallest mountain in the world?"),
    ("question_sleep.wav", "How can I sleep better?"),
    ("question_dog.wav", "What is a good name for a dog?"),
    ("question_advice.wav", "Can you give me some advice?"),
    ("question_healthy.wav", "How can I stay healthy?"),
)
"""Heard right by the starter recogniser at eight lead-ins, two levels and through the echo canceller."""
ENTRY = f'[[sample]]\nfile = "{{file}}"\ntext = "{{text}}"\nvoice = "flite {VOICE}"\nlicence = "{LICENCE}"\n'
RATE_HZ = 16_000
PEAK = 0.5
LEAD_MS, TAIL_MS = 100, 200


def speak(text: str) -> np.ndarray:
    """Text to (N,) int16 at 16 kHz, trimmed and framed by short silence, peak at half of full scale."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.wav"
        subprocess.run(["flite", "-voice", VOICE, "-t", text, "-o", str(path)], check=True)
        with wave.open(str(path), "rb") as reader:
            assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (RATE_HZ, 1, 2)
            samples = np.frombuffer(reader.readframes(reader.getnframes()), dtype="<i2").astype(np.float64)
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    spoken = samples[loud[0] : loud[-1] + 1] * (PEAK * 32767 / np.abs(samples).max())
    lead, tail = (np.zeros(RATE_HZ * ms // 1000) for ms in (LEAD_MS, TAIL_MS))
    return np.rint(np.concatenate([lead, spoken, tail])).astype("<i2")


def write(path: Path, samples: np.ndarray) -> None:
    """(N,) int16 to a mono WAV file."""
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE_HZ)
        writer.writeframes(samples.tobytes())


def make() -> None:
    """Write all files."""
    TARGET.mkdir(parents=True, exist_ok=True)
    entries = ["# Made by tools/make_samples.py; do not edit by hand.\n"]
    for name, text in LINES:
        write(TARGET / name, speak(text))
        entries.append(ENTRY.format(file=name, text=text))
    (TARGET / "index.toml").write_text("\n".join(entries), encoding="utf-8")


def check(store: Path) -> int:
    """Hear every file with the ASR files in `store`; number of wrong words."""
    from audio.asr.registry import create
    from audio.asr.validate import read_clip
    from audio.wer import word_errors

    files = {
        "encoder": store / "encoder_model.ort",
        "decoder": store / "decoder_model_merged.ort",
        "tokenizer": store / "tokenizer.bin",
    }
    wrong = 0
    with tempfile.TemporaryDirectory() as cache:
        asr = create("moonshine", files, cache_dir=Path(cache))
        for sample in tomllib.loads((TARGET / "index.toml").read_text(encoding="utf-8"))["sample"]:
            heard = asr.transcribe(read_clip(TARGET / sample["file"]))
            errors, _ = word_errors(sample["text"], heard)
            wrong += errors
            sys.stdout.write(f"{errors} {sample['file']}: {heard}\n")
    return wrong


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="STORE", type=Path, help="folder with the Moonshine files; writes nothing")
    arguments = parser.parse_args()
    if arguments.check is not None:
        return 1 if check(arguments.check) else 0
    make()
    return 0


if __name__ == "__main__":
    sys.exit(main())
