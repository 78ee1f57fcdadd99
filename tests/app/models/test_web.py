"""On the user's terms: their proxy, passwords and certificates are used, and never shown."""

from __future__ import annotations

import dataclasses
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from model_rig import Fetching, Server, pack, row, running_server, status

Online = Callable[..., Fetching]
FILE = "/files/voice-1.0-py3-none-any.whl"
PAGE = "/simple/voice/"


def test_proxy_of_the_pip_configuration(server: Server, online: Online) -> None:
    given = online("voice", PIP_PROXY=server.url)
    given.env["PIP_INDEX_URL"] = "http://index.invalid/simple"
    assert given.run() == ["voice"]
    assert {headers["host"] for _, headers in server.requests} == {"index.invalid"}


def test_proxy_of_the_environment(server: Server, online: Online, monkeypatch: pytest.MonkeyPatch) -> None:
    given = online("voice")
    given.env["PIP_INDEX_URL"] = "http://index.invalid/simple"
    monkeypatch.setenv("http_proxy", server.url)
    assert given.run() == ["voice"]


def test_proxy_that_is_not_there(online: Online) -> None:
    given = online("voice", PIP_PROXY="http://127.0.0.1:9", PIP_RETRIES="0")
    given.refused("the proxy on the way to 127.0.0.1 does not serve")


def test_password_goes_to_the_index_and_is_never_printed(server: Server, online: Online) -> None:
    given = online("voice")
    given.env["PIP_INDEX_URL"] = f"{server.url.replace('//', '//anna:s%40cret@')}/simple"
    server.files[PAGE] = server.files[PAGE].replace(b"../../files", f"{server.url}/files".encode())
    server.answers[FILE] = [status(401)]
    error = given.refused("wants credentials")
    assert {headers["authorization"] for _, headers in server.requests} == {"Basic YW5uYTpzQGNyZXQ="}
    assert "cret" not in str(error) + given.printed


def test_netrc(server: Server, online: Online, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login anna password s@cret\n")
    given = online("voice")
    assert given.run() == ["voice"]
    assert {headers["authorization"] for _, headers in server.requests} == {"Basic YW5uYTpzQGNyZXQ="}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) that no system trusts, for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
               "-keyout", str(key), "-out", str(certificate)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_certificates(certificate: tuple[Path, Path], fetching: Callable[..., Fetching]) -> None:
    """Not trusted: refused. Named by `cert`, or the host by `trusted-host`: fetched."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with running_server(context) as server:
        packed = pack("voice")
        server.publish(packed)
        given = fetching(row("voice", packed), PIP_INDEX_URL=f"{server.url}/simple")
        error = given.refused(r"the certificate of 127\.0\.0\.1 is not trusted")
        assert error.is_permanent
        for setting in ({"PIP_CERT": str(certificate[0])}, {"PIP_TRUSTED_HOST": "127.0.0.1"}):
            chosen = dataclasses.replace(given, env={**given.env, **setting})
            assert chosen.run() == ["voice"]
            given.store.remove("voice")
