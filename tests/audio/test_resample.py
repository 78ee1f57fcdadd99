"""Resampling: streams equal whole arrays, lengths are exact, aliases stay away, the ear's lag is what it says."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import Float32Array
from audio.resample import HopResampler, StreamResampler, resample, resampled_length

_RATES = [(48_000, 16_000), (44_100, 16_000), (96_000, 16_000), (8_000, 16_000), (22_050, 48_000), (22_050, 44_100)]
_DEVICE_RATES = [8_000, 32_000, 44_100, 48_000, 96_000, 192_000]


def _noise(count: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32) * np.float32(0.1)


def _snr_db(reference: np.ndarray, got: np.ndarray) -> float:
    reference, error = reference.astype(np.float64), got.astype(np.float64) - reference
    return float(10 * np.log10(max(np.sum(reference**2), 1e-30) / max(np.sum(error**2), 1e-40)))


def _sine(frequency_hz: float, rate_hz: int, count: int, lag_samples: float = 0.0) -> Float32Array:
    time_s = (np.arange(count) - lag_samples) / rate_hz
    return np.sin(2 * np.pi * frequency_hz * time_s).astype(np.float32)


@pytest.mark.parametrize(("from_hz", "to_hz"), _RATES)
@pytest.mark.parametrize("count", [2, 160, 12_345, 48_000])
def test_no_buzz_at_chunks_of_any_size_they_equal_the_whole(from_hz: int, to_hz: int, count: int) -> None:
    samples = _noise(count)
    whole = resample(samples, from_hz, to_hz)
    random = np.random.default_rng(1)
    stream = StreamResampler(from_hz, to_hz)
    parts, at = [], 0
    while at < count:
        size = int(random.integers(1, 1500))
        parts.append(stream.process(samples[at : at + size]))
        at += size
    parts.append(stream.flush())
    chunked = np.concatenate(parts)
    assert len(whole) == len(chunked) == resampled_length(count, from_hz, to_hz) == round(count * to_hz / from_hz)
    assert _snr_db(whole, chunked) >= 90


@pytest.mark.parametrize(("from_hz", "to_hz"), _RATES)
def test_a_tone_comes_through_in_place(from_hz: int, to_hz: int) -> None:
    got = resample(_sine(997, from_hz, from_hz), from_hz, to_hz)
    middle = slice(to_hz // 10, -to_hz // 10)
    assert _snr_db(_sine(997, to_hz, to_hz)[middle], got[middle]) >= 90


def test_soxr_leaves_no_alias() -> None:
    got = resample(_sine(9_500, 48_000, 48_000), 48_000, 16_000)[1600:-1600]
    assert 20 * np.log10(np.sqrt(np.mean(got.astype(np.float64) ** 2)) * np.sqrt(2)) <= -90


def test_a_flushed_stream_is_as_new() -> None:
    stream = StreamResampler(22_050, 48_000)
    samples = _noise(5_000)
    first = stream.finish(samples)
    assert np.array_equal(first, stream.finish(samples))


def test_equal_rates_pass_through() -> None:
    samples = _noise(100)
    stream = StreamResampler(16_000, 16_000)
    assert stream.process(samples) is samples
    assert len(stream.flush()) == 0
    hops = HopResampler(16_000)
    assert hops.latency_samples == 0
    assert np.array_equal(hops.process(_noise(160)), _noise(160))


def _hops(rate_hz: int, samples: Float32Array) -> Float32Array:
    resampler = HopResampler(rate_hz)
    blocks = samples.reshape(-1, resampler.block_frames)
    return np.concatenate([resampler.process(block) for block in blocks])


@pytest.mark.parametrize("rate_hz", _DEVICE_RATES)
def test_each_block_is_one_hop_and_the_lag_is_what_it_says(rate_hz: int) -> None:
    resampler = HopResampler(rate_hz)
    assert resampler.latency_samples <= 80, "5 ms"
    got = _hops(rate_hz, _sine(997, rate_hz, rate_hz))
    assert len(got) == 16_000
    expected = _sine(997, 16_000, 16_000, resampler.latency_samples)
    assert _snr_db(expected[320:], got[320:]) >= 90


@pytest.mark.parametrize("rate_hz", _DEVICE_RATES)
def test_hops_keep_the_whole_pass_band_in_place(rate_hz: int) -> None:
    lag = HopResampler(rate_hz).latency_samples
    frequencies_hz = np.linspace(60, min(rate_hz, 16_000) / 2 - 850, 40)
    samples = sum(_sine(f, rate_hz, rate_hz) for f in frequencies_hz) / np.float32(40)
    expected = sum(_sine(f, 16_000, 16_000, lag) for f in frequencies_hz) / np.float32(40)
    assert _snr_db(expected[320:], _hops(rate_hz, samples)[320:]) >= 90


@pytest.mark.parametrize("rate_hz", [48_000, 96_000])
def test_no_buzz_every_10_ms_hops_agree_with_the_whole_file(rate_hz: int) -> None:
    """Noise below the ear's edge through both tools. (At 44.1 kHz soxr itself is off by -60 dB up there.)"""
    lag = HopResampler(rate_hz).latency_samples
    spectrum = np.fft.rfft(_noise(rate_hz))
    spectrum[np.fft.rfftfreq(rate_hz, 1 / rate_hz) > 7_150] = 0
    samples = np.fft.irfft(spectrum, rate_hz).astype(np.float32)
    whole, got = resample(samples, rate_hz, 16_000), _hops(rate_hz, samples)
    assert _snr_db(whole[320 : 16_000 - 320], got[320 + lag : 16_000 - 320 + lag]) >= 90


@pytest.mark.parametrize("rate_hz", [44_100, 48_000, 96_000])
@pytest.mark.parametrize("frequency_hz", [8_100, 9_500, 12_000, 15_900, 21_000])
def test_hops_leave_no_alias(rate_hz: int, frequency_hz: float) -> None:
    got = _hops(rate_hz, _sine(frequency_hz, rate_hz, rate_hz))[1600:]
    assert 20 * np.log10(np.sqrt(2 * np.mean(got.astype(np.float64) ** 2))) <= -90


def test_a_reset_hop_resampler_is_as_new() -> None:
    resampler = HopResampler(48_000)
    block = _noise(480)
    first = resampler.process(block).copy()
    resampler.process(_noise(480, seed=5))
    resampler.reset()
    assert np.array_equal(resampler.process(block), first)


def test_a_rate_without_whole_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="22050"):
        HopResampler(22_050)
