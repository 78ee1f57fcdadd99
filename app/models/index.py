"""Finds an archive on Python package indexes (PEP 503 pages, PEP 691 documents) and in find-links places."""

from __future__ import annotations

import html.parser
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from app.models.catalog import Archive, IndexSource
from app.models.pip_config import PipSettings
from app.models.web import Page, Web, WebError, without_password

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Offer:
    """One place that has an archive."""

    archive: Archive
    url: str
    """http, https or file."""
    yanked: str | None
    """Why its publisher withdrew it ("" without a reason); None: they did not."""

    @property
    def path(self) -> Path | None:
        """Where it lies on this machine; None: it must be downloaded."""
        return _path_of(self.url)


@dataclass(frozen=True, slots=True)
class _Link:
    url: str
    sha256: str
    yanked: str | None

    @property
    def file_name(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def offers(source: IndexSource, settings: PipSettings, web: Web, say: Callable[[str], None]) -> Iterator[Offer]:
    """Every place with an archive of `source`: places on this machine first, smallest archive first.

    Raises:
        WebError: none has it; where a place failed, the message is about that.
    """
    failure: WebError | None = None
    is_found = False
    places = _places(source, settings)
    for place in places:
        try:
            found = list(_matching(source, _links(place, web, say), place))
        except WebError as error:
            failure = failure or error
            continue
        is_found = is_found or bool(found)
        yield from sorted(found, key=lambda offer: (offer.yanked is not None, offer.archive.size_bytes))
    if not is_found:
        looked = ", ".join(without_password(place) for place in places) or "nowhere: pip's no-index is set"
        fix = "Name an index that has it (pip config set global.index-url URL)"
        raise failure or WebError(f"no package index has {source} (looked at {looked})", fix=fix, is_permanent=True)


def _places(source: IndexSource, settings: PipSettings) -> list[str]:
    """Addresses of pages, documents and folders; those on this machine first, else in pip's order."""
    project = re.sub(r"[-_.]+", "-", source.project).lower()
    links = [_address(entry) for entry in settings.find_links]
    indexes = [f"{index.rstrip('/')}/{quote(project)}/" for index in settings.index_urls]
    return sorted([*links, *indexes], key=lambda address: _path_of(address) is None)


def _address(entry: str) -> str:
    """A find-links entry, which may be a path, as an address."""
    if urlsplit(entry).scheme in ("http", "https", "file"):
        return entry
    return Path(os.path.abspath(os.path.expanduser(entry))).as_uri()


def _path_of(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def _links(place: str, web: Web, say: Callable[[str], None]) -> list[_Link]:
    path = _path_of(place)
    if path is None:
        page = web.page(place, _ACCEPT, say)
        return _links_of(page, place)
    try:
        file = path / "index.html" if path.is_dir() else path
        if path.is_dir() and not file.is_file():
            return [_Link(entry.resolve().as_uri(), "", None) for entry in path.iterdir()]
        if file.suffix.lower() not in (".html", ".htm"):
            return [_Link(file.as_uri(), "", None)]
        return _links_of(Page(file.as_uri(), "text/html", file.read_text(encoding="utf-8")), place)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        reason = f"{path} cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8 text'})"
        raise WebError(
            reason, fix="Check find-links and index-url in the pip configuration", is_permanent=True
        ) from error


def _links_of(page: Page, place: str) -> list[_Link]:
    """The links of a page or document. Those to the place's own host get its user and password."""
    try:
        links = _json_links(page) if page.content_type.endswith("json") else _html_links(page)
        return [_Link(_with_credentials(link.url, place), link.sha256, link.yanked) for link in links]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{without_password(page.url)} is no package list ({type(error).__name__})"
        fix = "Check index-url in the pip configuration"
        raise WebError(reason, fix=fix, is_permanent=True) from error


def _json_links(page: Page) -> Iterator[_Link]:
    for file in json.loads(page.text)["files"]:
        yanked = file.get("yanked", False)
        reason = None if yanked is False else "" if yanked is True else str(yanked)
        yield _Link(urljoin(page.url, file["url"]), file.get("hashes", {}).get("sha256", ""), reason)


def _html_links(page: Page) -> Iterator[_Link]:
    parser = _Anchors()
    parser.feed(page.text)
    base = urljoin(page.url, parser.base)
    for href, yanked in parser.found:
        url, _, fragment = urljoin(base, href).partition("#")
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        yield _Link(url, sha256.partition("&")[0].lower(), yanked)


class _Anchors(html.parser.HTMLParser):
    """`<a href data-yanked>` of a page, and its `<base>`."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        href = values.get("href")
        if href and tag == "base":
            self.base = self.base or href
        elif href and tag == "a":
            self.found.append((href.strip(), (values["data-yanked"] or "") if "data-yanked" in values else None))


def _with_credentials(url: str, place: str) -> str:
    target, known = urlsplit(url), urlsplit(place)
    if "@" not in known.netloc or "@" in target.netloc or known.scheme != target.scheme:
        return url
    if (target.hostname, target.port) != (known.hostname, known.port):
        return url
    return urlunsplit(target._replace(netloc=known.netloc))


def _matching(source: IndexSource, links: list[_Link], place: str) -> Iterator[Offer]:
    """The links to the archives that the catalog names.

    Raises:
        WebError: there are such links, but each says that it has other bytes.
    """
    archives = {archive.file_name: archive for archive in source.archives}
    named = [link for link in links if link.file_name in archives]
    fitting = [link for link in named if link.sha256 in ("", archives[link.file_name].sha256)]
    if named and not fitting:
        reason = f"{without_password(place)} has other bytes of {named[0].file_name} than the catalog (wrong SHA-256)"
        fix = "Do not use that index for it; if it is the public one, please report it"
        raise WebError(reason, fix=fix, is_permanent=True)
    for link in fitting:
        yield Offer(archives[link.file_name], link.url, link.yanked)
