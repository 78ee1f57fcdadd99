"""One file over HTTP(S) to disk: resumed where a `.part` is there, checked against its SHA-256 before it counts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import requests

from app.models.catalog import Archive, Member
from app.models.files import part_path, sha256_of
from app.models.progress import Progress
from app.models.web import Web, WebError, without_password

_WORTH_A_NEW_START_BYTES = 1 << 20
"""An attempt that brought this much does not use up patience."""
_REPORT_FIX = "Do not use that source; if it is a public one, please report it"


@dataclass(frozen=True, slots=True)
class Remote:
    """What to get from where."""

    url: str
    file: Archive | Member
    """Its name, size and SHA-256."""
    label: str
    """For the progress line."""
    token: str = ""


def download(web: Web, remote: Remote, folder: Path, progress: Progress) -> Path:
    """Bring all of `remote` into `folder`; return the path of the checked file.

    Raises:
        WebError: the source failed for good; what was received stays for the next attempt unless it is wrong.
        OSError: the disk.
    """
    part = part_path(folder, remote.file.file_name, remote.file.sha256)
    patience = web.patience(progress.say)
    is_resumed = _size(part) > 0
    progress.begin(_size(part))
    try:
        while True:
            before = _size(part)
            try:
                if before < remote.file.size_bytes:
                    _receive(web, remote, part, progress)
                if sha256_of(part) == remote.file.sha256:
                    return part
                discard(part)
                if not is_resumed:
                    reason = f"{without_password(remote.url)} sent other bytes than the catalog names (wrong SHA-256)"
                    raise WebError(reason, fix=_REPORT_FIX, is_permanent=True)
                is_resumed = False  # the beginning may have been another file's: once more, from the start
            except WebError as error:
                if _size(part) - before >= _WORTH_A_NEW_START_BYTES:
                    patience.renew()
                patience.wait_or_raise(error)
                is_resumed = is_resumed or _size(part) > 0
    finally:
        progress.end()


def discard(part: Path) -> None:
    """Forget what was received of a file."""
    part.unlink(missing_ok=True)
    _note_path(part).unlink(missing_ok=True)


def _receive(web: Web, remote: Remote, part: Path, progress: Progress) -> None:
    """One attempt: append to `part`, or begin it anew where the server does not resume."""
    size_bytes = remote.file.size_bytes
    with web.get(remote.url, _range_headers(part), token=remote.token) as response:
        done = _start(response, part)
        _check_announcement(response, remote, done)
        with part.open("ab", buffering=0) as sink:
            sink.truncate(done)
            _note_path(part).write_text(json.dumps({"validator": _validator(response)}), encoding="utf-8")
            for chunk in web.chunks(response):
                if done + len(chunk) > size_bytes:
                    raise _spoiled(part, remote, f"sends more than the {size_bytes} bytes that the catalog names")
                sink.write(chunk)
                done += len(chunk)
                progress.update(remote.label, done, size_bytes)
            os.fsync(sink.fileno())
    if done < size_bytes:
        reason = f"{without_password(remote.url)} ended after {done} of {size_bytes} bytes"
        raise WebError(reason, fix="Fetch again: it goes on from there", is_permanent=False)


def _range_headers(part: Path) -> dict[str, str]:
    """Ask for the rest only. `If-Range` makes the server send all where its file has changed."""
    done = _size(part)
    if not done:
        return {}
    try:
        validator = json.loads(_note_path(part).read_text(encoding="utf-8"))["validator"]
    except (OSError, ValueError, KeyError, TypeError):
        validator = ""  # none: the SHA-256 at the end will tell
    return {"Range": f"bytes={done}-", **({"If-Range": str(validator)} if validator else {})}


def _start(response: requests.Response, part: Path) -> int:
    """Bytes of `part` that stay: all of them where the server goes on from there, else none."""
    done = _size(part)
    if response.status_code == 416:
        discard(part)
        raise WebError("the server cannot go on from where it was cut", fix="Fetch again", is_permanent=False)
    is_continued = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
    if response.status_code == 206 and not is_continued:
        discard(part)
        raise WebError("the server sent another part than was asked for", fix="Fetch again", is_permanent=False)
    return done if response.status_code == 206 else 0


def _check_announcement(response: requests.Response, remote: Remote, done: int) -> None:
    """Refuse before the first byte what cannot be the file."""
    where, wanted = without_password(remote.url), remote.file.size_bytes - done
    if response.headers.get("Content-Type", "").startswith("text/html") and not remote.file.file_name.endswith("html"):
        reason = f"{where} sent a web page instead of the file"
        raise WebError(reason, fix="Look at it in a browser: it may want a login", is_permanent=True)
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) != wanted:
        reason = f"{where} has {int(length) + done} bytes, the catalog says {remote.file.size_bytes}"
        raise WebError(reason, fix=_REPORT_FIX, is_permanent=True)


def _spoiled(part: Path, remote: Remote, what: str) -> WebError:
    discard(part)
    return WebError(f"{without_password(remote.url)} {what}", fix=_REPORT_FIX, is_permanent=True)


def _validator(response: requests.Response) -> str:
    """A strong ETag, else the date; a weak ETag must not be used for ranges."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified", "")


def _note_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
