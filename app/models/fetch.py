"""Brings models into the store: find an archive, download it, take the named files out, check them, rename into place.

A model's folder appears complete or not at all; one fetch runs at a time per store. What was downloaded before a fetch
was cut stays in `.downloads` and the next one goes on with it.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import ModelStoreError
from app.models import hub
from app.models.catalog import Archive, HubSource, IndexSource, Member, Model
from app.models.download import Remote, discard, download
from app.models.files import BadArchiveError, extract, sha256_of, sync, sync_folder
from app.models.index import Offer, offers
from app.models.lock import exclusive
from app.models.pip_config import PipSettings, read_pip_settings
from app.models.progress import Progress
from app.models.store import DOWNLOADS_FOLDER, STAMP_FILE, Store, stamp_of
from app.models.web import Web, WebError

_TEMPORARY_PREFIX = ".fetching-"


def fetch(
    store: Store, models: Sequence[Model], *, env: Mapping[str, str], is_offline: bool, progress: Progress
) -> list[str]:
    """Fetch those of `models` that are not complete in the store; return their names.

    Raises:
        ModelStoreError: one sentence on what went wrong and what to do. Models fetched before it stay.
    """
    wanted = [model for model in models if _is_incomplete(store, model)]
    if not wanted:
        return []
    if is_offline:
        names = ", ".join(model.name for model in wanted)
        message = f"Not in the store {store.root}: {names}; fetching is forbidden offline"
        raise ModelStoreError(message, model=wanted[0].name, fix="Run without --offline and VIVAVOCE_OFFLINE once")
    settings = read_pip_settings(env)
    with _filesystem_errors(store.root), _locked(store.root, progress), Web(settings) as web:
        _sweep(store)
        fetcher = _Fetcher(store, settings, web, env, progress)
        try:
            return [model.name for model in wanted if fetcher.fetch(model)]
        finally:
            _remove_if_empty(store.root / DOWNLOADS_FOLDER)


class _Fetcher:
    """Works through models, one at a time, with the lock held."""

    def __init__(
        self, store: Store, settings: PipSettings, web: Web, env: Mapping[str, str], progress: Progress
    ) -> None:
        self._store = store
        self._settings = settings
        self._web = web
        self._env = env
        self._progress = progress
        self._downloads = store.root / DOWNLOADS_FOLDER

    def fetch(self, model: Model) -> bool:
        """Bring one model into place from the first of its sources that serves; False where it is there by now."""
        if not _is_incomplete(self._store, model):
            self._progress.say(f"{model.name} is in place now: another fetch brought it.")
            return False
        root = self._store.root
        self._progress.say(f"Fetching {model.name} ({model.size_bytes / 1e6:.0f} MB, licence {model.licence})")
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=root, ignore_cleanup_errors=True) as name:
            ready = Path(name) / "ready"
            ready.mkdir()
            self._bring(model, ready)
            _put_in_place(model, ready, root / model.name)
        for part in self._store.downloads(model):
            discard(part)
        sync_folder(root)
        self._progress.say(f"  {model.name} is in place.")
        return True

    def _bring(self, model: Model, ready: Path) -> None:
        """Fill `ready` with the members, unchecked."""
        failure: WebError | None = None
        for source in model.sources:
            try:
                if isinstance(source, IndexSource):
                    self._from_index(model, source, ready)
                else:
                    self._from_hub(model, source, ready)
                return
            except WebError as error:
                failure = failure or error
        if failure is not None:
            message = f"Cannot fetch {model.name}: {failure.reason}"
            raise ModelStoreError(message, model=model.name, fix=failure.fix, is_permanent=failure.is_permanent)

    def _from_index(self, model: Model, source: IndexSource, ready: Path) -> None:
        failure: WebError | None = None
        for offer in offers(source, self._settings, self._web, self._progress.say):
            try:
                return self._from_offer(model, source, offer, ready)
            except WebError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _from_offer(self, model: Model, source: IndexSource, offer: Offer, ready: Path) -> None:
        """Take the members out of one archive, which may lie on this machine."""
        archive = offer.archive
        if offer.yanked is not None:
            reason = f": {offer.yanked}" if offer.yanked else ""
            self._progress.say(f"  Its publisher has withdrawn {archive.file_name}{reason}")
        path = offer.path
        if path is None:
            path = self._download(model, offer.url, archive, unpacked_bytes=model.size_bytes)
        else:
            self._check_space(model, model.size_bytes)
            _check_local(path, archive)
        members = {source.paths[m.file_name]: (ready / m.file_name, m.size_bytes) for m in model.members}
        try:
            extract(path, archive.file_name, members)
        except BadArchiveError as error:
            raise ModelStoreError(str(error), model=model.name, fix="The catalog is wrong: please report it") from error

    def _from_hub(self, model: Model, source: HubSource, ready: Path) -> None:
        parts = {}
        for member in model.members:
            url = hub.file_url(source, member.file_name, self._env)
            parts[member] = self._download(model, url, member, token=hub.token(self._env))
        for member, part in parts.items():
            part.replace(ready / member.file_name)
            discard(part)

    def _download(
        self, model: Model, url: str, file: Archive | Member, *, unpacked_bytes: int = 0, token: str = ""
    ) -> Path:
        here = sum(part.stat().st_size for part in self._store.downloads(model) if file.sha256[:16] in part.name)
        self._check_space(model, file.size_bytes - here + unpacked_bytes)
        already = f", {here / 1e6:.1f} MB of them here already" if here else ""
        host = urlsplit(url).hostname
        self._progress.say(f"  {file.file_name} from {host}: {file.size_bytes / 1e6:.1f} MB{already}")
        self._downloads.mkdir(exist_ok=True)
        return download(self._web, Remote(url, file, model.name, token), self._downloads, self._progress)

    def _check_space(self, model: Model, needed_bytes: int) -> None:
        free = shutil.disk_usage(self._store.root).free
        if free < needed_bytes:
            detail = f"{model.name} needs {needed_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free"
            raise _disk_full(self._store.root, detail)


def _check_local(path: Path, archive: Archive) -> None:
    """An archive on this machine is used where it lies. Raises WebError."""
    try:
        is_right = sha256_of(path) == archive.sha256
    except OSError as error:
        reason = f"the package index names {path}, which cannot be read ({error.strerror})"
        raise WebError(
            reason, fix="Check find-links and index-url in the pip configuration", is_permanent=True
        ) from error
    if not is_right:
        reason = f"{path} is not the file that the catalog names (wrong SHA-256)"
        raise WebError(reason, fix="Delete it, or take it out of the package index", is_permanent=True)


def _is_incomplete(store: Store, model: Model) -> bool:
    return any(state.problem for state in store.check(model))


@contextmanager
def _locked(root: Path, progress: Progress) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    told = "Another fetch uses this store; waiting for it."
    with exclusive(root / ".lock", on_wait=lambda: progress.say(told), while_waiting=progress.check):
        yield


def _sweep(store: Store) -> None:
    """Remove what a killed fetch left and nothing can use; safe because we hold the lock."""
    for path in store.root.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in store.strangers():
        path.unlink()


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _put_in_place(model: Model, ready: Path, target: Path) -> None:
    """Check every member, write the stamp, and swap the folder in."""
    stamps = {}
    for member in model.members:
        path = ready / member.file_name
        if path.stat().st_size != member.size_bytes or sha256_of(path) != member.sha256:
            message = f"{member.file_name} of {model.name} is not the file that the catalog names"
            raise ModelStoreError(f"{message} (size or SHA-256 differs)", model=model.name, fix="Please report it")
        stamps[member.file_name] = stamp_of(path, member.sha256)
    with (ready / STAMP_FILE).open("wb") as sink:
        sink.write(json.dumps(stamps, indent=1).encode())
        sync(sink)
    sync_folder(ready)
    if target.exists():
        target.rename(ready.parent / "old")
    ready.rename(target)


@contextmanager
def _filesystem_errors(root: Path) -> Iterator[None]:
    """Turn what the file system says into one sentence with a fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(root, "the disk is full") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            message = f"Cannot write to the model store {root}: {error.strerror}"
            raise ModelStoreError(message, fix="Set VIVAVOCE_STORE to a folder that you may write to") from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR) and not root.is_dir():
            message = f"The model store {root} is no folder"
            raise ModelStoreError(message, fix="Set VIVAVOCE_STORE to a folder") from error
        reason = error.strerror or error
        raise ModelStoreError(f"The model store {root} failed: {reason}", fix="Check the disk") from error


def _disk_full(root: Path, detail: str) -> ModelStoreError:
    fix = "Free some space or set VIVAVOCE_STORE to a folder on another disk"
    return ModelStoreError(f"Not enough disk space at {root}: {detail}", fix=fix)
