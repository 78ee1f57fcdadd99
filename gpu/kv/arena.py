"""The KV arena: sessions over pages that come when they are needed, within a budget.

Every session has one contiguous range of virtual addresses for all it may ever hold; physical pages are committed
ahead of its write position. So nothing is copied when it grows, views and captured graphs stay valid, and attention
reads the live rows as plain strided tensors.

One thread decodes; the watermark thread only commits pages, under the arena's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, overload

from gpu.errors import GpuError
from gpu.kv.backends import BackendName, open_backend
from gpu.kv.codes import Workspace
from gpu.kv.pager import Pager
from gpu.kv.pages import PageBackend, PagesError
from gpu.kv.prefix import Prefix, PrefixStore
from gpu.kv.quantised import QuantisedSession, open_quantised
from gpu.kv.quota import Quota
from gpu.kv.quota import QuotaError as QuotaError
from gpu.kv.session import Session
from gpu.kv.spec import ArenaSpec as ArenaSpec
from gpu.kv.watermark import WatermarkThread
from gpu.kv.window import WindowSession, WindowSpec

if TYPE_CHECKING:
    from typing import Literal


_AHEAD_TOKENS = 32
"""A token takes half a millisecond or more, the thread a few to map a page."""
AnySession = TypeVar("AnySession", bound=Session)


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """The arena now. Pages are physical; what is shared counts once."""

    backend: str
    page_bytes: int
    sessions: int
    prefixes: int
    parked_sessions: int
    pages_in_use: int
    resident_bytes: int
    """What the device or the system really holds for pages: on `host` what was touched, on `plain` all of its block."""
    budget_pages: int | None
    reserved_bytes: int
    """Virtual: what the open sessions may grow to."""
    live_tokens: int
    shared_pages: int
    """Pages that show in more than one session."""
    outruns: int
    """Appends that had to commit a page themselves."""
    copies: int
    """Shared pages that were copied because somebody wrote into them."""
    trimmed_pages: int
    """Committed ahead and given back for others, like the next three."""
    shrunk_sessions: int
    sent_to_host: int
    dropped_prefixes: int

    @property
    def used_bytes(self) -> int:
        """Bytes of physical pages."""
        return self.pages_in_use * self.page_bytes


class Arena:
    """Hands out sessions and knows what they cost."""

    def __init__(
        self,
        spec: ArenaSpec,
        backend: PageBackend,
        *,
        budget_bytes: int | None,
        ahead_bytes: int | None,
        threaded: bool,
    ) -> None:
        """Use `Arena.open`."""
        self.spec = spec
        self.backend = backend
        self.reason = ""
        """Why the backend is not the best of its device, or ""."""
        self.lock = threading.RLock()
        self.outruns = 0
        self.copies = 0
        self._ahead_bytes = min(backend.page_bytes // 2, _AHEAD_TOKENS * spec.row_bytes)
        if ahead_bytes is not None:
            self._ahead_bytes = ahead_bytes
        self.prefixes = PrefixStore(self)
        self._workspace = None if spec.body is None else Workspace(spec)
        self._sessions: list[Session] = []
        self.quota = Quota(backend, budget_bytes, lambda: self._sessions, self.prefixes)
        self._clock = 0
        self._asleep = False
        self._watermark = WatermarkThread(self) if threaded else None

    @classmethod
    def open(
        cls,
        spec: ArenaSpec,
        budget_bytes: int | None = None,
        backend: BackendName = "auto",
        *,
        page_bytes: int | None = None,
        ahead_bytes: int | None = None,
        watermark: Literal["auto", "thread", "inline"] = "auto",
    ) -> Arena:
        """Open an arena for sessions of shape `spec`.

        `budget_bytes` caps the physical pages of all sessions together (None: no cap). Pages are committed until
        `ahead_bytes` behind the last row are there (None: 32 tokens, half a page at most), by a thread or, `watermark`
        "inline", by the append itself; "auto" is a thread where a page is the driver's work. Raises PagesError with
        the reason where a backend that was asked for by name is not to be had, OutOfPagesError where the budget is not.
        """
        made, reason = open_backend(
            backend, spec.device, capacity_bytes=budget_bytes, page_bytes=page_bytes, row_bytes=spec.row_bytes
        )
        threaded = watermark == "thread" or (watermark == "auto" and made.name == "vmm")
        arena = cls(spec, made, budget_bytes=budget_bytes, ahead_bytes=ahead_bytes, threaded=threaded)
        arena.reason = reason
        return arena

    @overload
    def session(
        self,
        *,
        prefix: Prefix | None = ...,
        tokens: int | None = ...,
        owner: str = ...,
        quota_bytes: int | None = ...,
    ) -> Session: ...
    @overload
    def session(
        self,
        *,
        window: WindowSpec,
        prefix: Prefix | None = ...,
        tokens: int | None = ...,
        owner: str = ...,
        quota_bytes: int | None = ...,
    ) -> WindowSession: ...
    def session(
        self,
        *,
        window: WindowSpec | None = None,
        prefix: Prefix | None = None,
        tokens: int | None = None,
        owner: str = "",
        quota_bytes: int | None = None,
    ) -> Session:
        """A new session of `spec.positions` rows, or an endless one with a `window`. An empty one costs one page.

        Where `spec.body` says so its middle is quantised: such a session costs two pages, and has no window.
        It begins with the first `tokens` (None: all) of `prefix`, whose whole pages it shares. Raises QuotaError
        where the budget has no page left, OutOfPagesError where the device has none.
        """
        if self._asleep:
            raise GpuError("KV arena: it sleeps", fix="Call Arena.wake() first")
        if window is not None and self.spec.body is not None:
            raise GpuError("KV arena: an endless session has no quantised body", fix="Open the arena without a body")
        pager = self._pager(window, owner=owner, quota_bytes=quota_bytes)
        count = 0 if prefix is None else len(prefix.ids) if tokens is None else tokens
        try:
            with self.prefixes.held(prefix):
                made = self._begin(pager, window, prefix, count)
        except GpuError:
            pager.close()
            raise
        if prefix is not None:
            self.prefixes.used(prefix, made)
        return self.enlist(made)

    def freeze(self, session: Session, tokens: int) -> Session:
        """The first `tokens` of a session as one that only `prefixes` holds. GpuError where they are not all there."""
        if session.position != session.length or not 0 < tokens <= session.length:
            raise GpuError(
                f"KV prefix: {tokens} tokens of a session that holds {session.length} of {session.position}",
                fix="Add a prefix right after it was computed",
            )
        rows = tokens if self.spec.body is None else self.spec.body.exact_rows(tokens)
        pages = -(-rows * self.spec.row_bytes // self.backend.page_bytes)
        with self.lock:
            pager = Pager(self, self.backend, pages)
        return self.enlist(self._share(pager, session, tokens, rows=tokens))

    def fork(self, session: Session, position: int) -> Session:
        """As `Session.fork`."""
        with _busy(session):
            return self.enlist(session.fork_into(session.pager.like(), position))

    def set_quota(self, owner: str, quota_bytes: int | None) -> None:
        """Limit what all sessions of `owner` (a persona) hold together; None takes the limit away."""
        self.quota.set_owner(owner, quota_bytes)

    def memory_bytes(self) -> int:
        """Bytes that the open sessions may grow to, and of the workspace; `stats().used_bytes`: what they have now."""
        working = 0 if self._workspace is None else self._workspace.memory_bytes()
        return working + sum(session.memory_bytes() for session in self.whole_sessions())

    def stats(self) -> ArenaStats:
        """What there is now."""
        with self.lock:
            pages = {id(p): p for r in self.backend.ranges.values() for p in r.slots if p is not None}
            shared = sum(len({number for number, _ in page.mappings}) > 1 for page in pages.values())
            prefixes = len(list(self.prefixes.entries()))
            return ArenaStats(
                backend=self.backend.name,
                page_bytes=self.backend.page_bytes,
                sessions=len(self.whole_sessions()) - prefixes,
                prefixes=prefixes,
                parked_sessions=sum(session.is_parked for session in self.whole_sessions()),
                pages_in_use=self.backend.pages_in_use,
                resident_bytes=self.backend.resident_bytes(),
                budget_pages=self.quota.budget_pages,
                reserved_bytes=self.memory_bytes(),
                live_tokens=sum(session.length for session in self.whole_sessions()),
                shared_pages=shared,
                outruns=self.outruns,
                copies=self.copies,
                trimmed_pages=self.quota.evictions.trimmed_pages,
                shrunk_sessions=self.quota.evictions.shrunk_sessions,
                sent_to_host=self.quota.evictions.parked_sessions,
                dropped_prefixes=self.quota.evictions.dropped_prefixes,
            )

    def check(self) -> None:
        """Verify every invariant; raises GpuError with what is wrong."""
        with self.lock:
            broken = self.backend.check() + self.prefixes.check()
            for session in self._sessions:
                session.check()
            budget = self.quota.budget_pages
            if budget is not None and self.backend.pages_in_use > budget:
                broken.append(f"{self.backend.pages_in_use} pages exist, the budget is {budget}")
        if broken:
            raise GpuError(f"KV arena invariants broken: {'; '.join(broken)}", fix="This is a bug; report it")

    def sleep(self) -> int:
        """Move every page's content to the host and give the pages back; returns how many. Views stay valid.

        Until `wake` the sessions refuse to be used.
        """
        with self.lock:
            for session in self._sessions:
                session.set_asleep(True)
            self._asleep = True
            return self.backend.sleep(list(self.backend.ranges.values()))

    def wake(self) -> int:
        """Bring everything back that `sleep` moved, at the same addresses; returns how many pages.

        Raises OutOfPagesError, with everything still asleep, where the memory has gone elsewhere.
        """
        with self.lock:
            parked = {session.pager.range.number for session in self._sessions if session.is_parked}
            ranges = [r for r in self.backend.ranges.values() if r.number not in parked]
            pages = self.backend.wake(ranges)
            for session in self._sessions:
                session.set_asleep(False)
            self._asleep = False
            return pages

    def close(self) -> None:
        """Close every session and give the memory back."""
        if self._watermark is not None:
            self._watermark.stop()
        for session in list(self._sessions):
            session.close()
        self.backend.close()

    # What sessions and pagers call.

    def enlist(self, session: AnySession) -> AnySession:
        """Take a new session into the books; returns it."""
        with self.lock:
            self._clock += 1
            session.last_used = self._clock
            self._sessions.append(session)
        return session

    def codes_pager(self, pager: Pager, spec: ArenaSpec) -> Pager:
        """For the codes of the session whose own rows are in `pager`: one owner and one quota for both."""
        pages = -(-spec.positions * spec.row_bytes // self.backend.page_bytes)
        with self.lock:
            made = Pager(self, self.backend, pages, owner=pager.owner, quota_pages=pager.quota_pages)
        made.beside, pager.beside = pager, made
        return made

    def used(self, session: Session) -> None:
        """A session was appended to."""
        self._clock += 1
        session.last_used = self._clock
        if session.pager.lags(session.written_bytes(), self._ahead_bytes):
            if self._watermark is not None:
                self._watermark.wake()
            else:
                self._ahead(session)

    def closed(self, session: Session) -> None:
        """A session was closed."""
        with self.lock:
            self._sessions.remove(session)
            self.prefixes.released(session)

    def admits(self, pager: Pager, pages: int) -> bool:
        """Whether `pages` more fit as things are."""
        return not self.quota.obstacle(pager, pages)

    def admit(self, pager: Pager, pages: int) -> None:
        """Make room for `pages` more, evicting where that is needed; QuotaError where there is none."""
        self.quota.make_room(pager, pages)

    def relieve(self, pager: Pager, pages: int) -> bool:
        """The device has no memory for `pages`: evict as many; False where that was not possible."""
        return self.quota.relieve(pager, pages)

    def enter_thread(self) -> None:
        """The watermark thread starts."""
        self.backend.enter_thread()

    def commit_ahead(self) -> None:
        """Commit pages for every session that comes near the end of its own."""
        with self.lock:
            for session in list(self._sessions):
                if not self._asleep and not session.is_parked:
                    self._ahead(session)

    def whole_sessions(self) -> list[Session]:
        """The sessions without those that are parts of another one."""
        return [session for session in self._sessions if not session.is_part]

    def _ahead(self, session: Session) -> None:
        try:
            session.pager.ahead(session.written_bytes(), self._ahead_bytes)
        except PagesError:
            return  # the append that needs the page will say so

    def _pager(self, window: WindowSpec | None, *, owner: str, quota_bytes: int | None) -> Pager:
        size, row_bytes = self.backend.page_bytes, self.spec.row_bytes
        rows = self.spec.positions if self.spec.body is None else self.spec.body.exact_rows(self.spec.positions)
        rows = rows if window is None else window.ring_rows(self.spec, size)
        store_rows = 0 if window is None else window.sinks + window.undo_rows
        with self.lock:
            return Pager(
                self,
                self.backend,
                -(-rows * row_bytes // size),
                mirrored=window is not None,
                store_pages=-(-store_rows * row_bytes // size),
                owner=owner,
                quota_pages=None if quota_bytes is None else quota_bytes // size,
            )

    def _begin(self, pager: Pager, window: WindowSpec | None, prefix: Prefix | None, tokens: int) -> Session:
        if prefix is not None and window is not None and tokens > window.sinks + window.window:
            pager.commit_to(1)
            endless = WindowSession(self, pager, window)
            endless.copy_first(prefix.session, tokens)
            return endless
        if prefix is not None and tokens:
            return self._share(pager, prefix.session, tokens, rows=self.spec.positions, window=window)
        pager.commit_to(1)
        if self._workspace is not None:
            return open_quantised(self, pager, self._workspace)
        return Session(self, pager, self.spec.positions) if window is None else WindowSession(self, pager, window)

    def _share(
        self, pager: Pager, source: Session, tokens: int, *, rows: int, window: WindowSpec | None = None
    ) -> Session:
        try:
            with _busy(source):
                source.use()
                if isinstance(source, QuantisedSession):
                    return source.fork_as(pager, tokens, replace(self.spec, positions=rows))
                pager.share_from(source.pager, tokens * self.spec.row_bytes)
        except GpuError:
            pager.close()
            raise
        made = Session(self, pager, rows) if window is None else WindowSession(self, pager, window)
        made.restore_state({**made.state(), "length": tokens})
        return made


@contextmanager
def _busy(session: Session) -> Iterator[None]:
    """Making room for a copy must not evict what is copied."""
    idle, session.idle = session.idle, False
    try:
        yield
    finally:
        session.idle = idle
