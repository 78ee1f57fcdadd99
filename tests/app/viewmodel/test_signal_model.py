"""Levels, speech and losses as events and the microphone's ring tell them."""

from __future__ import annotations

import numpy as np
import pytest

from app import events
from app.notices import sound_lost
from app.viewmodel.levels import HeldLevel, SnrEstimate
from app.viewmodel.signal import HISTORY_S, Signal
from app.viewmodel.spectrum import COLUMNS_PER_S, FLOOR_DB, ROWS, TOP_DB, Spectrum, place_of_hz
from audio.block import HOPS_PER_SECOND, SAMPLE_RATE_HZ, SILENCE_DB, Float32Array
from audio.io.records import block_dtype
from audio.ring import RecordRing

_RATE_HZ = 48_000
_FRAMES = _RATE_HZ // HOPS_PER_SECOND


def _meters(at_s: float, level_db: float = -30.0, probability: float = 0.0, **more: int) -> events.Meters:
    at = round(at_s * SAMPLE_RATE_HZ)
    return events.Meters(at, level_db, -60.0, level_db, probability, 3.0, more.get("lost", 0), more.get("gaps", 0))


def _sine(hz: float, seconds: float, amplitude: float = 0.1, rate_hz: int = _RATE_HZ) -> Float32Array:
    return (amplitude * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)).astype(np.float32)


def _ring() -> RecordRing:
    return RecordRing(block_dtype(_FRAMES), 1024)


def _play(ring: RecordRing, near: Float32Array) -> None:
    for block in near.reshape(-1, _FRAMES):
        slot = ring.slot()
        slot["near"], slot["far"] = block, 0.0
        ring.commit()


# -- figures ------------------------------------------------------------------------------------------------


def test_a_level_rises_at_once_falls_slowly_and_leaves_its_peak_behind() -> None:
    held = HeldLevel()
    held.push(-10.0)
    assert held.advance(100.0)
    held.push(-50.0)
    held.advance(100.5)
    assert (held.level_db, held.peak_db) == (-30.0, -10.0)
    held.advance(101.4)
    assert (held.level_db, held.peak_db) == (-50.0, -10.0)
    held.advance(102.0)
    assert held.peak_db == pytest.approx(-22.0)
    for second in range(103, 110):
        held.advance(second)
    assert held.peak_db == -50.0
    assert not held.advance(111.0)


def test_snr_is_the_power_of_speech_without_noise_over_the_noise() -> None:
    estimate = SnrEstimate()
    assert estimate.snr_db is None
    for _ in range(20):
        estimate.push(-30.0, is_speech=True, is_noise=False)
    assert estimate.snr_db is None
    for _ in range(20):
        estimate.push(-50.0, is_speech=False, is_noise=True)
        estimate.push(-10.0, is_speech=False, is_noise=False)
    assert estimate.snr_db == pytest.approx(20.0, abs=0.1)


def test_snr_of_a_conversation_leaves_out_replies_and_digital_silence() -> None:
    signal = Signal(0.5)
    for step in range(20):
        signal.take(_meters(step / 10, SILENCE_DB))
    for step in range(20, 40):
        signal.take(_meters(step / 10, -25.0, 0.9))
    assert signal.snr_db is None
    signal.take(events.Playback(0, 1, 0, True, False))
    for step in range(40, 60):
        signal.take(_meters(step / 10, -20.0))
    assert signal.snr_db is None
    signal.take(events.Playback(0, 1, 0, False, False))
    for step in range(60, 80):
        signal.take(_meters(step / 10, -65.0))
    assert signal.snr_db == pytest.approx(40.0, abs=0.1)


def test_double_talk_is_speech_while_a_reply_plays() -> None:
    signal = Signal(0.5)
    signal.take(_meters(0.0, probability=0.9))
    assert not signal.is_double_talk
    signal.take(events.Playback(0, 1, 0, True, False))
    assert signal.is_double_talk
    for step in range(1, 6):
        signal.take(_meters(step / 10, probability=0.9))
    assert signal.double_talk_s == pytest.approx(0.5)
    signal.take(_meters(60.0, probability=0.9))  # events paused: that minute is not counted
    assert signal.double_talk_s == pytest.approx(0.8)
    signal.take(_meters(60.1, probability=0.1))
    assert not signal.is_double_talk
    signal.take(events.UserSpeechStarted(0, 1, 0))  # the ear's decision counts, whatever one hop says
    assert signal.is_double_talk
    signal.take(events.Playback(0, 1, 0, False, True))
    assert not signal.is_double_talk


def test_losses_are_those_of_the_device_and_those_of_a_busy_machine() -> None:
    signal = Signal(0.5)
    signal.take(events.DeviceOpened(0, "mic", "spk", _RATE_HZ, 20.0, "normal"))
    signal.take(_meters(0.1, lost=2400, gaps=2))
    signal.take(events.Notice(0, "warning", sound_lost(130)))
    signal.take(events.Notice(0, "warning", "something else lasted 900 ms"))
    signal.take(events.Notice(0, "warning", sound_lost(20)))
    assert (signal.device_lost_ms, signal.unheard_ms, signal.gaps) == (50.0, 150, 2)
    signal.take(events.SessionStarted(0, "1", 0, "live", _RATE_HZ, 20.0, "default", "", []))
    assert (signal.device_lost_ms, signal.unheard_ms, signal.gaps) == (0.0, 0, 0)


def test_round_trip_and_drift_belong_to_the_devices_that_are_open() -> None:
    signal = Signal(0.5)
    signal.take(events.DeviceRoundTrip(0, 84.2, 0.9))
    signal.take(events.DeviceDrift(0, -12.5, 20.0, 30.0, 0, 0))
    assert (signal.round_trip_ms, signal.drift_ppm) == (84.2, -12.5)
    signal.take(events.DeviceOpened(0, "other", "spk", _RATE_HZ, 20.0, "normal"))
    assert (signal.round_trip_ms, signal.drift_ppm) == (None, None)


def test_only_events_that_concern_it_change_it() -> None:
    signal = Signal(0.5)
    before = signal.revision
    signal.take(events.StateChanged(0, "listening"))
    assert signal.revision == before
    signal.take(_meters(0.1))
    assert signal.revision > before


def test_meters_fall_when_the_conversation_ends() -> None:
    signal = Signal(0.5)
    signal.take(_meters(0.1, -20.0, 0.9))
    signal.advance(10.0)
    assert signal.microphone.level_db == -20.0
    signal.take(events.SessionEnded(0, "quit"))
    signal.advance(10.5)
    assert signal.microphone.level_db == -40.0
    assert signal.speech_probability is None


# -- spectrum -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("hz", [200.0, 440.0, 1000.0, 3100.0])
def test_a_sine_lies_in_its_row_at_its_level(rate_hz: int, hz: float) -> None:
    columns = Spectrum(rate_hz).push(_sine(hz, 1.0, 0.01, rate_hz))
    assert len(columns) == COLUMNS_PER_S
    row = int(np.argmax(columns[7]))
    assert row / ROWS == pytest.approx(place_of_hz(hz), abs=0.07)
    level_db = FLOOR_DB + columns[7][row] * (TOP_DB - FLOOR_DB) / 255
    assert level_db == pytest.approx(-40.0, abs=9.0)  # the mean of a row that is wider than a sine is less


def test_there_is_nothing_above_half_the_rate() -> None:
    noise = (np.random.default_rng(3).standard_normal(8000) * 0.1).astype(np.float32)
    column = Spectrum(8000).push(noise)[3]
    top = int(place_of_hz(4100.0) * ROWS) + 1
    assert column[top:].max() == 0
    assert column[:80].min() > 0


def test_columns_do_not_depend_on_how_the_samples_come() -> None:
    samples = (np.random.default_rng(5).standard_normal(_RATE_HZ) * 0.01).astype(np.float32)
    whole = Spectrum(_RATE_HZ).push(samples)
    spectrum = Spectrum(_RATE_HZ)
    parts = [column for part in np.split(samples, 100) for column in spectrum.push(part)]
    assert np.array_equal(whole, parts)


# -- the ring -----------------------------------------------------------------------------------------------


def test_the_history_grows_by_what_the_ring_gets_while_somebody_looks() -> None:
    signal, ring = Signal(0.5), _ring()
    _play(ring, _sine(500.0, 0.5))
    signal.tap.follow(ring)
    assert signal.advance(1.0)[1] is False  # what came before is nobody's business
    _play(ring, _sine(1000.0, 0.5, 0.5))
    signal.take(_meters(0.5, probability=0.75))
    signal.take(events.Playback(0, 1, 0, True, False))
    assert signal.advance(1.5) == (True, True)
    assert signal.microphone.level_db == pytest.approx(-9.0, abs=0.1)
    written = signal.history.written
    assert written == COLUMNS_PER_S // 2
    newest = signal.history.in_order(signal.history.spectra)[:, -1]
    assert int(np.argmax(newest)) / ROWS == pytest.approx(place_of_hz(1000.0), abs=0.05)
    assert signal.history.in_order(signal.history.probability)[-written:].tolist() == [0.75] * written
    assert signal.history.in_order(signal.history.is_reply)[-written - 1 :].tolist() == [False] + [True] * written


def test_the_history_keeps_its_length_and_its_order() -> None:
    signal, ring = Signal(0.5), _ring()
    signal.tap.follow(ring)
    signal.advance(0.0)
    for second in range(HISTORY_S + 2):
        signal.take(_meters(second, probability=second / 100))
        _play(ring, np.zeros(_RATE_HZ, np.float32))
        signal.advance(float(second))
    probability = signal.history.in_order(signal.history.probability)
    assert signal.history.written == (HISTORY_S + 2) * COLUMNS_PER_S
    assert probability.tolist() == sorted(probability.tolist())
    assert probability[0] == pytest.approx(0.02)


def test_nothing_is_read_while_nobody_looks_and_between_two_conversations() -> None:
    signal, first, second = Signal(0.5), _ring(), _ring()
    signal.tap.follow(first)
    signal.advance(0.0)
    _play(first, _sine(500.0, 0.5))
    signal.advance(0.1)
    signal.rest()
    assert signal.history.written == 0
    _play(first, _sine(500.0, 5.0))
    signal.advance(0.2)
    assert signal.history.written == 0
    signal.tap.follow(None)
    assert signal.tap.rate_hz == 0
    assert signal.advance(0.3)[1] is False
    signal.take(_meters(0.5, -33.0))  # without a ring the events move the meters
    signal.advance(60.0)
    assert signal.microphone.level_db == -33.0
    signal.tap.follow(second)
    signal.advance(60.1)
    _play(second, _sine(500.0, 0.5))
    assert signal.advance(60.2)[1] is True


def test_broken_samples_do_not_break_the_picture() -> None:
    signal, ring = Signal(0.5), _ring()
    signal.tap.follow(ring)
    signal.advance(0.0)
    _play(ring, np.full(_RATE_HZ, np.nan, np.float32))
    assert signal.advance(1.0)[1] is True
    assert signal.history.spectra.max() == 0
