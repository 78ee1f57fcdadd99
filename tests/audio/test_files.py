"""Audio files: every format in, one sentence for the rest, and a writer that can be interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audio.block import Float32Array
from audio.errors import AudioFileError
from audio.files import WavWriter, available_bytes, read_audio


def _tone(rate_hz: int, duration_s: float = 0.5) -> Float32Array:
    time_s = np.arange(round(rate_hz * duration_s)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)


@pytest.mark.parametrize(
    ("subtype", "tolerance"),
    [("PCM_U8", 2**-7), ("PCM_16", 2**-15), ("PCM_24", 2**-23), ("PCM_32", 1e-7), ("FLOAT", 0), ("DOUBLE", 1e-7)],
)
def test_every_wav_format_is_read(tmp_path: Path, subtype: str, tolerance: float) -> None:
    tone = _tone(16_000)
    soundfile.write(tmp_path / "a.wav", tone, 16_000, subtype=subtype)
    samples, rate_hz = read_audio(tmp_path / "a.wav")
    assert rate_hz == 16_000
    assert samples.dtype == np.float32
    assert samples.shape == tone.shape
    assert np.abs(samples - tone).max() <= tolerance


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 22_050, 44_100, 96_000, 192_000])
def test_every_rate_is_read(tmp_path: Path, rate_hz: int) -> None:
    soundfile.write(tmp_path / "a.wav", _tone(rate_hz), rate_hz)
    samples, got_hz = read_audio(str(tmp_path / "a.wav"))
    assert (len(samples), got_hz) == (rate_hz // 2, rate_hz)


@pytest.mark.parametrize("channels", [1, 2, 6, 8, 12])
def test_channels_are_averaged(tmp_path: Path, channels: int) -> None:
    tone = _tone(48_000)
    frames = np.stack([tone * (c + 1) / channels for c in range(channels)], axis=1)
    soundfile.write(tmp_path / "a.wav", frames, 48_000, subtype="FLOAT")
    samples, _ = read_audio(tmp_path / "a.wav")
    assert np.allclose(samples, frames.mean(axis=1), atol=1e-6)


def test_flac_is_read(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", _tone(16_000), 16_000, subtype="PCM_24")
    samples, rate_hz = read_audio(tmp_path / "a.flac")
    assert rate_hz == 16_000
    assert np.abs(samples - _tone(16_000)).max() < 1e-6


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_of_a_truncated_file_what_is_there_is_used(tmp_path: Path, name: str) -> None:
    tone = _tone(16_000, 4.0) + 0.01 * np.random.default_rng(0).standard_normal(64_000).astype(np.float32)
    soundfile.write(tmp_path / name, tone, 16_000)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2 + 1])
    samples, _ = read_audio(tmp_path / name)
    assert 8_000 < len(samples) < 40_000
    assert np.abs(samples - tone[: len(samples)]).max() < 1e-4


def _bad_files(folder: Path) -> dict[str, Path]:
    good = folder / "good.wav"
    soundfile.write(good, _tone(16_000), 16_000)
    header = good.read_bytes()[:44]
    contents = {
        "empty.wav": b"",
        "header.wav": header,
        "half_a_sample.wav": header + b"\x01",
        "half_a_header.wav": header[:30],
        "text.wav": b"this is no sound at all, only words\n" * 50,
        "binary.flac": bytes(range(256)) * 20,
        "noise.raw": bytes(range(256)) * 20,
        "program.py": b"print('hello')\n",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    soundfile.write(folder / "nan.wav", np.array([0.0, np.nan, 0.5]), 16_000, subtype="FLOAT")
    soundfile.write(folder / "slow.wav", np.zeros(100), 10)
    names = [*contents, "nan.wav", "slow.wav", "missing.wav"]
    return {**{name: folder / name for name in names}, "folder": folder}


def test_what_is_no_audio_gets_one_sentence_with_the_fix(tmp_path: Path) -> None:
    for name, path in _bad_files(tmp_path).items():
        with pytest.raises(AudioFileError) as caught:
            read_audio(path)
        assert str(path) in caught.value.message, name
        assert caught.value.fix, name
        assert "\n" not in str(caught.value), name


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_writer_writes_what_it_was_given(tmp_path: Path, subtype: str, channels: int) -> None:
    tone = _tone(16_000, 2.5)
    data = tone if channels == 1 else np.stack((tone, -tone), axis=1)
    with WavWriter(tmp_path / "a.wav", 16_000, subtype, channels) as wav:  # type: ignore[arg-type]
        for at in range(0, len(data), 160):
            wav.write(data[at : at + 160])
        with pytest.raises(ValueError, match="channels"):
            wav.write(np.zeros((3, 5), np.float32))
    got, rate_hz = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert rate_hz == 16_000
    assert soundfile.info(tmp_path / "a.wav").subtype == subtype
    assert got.shape == data.shape
    assert np.abs(got - data).max() <= (0 if subtype == "FLOAT" else 2**-16)


def test_full_scale_is_clipped_and_not_wrapped(tmp_path: Path) -> None:
    with WavWriter(tmp_path / "a.wav", 8_000) as wav:
        wav.write(np.array([1.0, -1.0, 3.0, -3.0], np.float32))
    got, _ = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert got.tolist() == [32767, -32768, 32767, -32768]


_KILLED = """
import os, sys
import numpy as np
from audio.files import WavWriter
wav = WavWriter(sys.argv[1], 16000)
for _ in range(250):
    wav.write(np.full(160, 0.25, np.float32))
os._exit(9)
"""


def test_a_program_that_dies_leaves_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], env=env, check=False)
    assert done.returncode == 9
    samples, rate_hz = read_audio(path)
    assert rate_hz == 16_000
    assert len(samples) >= 2 * 16_000
    assert np.all(samples == 0.25)


_LITTLE_ROOM_BYTES = 50_000


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("room", [0, 20, 44, 50, 1_001, _LITTLE_ROOM_BYTES])
def test_a_full_disk_is_one_sentence_and_leaves_a_good_file(tmp_path: Path, subtype: str, room: int) -> None:
    """Wherever the room ends: whole frames, a right header, and nothing that complains at the end of the program."""
    path = tmp_path / "a.wav"
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", _FULL, str(path), subtype, str(room)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a.wav ends too early: file too large. Free some disk space" in done.stdout
    if room > 100:
        samples, _ = soundfile.read(path, dtype="float32")
        assert len(samples) > (room - 100) // 4
        assert np.all(samples == 0.25)


_FULL = """
import resource, signal, sys
import numpy as np
from audio.errors import AudioFileError
from audio.files import WavWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
wav = None
for attempt in range(2):
    try:
        wav = wav or WavWriter(sys.argv[1], 16000, sys.argv[2])
        for _ in range(500):
            wav.write(np.full(160, 0.25, np.float32))
        wav.close()
    except AudioFileError as error:
        print(error)
if wav is not None:
    wav.close()
"""


def test_a_recording_that_does_not_fit_into_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.wav"
    with WavWriter(path, 16_000) as wav:
        wav.write(np.zeros(16_000, np.float32))
    with path.open("r+b") as file:  # sparse: ten hours of silence that take no room on the disk
        file.seek(40)
        file.write((36_000 * 32_000).to_bytes(4, "little"))
        file.truncate(44 + 36_000 * 32_000)
    monkeypatch.setattr("audio.files.available_bytes", lambda: 1_000_000_000)
    monkeypatch.setattr("audio.files._read_mono", lambda file: pytest.fail("it was read"))
    with pytest.raises(
        AudioFileError, match=r"lasts 10\.0 h, which takes 18\.4 GB of memory; 1\.0 GB are free\. Give a"
    ):
        read_audio(path)


def test_available_memory_is_that_of_this_machine_and_of_this_process() -> None:
    assert 10e6 < available_bytes() < 1 << 62 or not Path("/proc/meminfo").exists()
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (900_000_000,) * 2)\n"
    code += "from audio.files import available_bytes\nprint(available_bytes())"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert int(done.stdout) <= 900_000_000


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero")
    if kind == "fifo":
        path = tmp_path / "fifo"
        os.mkfifo(path)
    with pytest.raises(AudioFileError, match=f"{path.name} is no regular file"):
        read_audio(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(AudioFileError, match="cannot be written"):
        WavWriter(tmp_path / "no" / "a.wav", 16_000)
