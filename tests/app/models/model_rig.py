"""Tiny archives, a catalog of them, and a package index on a server that misbehaves on demand."""

from __future__ import annotations

import hashlib
import io
import json
import os
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.errors import ModelStoreError
from app.models.catalog import Archive, Member, Model
from app.models.catalog import HubSource as Hub
from app.models.catalog import IndexSource as Index
from app.models.fetch import fetch
from app.models.progress import Progress
from app.models.store import Store

WEIGHTS = os.urandom(300_000)
"""Random, so that no archive makes it small."""
MEMBERS = {"weights.bin": WEIGHTS, "tokens.txt": b"a\tb\n"}
IN_PLACE = ["voice", "voice/.verified.json", "voice/tokens.txt", "voice/weights.bin"]
"""Entries of a store with the model `voice`, and of nothing else."""
STALL_S = 1.0
Answer = Callable[["Handler", bytes], None]


@dataclass(frozen=True)
class Packed:
    """An archive as bytes."""

    file_name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def pack(name: str, members: Mapping[str, bytes] = MEMBERS, ending: str = "-py3-none-any.whl") -> Packed:
    """`name` 1.0 with the members under `name/data/`: a wheel, or a tar for an ending like `.tar.gz`."""
    paths = {f"{name}/data/{file_name}": data for file_name, data in members.items()}
    buffer = io.BytesIO()
    if ending.startswith(".tar"):
        with tarfile.open(fileobj=buffer, mode=f"w:{ending.removeprefix('.tar').removeprefix('.')}") as tar:
            for path, data in paths.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    else:
        with zipfile.ZipFile(buffer, "w") as archive:
            for path, data in paths.items():
                archive.writestr(path, data)
    return Packed(f"{name}-1.0{ending}", buffer.getvalue())


def row(name: str, *packed: Packed, members: Mapping[str, bytes] = MEMBERS, hub: bool = False) -> Model:
    """A catalog row: `name` 1.0 in these archives, or its members one by one on the hub."""
    files = tuple(
        Member(file_name, Path(file_name).stem, len(data), hashlib.sha256(data).hexdigest())
        for file_name, data in members.items()
    )
    archives = tuple(Archive(one.file_name, len(one.data), one.sha256) for one in packed)
    paths = {file_name: f"{name}/data/{file_name}" for file_name in members}
    sources: list[Any] = [Index(name, "1.0", archives, paths)] if packed else []
    if hub:
        sources.append(Hub(f"owner/{name}", "main", {file_name: f"onnx/{file_name}" for file_name in members}))
    return Model(name, "tts", "piper", True, ("en",), False, "MIT", "test", tuple(sources), files)


@dataclass
class Fetching:
    """What a test gives to `fetch`, and what was printed."""

    store: Store
    env: dict[str, str]
    output: io.StringIO

    @property
    def printed(self) -> str:
        return self.output.getvalue()

    @property
    def options(self) -> dict[str, Any]:
        return {"env": self.env, "is_offline": False, "progress": Progress(self.output)}

    def run(self) -> list[str]:
        """Fetch every model of the catalog."""
        return fetch(self.store, list(self.store.catalog), **self.options)

    def refused(self, part: str) -> ModelStoreError:
        """Fetch in vain: one sentence that has `part`, a fix, and a store as it must be after any fault."""
        with pytest.raises(ModelStoreError, match=part) as caught:
            self.run()
        assert "\n" not in str(caught.value)
        assert caught.value.fix
        assert all(self.store.state(model) in ("missing", "partial") for model in self.store.catalog)
        assert all(path.startswith(".downloads") for path in self.entries())
        return caught.value

    def entries(self) -> list[str]:
        """What lies in the store, but for the lock."""
        paths = self.store.root.rglob("*") if self.store.root.exists() else ()
        return sorted(str(path.relative_to(self.store.root)) for path in paths if path.name != ".lock")


@dataclass
class Server:
    """Serves `files` by path, with ranges and ETags, unless `answers` has something else for a path."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    content_types: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """Used up one a request; the last one stays."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """(path, headers in lower case)"""
    released: threading.Event = field(default_factory=threading.Event)

    def publish(self, packed: Packed) -> str:
        """Put an archive into the index at /simple and return the path of its file."""
        path = f"/files/{packed.file_name}"
        self.files[path] = packed.data
        project = packed.file_name.partition("-")[0]
        link = f'<a href="../../files/{packed.file_name}#sha256={packed.sha256}">{packed.file_name}</a>'
        self.files[f"/simple/{project}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
        self.content_types[f"/simple/{project}/"] = "text/html"
        return path

    def headers_of(self, path: str) -> list[dict[str, str]]:
        """Headers of every request for a path."""
        return [headers for asked, headers in self.requests if asked == path]


class Handler(BaseHTTPRequestHandler):
    """One request to a `Server`."""

    protocol_version = "HTTP/1.1"
    timeout = 0.5  # of an idle connection: the test is over, or the client opens another
    rules: Server

    def do_GET(self) -> None:
        path = self.path.partition("://")[2].partition("/")[2] if "://" in self.path else self.path.lstrip("/")
        path = f"/{path}"
        self.rules.requests.append((path, {name.lower(): value for name, value in self.headers.items()}))
        answers = self.rules.answers.get(path, [])
        answer = answers.pop(0) if len(answers) > 1 else answers[0] if answers else Handler.serve
        data = self.rules.files.get(path)
        if data is None and not answers:
            return self.head(404, {"Content-Length": "0"})
        try:
            answer(self, data or b"")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve(self, data: bytes, at_most: int | None = None) -> None:
        """As a good server does, or one that hangs up after `at_most` bytes."""
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        content_type = self.rules.content_types.get(self.path, "application/octet-stream")
        headers = {"ETag": etag, "Content-Type": content_type}
        asked, start = self.headers.get("Range"), 0
        if asked and self.headers.get("If-Range", etag) == etag:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.head(206 if start else 200, {**headers, "Content-Length": str(len(data) - start)})
        sent = data[start:][:at_most]
        self.wfile.write(sent)
        self.close_connection = self.close_connection or len(sent) < len(data) - start

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Status line and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not to standard error."""


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what these tests are about."""


def status(code: int, **headers: str) -> Answer:
    """Answer without a body; `Retry_After="1"` is the header Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, data: handler.head(code, {"Content-Length": "0", **named})


@contextmanager
def running_server(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server on a free port of this machine."""
    http_server = _QuietServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        http_server.socket = tls.wrap_socket(http_server.socket, server_side=True)
    rules = Server(f"{'https' if tls else 'http'}://127.0.0.1:{http_server.server_port}")
    http_server.RequestHandlerClass = type("BoundHandler", (Handler,), {"rules": rules})
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield rules
    finally:
        rules.released.set()
        http_server.shutdown()
        http_server.server_close()
        thread.join()


def json_page(files: list[dict[str, Any]]) -> bytes:
    """A PEP 691 document."""
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "voice", "files": files}).encode()
