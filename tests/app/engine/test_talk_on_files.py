"""`vivavoce --input ...` as a user runs it: the same conversation every time, and one sentence for bad files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from app.models.store import Store
from app.samples import sample_questions

ROOT = Path(__file__).resolve().parents[3]
SLOW_COSTS = "".join(
    f"[{kind}]\nbase_ms = {base}\nper_unit_ms = {unit}\neach_ms = {each}\n"
    for kind, base, unit, each in (
        ("turn", 600, 0, 0),
        ("asr", 600, 100, 0),
        ("llm", 900, 2, 250),
        ("tts", 600, 30, 0),
    )
)


def vivavoce(
    *arguments: str | Path, timeout_s: float = 110, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli.main", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def models(model_store: Store) -> None:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")


@pytest.fixture(scope="module")
def talk_wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions, the second of which interrupts the answer to the first."""
    parts, rate = [], 0
    for sample, pause_s in zip(sample_questions()[:2], (3.0, 1.0), strict=True):
        samples, rate = sf.read(sample.path, dtype="float32")
        parts += [samples, np.zeros(round(pause_s * rate), np.float32)]
    path = tmp_path_factory.mktemp("talk") / "talk.wav"
    sf.write(path, np.concatenate(parts), rate)
    return path


@pytest.mark.slow
def test_fast_twice_and_paced_once_give_the_same_log_and_audio(models: None, talk_wav: Path, tmp_path: Path) -> None:
    costs = tmp_path / "slow.toml"
    costs.write_text(SLOW_COSTS)
    outputs = []
    for name, flags in (("a", ["--fast"]), ("b", ["--fast"]), ("paced", [])):
        wav, log = tmp_path / f"{name}.wav", tmp_path / f"{name}.jsonl"
        done = vivavoce(
            "--no-ui", "--input", talk_wav, "--output", wav, "--events", log, "--cost", f"fixed:{costs}", *flags
        )
        assert done.returncode == 0, done.stderr
        outputs.append((name, wav.read_bytes(), log.read_text()))
    (_, audio, log_text), *others = outputs
    found = [json.loads(line) for line in log_text.splitlines()]
    assert {"user.transcript", "agent.said", "turn.latency", "stage.backend"} <= {event["type"] for event in found}
    assert np.abs(sf.read(tmp_path / "a.wav")[0]).max() > 0.05
    for name, other_audio, other_log in others:
        late = [event for event in map(json.loads, other_log.splitlines()) if event.get("late_ms", 0) > 0]
        if name == "paced" and late:
            pytest.skip(f"this machine was too slow for the table: {len(late)} late arrivals, first {late[0]}")
        assert other_log == log_text, name
        assert other_audio == audio, name


@pytest.mark.slow
def test_a_paced_live_log_and_its_input_replay_to_the_same_decisions_and_audio(
    models: None, talk_wav: Path, tmp_path: Path
) -> None:
    wav, log, again = tmp_path / "live.wav", tmp_path / "live.jsonl", tmp_path / "again.wav"
    done = vivavoce("--no-ui", "--input", talk_wav, "--output", wav, "--events", log)
    assert done.returncode == 0, done.stderr
    assert events(log)[0]["cost"] == "live"
    resampled = vivavoce("replay", "--events", log, "--input", talk_wav, "--output", again)
    assert resampled.returncode == 0, resampled.stdout + resampled.stderr
    assert "same decisions" in resampled.stdout
    live, replayed = sf.read(wav, dtype="int16")[0], sf.read(again, dtype="int16")[0]
    np.testing.assert_array_equal(live, replayed)
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.index(b"agent.voiced") + 2_000])  # as `kill -9` of the face leaves it
    killed = vivavoce("replay", "--events", log, "--input", talk_wav)
    assert killed.returncode == 0, killed.stdout + killed.stderr
    assert "the session was killed" in killed.stdout
    assert "same decisions" in killed.stdout


def tone(rate_hz: int, channels: int = 1, seconds: float = 0.2) -> np.ndarray[Any, Any]:
    mono = 0.2 * np.sin(2 * np.pi * 300 * np.arange(round(rate_hz * seconds)) / rate_hz)
    return np.repeat(mono[:, None], channels, axis=1)


@pytest.mark.parametrize("kind", ["empty", "text", "missing", "folder", "header"])
def test_what_is_no_audio_is_one_sentence_and_exit_code_2(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("RIFFled through the papers, nothing found")
        case "folder":
            path.mkdir()
        case "header":
            sf.write(path, tone(16_000), 16_000)
            path.write_bytes(path.read_bytes()[:40])
    done = vivavoce("--no-ui", "--input", path, "--fast")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_home_that_takes_no_file_does_not_keep_the_agent_from_answering(
    models: None, model_store: Store, tmp_path: Path
) -> None:
    """Read-only, full or gone: what would be kept there for the next start is made anew."""
    (tmp_path / "home").write_text("")
    names = ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME")
    variables = dict.fromkeys(names, str(tmp_path / "home")) | {"VIVAVOCE_STORE": str(model_store.root)}
    log = tmp_path / "e.jsonl"
    flags = ["--no-ui", "--input", sample_questions()[0].path, "--fast", "--events", log]
    done = vivavoce(*flags, variables=variables)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert any(event["type"] == "agent.said" for event in events(log))


@pytest.mark.slow
def test_every_usual_format_is_heard(models: None, tmp_path: Path) -> None:
    """8, 24 bit, float, 96 kHz and 8 channels: the same words."""
    sample = sample_questions()[0]
    samples, rate = sf.read(sample.path, dtype="float64")
    from audio.resample import resample

    high = resample(samples.astype(np.float32), rate, 96_000)
    for name, data, hz, subtype in (
        ("u8", samples, rate, "PCM_U8"),
        ("s24", high, 96_000, "PCM_24"),
        ("float8ch", np.repeat(samples[:, None], 8, axis=1), rate, "FLOAT"),
    ):
        path, log = tmp_path / f"{name}.wav", tmp_path / f"{name}.jsonl"
        sf.write(path, data, hz, subtype=subtype)
        done = vivavoce("--no-ui", "--input", path, "--fast", "--events", log)
        assert done.returncode == 0, done.stderr
        finals = [event["text"] for event in events(log) if event["type"] == "user.transcript" and event["final"]]
        assert finals == [sample.text], name


@pytest.mark.parametrize(
    "flags",
    [
        ["--fast"],
        ["--cost", "zero"],
        ["--input", "README.md", "--record", "x"],
        ["--input", "IN", "--fast", "--cost", "fixed:README.md"],
        ["--input", "IN", "--fast", "--output", "/no/such/folder/a.wav"],
        ["--set", "llm.precision=int3"],
    ],
)
def test_contradictions_are_refused_before_anything_loads(flags: list[str]) -> None:
    known = str(sample_questions()[0].path)
    done = vivavoce("--no-ui", *(known if flag == "IN" else flag for flag in flags), timeout_s=20)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_persona_that_leaves_no_room_is_refused_in_one_sentence_before_the_session_begins(models: None) -> None:
    persona = f"personas.default.prompt={'You are a patient teacher. ' * 400}"
    for flags in (["--input", sample_questions()[0].path, "--fast"], ["--simulate"]):
        done = vivavoce("--no-ui", *flags, "--set", persona)
        assert done.returncode == 2
        (told,) = done.stderr.strip().splitlines()
        assert "the persona default leaves no room for a question" in told
        assert "llm.context_tokens" in told
        assert "listening" not in done.stdout
