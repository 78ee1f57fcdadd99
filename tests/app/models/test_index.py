"""Package index pages, documents and folders as they are in the wild."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from model_rig import Packed, Server, json_page, pack, row

from app.models.catalog import IndexSource
from app.models.index import Offer, offers
from app.models.pip_config import PipSettings
from app.models.web import Web, WebError

VOICE = pack("voice")
NAME = VOICE.file_name


def _source(*packed: Packed, project: str = "voice") -> IndexSource:
    (source,) = row("voice", *(packed or (VOICE,))).sources
    assert isinstance(source, IndexSource)
    return dataclasses.replace(source, project=project)


def _offers(settings: PipSettings, source: IndexSource | None = None) -> list[Offer]:
    settings = dataclasses.replace(settings, retries=0)
    with Web(settings) as web:
        return list(offers(source or _source(), settings, web, lambda line: None))


def _serve(server: Server, html: str, path: str = "/simple/voice/") -> PipSettings:
    server.files[path] = html.encode()
    server.content_types[path] = "text/html"
    return PipSettings(index_urls=(f"{server.url}/simple",))


@pytest.mark.parametrize(
    ("html", "url"),
    [
        (f'<a href="../../f/{NAME}">x</a>', f"/f/{NAME}"),
        (f'<a href="{NAME}#sha256={VOICE.sha256}">x</a>', f"/simple/voice/{NAME}"),
        (f'<a href="/f/{NAME}#sha256={VOICE.sha256.upper()}&egg=v">x</a>', f"/f/{NAME}"),
        (f'<a href="/f/{NAME}#md5=123">x</a>', f"/f/{NAME}"),
        (f'<base href="/base/"><a href="{NAME}">x</a>', f"/base/{NAME}"),
        (f"<A HREF='/f/{NAME}?token=1&amp;b=2'>x</A>", f"/f/{NAME}?token=1&b=2"),
        (f'<a href="/f/{NAME.replace("-1", "%2D1")}">x</a>', f"/f/{NAME.replace('-1', '%2D1')}"),
        (f'<a href="voice-2.0.whl">n</a><a>no</a><a href="/f/{NAME}">', f"/f/{NAME}"),
    ],
)
def test_links_of_a_page(server: Server, html: str, url: str) -> None:
    (offer,) = _offers(_serve(server, html))
    assert offer.url == f"{server.url}{url}"
    assert offer.path is None
    assert server.requests[0][1]["accept"].startswith("application/vnd.pypi.simple.v1+json")


def test_document(server: Server) -> None:
    files = [
        {"filename": "voice-0.9.tar.gz", "url": "/f/voice-0.9.tar.gz", "hashes": {}},
        {"filename": NAME, "url": f"../../f/{NAME}", "hashes": {"sha256": VOICE.sha256}, "yanked": False},
    ]
    settings = _serve(server, json_page(files).decode())
    server.content_types["/simple/voice/"] = "application/vnd.pypi.simple.v1+json; charset=utf-8"
    (offer,) = _offers(settings)
    assert (offer.url, offer.yanked) == (f"{server.url}/f/{NAME}", None)


@pytest.mark.parametrize("text", ["{", "[]", '{"files": [{}]}', '{"files": 1}', '{"files": [[]]}'])
def test_document_that_is_none(server: Server, text: str) -> None:
    settings = _serve(server, text)
    server.content_types["/simple/voice/"] = "application/json"
    with pytest.raises(WebError, match="is no package list"):
        _offers(settings)


def test_yanked_comes_last(server: Server) -> None:
    html = (
        f'<a href="/1/{NAME}" data-yanked="">x</a><a href="/2/{NAME}" data-yanked="bad">x</a><a href="/3/{NAME}">x</a>'
    )
    found = _offers(_serve(server, html))
    assert [(offer.url[-len(NAME) - 2], offer.yanked) for offer in found] == [("3", None), ("1", ""), ("2", "bad")]


def test_smallest_archive_comes_first(server: Server) -> None:
    large = dataclasses.replace(VOICE, file_name="voice-1.0-large.whl", data=VOICE.data + b"more")
    html = f'<a href="{large.file_name}">x</a><a href="{NAME}">x</a>'
    found = _offers(_serve(server, html), _source(large, VOICE))
    assert [offer.archive.file_name for offer in found] == [NAME, large.file_name]


def test_link_with_another_hash_is_passed_over(server: Server) -> None:
    html = f'<a href="/1/{NAME}#sha256={"0" * 64}">x</a><a href="/2/{NAME}#sha256={VOICE.sha256}">x</a>'
    (offer,) = _offers(_serve(server, html))
    assert offer.url.endswith(f"/2/{NAME}")


def test_project_name_is_normalised(server: Server) -> None:
    settings = _serve(server, f'<a href="{NAME}">x</a>', "/simple/my-voice-x/")
    assert len(_offers(settings, _source(project="My_voice..X"))) == 1


def test_places_on_this_machine_come_first(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(VOICE.data)
    settings = _serve(server, f'<a href="{NAME}">x</a>')
    settings = dataclasses.replace(settings, find_links=(str(tmp_path),))
    assert [offer.path is None for offer in _offers(settings)] == [False, True]
    with Web(settings) as web:
        first = next(offers(_source(), settings, web, lambda line: None))
    assert first.path == tmp_path / NAME
    assert len(server.requests) == 1, "asked by the whole list above, not where the first place has it"


@pytest.mark.parametrize("kind", ["folder", "file", "page", "address", "home"])
def test_find_links(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / NAME).write_bytes(VOICE.data)
    (tmp_path / "page.html").write_text(f'<a href="a%20b/{NAME}">x</a>')
    entries = {
        "folder": str(folder),
        "file": str(folder / NAME),
        "page": str(tmp_path / "page.html"),
        "address": folder.as_uri(),
        "home": "~/a b",  # the tests' home is tmp_path
    }
    (offer,) = _offers(PipSettings(index_urls=(), find_links=(entries[kind],)))
    assert offer.path == folder / NAME


def test_find_links_page_on_a_server(server: Server) -> None:
    settings = _serve(server, f'<a href="f/{NAME}">x</a>', "/wheels.html")
    settings = dataclasses.replace(settings, index_urls=(), find_links=(f"{server.url}/wheels.html",))
    (offer,) = _offers(settings)
    assert offer.url == f"{server.url}/f/{NAME}"


def test_file_index_with_and_without_pages(tmp_path: Path) -> None:
    for index in ("with", "without"):
        (tmp_path / index / "voice").mkdir(parents=True)
        (tmp_path / index / "voice" / NAME).write_bytes(VOICE.data)
    (tmp_path / "with" / "voice" / "index.html").write_text(f'<a href="{NAME}#sha256={VOICE.sha256}">x</a>')
    urls = tuple((tmp_path / index).as_uri() for index in ("with", "without", "neither"))
    found = _offers(PipSettings(index_urls=urls))
    assert [offer.path for offer in found] == [tmp_path / index / "voice" / NAME for index in ("with", "without")]


def test_nowhere_at_all() -> None:
    with pytest.raises(
        WebError, match=r"no package index has voice==1\.0 \(looked at nowhere: pip's no-index is set\)"
    ):
        _offers(PipSettings(index_urls=()))


def test_failure_of_a_place_is_told_only_where_no_other_has_it(server: Server, tmp_path: Path) -> None:
    dead = PipSettings(index_urls=("http://127.0.0.1:9/simple",))
    with pytest.raises(WebError, match="cannot be reached"):
        _offers(dead)
    with pytest.raises(WebError, match="cannot be reached"):
        _offers(dataclasses.replace(dead, find_links=(str(tmp_path),)))
    good = _serve(server, f'<a href="{NAME}">x</a>')
    assert len(_offers(dataclasses.replace(good, index_urls=(*dead.index_urls, *good.index_urls)))) == 1
