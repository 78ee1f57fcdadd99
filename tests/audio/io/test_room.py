"""The simulated room: streaming convolution equals the whole one, levels and delays are what the spec says."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import AudioBlock, Float32Array
from audio.io.device import RoomSpec
from audio.io.room import BlockConvolver, Room, room_response

_RATE_HZ = 16_000
_FRAMES = 160


def _far(blocks: int, seed: int = 3) -> Float32Array:
    return (0.1 * np.random.default_rng(seed).standard_normal(blocks * _FRAMES)).astype(np.float32)


def _through(room: Room, far: Float32Array) -> Float32Array:
    near = np.zeros_like(far)
    for at in range(0, len(far), _FRAMES):
        room.add_echo(near[at : at + _FRAMES])
        room.hear(far[at : at + _FRAMES])
    return near


@pytest.mark.parametrize("length", [1, 159, 160, 161, 1000, 4321])
def test_streaming_convolution_is_the_whole_convolution(length: int) -> None:
    signal = pytest.importorskip("scipy.signal")
    response = np.random.default_rng(length).standard_normal(length)
    far = _far(60)
    convolver = BlockConvolver(response, _FRAMES)
    got = np.concatenate([convolver.process(block) for block in far.reshape(-1, _FRAMES)])
    expected = signal.convolve(far.astype(np.float64), response)[: len(far)]
    assert np.abs(got - expected).max() <= 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("delay_ms", [10.0, 37.5, 200.0])
def test_the_echo_is_delayed_and_attenuated_as_told(delay_ms: float) -> None:
    signal = pytest.importorskip("scipy.signal")
    spec = RoomSpec(rt60_ms=120, seed=4, erl_db=12, delay_ms=delay_ms)
    far = _far(300)
    near = _through(Room(spec, _RATE_HZ, _FRAMES), far)
    delay = round(delay_ms * _RATE_HZ / 1000)
    whole = signal.convolve(far.astype(np.float64), room_response(spec, _RATE_HZ))
    expected = np.concatenate((np.zeros(delay), whole))[: len(far)]
    assert np.allclose(near, expected, atol=1e-6)
    loss_db = 10 * np.log10(np.mean(far.astype(np.float64) ** 2) / np.mean(near[delay:].astype(np.float64) ** 2))
    assert loss_db == pytest.approx(12, abs=0.5)


def test_the_synthetic_room_decays_by_60_db_in_rt60() -> None:
    response = room_response(RoomSpec(rt60_ms=500, seed=1), 48_000)
    start, late = np.mean(response[:2400] ** 2), np.mean(response[14400:16800] ** 2)
    assert 10 * np.log10(start / late) == pytest.approx(36, abs=3)  # 300 of 500 ms


def test_a_recorded_response_is_used() -> None:
    spec = RoomSpec(impulse_response=AudioBlock(np.eye(1, 50, 7, dtype=np.float32)[0], 0, _RATE_HZ), erl_db=0)
    far = _far(20)
    near = _through(Room(spec, _RATE_HZ, _FRAMES), far)
    assert np.allclose(near[647:], far[:-647], atol=1e-6)


def test_equal_seeds_give_equal_noise_of_the_level_told() -> None:
    spec = RoomSpec(noise_db=-40, noise_seed=9)
    silence = np.zeros(100 * _FRAMES, np.float32)
    first, second = (_through(Room(spec, _RATE_HZ, _FRAMES), silence) for _ in range(2))
    assert np.array_equal(first, second)
    assert 20 * np.log10(np.std(first)) == pytest.approx(-40, abs=0.3)
    other = _through(Room(RoomSpec(noise_db=-40, noise_seed=10), _RATE_HZ, _FRAMES), silence)
    assert not np.array_equal(first, other)


def test_a_clipping_loudspeaker_distorts() -> None:
    impulse = AudioBlock(np.ones(1, np.float32), 0, _RATE_HZ)
    spec = RoomSpec(impulse_response=impulse, erl_db=0, delay_ms=10, soft_clip=2.0)
    far = np.full(3 * _FRAMES, 0.8, np.float32)
    near = _through(Room(spec, _RATE_HZ, _FRAMES), far)
    assert np.allclose(near[_FRAMES:], np.tanh(1.6) / 2)


def test_a_delay_below_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        Room(RoomSpec(delay_ms=5), _RATE_HZ, _FRAMES)
