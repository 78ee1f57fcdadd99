"""Download, pause, go on, cancel, remove, verify: against a real server that misbehaves on demand."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_rig import Answer, Handler, Server, pack, row, running_server

import app.models.web as web_module
from app.config.load import load_config
from app.config.schema import Config
from app.engine.builder import Places
from app.models.catalog import Catalog, load_catalog
from app.models.lock import exclusive
from app.models.progress import FetchStoppedError, Gauge
from app.viewmodel.models import ModelsModel, used_for
from gpu.memory.places import Machine, Place

_BYTES_BEFORE_PAUSE = 200_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(web_module, "_FIRST_PAUSE_S", 0.01)
    with running_server() as rules:
        yield rules


def _config(*overrides: str) -> Config:
    return load_config(file=None, env={"HOME": "/nonexistent"}, overrides=overrides).config


class _Given:
    """A view model over an empty store, and the server that has its models."""

    def __init__(self, server: Server, folder: Path, *names: str) -> None:
        self.server = server
        self.packs = {name: pack(name) for name in names}
        self.paths = {name: server.publish(packed) for name, packed in self.packs.items()}
        catalog = Catalog(tuple(row(name, packed) for name, packed in self.packs.items()))
        env = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{server.url}/simple",
            "PIP_TIMEOUT": "20",
            "PIP_RETRIES": "2",
        }
        where = Places(folder / "store", folder / "cache", folder)
        self.model = ModelsModel(_config(f"tts.model={names[0]}"), where, catalog, env=env, is_offline=False)
        self.parts = where.store / ".downloads"

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.model.poll()
            if until():
                return
            time.sleep(0.005)
        pytest.fail(f"waited in vain: {[(one.state, one.activity, one.problem) for one in self.model.rows]}")

    def wait_idle(self) -> None:
        self.wait(lambda: not self.model.is_busy)


@pytest.fixture
def given(server: Server, tmp_path: Path) -> _Given:
    return _Given(server, tmp_path, "voice", "ear")


def _in_parts(may_go_on: threading.Event) -> Answer:
    """Send a part, and a little more when told; nobody waits for the rest."""

    def answer(handler: Handler, data: bytes) -> None:
        handler.head(200, {"ETag": '"half"', "Content-Length": str(len(data))})
        handler.wfile.write(data[:_BYTES_BEFORE_PAUSE])
        may_go_on.wait(20)
        handler.wfile.write(data[_BYTES_BEFORE_PAUSE : _BYTES_BEFORE_PAUSE + 1000])
        handler.close_connection = True

    return answer


def test_states_and_uses_come_from_the_store_and_the_configuration(given: _Given) -> None:
    model = given.model
    assert [one.state for one in model.rows] == ["", ""]
    model.look()
    given.wait_idle()
    assert [one.state for one in model.rows] == ["missing", "missing"]
    assert (model.row("voice").used_for, model.row("ear").used_for) == (("tts",), ())
    assert all(one.fit is None for one in model.rows)  # no language models


def test_two_downloads_one_after_the_other(given: _Given) -> None:
    given.model.fetch("voice")
    given.model.fetch("ear")
    given.model.fetch("ear")  # it is waiting already
    assert [one.activity for one in given.model.rows] == ["fetching", "waiting"]
    given.wait_idle()
    assert [(one.state, one.activity, one.problem) for one in given.model.rows] == [("in place", "", "")] * 2


def test_pause_keeps_what_came_and_fetching_again_goes_on(given: _Given, server: Server) -> None:
    may_go_on = threading.Event()
    path = given.paths["voice"]
    server.answers[path] = [_in_parts(may_go_on), Handler.serve]
    given.model.fetch("voice")
    given.wait(lambda: given.model.row("voice").figures.done_bytes == _BYTES_BEFORE_PAUSE)
    figures = given.model.row("voice").figures
    assert figures.total_bytes == len(given.packs["voice"].data)
    assert "voice-1.0" in figures.remark
    given.model.pause("voice")
    assert given.model.row("voice").activity == "pausing"
    may_go_on.set()
    given.wait_idle()
    paused = given.model.row("voice")
    assert (paused.state, paused.activity, paused.problem) == ("partial", "", "")
    kept = sum(part.stat().st_size for part in given.model.store.downloads(paused.model))
    assert kept >= _BYTES_BEFORE_PAUSE
    given.model.fetch("voice")
    given.wait_idle()
    assert given.model.row("voice").state == "in place"
    asked = server.headers_of(path)
    assert [headers.get("range") for headers in asked] == [None, f"bytes={kept}-"]


def test_cancel_deletes_what_came_and_the_next_in_line_begins(given: _Given, server: Server) -> None:
    may_go_on = threading.Event()
    server.answers[given.paths["voice"]] = [_in_parts(may_go_on)]
    given.model.fetch("voice")
    given.model.fetch("ear")
    given.wait(lambda: given.model.row("voice").figures.done_bytes > 0)
    given.model.cancel("voice")
    may_go_on.set()
    given.wait_idle()
    assert [one.state for one in given.model.rows] == ["missing", "in place"]
    assert not given.parts.exists() or not list(given.parts.iterdir())


def test_cancelling_what_waits_or_was_paused(given: _Given, server: Server) -> None:
    may_go_on = threading.Event()
    server.answers[given.paths["voice"]] = [_in_parts(may_go_on), Handler.serve]
    given.model.fetch("voice")
    given.model.fetch("ear")
    given.model.cancel("ear")
    given.wait(lambda: given.model.row("voice").figures.done_bytes > 0)
    given.model.pause("voice")
    may_go_on.set()
    given.wait_idle()
    assert [one.state for one in given.model.rows] == ["partial", "missing"]
    given.model.cancel("voice")
    given.wait_idle()
    assert [one.state for one in given.model.rows] == ["missing", "missing"]


def test_a_fetch_that_waits_for_another_program_can_be_cancelled(given: _Given) -> None:
    root = given.model.store.root
    root.mkdir()
    with exclusive(root / ".lock", on_wait=lambda: pytest.fail("nobody else holds it")):
        given.model.fetch("voice")
        given.wait(lambda: "Another fetch uses this store" in given.model.row("voice").figures.remark)
        given.model.cancel("voice")
        given.wait_idle()
    assert (given.model.row("voice").state, given.model.row("voice").problem) == ("missing", "")
    given.model.fetch("voice")
    given.wait_idle()
    assert given.model.row("voice").state == "in place"


def test_remove_and_what_cannot_be_removed(given: _Given) -> None:
    given.model.fetch("voice")
    given.wait_idle()
    given.model.remove("voice")
    given.model.remove("ear")
    given.wait_idle()
    assert [one.state for one in given.model.rows] == ["missing", "missing"]
    assert given.model.row("voice").problem == ""
    assert given.model.row("ear").problem.startswith("Model ear is not in the store")


def test_verify_finds_a_damaged_file(given: _Given) -> None:
    given.model.fetch("voice")
    given.wait_idle()
    file = given.model.store.folder("voice") / "weights.bin"
    stamp = file.stat()
    file.write_bytes(b"x" * stamp.st_size)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # nobody would notice without reading it
    given.model.look()
    given.wait_idle()
    assert given.model.row("voice").state == "in place"
    given.model.verify("voice")
    given.wait_idle()
    assert given.model.row("voice").state == "damaged"
    given.model.fetch("voice")
    given.wait_idle()
    assert given.model.row("voice").state == "in place"


def test_the_stores_sentence_is_shown(given: _Given, server: Server) -> None:
    del server.files[given.paths["voice"]]
    given.model.fetch("voice")
    given.wait_idle()
    assert given.model.row("voice").problem.startswith("Cannot fetch voice: ")
    given.model.fetch("ear")
    given.wait_idle()
    assert given.model.row("ear").state == "in place"


def test_offline_nothing_is_asked(server: Server, tmp_path: Path) -> None:
    catalog = Catalog((row("voice", pack("voice")),))
    where = Places(tmp_path / "store", tmp_path, tmp_path)
    model = ModelsModel(_config(), where, catalog, env={}, is_offline=True)
    model.fetch("voice")
    while model.is_busy:
        model.poll()
    assert "fetching is forbidden offline" in model.row("voice").problem
    assert server.requests == []


def test_verdict_on_a_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = Places(tmp_path / "store", tmp_path / "cache", tmp_path)
    for free_bytes, fits in ((64 * 2**30, True), (2**28, False)):
        machine = Machine(Place("cpu", "memory", 64 * 2**30, free_bytes))
        monkeypatch.setattr("app.viewmodel.models.read_machine", lambda env, ask_cuda, made=machine: made)
        model = ModelsModel(_config(), where, load_catalog(), env={}, is_offline=True)
        model.look()
        while model.is_busy:
            model.poll()
        fit = model.row("smollm2-135m").fit
        assert fit is not None
        assert (fit.fits, fit.place, fit.free_bytes, fit.problem) == (fits, "memory", free_bytes, "")
        assert fit.needs_bytes > 100e6
        assert model.row("joe-medium").fit is None


def test_a_model_that_cannot_be_planned_says_why(tmp_path: Path) -> None:
    where = Places(tmp_path / "store", tmp_path / "cache", tmp_path)
    model = ModelsModel(_config("asr.model=/nowhere/asr"), where, load_catalog(), env={}, is_offline=True)
    model.look()
    while model.is_busy:
        model.poll()
    fit = model.row("smollm2-135m").fit
    assert fit is not None
    assert "/nowhere/asr cannot be used for asr: there is no such file or folder" in fit.problem


def test_personas_use_models_too() -> None:
    joe = load_catalog()["joe-medium"]
    assert used_for(joe, _config("personas.brief.voice=joe-medium")) == ("tts", "persona brief")


def test_gauge_counts_and_stops() -> None:
    now_s = [100.0]
    gauge = Gauge(lambda: now_s[0])
    gauge.say("  begins")
    gauge.begin(1000)
    for _ in range(20):
        now_s[0] += 0.5
        gauge.update("voice", int(1000 + (now_s[0] - 100) * 2000), 100_000)
    figures = gauge.figures
    assert (figures.done_bytes, figures.total_bytes, figures.remark) == (21_000, 100_000, "begins")
    assert figures.bytes_per_s == pytest.approx(2000)
    gauge.stop()
    with pytest.raises(FetchStoppedError):
        gauge.update("voice", 21_500, 100_000)
    with pytest.raises(FetchStoppedError):
        gauge.say("more")
