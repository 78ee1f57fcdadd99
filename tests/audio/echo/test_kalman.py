"""The linear canceller learns a room and survives a user who talks; its listener knows when to believe it."""

from __future__ import annotations

import numpy as np

from audio.echo.delay import RoundTrip
from audio.echo.kalman import KalmanEchoFilter
from audio.echo.listener import EchoListener

_RNG = np.random.default_rng(7)
_ROOM = (_RNG.standard_normal(1600) * 0.05 * np.exp(-np.arange(1600) / 300)).astype(np.float32)


def _echo(far: np.ndarray, room: np.ndarray = _ROOM) -> np.ndarray:
    size = 1 << 19
    return np.fft.irfft(np.fft.rfft(far, size) * np.fft.rfft(room, size))[: len(far)].astype(np.float32)


def _run(kalman: KalmanEchoFilter, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    hops = zip(near.reshape(-1, 160), far.reshape(-1, 160), strict=True)
    return np.concatenate([kalman.process(near_hop, far_hop) for near_hop, far_hop in hops])


def _power_db(samples: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(samples.astype(np.float64) ** 2)))


def _whole_hops(samples: np.ndarray, seconds: int) -> np.ndarray:
    return np.resize(samples, seconds * 16000)


def test_echo_of_speech_falls_by_15_db_in_five_seconds(speech) -> None:
    far = _whole_hops(speech("lj/LJ001-0001"), 9)
    echo = _echo(far)
    residual = _run(KalmanEchoFilter(), echo, far)
    assert _power_db(echo[5 * 16000 :]) - _power_db(residual[5 * 16000 :]) > 15


def test_a_user_passes_unharmed_and_does_not_undo_what_was_learnt(speech) -> None:
    far = _whole_hops(speech("lj/LJ001-0001"), 12)
    echo = _echo(far)
    user = np.zeros_like(echo)
    user[6 * 16000 : 9 * 16000] = speech("jfk/jfk")[: 3 * 16000]
    residual = _run(KalmanEchoFilter(), echo + user, far)
    talking, after = slice(6 * 16000, 9 * 16000), slice(int(9.5 * 16000), 12 * 16000)
    assert _power_db(residual[talking] - user[talking]) < _power_db(user[talking]) - 8
    assert _power_db(echo[after]) - _power_db(residual[after]) > 10


def test_a_silent_loudspeaker_changes_nothing(speech) -> None:
    user = _whole_hops(speech("jfk/jfk"), 3)
    assert np.abs(_run(KalmanEchoFilter(), user, np.zeros_like(user)) - user).max() < 1e-6


def test_reset_equals_new_and_runs_repeat(speech) -> None:
    far = _whole_hops(speech("lj/LJ001-0002"), 2)
    kalman = KalmanEchoFilter()
    first = _run(kalman, _echo(far), far)
    kalman.reset()
    assert (_run(kalman, _echo(far), far) == first).all()
    assert kalman.memory_bytes() > 24 * 161 * 8


def _listen(listener: EchoListener, near: np.ndarray, far: np.ndarray) -> list[tuple[bool, bool]]:
    """(is_proved, is_echo) behind each hop; what AEC3 would say is replaced by silence."""
    seen = []
    for near_hop, far_hop in zip(near.reshape(-1, 160), far.reshape(-1, 160), strict=True):
        listener.push(near_hop, far_hop, np.zeros(160, np.float32))
        seen.append((listener.is_proved, listener.is_echo))
    return seen


def test_the_listener_proves_a_room_loses_a_changed_one_and_learns_it_again(speech) -> None:
    far = _whole_hops(speech("lj/LJ001-0001"), 24)
    changed = np.roll(_ROOM, 300) * -2
    near = np.concatenate([_echo(far)[: 12 * 16000], _echo(far, changed)[12 * 16000 :]])
    listener = EchoListener(128)
    listener.align(RoundTrip(0, 0, 20.0))
    proved = np.array([entry[0] for entry in _listen(listener, near, far)])
    assert proved[800:1200].all()
    assert not proved[1200:1400].all()
    assert proved[-1]


def test_before_the_round_trip_is_known_the_cancelled_signal_is_passed_on(speech) -> None:
    far = _whole_hops(speech("lj/LJ001-0001"), 1)
    listener = EchoListener(128)
    cancelled = far[:160] * 2
    for hop in far.reshape(-1, 160):
        assert listener.push(hop, hop, cancelled) is cancelled
    assert not listener.is_proved
    assert not listener.is_echo


def test_the_residual_is_as_late_as_the_canceller_and_echo_is_told_from_a_user(speech) -> None:
    far = _whole_hops(speech("lj/LJ001-0001"), 12)
    near = _echo(far)
    near[11 * 16000 :] += speech("jfk/jfk")[8000:24000]
    listener = EchoListener(128)
    listener.align(RoundTrip(0, 0, 20.0))
    echo, outputs = [], []
    for near_hop, far_hop in zip(near.reshape(-1, 160), far.reshape(-1, 160), strict=True):
        outputs.append(listener.push(near_hop, far_hop, np.zeros(160, np.float32)))
        echo.append(listener.is_echo)
    assert np.mean(echo[900:1100]) > 0.8
    assert not any(echo[1125:])
    heard, user = np.concatenate(outputs)[11 * 16000 :], speech("jfk/jfk")[8000:24000]
    correlation = [float(heard[lag:] @ user[: len(user) - lag]) for lag in range(256)]
    assert int(np.argmax(correlation)) == 128
