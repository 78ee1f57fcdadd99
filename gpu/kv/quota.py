"""Who may have how many pages, and who gives some up: the arithmetic of admission, exact and without the device.

Where there is no room, in this order: idle sessions give back what they committed ahead and shrink (endless ones
their window, plain ones by their policy), idle sessions go to the host, prefixes that nobody uses are forgotten, and
then the request is refused. Among several, whoever was not used for longest goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpu.kv.pager import Pager
from gpu.kv.pages import PageBackend, PagesError
from gpu.kv.policies import evict
from gpu.kv.prefix import PrefixStore
from gpu.kv.session import Session
from gpu.kv.window import WindowSession

_SMALLEST_WINDOW = 64
_RECENT = 64


class QuotaError(PagesError):
    """A session's, an owner's or the arena's budget has no room, after everything that may be evicted was."""

    is_permanent = False


@dataclass(slots=True)
class Evictions:
    """What was given up for others, counted."""

    trimmed_pages: int = 0
    shrunk_sessions: int = 0
    parked_sessions: int = 0
    dropped_prefixes: int = 0


class Quota:
    """The budget of an arena's backend, divided among owners."""

    def __init__(
        self,
        backend: PageBackend,
        budget_bytes: int | None,
        sessions: Callable[[], Sequence[Session]],
        prefixes: PrefixStore,
    ) -> None:
        self.budget_pages = None if budget_bytes is None else budget_bytes // backend.page_bytes
        self.evictions = Evictions()
        self._backend = backend
        self._sessions = sessions
        self._prefixes = prefixes
        self._owners: dict[str, int] = {}
        self._evicting = False

    def set_owner(self, owner: str, quota_bytes: int | None) -> None:
        """Limit what all sessions of `owner` hold together (None: no limit of its own)."""
        if quota_bytes is None:
            self._owners.pop(owner, None)
        else:
            self._owners[owner] = quota_bytes // self._backend.page_bytes

    def obstacle(self, pager: Pager, pages: int) -> str:
        """Why `pages` more do not fit, or ""."""
        held = pager.charged_pages + (0 if pager.beside is None else pager.beside.charged_pages)
        if pager.quota_pages is not None and held + pages > pager.quota_pages:
            return f"the session's quota of {pager.quota_pages} pages has no room for {pages} more"
        limit = self._owners.get(pager.owner)
        if limit is not None and self.owner_pages(pager.owner) + pages > limit:
            return f"the quota of {limit} pages of {pager.owner or 'nobody'} has no room for {pages} more"
        budget = self.budget_pages
        if budget is not None and self._backend.pages_in_use + pages > budget:
            left = budget - self._backend.pages_in_use
            return f"the budget of {budget} pages has {left} left, {pages} are needed"
        return ""

    def owner_pages(self, owner: str) -> int:
        """Pages that the sessions of `owner` asked for and hold."""
        return sum(session.pager.charged_pages for session in self._sessions() if session.pager.owner == owner)

    def make_room(self, pager: Pager, pages: int) -> None:
        """Evict until `pages` more fit; QuotaError, after all that may go has gone, where they do not."""
        obstacle = self.obstacle(pager, pages)
        if not obstacle:
            return
        for _ in self._evict(pager):
            obstacle = self.obstacle(pager, pages)
            if not obstacle:
                return
        raise QuotaError(f"KV arena: {obstacle}", fix="Close a session, shorten the context or raise the budget")

    def relieve(self, pager: Pager, pages: int) -> bool:
        """Evict until `pages` were given back to the device; False where that was not possible."""
        target = self._backend.pages_in_use - pages
        return any(self._backend.pages_in_use <= target for _ in self._evict(pager))

    def _evict(self, pager: Pager) -> Iterator[None]:
        """One eviction after the other, in order; stops to let the caller look. Never the asking session's."""
        if self._evicting:
            return  # what an eviction itself needs must fit
        self._evicting = True
        try:
            for step in (self._trim, self._shrink, self._park):
                for session in self._idle(pager):
                    while self._frees(step, session):
                        yield
            while self._prefixes.drop_oldest():
                self.evictions.dropped_prefixes += 1
                yield
        finally:
            self._evicting = False

    def _idle(self, pager: Pager) -> list[Session]:
        asking = (pager, pager.beside)
        found = [s for s in self._sessions() if s.idle and not s.is_parked and s.pager not in asking and not s.is_part]
        return sorted(found, key=lambda session: session.last_used)

    def _frees(self, step: Callable[[Session], bool], session: Session) -> bool:
        """Whether the step gave something up; what it needs itself and does not get means: nothing more from here."""
        try:
            return step(session)
        except PagesError:
            return False

    def _trim(self, session: Session) -> bool:
        pages = session.trim()
        self.evictions.trimmed_pages += pages
        return pages > 0

    def _shrink(self, session: Session) -> bool:
        before = session.pager.charged_pages
        if isinstance(session, WindowSession):
            window = session.shape.window // 2
            if window < _SMALLEST_WINDOW or session.pager.charged_with(session.pages_at(window)) >= before:
                return False
            session.resize(window)
        elif session.policy is not None and session.spec.body is None and session.length > 4 * _RECENT:
            evict(session, session.policy, session.length // 2, recent=_RECENT)
            session.trim()
        self.evictions.shrunk_sessions += session.pager.charged_pages < before
        return session.pager.charged_pages < before

    def _park(self, session: Session) -> bool:
        if session.is_parked or not self._backend.frees_ranges:
            return False
        pages = session.park()
        self.evictions.parked_sessions += 1
        return pages > 0
