"""The whole ear on rooms made of real recordings."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from audio.ear import HOP_DTYPE, Ear, EarSpec
from audio.errors import ModelFileError
from audio.io.records import block_dtype

pytest.importorskip("livekit")
pytest.importorskip("onnxruntime")

_CHAINS = [(), ("echo",), ("denoise",), ("echo", "denoise")]


@pytest.fixture
def spec(model_path) -> EarSpec:
    return EarSpec(str(model_path("silero-vad", "silero_vad.onnx")), chain=("echo",))


def blocks(near: np.ndarray, far: np.ndarray, rate_hz: int = 16000) -> np.ndarray:
    """Block records of a stream."""
    frames = rate_hz // 100
    made = np.zeros(len(near) // frames, block_dtype(frames))
    made["index"] = np.arange(len(made))
    made["near"] = near[: len(made) * frames].reshape(-1, frames)
    made["far"] = far[: len(made) * frames].reshape(-1, frames)
    return made


def listen(ear: Ear, records: np.ndarray) -> np.ndarray:
    """All hop records."""
    return np.array([ear.process(record) for record in records], HOP_DTYPE)


def power_db(samples: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(samples.astype(np.float64) ** 2) + 1e-12))


def test_echo_of_the_agent_alone_goes_and_the_user_stays(spec: EarSpec, scenes) -> None:
    far = scenes.at_level(scenes.read("speech/lj/LJ001-0001.flac"), -20)
    echo = scenes.room_echo(far, "rir3", 6) + scenes.hiss(len(far), -75)
    hops = listen(Ear(spec), blocks(echo, far))
    settled = slice(300, 900)
    speaking = hops["far_level_db"][settled] > -40
    reduction = (hops["level_db"] - hops["clean_level_db"])[settled][speaking]
    assert np.median(reduction) >= 20
    assert not hops["voiced"][settled].any()

    user = scenes.at_level(scenes.read("speech/jfk/jfk.flac"), -26)
    alone = listen(Ear(spec), blocks(user, np.zeros_like(user)))
    clean = alone["clean"].ravel()
    assert abs(power_db(clean) - power_db(user)) < 1.0
    assert alone["voiced"].mean() > 0.5


def test_a_user_as_loud_as_the_echo_is_heard_through_it(spec: EarSpec, scenes) -> None:
    far = scenes.at_level(scenes.read("speech/lj/LJ001-0001.flac"), -20)
    near = scenes.room_echo(far, "rir4", 12) + scenes.hiss(len(far), -75)
    user = scenes.read("speech/aew/cmu_arctic_us_aew_a0001.flac")
    user = scenes.at_level(user[scenes.onset(user) :], -32)
    begin = 3 * 16000
    near[begin : begin + len(user)] += user
    hops = listen(Ear(spec), blocks(near, far))
    voiced = hops["voiced"].astype(bool)
    assert not voiced[:300].any()
    first = int(np.argmax(voiced))
    assert 0 <= first - 300 <= 40
    assert abs(int(hops["onset_samples"][first]) - begin) <= 5600


@pytest.mark.parametrize("chain", _CHAINS)
def test_clean_lies_where_its_index_says(spec: EarSpec, chain: tuple[str, ...], scenes) -> None:
    user = scenes.at_level(scenes.read("speech/jfk/jfk.flac"), -26)[: 4 * 16000]
    whole = scenes.at_level(np.resize(scenes.read("speech/jfk/jfk.flac"), 12 * 16000), -26)
    for rate_hz in (16000, 48000):
        played = user if rate_hz == 16000 else _upsampled(whole)[: 4 * rate_hz]
        ear = Ear(EarSpec(spec.silero_path, chain), rate_hz)
        hops = listen(ear, blocks(played, np.zeros_like(played), rate_hz))
        assert (hops["index_samples"] == np.arange(len(hops)) * 160 - ear.latency_samples).all()
        clean = hops["clean"].ravel()
        start = int(hops["index_samples"][0])
        reference = np.concatenate([np.zeros(-start, np.float32), user])[: len(clean)]
        cross = np.fft.rfft(clean, 1 << 18) * np.conj(np.fft.rfft(reference, 1 << 18))
        correlation = np.fft.irfft(cross / (np.abs(cross) + 1e-9))
        lag = (int(np.argmax(correlation)) + (1 << 17)) % (1 << 18) - (1 << 17)
        assert abs(lag) <= 2


def test_onset_is_never_more_than_60_ms_late(spec: EarSpec, scenes) -> None:
    """Only recordings whose first word is clear of noise count; early is harmless, the pre-roll starts earlier."""
    for name in ("speech/aew/cmu_arctic_us_aew_a0001.flac", "speech/aew/cmu_arctic_us_aew_a0002.flac",
                 "speech/aew/cmu_arctic_us_aew_a0003.flac", "speech/axb/cmu_arctic_us_axb_a0004.flac",
                 "speech/jfk/jfk.flac", "speech/libri3436/3436-172162-0000.flac"):  # fmt: skip
        clip = scenes.at_level(scenes.read(name), -26)
        clip = clip[scenes.onset(clip) :][:16000]
        for offset in (0, 77, 160, 333):
            lead = 16000 + offset
            near = np.concatenate([np.zeros(lead, np.float32), clip]) + scenes.hiss(lead + len(clip), -75)
            hops = listen(Ear(spec), blocks(near, np.zeros_like(near)))
            first = int(np.argmax(hops["voiced"]))
            assert hops["voiced"][first], name
            assert int(hops["onset_samples"][first]) - lead <= 960, name
            assert (first + 1) * 160 - lead <= 1600, name  # and it is reported within 100 ms


def test_silence_and_noise_make_no_run(spec: EarSpec, scenes) -> None:
    ear = Ear(spec)
    quiet = np.zeros(5 * 16000, np.float32)
    assert not listen(ear, blocks(quiet, quiet))["voiced"].any()
    for level_db in (-60, -40, -20):
        ear.reset()
        noise = scenes.hiss(5 * 16000, level_db)
        assert not listen(ear, blocks(noise, quiet))["voiced"].any()


@pytest.mark.parametrize("chain", _CHAINS)
def test_same_blocks_same_bits_and_reset_equals_new(spec: EarSpec, chain: tuple[str, ...], scenes) -> None:
    far = scenes.at_level(scenes.read("speech/lj/LJ001-0002.flac"), -20)
    records = blocks(scenes.room_echo(far, "rir2", 6) + scenes.hiss(len(far), -60), far)
    ear = Ear(EarSpec(spec.silero_path, chain))
    first = listen(ear, records)
    ear.reset()
    assert listen(ear, records).tobytes() == first.tobytes()
    assert listen(Ear(EarSpec(spec.silero_path, chain)), records).tobytes() == first.tobytes()


def test_the_round_trip_is_found_in_the_first_reply(spec: EarSpec, scenes) -> None:
    far = scenes.at_level(scenes.read("speech/lj/LJ001-0001.flac"), -20)
    ear = Ear(spec)
    hops = 0
    for record in blocks(scenes.room_echo(far, "rir4", 12) + scenes.hiss(len(far), -70), far):
        ear.process(record)
        hops += 1
        if ear.round_trip is not None:
            break
    assert hops <= 200
    response = scenes.read("rir/rir4.wav")
    assert ear.round_trip.delay_samples == scenes.BULK_DELAY + int(np.argmax(np.abs(response)))


def test_copies_what_the_callback_noted_and_follows_gaps(spec: EarSpec) -> None:
    records = blocks(np.zeros(480, np.float32), np.zeros(480, np.float32))
    records["index"] = [0, 1, 9]
    records["generation"], records["reply_frames"], records["flags"] = 3, [0, 160, 320], [0, 1, 3]
    hops = listen(Ear(spec), records)
    assert hops["block"].tolist() == [0, 1, 9]
    assert hops["reply_frames"].tolist() == [0, 160, 320]
    assert hops["generation"].tolist() == [3, 3, 3]
    assert hops["flags"].tolist() == [0, 1, 3]
    assert np.diff(hops["index_samples"]).tolist() == [160, 8 * 160]


def test_one_bad_block_does_not_poison_the_stream(spec: EarSpec, scenes) -> None:
    user = scenes.at_level(scenes.read("speech/jfk/jfk.flac"), -26)[: 4 * 16000]
    records = blocks(user, np.zeros_like(user))
    records["near"][20] = np.nan
    records["far"][21, 3] = np.inf
    hops = listen(Ear(spec), records)
    assert np.isfinite(hops["clean"]).all()
    assert hops["voiced"][100:].mean() > 0.3


def test_says_what_it_is_made_of(spec: EarSpec) -> None:
    ear = Ear(EarSpec(spec.silero_path, ("echo", "denoise")))
    names = [stage for stage, _, _ in ear.backends()]
    assert names == ["echo", "denoise", "gate", "vad", "round trip", "echo residual"]
    assert ear.memory_bytes() == sum(held for _, _, held in ear.backends())
    assert all(held > 0 for _, _, held in ear.backends())
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("chain", [("reverb",), ("echo", "echo")])
def test_unknown_and_repeated_stages_are_refused(spec: EarSpec, chain: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="denoise"):
        Ear(EarSpec(spec.silero_path, chain))


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ModelFileError, match="models fetch"):
        Ear(EarSpec("/nonexistent/silero_vad.onnx"))


def _upsampled(samples: np.ndarray) -> np.ndarray:
    import soxr

    return soxr.resample(samples, 16000, 48000).astype(np.float32)
