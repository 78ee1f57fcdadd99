"""`vivavoce doctor` says what is missing and the fix for each, measures the models, and itself never fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.bench.rtf import Job, Speed, measure
from app.cli.checks import gpu, sound, speed, system
from app.cli.checks.check import Check
from app.cli.main import main
from app.cli.probe import ask_in_child
from app.config.load import Loaded, load_config
from app.models.store import Store
from audio.errors import DeviceError
from gpu.telemetry import CudaState, DriverInfo, GpuInfo, TelemetryError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and no configuration of the person who runs the tests."""
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "store"))
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def _loaded(*overrides: str) -> Loaded:
    return load_config(file=None, env=os.environ, overrides=overrides)


def _report(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Exit code, and the rows by name; checks what holds for every report."""
    code = main(["doctor", "--json", *flags])
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema", "ready", "checks"}
    assert document["schema"] == 1
    assert document["ready"] == (code == 0)
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in document["checks"]:
        assert row.keys() == {"name", "status", "found", "fix", "figures"}
        assert row["found"]
        assert row["status"] in ("ok", "warning", "problem")
        assert row["fix"] or row["status"] == "ok", row
        assert "\n" not in row["found"] + row["fix"]
        rows.setdefault(row["name"], []).append(row)
    return code, rows


def test_report_on_an_empty_store(capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = _report(capsys, "--quick")
    assert code == 2
    assert rows["model vad"][0]["status"] == "problem"
    assert "vivavoce models fetch silero-vad" in rows["model vad"][0]["fix"]
    wanted = {"configuration", "python", "cpu cores", "threads", "memory", "shared memory", "disk of the models",
              "disk of the data", "torch", "sound server", "sound devices", "scheduling", "real time",
              "kv arena"}  # fmt: skip
    assert wanted <= rows.keys()
    assert rows["real time"][0]["found"] == "not measured (--quick)"
    assert rows["memory"][0]["figures"]["available_bytes"] > 0
    assert main(["doctor", "--quick"]) == 2
    assert "Not ready: mend what is marked PROBLEM." in capsys.readouterr().out


def test_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = metadata.version

    def version(name: str) -> str:
        if name == "soxr":
            raise metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(system.metadata, "version", version)
    _, rows = _report(capsys, "--quick")
    assert rows["soxr"][0]["status"] == "problem"
    assert rows["soxr"][0]["fix"].endswith("-m pip install soxr")


def test_configuration_in_force_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[llm]\nseed = 3\ntop_k = 2\n")
    monkeypatch.setenv("VIVAVOCE__ASR__THREADS", "2")
    monkeypatch.delenv("VIVAVOCE_STORE")
    loaded = load_config(file=file, env=os.environ, overrides=["llm.top_p=0.5"])
    check = system.configuration(loaded)
    assert check.found == f"{file} (2 keys); environment (1 keys); flag (1 keys)"
    monkeypatch.delenv("VIVAVOCE__ASR__THREADS")
    assert system.configuration(_loaded()).found.startswith("the defaults (")


@pytest.mark.parametrize(
    ("overrides", "omp", "cores", "status", "fix"),
    [
        ([], "1", 2.0, "ok", ""),
        (["llm.threads=4"], "", 2.0, "warning", "Set llm.threads to 1"),
        (["llm.threads=2"], "", 2.0, "warning", "set asr.threads and llm.threads to 1"),
        (["llm.threads=4"], "", 8.0, "ok", ""),
        ([], "8", 2.0, "warning", "OMP_NUM_THREADS is more than there are cores"),
    ],
)
def test_more_threads_than_cores_is_a_note(overrides: list[str], omp: str, cores: float, status: str, fix: str) -> None:
    check = system.threads(_loaded(*overrides).config, {"OMP_NUM_THREADS": omp}, cores)
    assert check.status == status
    assert fix in check.fix


def test_a_containers_share_of_the_processor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(system, "_CGROUP_LIMIT", limit)
    everything = system.cores()
    assert everything >= 1
    limit.write_text("50000 100000\n")
    assert system.cores() == 0.5
    limit.write_text("max 100000\n")
    assert system.cores() == everything


@pytest.mark.parametrize("place", ["file/data", "file", "/proc/data"])
def test_a_data_folder_that_cannot_be_written_is_a_problem(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    check = system.data_folder(tmp_path / place)
    assert (check.status, check.fix) == (
        "problem",
        "Mend its permissions, set paths.data, or name a file with --journal",
    )
    assert check.found.startswith(f"{tmp_path / place} cannot be written: ")
    assert system.data_folder(tmp_path / "not" / "yet").status == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_misspelt_variable_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_LLM_SEED", "7")
    check = system.configuration(_loaded())
    assert check.status == "warning"
    assert "Did you mean VIVAVOCE__LLM__SEED?" in check.fix


def test_a_store_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    check = system.store_folder(tmp_path / "file" / "store")
    assert check.status == "warning"
    assert "cannot be written" in check.found
    assert "VIVAVOCE_STORE" in check.fix
    assert system.store_folder(tmp_path / "not" / "yet").status == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class _Usage(NamedTuple):
    free: int


def test_full_disk_is_a_note_and_full_shared_memory_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.shutil, "disk_usage", lambda path: _Usage(free=1000))
    check = system.disk("disk", Path("/nonexistent/store"), 1e9, "VIVAVOCE_STORE")
    assert (check.status, check.found) == ("warning", "0.0 GB free at /nonexistent/store")
    if Path("/dev/shm").is_dir():
        check = system._shared_memory()
        assert check.status == "problem"
        assert "--shm-size" in check.fix


# --- sound -------------------------------------------------------------------------------------------------


def _no_portaudio() -> tuple[str, str]:
    """What `device_rates` answers where PortAudio is missing; a child must be able to import it."""
    import audio.io.portaudio as portaudio

    def fail() -> list[object]:
        raise DeviceError("PortAudio is not installed", device="", fix="Install libportaudio2")

    portaudio.list_devices = fail
    answer = sound.device_rates()
    assert isinstance(answer, tuple)
    return answer


def test_sound_trouble_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound, "device_rates", _no_portaudio)
    (check,) = sound.devices(_loaded().config)
    assert (check.status, check.found, check.fix) == ("warning", "PortAudio is not installed", "Install libportaudio2")


@pytest.mark.audio_device
@pytest.mark.usefixtures("pulse_rig")
def test_server_and_devices_of_the_rig(capsys: pytest.CaptureFixture[str]) -> None:
    _, rows = _report(capsys, "--quick")
    server = rows["sound server"][0]
    assert server["status"] == "ok"
    assert server["found"].startswith("pulseaudio ")
    assert (server["figures"]["default_source"], server["figures"]["default_sink"]) == ("mic", "spk")
    assert rows["sound devices"][0]["status"] == "ok"
    microphone = rows["device test_mic"][0]
    assert microphone["status"] == "ok"
    assert microphone["figures"]["input_rates_hz"] == [16_000, 44_100, 48_000, 96_000]


def test_a_device_that_accepts_no_rate_is_a_note() -> None:
    check = sound._device(sound.DeviceRates("headset", 1, 2, (), ()))
    assert check.status == "warning"
    assert check.found == "microphone at no rate that was tried; loudspeaker at no rate that was tried"
    check = sound._device(sound.DeviceRates("headset", 1, 2, (), (44_100, 48_000)))
    assert (check.status, check.found) == ("ok", "microphone at no rate that was tried; loudspeaker at 44.1, 48 kHz")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed")
def test_scheduling_is_what_a_child_really_gets() -> None:
    bare = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "prlimit", "--rtprio=0", "--nice=0"]
    if subprocess.run([*bare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not give privileges up")
    command = [*bare, sys.executable, "-m", "app.cli.main", "doctor", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    (row,) = [row for row in json.loads(done.stdout)["checks"] if row["name"] == "scheduling"]
    assert (row["status"], row["found"]) == ("warning", "normal instead of SCHED_FIFO")
    assert "'@audio - rtprio 20'" in row["fix"]
    assert "/etc/security/limits.conf" in row["fix"]


# --- gpu ---------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_gpu_files", lambda: False)
    assert list(gpu.checks()) == [Check("gpu", "ok", "no NVIDIA GPU: CPU path")]


def test_a_gpu_whose_driver_is_broken_is_one_line_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> DriverInfo:
        raise TelemetryError("the driver does not answer", fix="Check it with nvidia-smi")

    monkeypatch.setattr(gpu, "has_gpu_files", lambda: True)
    monkeypatch.setattr(gpu, "read_gpus", fail)
    (check,) = gpu.checks()
    assert check.found == "there is one, but the driver does not answer"
    assert check.fix == "Check it with nvidia-smi; until then everything runs on the CPU"


def _cuda_state() -> CudaState:
    return CudaState((True,), "", "2.13.0+cpu", "", False, "")


def test_a_gpu_that_torch_cannot_use_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = DriverInfo("580.1", "13.0", (GpuInfo(0, "NVIDIA H200", "9.0", 150 * 10**9, 149 * 10**9),))
    monkeypatch.setattr(gpu, "has_gpu_files", lambda: True)
    monkeypatch.setattr(gpu, "read_gpus", lambda: driver)
    monkeypatch.setattr(gpu, "probe_cuda", _cuda_state)
    found = {check.name: check for check in gpu.checks()}
    assert found["gpu 0"].found == "NVIDIA H200, 149.0 of 150.0 GB free, compute capability 9.0"
    assert found["gpu driver"].found == "580.1, for CUDA up to 13.0"
    assert found["cuda"].status == "ok"
    assert found["torch on the gpu"].found == "2.13.0+cpu (a build without CUDA) does not see it"
    assert (found["pycuda"].status, found["pycuda"].found) == ("warning", "not installed")


# --- speed -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_installed_model_is_measured(
    model_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real models, real times. The machine may be busy: no figure is judged but by its own arithmetic."""
    if model_store.missing():
        pytest.skip("the starter models are not in the store")
    monkeypatch.setenv("VIVAVOCE_STORE", str(model_store.root))
    _, rows = _report(capsys)
    figures = {}
    for role in ("ear", "vad", "turn", "asr", "tts", "llm"):
        row = rows[f"speed {role}"][0]
        figures[role] = row["figures"]
        assert row["figures"]["problem"] == "", row
        assert row["figures"]["threads"] == 1
        assert row["figures"]["wall_s"] > 0
        assert row["figures"]["peak_bytes"] > 10e6
        if role != "llm":
            assert row["figures"]["rtf"] == pytest.approx(
                row["figures"]["wall_s"] / row["figures"]["audio_s"], abs=1e-3
            )
    assert figures["asr"]["audio_s"] > 1
    assert figures["llm"]["tokens_per_s"] > 0
    assert figures["llm"]["first_ms"] < figures["llm"]["wall_s"] * 1000
    (verdict,) = rows["real time"]
    assert "hold a conversation in real time" in verdict["found"]
    loads = verdict["figures"]["loads"]
    assert loads["llm"] == pytest.approx(speed.SPEECH_TOKENS_PER_S / figures["llm"]["tokens_per_s"], abs=1e-3)
    assert verdict["figures"]["total"] == pytest.approx(sum(loads.values()), abs=1e-3)


def _speeds(**changes: dict[str, Any]) -> list[Speed]:
    base = {
        "ear": {"audio_s": 2.0, "wall_s": 0.2},
        "turn": {"audio_s": 2.0, "wall_s": 0.1},
        "asr": {"audio_s": 2.0, "wall_s": 0.2},
        "tts": {"audio_s": 2.0, "wall_s": 0.4},
        "llm": {"wall_s": 1.0, "first_ms": 100.0, "tokens_per_s": 40.0},
    }
    return [Speed(role, role, True, 1, **{**fields, **changes.get(role, {})}) for role, fields in base.items()]


def test_verdict_is_the_sum_against_the_cores() -> None:
    config = _loaded().config
    good = speed.verdict(config, _speeds(), 2.0)
    assert good.status == "ok"
    assert "ear 0.10 + asr 0.10 + llm 0.10 + tts 0.20 = 0.50 of 2 cores" in good.found
    # ms: 200 of silence, 100 end-of-turn model, 200 recognition, 100 first token, 175 seven more, 400 two s of voice
    assert good.figures["first_sound_ms"] == 1175
    tight = speed.verdict(config, _speeds(), 0.5)
    assert tight.status == "problem"
    assert "cannot hold a conversation in real time (too little is left" in tight.found
    slow = speed.verdict(config, _speeds(tts={"wall_s": 2.4}, llm={"tokens_per_s": 3.0}), 16.0)
    assert slow.status == "problem"
    assert "(llm and tts slower than speech)" in slow.found
    late = speed.verdict(config, _speeds(llm={"first_ms": 5000.0}), 2.0)
    assert (late.status, late.fix) == ("warning", "Slow answers: use a smaller language model")
    unknown = speed.verdict(config, _speeds(asr={"problem": "it broke"}), 2.0)
    assert (unknown.status, unknown.found) == ("warning", "unknown: asr could not be measured")


def test_a_model_that_does_not_load_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    job = Job("vad", "broken-vad", "silero", {"model": tmp_path / "bad.onnx"}, tmp_path, is_configured=True)
    result = measure(job)
    assert "bad.onnx is no model" in result.problem
    assert speed._speed(result).status == "problem"


def _die(*_: object) -> None:
    os._exit(3)


def test_a_model_that_ends_its_process_does_not_end_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measure", _die)
    job = Job("vad", "deadly-vad", "silero", {}, tmp_path, is_configured=False)
    result = speed._in_child(job)
    assert result.problem == "the process that ran it died or took minutes"
    assert speed._speed(result).status == "warning"


# --- children ----------------------------------------------------------------------------------------------


def _raise() -> None:
    raise OSError("no such thing")


@pytest.mark.parametrize("question", [_die, _raise])
def test_child_that_dies_or_raises_answers_none(
    question: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask_in_child(question, timeout_s=30) is None
    assert ask_in_child(os.getpid, timeout_s=30) != os.getpid()
    assert capfd.readouterr().err == ""
