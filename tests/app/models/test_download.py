"""Fetching from a server that cuts, stalls, lies and errs: one sentence, a valid store, and no byte fetched twice."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_rig import IN_PLACE, STALL_S, Answer, Fetching, Handler, Server, pack, row, status

from app.models.fetch import fetch
from app.models.progress import Progress

Online = Callable[..., Fetching]
FILE = "/files/voice-1.0-py3-none-any.whl"
PAGE = "/simple/voice/"
CUT_BYTES = 100_000


def _part(given: Fetching) -> Path:
    (part,) = (given.store.root / ".downloads").glob("*.part")
    return part


def _cut(length: int = CUT_BYTES) -> Answer:
    """Promise all, send `length` bytes at most (from where was asked), hang up."""
    return lambda handler, data: handler.serve(data, at_most=length)


def _stall(handler: Handler, data: bytes) -> None:
    """Send a part, then nothing, until the test is over."""
    handler.head(200, {"Content-Length": str(len(data)), "ETag": '"one"'})
    handler.wfile.write(data[:CUT_BYTES])
    handler.wfile.flush()
    handler.rules.released.wait(10)
    handler.close_connection = True


def _silence(handler: Handler, data: bytes) -> None:
    """Take the request and say nothing."""
    handler.rules.released.wait(10)
    handler.close_connection = True


def _drip(handler: Handler, data: bytes) -> None:
    """A byte now and then: never silent, never done."""
    handler.head(200, {"Content-Length": str(len(data))})
    for byte in data:
        if handler.rules.released.wait(0.05):
            break
        handler.wfile.write(bytes([byte]))
    handler.close_connection = True


def _claim(difference: int) -> Answer:
    """Say that the file has another length than it has, and send that much."""

    def answer(handler: Handler, data: bytes) -> None:
        length = len(data) + difference
        handler.head(200, {"Content-Length": str(length)})
        handler.wfile.write((data + bytes(max(0, difference)))[:length])

    return answer


def _without_length(difference: int) -> Answer:
    """Send until the connection ends, without saying how much."""

    def answer(handler: Handler, data: bytes) -> None:
        handler.head(200, {"Connection": "close"})
        handler.wfile.write((data + bytes(max(0, difference)))[: len(data) + difference])
        handler.close_connection = True

    return answer


def _other_bytes(handler: Handler, data: bytes) -> None:
    handler.serve(bytes(len(data)))


def _ignore_range(handler: Handler, data: bytes) -> None:
    del handler.headers["Range"]
    handler.serve(data)


def test_plain_download(server: Server, online: Online) -> None:
    given = online("voice")
    assert given.run() == ["voice"]
    assert given.entries() == IN_PLACE
    assert "voice-1.0-py3-none-any.whl from 127.0.0.1: 0.3 MB" in given.printed
    (headers,) = server.headers_of(FILE)
    assert headers["accept-encoding"] == "identity"


def test_cut_is_resumed_in_the_same_fetch(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_cut(), Handler.serve]
    assert given.run() == ["voice"]
    first, second = server.headers_of(FILE)
    assert "range" not in first
    assert second["range"] == f"bytes={CUT_BYTES}-"
    assert second["if-range"].startswith('"')
    assert "cut the connection; trying again" in given.printed


def test_cut_again_and_again_ends_and_the_next_fetch_goes_on(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_cut(50_000)]
    error = given.refused("cut the connection")
    assert not error.is_permanent
    assert len(server.headers_of(FILE)) == 3, "one attempt and PIP_RETRIES=2 more"
    assert _part(given).stat().st_size == 150_000
    assert given.store.state(given.store.catalog["voice"]) == "partial"
    del server.answers[FILE]
    assert given.run() == ["voice"]
    assert server.headers_of(FILE)[-1]["range"] == "bytes=150000-"
    assert "0.1 MB of them here already" in given.printed or "0.2 MB of them here already" in given.printed
    assert given.entries() == IN_PLACE


def test_attempts_that_bring_much_are_not_counted(
    server: Server, online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.models.download._WORTH_A_NEW_START_BYTES", 50_000)
    given = online("voice")
    server.answers[FILE] = [_cut(50_000)]
    assert given.run() == ["voice"]
    assert len(server.headers_of(FILE)) == 7, "300 kB in pieces of 50 kB, with two retries allowed"


def test_server_without_ranges_starts_anew(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_cut(), _ignore_range]
    assert given.run() == ["voice"]
    assert len(server.headers_of(FILE)) == 2, "what was there was replaced, not added to"
    assert given.entries() == IN_PLACE


def test_file_that_changed_meanwhile_starts_anew(server: Server, online: Online) -> None:
    given = online("voice")

    def older(handler: Handler, data: bytes) -> None:
        handler.head(200, {"Content-Length": str(len(data)), "ETag": '"older"'})
        handler.wfile.write(bytes(CUT_BYTES))
        handler.close_connection = True

    server.answers[FILE] = [older, Handler.serve]
    assert given.run() == ["voice"]
    assert server.headers_of(FILE)[1]["if-range"] == '"older"'
    assert len(server.headers_of(FILE)) == 2


def test_wrong_beginning_without_etag_is_found_and_fetched_again(server: Server, online: Online) -> None:
    given = online("voice")

    def older(handler: Handler, data: bytes) -> None:
        handler.head(200, {"Content-Length": str(len(data)), "ETag": 'W/"weak"'})
        handler.wfile.write(bytes(CUT_BYTES))
        handler.close_connection = True

    server.answers[FILE] = [older, Handler.serve]
    assert given.run() == ["voice"]
    ranges = [headers.get("range") for headers in server.headers_of(FILE)]
    assert ranges == [None, f"bytes={CUT_BYTES}-", None]
    assert "if-range" not in server.headers_of(FILE)[1], "a weak ETag must not be used"


def test_another_range_than_asked_starts_anew(server: Server, online: Online) -> None:
    given = online("voice")

    def shifted(handler: Handler, data: bytes) -> None:
        start = CUT_BYTES + 1
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        handler.head(206, {**headers, "Content-Length": str(len(data) - start)})
        handler.wfile.write(data[start:])

    server.answers[FILE] = [_cut(), shifted, Handler.serve]
    assert given.run() == ["voice"]


def test_range_that_cannot_be_satisfied_starts_anew(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_cut(), status(416), Handler.serve]
    assert given.run() == ["voice"]
    assert "range" not in server.headers_of(FILE)[-1]


def test_stall_is_left_and_what_came_is_kept(server: Server, online: Online) -> None:
    given = online("voice", PIP_RETRIES="0", PIP_TIMEOUT=str(STALL_S))
    server.answers[FILE] = [_stall]
    given.refused(f"sent next to nothing for {STALL_S:g} s")
    assert _part(given).stat().st_size == CUT_BYTES


def test_drip_is_a_stall(server: Server, online: Online) -> None:
    given = online("voice", PIP_RETRIES="0", PIP_TIMEOUT=str(STALL_S))
    server.answers[FILE] = [_drip]
    began_s = time.monotonic()
    given.refused("sent next to nothing")
    assert time.monotonic() - began_s < 10, "300 kB at 20 bytes a second are four hours"


def test_no_answer_at_all(server: Server, online: Online) -> None:
    given = online("voice", PIP_RETRIES="0", PIP_TIMEOUT=str(STALL_S))
    server.answers[FILE] = [_silence]
    given.refused(f"does not answer within {STALL_S:g} s")


@pytest.mark.parametrize("difference", [-1, 1, -299_000, 50_000])
def test_length_that_is_not_the_catalogs_is_refused_at_once(server: Server, online: Online, difference: int) -> None:
    given = online("voice")
    server.answers[FILE] = [_claim(difference)]
    assert given.refused("the catalog says").is_permanent
    assert given.entries() == []
    assert len(server.headers_of(FILE)) == 1


def test_more_than_the_file_is_refused_and_thrown_away(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_without_length(1)]
    given.refused("sends more than")
    assert given.entries() == []


def test_less_than_the_file_without_a_length(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_without_length(-1), Handler.serve]
    assert given.run() == ["voice"]
    assert "ended after" in given.printed


def test_wrong_bytes_are_refused_and_thrown_away(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [_other_bytes]
    assert given.refused(r"other bytes than the catalog names \(wrong SHA-256\)").is_permanent
    assert given.entries() == []


def test_index_that_names_another_hash(server: Server, online: Online) -> None:
    given = online("voice")
    server.files[PAGE] = server.files[PAGE].replace(pack("voice").sha256[:8].encode(), b"00000000")
    given.refused("wrong SHA-256")
    assert server.headers_of(FILE) == [], "not a byte of it was asked for"


@pytest.mark.parametrize(
    ("code", "part", "requests"),
    [
        (404, "there is no http://127", 1),
        (410, "there is no http://127", 1),
        (403, r"wants credentials \(status 403\)", 1),
        (418, "answers with status 418", 1),
        (500, r"answers with status 500\. Try again later", 3),
        (503, "answers with status 503", 3),
        (429, "answers with status 429", 3),
    ],
)
def test_status_in_place_of_the_file(server: Server, online: Online, code: int, part: str, requests: int) -> None:
    given = online("voice")
    server.answers[FILE] = [status(code)]
    given.refused(part)
    assert len(server.headers_of(FILE)) == requests


def test_busy_server_that_recovers(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[PAGE] = [status(503, Retry_After="0"), Handler.serve]
    server.answers[FILE] = [status(500), Handler.serve]
    assert given.run() == ["voice"]


def test_retry_after_is_waited_for(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [status(429, Retry_After="1"), Handler.serve]
    began_s = time.monotonic()
    assert given.run() == ["voice"]
    assert time.monotonic() - began_s >= 1.0


def test_redirect_is_followed(server: Server, online: Online) -> None:
    given = online("voice")
    server.files["/elsewhere"] = server.files[FILE]
    server.answers[FILE] = [status(302, Location="/elsewhere")]
    assert given.run() == ["voice"]


def test_redirect_loop(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [status(302, Location=FILE)]
    given.refused("redirects in a circle")
    assert len(server.headers_of(FILE)) == 11


def test_redirect_to_a_file_of_this_machine_is_refused(server: Server, online: Online) -> None:
    given = online("voice")
    server.answers[FILE] = [status(302, Location="file:///etc/passwd")]
    given.refused("cannot be asked for")


def test_web_page_in_place_of_the_file(server: Server, online: Online) -> None:
    given = online("voice")
    server.content_types[FILE] = "text/html; charset=utf-8"
    server.files[FILE] = b"<html>Please log in</html>"
    given.refused("sent a web page instead of the file")


def test_index_page_that_is_another_page(server: Server, online: Online) -> None:
    given = online("voice")
    server.files[PAGE] = b"<html><h1>502 Bad Gateway</h1></html>"
    given.refused(rf"no package index has voice==1.0 \(looked at {server.url}/simple/voice/\)")


def test_index_without_the_project(server: Server, online: Online) -> None:
    given = online("voice")
    del server.files[PAGE]
    given.refused(f"there is no {server.url}/simple/voice/")


def test_index_page_without_end(server: Server, online: Online, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.web._LARGEST_PAGE_BYTES", 10_000)
    given = online("voice")
    server.files[PAGE] = bytes(20_000)
    given.refused("does not end")


def test_next_index_serves_where_the_first_fails(server: Server, online: Online) -> None:
    given = online("voice", PIP_EXTRA_INDEX_URL=f"{server.url}/more")
    server.files[f"/more{PAGE.removeprefix('/simple')}"] = server.files[PAGE]
    server.content_types["/more/voice/"] = "text/html"
    server.files[PAGE] = server.files[PAGE].replace(b"files", b"lost")
    assert given.run() == ["voice"]


def test_no_network(fetching: Callable[..., Fetching]) -> None:
    given = fetching(row("voice", pack("voice")), PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert not given.refused(r"127\.0\.0\.1 cannot be reached\. Check the network").is_permanent
    assert given.printed.count("trying again") == 1


def test_host_that_does_not_exist(fetching: Callable[..., Fetching]) -> None:
    given = fetching(row("voice", pack("voice")), PIP_INDEX_URL="http://nowhere.invalid/simple", PIP_RETRIES="0")
    given.refused(r"nowhere\.invalid cannot be reached")


def test_disk_full_while_downloading_keeps_what_fitted(
    server: Server, online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = online("voice")
    real = Path.open

    def tight(self: Path, mode: str = "r", **options: Any) -> Any:
        file = real(self, mode, **options)
        if self.suffix != ".part" or mode != "ab":
            return file
        return _SmallDisk(file)

    monkeypatch.setattr(Path, "open", tight)
    given.refused("the disk is full. Free some space")
    monkeypatch.setattr(Path, "open", real)
    kept = _part(given).stat().st_size
    assert 0 < kept <= CUT_BYTES
    assert given.run() == ["voice"]
    assert server.headers_of(FILE)[-1]["range"] == f"bytes={kept}-"


class _SmallDisk:
    """A file on a disk that has room for `CUT_BYTES`."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._room = CUT_BYTES

    def write(self, data: bytes) -> int:
        fitting = data[: self._room]
        self._file.write(fitting)
        self._room -= len(fitting)
        if len(fitting) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    def __enter__(self) -> _SmallDisk:
        return self

    def __exit__(self, *rest: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_interrupt_leaves_what_the_next_fetch_goes_on_with(server: Server, online: Online) -> None:
    given = online("voice")

    class Interrupted(Progress):
        def update(self, name: str, done_bytes: int, total_bytes: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(given.store, list(given.store.catalog), **{**given.options, "progress": Interrupted(io.StringIO())})
    kept = _part(given).stat().st_size
    assert kept > 0
    assert {path.partition("/")[0] for path in given.entries()} == {".downloads"}
    assert given.run() == ["voice"]
    assert server.headers_of(FILE)[1]["range"] == f"bytes={kept}-"
