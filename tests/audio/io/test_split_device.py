"""Microphone and loudspeaker on two clocks: the room is physical, and echo cancellation does not notice."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from audio.block import HOP_SAMPLES, AudioBlock, Float32Array
from audio.echo.delay import RoundTripEstimator
from audio.errors import DeviceError
from audio.io.device import (
    AudioDevice,
    Finished,
    RoomSpec,
    ScriptSpec,
    SimulatedSpec,
    SteppedDevice,
    Utterance,
    make_device,
    make_simulated,
)
from audio.io.room import Air
from audio.io.split import HalfCallback, HalfFormat, SplitDevice
from audio.resample import HopResampler

_RATE_HZ = 16_000
_CLICK = RoomSpec(impulse_response=AudioBlock(np.ones(1, np.float32), 0, _RATE_HZ), erl_db=6, delay_ms=20)


class _Player:
    """A callback that plays a signal and keeps both sides."""

    def __init__(self, far: Float32Array) -> None:
        self._far = far
        self.near: list[Float32Array] = []
        self.far: list[Float32Array] = []

    def __call__(self, near: Float32Array, out: Float32Array, time_ns: int) -> None:
        at = len(self.near) * len(out)
        part = self._far[at : at + len(out)]
        out.fill(0.0)
        out[: len(part)] = part
        self.near.append(near.copy())
        self.far.append(out.copy())


def _run(spec: SimulatedSpec, far: Float32Array, blocks: int) -> tuple[Any, _Player]:
    device, player = make_simulated(spec), _Player(far)
    device.open()
    device.start(player)
    device.step(blocks)
    device.stop()
    return device, player


def _noise(duration_s: float, rate_hz: int = _RATE_HZ) -> Float32Array:
    """Band-limited to 0.35 of the rate: what both clocks carry."""
    count = round(duration_s * rate_hz)
    spectrum = np.fft.rfft(np.random.default_rng(8).standard_normal(count))
    spectrum[round(0.35 * count) :] = 0
    samples = np.fft.irfft(spectrum, count)
    return (0.1 * samples / samples.std()).astype(np.float32)


@pytest.mark.parametrize(("loudspeaker_hz", "microphone_hz"), [(48_000, 48_000), (44_100, 48_000), (48_000, 16_000)])
def test_the_air_carries_a_tone_from_one_clock_to_another(loudspeaker_hz: int, microphone_hz: int) -> None:
    air = Air(loudspeaker_hz, microphone_hz)
    frequency_hz = 0.37 * min(loudspeaker_hz, microphone_hz)
    samples = np.sin(2 * np.pi * frequency_hz * np.arange(4_000) / loudspeaker_hz)
    places = 500.0 + np.arange(800) * loudspeaker_hz / microphone_hz * (1 + 173e-6)
    error = air.listen(samples, places) - np.sin(2 * np.pi * frequency_hz * places / loudspeaker_hz)
    assert 10 * np.log10(0.5 / np.mean(error**2)) >= 100


def _echo_lag(player: _Player, at_s: float) -> float:
    """By how many samples, to a fraction, the echo lags the recorded far end around `at_s`."""
    near, far = np.concatenate(player.near), np.concatenate(player.far)
    first, count = round(at_s * _RATE_HZ), 8192
    window = np.hanning(count)
    lags = np.arange(0, 3_000)
    segment = near[first : first + count].astype(np.float64)
    best = max(lags, key=lambda lag: float(segment @ far[first - lag : first - lag + count]))
    cross = np.fft.rfft(window * segment) * np.conj(np.fft.rfft(window * far[first - best : first - best + count]))
    bins = np.arange(200, 2_500)
    phase = np.unwrap(np.angle(cross[bins]))
    slope = np.polyfit(bins, phase, 1, w=np.abs(cross[bins]))[0]
    return float(best - slope * count / (2 * np.pi))


@pytest.mark.parametrize("output_hz", [16_000, 44_100, 48_000])
def test_the_echo_keeps_its_place_while_the_clocks_drift(output_hz: int) -> None:
    spec = SimulatedSpec(
        is_paced=False, rate_hz=_RATE_HZ, room=_CLICK, drift_ppm=-100, output_drift_ppm=100, output_rate_hz=output_hz
    )
    device, player = _run(spec, _noise(40), 4_000)
    lags = [_echo_lag(player, at_s) for at_s in (15, 20, 30, 39)]
    assert np.ptp(lags) < 0.3, "samples at 16 kHz; unmapped it would be 77"
    assert lags[0] == pytest.approx((33 + 20) * 16, abs=1), "depth and room"
    assert device.stats.drift_ppm == pytest.approx(200, abs=1)
    assert (device.stats.underruns, device.stats.jumps) == (0, 0)


def _settled_erle_db(spec: SimulatedSpec, far: Float32Array, from_s: int, to_s: int) -> float:
    """What the product's canceller takes out between these times."""
    aec3 = pytest.importorskip("audio.echo.webrtc_aec3")
    pytest.importorskip("livekit")
    _, player = _run(spec, far, to_s * 100)
    stage, estimator = aec3.WebRtcAec3(), RoundTripEstimator()
    to_near, to_far = HopResampler(_RATE_HZ), HopResampler(_RATE_HZ)
    clean = []
    for near, out in zip(player.near, player.far, strict=True):
        near_hop, far_hop = to_near.process(near), to_far.process(out)
        trip = estimator.push(near_hop, far_hop)
        if trip is not None:
            stage.set_delay_ms(round(trip.delay_ms))
        clean.append(stage.process(near_hop, far_hop))
    lag = stage.latency_samples
    first, end = from_s * _RATE_HZ, to_s * _RATE_HZ
    echo = np.concatenate(player.near)[first - lag : end - lag].astype(np.float64)
    rest = np.concatenate(clean)[first:end].astype(np.float64)
    return float(10 * np.log10((echo @ echo) / (rest @ rest)))


@pytest.fixture(scope="module")
def far_speech(speech: Callable[[str], Float32Array]) -> Float32Array:
    """24 s of a voice."""
    voice = np.concatenate([speech(f"lj/LJ001-000{number}") for number in (1, 2, 3)])
    return np.resize(voice * np.float32(0.7), 24 * _RATE_HZ)


_ROOM = RoomSpec(erl_db=6, delay_ms=40, noise_db=-70)


@pytest.fixture(scope="module")
def duplex_erle_db(far_speech: Float32Array) -> float:
    """Of the same room on one clock."""
    return _settled_erle_db(SimulatedSpec(is_paced=False, rate_hz=_RATE_HZ, room=_ROOM), far_speech, 14, 24)


@pytest.mark.parametrize(
    "clocks",
    [
        {"output_drift_ppm": 100.0},
        {"output_drift_ppm": -100.0, "output_jumps": ((10.0, 60.0),)},
        {"output_drift_ppm": 200.0, "stalls": ((10.0, 0.06),)},
        {"output_drift_ppm": -200.0, "jitter_ms": 3.0, "output_jitter_ms": 3.0, "output_rate_hz": 48_000},
    ],
    ids=["+100", "-100, loudspeaker jumps", "+200, microphone jumps", "-200, late callbacks, 48 kHz"],
)
def test_settled_erle_is_within_6_db_of_one_clock(
    clocks: dict[str, Any], far_speech: Float32Array, duplex_erle_db: float
) -> None:
    spec = SimulatedSpec(is_paced=False, rate_hz=_RATE_HZ, room=_ROOM, seed=3, **clocks)
    erle_db = _settled_erle_db(spec, far_speech, 14, 24)
    print(f"ERLE {erle_db:.1f} dB, one clock {duplex_erle_db:.1f} dB")
    assert duplex_erle_db >= 25
    assert erle_db >= duplex_erle_db - 6


def test_a_script_runs_and_equal_specs_give_equal_samples() -> None:
    script = ScriptSpec((Utterance(AudioBlock(_noise(0.5), 0, _RATE_HZ)),), lead_s=0.1, pause_s=0.2, timeout_s=0.5)
    spec = SimulatedSpec(
        input=script,
        is_paced=False,
        room=_CLICK,
        output_drift_ppm=150,
        jitter_ms=2,
        output_jitter_ms=2,
        keep_output=True,
    )
    (first, one), (second, two) = (_run(spec, _noise(3, 48_000), 1_000) for _ in range(2))
    assert np.array_equal(one.near, two.near)
    assert np.array_equal(first.output, second.output)
    assert first.output.any()
    assert len(first.spoken()) == 1
    assert first.finished == Finished("the input is over", is_lost=False)


@pytest.mark.parametrize("only_hz", [48_000, 44_100])
@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize("is_split", [False, True])
def test_devices_of_one_rate_and_any_channels_work(only_hz: int, channels: int, is_split: bool) -> None:
    refused = tuple(rate for rate in (48_000, 44_100, 16_000) if rate != only_hz)
    voice = AudioBlock(_noise(1.0), 0, _RATE_HZ)
    spec = SimulatedSpec(
        input=voice,
        is_paced=False,
        rate_hz=_RATE_HZ,
        refused_rates_hz=refused,
        input_channels=channels,
        output_channels=channels,
        output_drift_ppm=50.0 if is_split else None,
        output_refused_rates_hz=refused,
        keep_output=True,
    )
    device: SteppedDevice = make_simulated(spec)
    stream = device.open()
    assert (stream.rate_hz, stream.block_frames) == (only_hz, only_hz // 100)
    assert stream.mode == ("split" if is_split else "simulated")
    player = _Player(np.full(only_hz, 0.25, np.float32))
    device.start(player)
    device.step(100)
    device.stop()
    assert np.std(np.concatenate(player.near)) == pytest.approx(np.std(voice.samples), rel=0.02)
    assert device.output[-only_hz // 10 :] == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("side", ["refused_rates_hz", "output_refused_rates_hz"])
def test_a_half_that_refuses_every_rate_gives_one_sentence(side: str) -> None:
    device = make_device(SimulatedSpec(output_drift_ppm=0.0, **{side: (48_000, 44_100, 16_000)}))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"refuses every sample rate tried \(48000, 44100, 16000 Hz\)") as caught:
        device.open()
    assert "\n" not in str(caught.value)
    assert caught.value.fix
    assert not device.active


def test_paced_it_keeps_real_time() -> None:
    device: AudioDevice = make_device(SimulatedSpec(output_drift_ppm=100, output_rate_hz=44_100, room=RoomSpec()))
    device.open()
    player = _Player(_noise(1, 48_000))
    began_s = time.monotonic()
    device.start(player)
    while len(player.near) < 60 and time.monotonic() - began_s < 5:
        time.sleep(0.01)
    took_s = time.monotonic() - began_s
    device.stop()
    assert len(player.near) >= 60
    assert took_s > 0.55
    assert device.finished is None


class _Half:
    """A stream that its test drives."""

    def __init__(self, error: DeviceError | None = None) -> None:
        self._error = error
        self.callback: HalfCallback | None = None
        self.finished: Finished | None = None
        self.stops = 0

    def open(self) -> HalfFormat:
        if self._error is not None:
            raise self._error
        return HalfFormat(_RATE_HZ, "half", 5.0)

    def start(self, callback: HalfCallback) -> None:
        self.callback = callback

    def stop(self) -> None:
        self.stops += 1

    @property
    def active(self) -> bool:
        return self.finished is None


def _block() -> Float32Array:
    return np.zeros(HOP_SAMPLES, np.float32)


def test_a_loudspeaker_that_asks_no_more_ends_the_device() -> None:
    microphone, loudspeaker = _Half(), _Half()
    device = SplitDevice(microphone, loudspeaker)
    device.open()
    device.start(lambda near, out, time_ns: out.fill(0.0))
    assert microphone.callback is not None
    assert loudspeaker.callback is not None
    for block in range(1, 200):
        if block <= 100:
            loudspeaker.callback(_block(), block * 10_000_000)
        microphone.callback(_block(), block * 10_000_000)
        if device.finished is not None:
            break
    assert block == 151
    assert device.finished is not None
    assert device.finished.is_lost
    assert "loudspeaker" in device.finished.reason
    assert not device.active


@pytest.mark.parametrize("lost", [0, 1])
def test_either_half_that_finishes_ends_the_device(lost: int) -> None:
    halves = (_Half(), _Half())
    device = SplitDevice(*halves)
    device.open()
    device.start(lambda near, out, time_ns: out.fill(0.0))
    assert device.active
    halves[lost].finished = Finished("gone", is_lost=True)
    assert device.finished == Finished("gone", is_lost=True)
    assert not device.active


def test_a_loudspeaker_that_does_not_open_lets_the_microphone_go() -> None:
    microphone = _Half()
    device = SplitDevice(microphone, _Half(DeviceError("busy", device="half")))
    with pytest.raises(DeviceError, match="busy"):
        device.open()
    assert microphone.stops == 1
    with pytest.raises(RuntimeError, match="open"):
        device.start(lambda near, out, time_ns: None)
