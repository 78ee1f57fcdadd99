"""Fixtures for all tests: real recordings, real models, and the check that nothing of ours is left behind."""

from __future__ import annotations

import csv
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings
from rig import PulseRig, missing_tools

from app.errors import ModelStoreError
from app.models.catalog import load_catalog
from app.models.store import Store
from app.paths import default_store
from audio.block import Float32Array

# How long an example takes says nothing on a shared machine.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

_GRACE_S = 3.0
_SHARED_MEMORY = Path("/dev/shm")
# The original value: tests may change the environment.
_STORE_ROOT = default_store(os.environ)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real recordings (environment VIVAVOCE_TEST_DATA, by default beside the checkout)."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("VIVAVOCE_TEST_DATA", beside))
    if not (folder / "speech").is_dir():
        pytest.skip(f"no recordings in {folder}; set VIVAVOCE_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def speech(test_data: Path) -> Callable[[str], Float32Array]:
    """`speech("lj/LJ001-0001")`: (N,) float32 at 16 kHz of the clip under `speech/`."""
    import soundfile

    def load(name: str) -> Float32Array:
        samples, rate_hz = soundfile.read(test_data / "speech" / f"{name}.flac", dtype="float32")
        assert rate_hz == 16000, f"{name} is at {rate_hz} Hz"
        return np.ascontiguousarray(samples)

    return load


@pytest.fixture(scope="session")
def transcript(test_data: Path) -> Callable[[str], str]:
    """`transcript("lj/LJ001-0001")`: the words of the clip."""
    with (test_data / "transcripts.csv").open(encoding="utf-8", newline="") as file:
        words = {row["file"]: row["text"] for row in csv.DictReader(file)}
    return lambda name: words[f"speech/{name}.flac"]


@pytest.fixture(scope="session")
def model_store() -> Store:
    """The user's model store; `model_path` skips where a model is not in it."""
    return Store(_STORE_ROOT, load_catalog())


@pytest.fixture(scope="session")
def model_path(model_store: Store) -> Callable[[str, str], Path]:
    """`model_path("silero-vad", "silero_vad.onnx")`: a file of the store, or skip with the reason."""

    def resolve(name: str, file_name: str) -> Path:
        try:
            return model_store.resolve(name)[file_name]
        except ModelStoreError as error:
            pytest.skip(str(error))

    return resolve


def _start_rig() -> Iterator[PulseRig]:
    if missing_tools():
        pytest.skip(missing_tools())
    with PulseRig() as server:
        yield server


@pytest.fixture(scope="session")
def _pulse_server() -> Iterator[PulseRig]:
    yield from _start_rig()


@pytest.fixture
def new_pulse_rig() -> Iterator[PulseRig]:
    """A sound server for one test, to be ill-treated; its variables are not set."""
    yield from _start_rig()


@pytest.fixture
def pulse_rig(_pulse_server: PulseRig, monkeypatch: pytest.MonkeyPatch) -> PulseRig:
    """A running sound server with a virtual microphone and loudspeaker; processes that this test starts use it."""
    for name, value in _pulse_server.variables.items():
        monkeypatch.setenv(name, value)
    return _pulse_server


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_behind() -> Iterator[None]:
    """Fails a module that leaves a thread, a child process or a shared-memory segment."""
    threads, children, segments = set(threading.enumerate()), set(_children()), _segments()
    yield
    gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (left := _left(threads, children, segments)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {'; '.join(left)}"


def _left(threads: set[threading.Thread], children: set[psutil.Process], segments: set[str]) -> list[str]:
    left = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    left += [f"process {child.pid}" for child in set(_children()) - children]
    return left + [f"segment {name}" for name in sorted(_segments() - segments)]


def _segments() -> set[str]:
    """Names of the product's shared-memory segments, but for those of sessions that live beside these tests."""
    names = {path.name for path in _SHARED_MEMORY.glob("vivavoce-*")} if _SHARED_MEMORY.is_dir() else set()
    ours = {os.getpid(), *(child.pid for child in _children())}
    return {name for name in names if (owner := int(name.split("-")[1])) in ours or not psutil.pid_exists(owner)}


def _children() -> list[psutil.Process]:
    """Children of this process, but for the standard library's own resource tracker, which lives to the end."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
