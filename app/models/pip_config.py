"""Reads the user's pip configuration, without pip: where packages come from and how to get there.

The files, their order and the `PIP_*` variables are pip's (`pip config debug` lists them): system, user, environment's
own, `PIP_CONFIG_FILE`, then variables; the section [download] wins over [global]. Settings that say how to choose or
install packages do not matter here: a file is fixed by its name and SHA-256.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import ModelStoreError

PUBLIC_INDEX = "https://pypi.org/simple"
_SECTIONS = ("global", "download")
_ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_TIMEOUT_S = 15.0
_RETRIES = 4
_TRUE, _FALSE = ("1", "y", "yes", "t", "true", "on"), ("0", "n", "no", "f", "false", "off")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What of pip's configuration concerns a download."""

    index_urls: tuple[str, ...] = (PUBLIC_INDEX,)
    """http, https or file; the main one first. Empty with `no-index`."""
    find_links: tuple[str, ...] = ()
    """Folders, pages or files, as paths or addresses."""
    trusted_hosts: tuple[str, ...] = ()
    """`host` or `host:port` whose certificate is not checked."""
    proxy: str = ""
    cert: str = ""
    """Bundle of certificates; "": the system's."""
    timeout_s: float = _TIMEOUT_S
    retries: int = _RETRIES


@dataclass(frozen=True, slots=True)
class _Value:
    text: str
    origin: str
    """Where it stands, for messages: `PIP_PROXY`, `/etc/pip.conf: proxy`."""


def read_pip_settings(env: Mapping[str, str]) -> PipSettings:
    """The settings of this user on this machine.

    Raises:
        ModelStoreError: a file cannot be read, or a setting cannot be followed; the message names it.
    """
    values = _gather(env)
    _refuse_what_we_cannot(values)
    is_without_index = "no-index" in values and _truth(values["no-index"])
    indexes = [_index(value) for key in ("index-url", "extra-index-url") for value in _words(values, key)]
    if "index-url" not in values:
        indexes.insert(0, PUBLIC_INDEX)
    return PipSettings(
        index_urls=() if is_without_index else tuple(dict.fromkeys(indexes)),
        find_links=tuple(value.text for value in _words(values, "find-links")),
        trusted_hosts=tuple(value.text for value in _words(values, "trusted-host")),
        proxy=values["proxy"].text if "proxy" in values else "",
        cert=_cert(values["cert"]) if "cert" in values else "",
        timeout_s=_number(values["timeout"]) if "timeout" in values else _TIMEOUT_S,
        retries=int(_number(values["retries"])) if "retries" in values else _RETRIES,
    )


def _gather(env: Mapping[str, str]) -> dict[str, _Value]:
    """Every setting by its long name. An empty value counts as not set, as with pip."""
    files = [(path, _parse(path)) for path in _config_files(env) if path.is_file()]
    values: dict[str, _Value] = {}
    for section in _SECTIONS:
        for path, parser in files:
            for key, text in parser.items(section) if parser.has_section(section) else ():
                if text:
                    values[_long_name(key)] = _Value(text.strip(), f"{path}: {key}")
    for name, text in env.items():
        if name.startswith("PIP_") and text:
            values[_long_name(name.removeprefix("PIP_"))] = _Value(text.strip(), name)
    return values


def _config_files(env: Mapping[str, str]) -> Iterator[Path]:
    """Lowest precedence first. `PIP_CONFIG_FILE` replaces the user's own; the null device means none at all."""
    named = env.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(env.get("HOME") or Path.home())
    if os.name == "nt":
        system = [Path(env.get("PROGRAMDATA", "C:/ProgramData")) / "pip"]
        user = [home / "pip", Path(env.get("APPDATA") or home / "AppData/Roaming") / "pip"]
        name = "pip.ini"
    else:
        xdg = (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
        system = [*(Path(folder) / "pip" for folder in xdg), Path("/etc")]
        user = [home / ".pip", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip"]
        name = "pip.conf"
    if not (named and Path(named).exists()):
        system += user
    yield from (folder / name for folder in (*system, Path(sys.prefix)))
    if named:
        yield Path(named)


def _parse(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        reason = str(error).splitlines()[0]
        raise ModelStoreError(f"Cannot read the pip configuration {path}: {reason}", fix="Mend it") from error
    return parser


def _long_name(key: str) -> str:
    name = key.lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(name, name)


def _refuse_what_we_cannot(values: Mapping[str, _Value]) -> None:
    """Settings without which the user's way to the index does not work, and that we cannot follow."""
    if "client-cert" in values:
        raise _refusal(values["client-cert"], "client certificates are not supported", "Unset it, or use find-links")
    keyring = values.get("keyring-provider")
    if keyring and keyring.text not in ("auto", "disabled"):
        raise _refusal(
            keyring, "keyrings are not supported", "Put user and password into the index address or ~/.netrc"
        )
    proxy = values.get("proxy")
    if proxy and urlsplit(proxy.text).scheme.startswith("socks"):
        raise _refusal(proxy, "SOCKS proxies are not supported", "Name an HTTP proxy")


def _refusal(value: _Value, reason: str, fix: str) -> ModelStoreError:
    return ModelStoreError(f"Cannot follow the pip setting {value.origin}: {reason}", fix=fix)


def _words(values: Mapping[str, _Value], key: str) -> list[_Value]:
    value = values.get(key)
    return [_Value(word, value.origin) for word in value.text.split()] if value else []


def _index(value: _Value) -> str:
    if urlsplit(value.text).scheme not in ("http", "https", "file"):
        raise _refusal(value, "an index is http, https or file", "Write the whole address, as in https://host/simple")
    return value.text


def _cert(value: _Value) -> str:
    path = os.path.expanduser(value.text)
    if not os.path.exists(path):
        raise _refusal(value, f"there is no {path}", "Name a file of certificates")
    return path


def _number(value: _Value) -> float:
    try:
        number = float(value.text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise _refusal(value, f"{value.text!r} is no number of 0 or more", "Mend it")
    return number


def _truth(value: _Value) -> bool:
    if value.text.lower() not in _TRUE + _FALSE:
        raise _refusal(value, f"{value.text!r} is neither yes nor no", "Mend it")
    return value.text.lower() in _TRUE
