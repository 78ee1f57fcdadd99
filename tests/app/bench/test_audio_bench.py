"""The glitch benchmark: breaks in a tone are counted exactly, and a real run reports what the scheduler gave."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rig import PulseRig

from app.bench import audio
from app.bench.tone import TONE_AMPLITUDE, continuity, tone
from app.cli.main import main
from audio.block import Float32Array

_RATE_HZ = 48_000
_BLOCK = _RATE_HZ // 100


def _recording(rate_hz: int = _RATE_HZ) -> Float32Array:
    """Half a second of silence, 4 s of tone in blocks, silence."""
    blocks = [tone(number * rate_hz // 100, rate_hz // 100, rate_hz) for number in range(400)]
    edge = np.zeros(rate_hz // 2, np.float32)
    return np.concatenate([edge, *blocks, edge])


@pytest.mark.parametrize("rate_hz", [16_000, 44_100, 48_000])
def test_an_unbroken_tone_has_no_break(rate_hz: int) -> None:
    found = continuity(_recording(rate_hz), rate_hz)
    assert found.breaks == 0
    assert found.tone_s == pytest.approx(4.0, abs=0.02)


def _dropped(samples: Float32Array, at: int) -> Float32Array:
    return np.delete(samples, slice(at, at + _BLOCK))


def _one_dropped(samples: Float32Array, at: int) -> Float32Array:
    return np.delete(samples, at)


def _repeated(samples: Float32Array, at: int) -> Float32Array:
    return np.insert(samples, at, samples[at - _BLOCK : at])


def _silenced(samples: Float32Array, at: int) -> Float32Array:
    return np.concatenate([samples[:at], np.zeros(96, np.float32), samples[at + 96 :]])


def _faded(samples: Float32Array, at: int) -> Float32Array:
    """What the callback does where the ring is empty: no jump anywhere."""
    fade = np.cos(np.linspace(0, np.pi / 2, _BLOCK)) ** 2
    hole = np.concatenate([samples[at : at + _BLOCK] * fade, samples[at + _BLOCK : at + 2 * _BLOCK] * fade[::-1]])
    return np.concatenate([samples[:at], hole.astype(np.float32), samples[at + 2 * _BLOCK :]])


def _clicked(samples: Float32Array, at: int) -> Float32Array:
    broken = samples.copy()
    broken[at] += 0.1 * TONE_AMPLITUDE
    return broken


@pytest.mark.parametrize("fault", [_dropped, _one_dropped, _repeated, _silenced, _faded, _clicked])
def test_every_kind_of_break_is_found_wherever_it_is(fault: object) -> None:
    places = np.random.default_rng(1).integers(_RATE_HZ, 4 * _RATE_HZ, 8)
    assert callable(fault)
    assert [continuity(fault(_recording(), int(at)), _RATE_HZ).breaks for at in places] == [1] * len(places)


def test_breaks_are_counted_in_a_noisy_room_too() -> None:
    noise = 0.01 * np.random.default_rng(2).standard_normal(5 * _RATE_HZ).astype(np.float32)
    whole = _recording() + noise
    broken = _dropped(_silenced(_recording(), _RATE_HZ), 3 * _RATE_HZ)
    assert continuity(whole, _RATE_HZ).breaks == 0
    assert continuity(broken + noise[: len(broken)], _RATE_HZ).breaks == 2


@pytest.mark.parametrize("level", [0.0, 0.05])
def test_a_tone_that_is_not_heard_is_not_called_whole(level: float) -> None:
    noise = level * np.random.default_rng(3).standard_normal(4 * _RATE_HZ).astype(np.float32)
    assert continuity(noise, _RATE_HZ).breaks is None


def _row(arm: str, **changes: object) -> dict[str, object]:
    gaps = {"p50": 10.0, "p99": 12.0, "max": 14.0}
    row = {"arm": arm, "scheduling": "SCHED_FIFO 10", "seconds": 30.0, "tone_s": 30.0, "breaks": 0, "stopped": ""}
    return {**row, "lost_ms": 0.0, "late_blocks": 0, "underruns": 0, "gap_ms": gaps, **changes}


def test_metrics_add_up_by_arm_and_say_what_was_not_heard() -> None:
    rows = [
        _row("idle", breaks=None, scheduling="normal"),
        _row("busy", breaks=2, lost_ms=20.0, late_blocks=3, tone_s=29.5),
        _row("idle"),
        _row("busy", stopped="it fell over", breaks=1, lost_ms=10.0, underruns=1),
    ]
    found = audio.metrics(rows)
    assert (found["busy_s"], found["busy_breaks"], found["busy_lost_ms"]) == (60.0, 3.0, 30.0)
    assert (found["busy_late_blocks"], found["busy_underruns"], found["busy_tone_missing_s"]) == (3.0, 1.0, 0.5)
    assert np.isnan(found["idle_breaks"])
    assert found["fifo_share"] == 0.75
    assert (found["idle_stops"], found["busy_stops"]) == (0.0, 1.0)
    scheduling, stopped, unheard = audio.remarks(rows)
    assert stopped == "a stream ended early: it fell over"
    assert "got SCHED_FIFO 10, normal instead of SCHED_FIFO" in scheduling
    assert "--monitor" in unheard


_DEVICES = ["--set", "audio.input=test_mic", "--set", "audio.output=test_spk"]
_COMMAND = [sys.executable, "-m", "app.cli.main", "bench", "audio", "--seconds", "3", *_DEVICES]


@pytest.mark.audio_device
def test_underruns_and_chops_on_the_rig_are_what_the_monitor_heard(new_pulse_rig: PulseRig, tmp_path: Path) -> None:
    """The counts are figures, not verdicts: other programs load this machine."""
    command = [*_COMMAND, "--monitor", "spk.monitor", "--json", str(tmp_path / "audio.json")]
    done = new_pulse_rig.run(*command, timeout_s=100)
    document = json.loads(done.stdout.splitlines()[-1])
    assert [row["arm"] for row in document["rows"]] == ["idle", "busy"]
    for row in document["rows"]:
        assert row["tone_s"] == pytest.approx(3.0, abs=1.0)
        assert row["breaks"] is not None
        assert row["breaks"] <= 20
        assert row["gap_ms"]["p50"] == pytest.approx(10.0, abs=3.0)
    assert document["metrics"] == json.loads((tmp_path / "audio.json").read_text())["metrics"]


@pytest.mark.audio_device
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed")
def test_a_run_without_the_privilege_says_so(new_pulse_rig: PulseRig) -> None:
    bare = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "prlimit", "--rtprio=0", "--nice=0"]
    if subprocess.run([*bare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not give privileges up")
    done = new_pulse_rig.run(*bare, *_COMMAND, timeout_s=100)
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["metrics"]["fifo_share"] == 0.0
    assert {row["scheduling"] for row in document["rows"]} == {"normal"}
    assert "got normal instead of SCHED_FIFO" in done.stderr
    assert document["metrics"]["busy_breaks"] is None  # this microphone does not hear the loudspeaker
    assert "give --monitor SOURCE" in done.stderr


@pytest.mark.audio_device
def test_a_microphone_that_hears_the_loudspeaker_needs_no_monitor(new_pulse_rig: PulseRig) -> None:
    devices = ["--set", "audio.input=spk.monitor", "--set", "audio.output=spk"]
    done = new_pulse_rig.run(*_COMMAND[:-4], *devices, timeout_s=100)
    for row in json.loads(done.stdout.splitlines()[-1])["rows"]:
        assert row["heard_by"] == "microphone"
        assert row["tone_s"] == pytest.approx(3.0, abs=1.0)
        assert row["breaks"] is not None


@pytest.mark.audio_device
@pytest.mark.usefixtures("pulse_rig")
def test_a_source_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "audio", "--seconds", "1", "--monitor", "nothing.monitor", *_DEVICES]) == 2
    assert "vivavoce: the source 'nothing.monitor' cannot be recorded" in capsys.readouterr().err
