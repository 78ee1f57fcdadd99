"""The user's pip configuration is read as pip reads it, and what cannot be followed is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.errors import ModelStoreError
from app.models.pip_config import PUBLIC_INDEX, PipSettings, read_pip_settings


def _user_file(home: Path, text: str) -> dict[str, str]:
    """An environment whose user has this pip.conf; the files of this machine are out of sight."""
    path = home / "config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return {"PIP_CONFIG_FILE": str(path)}


def test_nothing_configured_means_the_public_index() -> None:
    assert read_pip_settings({"PIP_CONFIG_FILE": os.devnull}) == PipSettings()
    assert PipSettings().index_urls == (PUBLIC_INDEX,)


def test_every_setting(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    env = _user_file(
        tmp_path,
        "[global]\nindex-url = https://main/simple\nextra_index_url = https://one/simple\n  file:///two/simple\n"
        f"find-links = /wheels ~/more\ntrusted-host = one two:8080\nproxy = http://p:3128\ncert = {tmp_path}/ca.pem\n"
        "timeout = 60\nretries = 1\nconstraint = ignored.txt\nquiet = 1\n",
    )
    assert read_pip_settings(env) == PipSettings(
        index_urls=("https://main/simple", "https://one/simple", "file:///two/simple"),
        find_links=("/wheels", "~/more"),
        trusted_hosts=("one", "two:8080"),
        proxy="http://p:3128",
        cert=f"{tmp_path}/ca.pem",
        timeout_s=60.0,
        retries=1,
    )


def test_variables_win_over_files_and_download_over_global(tmp_path: Path) -> None:
    env = _user_file(tmp_path, "[download]\ntimeout = 20\nretries = 2\n[global]\ntimeout = 10\nproxy = http://p\n")
    settings = read_pip_settings({**env, "PIP_RETRIES": "7", "PIP_PROXY": ""})
    assert (settings.timeout_s, settings.retries, settings.proxy) == (20.0, 7, "http://p")


def test_user_file_is_found_below_home_and_replaced_by_the_named_one(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text("[global]\nindex-url = https://user/simple\n")
    home = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    assert read_pip_settings(home).index_urls[0] == "https://user/simple"
    named = _user_file(tmp_path, "[global]\nretries = 9\n")
    settings = read_pip_settings({**home, **named})
    assert settings.retries == 9
    assert "https://user/simple" not in settings.index_urls


def test_no_index_leaves_find_links_only() -> None:
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "yes", "PIP_EXTRA_INDEX_URL": "https://x/simple"}
    assert read_pip_settings(env).index_urls == ()
    assert read_pip_settings({**env, "PIP_NO_INDEX": "0"}).index_urls == (PUBLIC_INDEX, "https://x/simple")


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("PIP_CLIENT_CERT", "/c.pem", "PIP_CLIENT_CERT: client certificates are not supported"),
        ("PIP_KEYRING_PROVIDER", "subprocess", "PIP_KEYRING_PROVIDER: keyrings are not supported"),
        ("PIP_PROXY", "socks5://h:1", "PIP_PROXY: SOCKS proxies are not supported"),
        ("PIP_INDEX_URL", "ftp://h/simple", "PIP_INDEX_URL: an index is http, https or file"),
        ("PIP_EXTRA_INDEX_URL", "pypi.org/simple", "PIP_EXTRA_INDEX_URL: an index is http, https or file"),
        ("PIP_CERT", "/none.pem", r"PIP_CERT: there is no /none\.pem"),
        ("PIP_TIMEOUT", "soon", "PIP_TIMEOUT: 'soon' is no number"),
        ("PIP_DEFAULT_TIMEOUT", "-1", "PIP_DEFAULT_TIMEOUT: '-1' is no number"),
        ("PIP_RETRIES", "nan", "PIP_RETRIES: 'nan' is no number"),
        ("PIP_NO_INDEX", "maybe", "PIP_NO_INDEX: 'maybe' is neither yes nor no"),
    ],
)
def test_setting_that_cannot_be_followed_is_named(name: str, value: str, part: str) -> None:
    with pytest.raises(ModelStoreError, match=f"Cannot follow the pip setting {part}") as caught:
        read_pip_settings({"PIP_CONFIG_FILE": os.devnull, name: value})
    assert caught.value.fix


def test_setting_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    env = _user_file(tmp_path, "[global]\nclient-cert = /c.pem\n")
    with pytest.raises(ModelStoreError, match=r"pip\.conf: client-cert: client certificates"):
        read_pip_settings(env)


def test_keyring_that_pip_would_only_use_if_there_is_one_does_not_matter() -> None:
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_KEYRING_PROVIDER": "auto"}
    assert read_pip_settings(env) == PipSettings()


@pytest.mark.parametrize("data", [b"index-url = x\n", b"[global]\nproxy = \xff\n"])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes) -> None:
    env = _user_file(tmp_path, "")
    Path(env["PIP_CONFIG_FILE"]).write_bytes(data)
    with pytest.raises(ModelStoreError, match=r"Cannot read the pip configuration .*pip\.conf"):
        read_pip_settings(env)


def test_pip_itself_reads_the_same(tmp_path: Path) -> None:
    """`pip config list` is the reference, where this Python has a pip."""
    env = {**os.environ, **_user_file(tmp_path, "[global]\nindex-url = https://a/simple\nfind-links = /x /y\n")}
    env["PIP_RETRIES"] = "6"
    command = [sys.executable, "-m", "pip", "config", "list"]
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if answer.returncode:
        pytest.skip("there is no pip here")
    listed = dict(line.replace("'", "").split("=", 1) for line in answer.stdout.splitlines())
    settings = read_pip_settings(env)
    assert listed["global.index-url"] == settings.index_urls[0]
    assert tuple(listed["global.find-links"].split()) == settings.find_links
    assert int(listed[":env:.retries"]) == settings.retries
