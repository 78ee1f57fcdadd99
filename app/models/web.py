"""HTTP(S) on the user's terms: their proxy, certificates, credentials, time limits. Every failure is one sentence.

`requests` does the protocol. It is slow to import: whoever needs this module imports it late.
"""

from __future__ import annotations

import ssl
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
import truststore
import urllib3
from requests.adapters import HTTPAdapter

from app.models.pip_config import PipSettings
from app.version import VERSION

_CHUNK_BYTES = 1 << 18
_LARGEST_PAGE_BYTES = 64 << 20
_MOST_REDIRECTS = 10
_SLOWEST_BYTES_PER_S = 1000
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_NETWORK_FIX = "Check the network and the proxy, then fetch again: what is here already is kept"
_BUSY_STATUSES = (408, 425, 429)


class WebError(Exception):
    """A source failed; another may serve. `reason` and `fix` make one sentence each, without a full stop."""

    def __init__(self, reason: str, *, fix: str, is_permanent: bool, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix
        self.is_permanent = is_permanent
        self.pause_s = pause_s
        """What the server asks us to wait."""


@dataclass(frozen=True, slots=True)
class Page:
    """A document and where it came from after redirects."""

    url: str
    content_type: str
    text: str


class Patience:
    """How often to try again, and how long to wait before."""

    def __init__(self, retries: int, say: Callable[[str], None]) -> None:
        self._retries = retries
        self._used = 0
        self._say = say

    def renew(self) -> None:
        """The last attempt got somewhere: count from the start."""
        self._used = 0

    def wait_or_raise(self, error: WebError) -> None:
        """Wait before the next attempt, or raise `error` where there is none."""
        if error.is_permanent or self._used >= self._retries:
            raise error
        pause_s = min(max(_FIRST_PAUSE_S * 2**self._used, error.pause_s), _LONGEST_PAUSE_S)
        self._used += 1
        self._say(f"  {error.reason}; trying again")
        time.sleep(pause_s)


class Web:
    """One session. Not for several threads."""

    def __init__(self, settings: PipSettings) -> None:
        self._settings = settings
        self._session = _open_session(settings)

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *rest: object) -> None:
        self._session.close()

    def patience(self, say: Callable[[str], None]) -> Patience:
        """For one file or page, as often as pip would try."""
        return Patience(self._settings.retries, say)

    def page(self, url: str, accept: str, say: Callable[[str], None]) -> Page:
        """A document as text. Raises WebError."""
        patience = self.patience(say)
        while True:
            try:
                with self.get(url, {"Accept": accept}) as response:
                    data = bytearray()
                    for chunk in self.chunks(response):
                        data += chunk
                        if len(data) > _LARGEST_PAGE_BYTES:
                            raise WebError(f"{without_password(url)} does not end", fix=_NETWORK_FIX, is_permanent=True)
                    content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                    return Page(response.url, content_type, data.decode("utf-8", errors="replace"))
            except WebError as error:
                patience.wait_or_raise(error)

    def get(self, url: str, headers: Mapping[str, str], *, token: str = "") -> requests.Response:
        """Ask for `url`; the body is not read yet. `token` goes to this host alone, not where it redirects to.

        Raises WebError for any answer that is not 200, 206 or 416.
        """
        settings = self._settings
        proxies = {"http": settings.proxy, "https": settings.proxy} if settings.proxy else None
        try:
            response = self._session.get(
                url,
                headers=dict(headers),
                auth=_Bearer(token) if token else None,
                stream=True,
                timeout=settings.timeout_s or None,
                proxies=proxies,
                verify=settings.cert or None,  # given here, because the environment's would win over the session's
            )
        except (OSError, ValueError) as error:  # RequestException is an OSError; a few others come through as they are
            raise _unreachable(url, error, settings) from error
        if response.status_code not in (200, 206, 416):
            response.close()
            raise _refused(url, response)
        return response

    def chunks(self, response: requests.Response) -> Iterator[bytes]:
        """The body as it comes, undecoded. Raises WebError where it is cut, stalls or only drips."""
        host, limit_s = urlsplit(response.url).hostname, self._settings.timeout_s
        began_s, received = time.monotonic(), 0
        while True:
            try:
                chunk = response.raw.read1(_CHUNK_BYTES, decode_content=False)
            except (urllib3.exceptions.TimeoutError, TimeoutError) as error:
                raise _stalled(host, limit_s) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise WebError(f"{host} cut the connection", fix=_NETWORK_FIX, is_permanent=False) from error
            if not chunk:
                return
            yield chunk
            received += len(chunk)
            passed_s = time.monotonic() - began_s
            if limit_s and passed_s > limit_s:
                if received < _SLOWEST_BYTES_PER_S * passed_s:
                    raise _stalled(host, limit_s)
                began_s, received = time.monotonic(), 0


def without_password(url: str) -> str:
    """The address as it may be printed."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class _SystemTrust(HTTPAdapter):
    """Believes the certificates that this system believes, as pip does, besides certifi's."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT), **options)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return super().proxy_manager_for(proxy, ssl_context=context, **options)


class _Unchecked(HTTPAdapter):
    """For hosts that the user trusts without a certificate."""

    def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
            return super().send(request, *arguments, **{**options, "verify": False})


def _open_session(settings: PipSettings) -> requests.Session:
    session = requests.Session()
    session.max_redirects = _MOST_REDIRECTS
    session.headers.update({"User-Agent": f"vivavoce/{VERSION}", "Accept-Encoding": "identity"})
    if not settings.cert:
        session.mount("https://", _SystemTrust())
    for host in settings.trusted_hosts:
        session.mount(f"https://{host}/", _Unchecked())
        if urlsplit(f"//{host}").port is None:
            session.mount(f"https://{host}:", _Unchecked())
    return session


class _Bearer:
    """A token as `requests` wants it: as a header it would give way to ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _stalled(host: str | None, limit_s: float) -> WebError:
    return WebError(f"{host} sent next to nothing for {limit_s:g} s", fix=_NETWORK_FIX, is_permanent=False)


def _unreachable(url: str, error: Exception, settings: PipSettings) -> WebError:
    """What `requests` raised before there was an answer."""
    host = urlsplit(url).hostname or without_password(url)
    if isinstance(error, requests.exceptions.SSLError):
        fix = "Set cert in the pip configuration to the certificates that sign it (pip config set global.cert FILE)"
        return WebError(f"the certificate of {host} is not trusted", fix=fix, is_permanent=True)
    if isinstance(error, requests.exceptions.ProxyError):
        fix = "Check proxy in the pip configuration, or HTTPS_PROXY"
        return WebError(f"the proxy on the way to {host} does not serve", fix=fix, is_permanent=False)
    if isinstance(error, requests.exceptions.TooManyRedirects):
        fix = "Check the address of the index; if it is the public one, try later"
        return WebError(f"{host} redirects in a circle", fix=fix, is_permanent=True)
    if isinstance(error, requests.exceptions.Timeout):
        return WebError(f"{host} does not answer within {settings.timeout_s:g} s", fix=_NETWORK_FIX, is_permanent=False)
    if isinstance(error, requests.exceptions.ConnectionError):
        return WebError(f"{host} cannot be reached", fix=_NETWORK_FIX, is_permanent=False)
    what = type(error).__name__ if isinstance(error, requests.RequestException) else str(error)
    reason = f"{without_password(url)} cannot be asked for ({what})"
    return WebError(reason, fix="Check addresses and certificates in the pip configuration", is_permanent=True)


def _refused(url: str, response: requests.Response) -> WebError:
    """An answer that is no file."""
    status, where = response.status_code, without_password(url)
    if status in (401, 403):
        fix = "Put user and password into the index address or ~/.netrc; for Hugging Face set HF_TOKEN"
        return WebError(f"{where} wants credentials (status {status})", fix=fix, is_permanent=True)
    if status in (404, 410):
        fix = "Fetch from another index, or report it if it is the public one"
        return WebError(f"there is no {where}", fix=fix, is_permanent=True)
    is_busy = status >= 500 or status in _BUSY_STATUSES
    pause = response.headers.get("Retry-After", "")
    return WebError(
        f"{urlsplit(url).hostname} answers with status {status}",
        fix="Try again later" if is_busy else "Check the address of the index",
        is_permanent=not is_busy,
        pause_s=float(pause) if pause.isdecimal() else 0.0,
    )
