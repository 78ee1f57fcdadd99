"""Who may hold how many pages of the arena: per session, per persona, and all together.

Admission is arithmetic on a few integers, so it is exact and takes microseconds. Whoever is refused is told which limit
and how much it leaves; what to evict is the arena's decision, for which `over_soft` lists the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.errors import GpuError


@dataclass(frozen=True, slots=True)
class Quota:
    """Pages. Below `soft_pages` a session or persona is left alone; above `hard_pages` it gets nothing."""

    soft_pages: int
    hard_pages: int

    def __post_init__(self) -> None:
        if not 0 <= self.soft_pages <= self.hard_pages:
            raise GpuError(
                f"A quota of {self.soft_pages} to {self.hard_pages} pages is none", fix="Give 0 <= soft <= hard"
            )


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer. `left_pages` is what the tightest limit still leaves, whether or not it was granted."""

    granted: bool
    limit: str
    """`session`, `persona` or `arena`: the tightest one."""
    left_pages: int


@dataclass(slots=True)
class _Session:
    persona: str
    quota: Quota
    pages: int = 0


@dataclass(slots=True)
class _Persona:
    quota: Quota
    pages: int = 0
    sessions: set[str] = field(default_factory=set)


class QuotaBook:
    """Counts pages. Not thread-safe: the arena's owner asks."""

    def __init__(self, arena_pages: int, *, session: Quota, persona: Quota) -> None:
        """`session` and `persona` are the quotas of those that bring none of their own."""
        if arena_pages < 1:
            raise GpuError("An arena without pages has nothing to grant", fix="Plan with more memory")
        self.arena_pages = arena_pages
        self._default_session, self._default_persona = session, persona
        self._held = 0
        self._sessions: dict[str, _Session] = {}
        self._personas: dict[str, _Persona] = {}

    @property
    def held_pages(self) -> int:
        """All sessions together."""
        return self._held

    def open(self, session: str, persona: str, pages: int = 0, quota: Quota | None = None) -> Admission:
        """Admit a new session with its first pages; it exists only where they were granted."""
        if session in self._sessions:
            raise GpuError(f"Session {session} is open already", fix="Close it first")
        entry = _Session(persona, quota or self._default_session)
        group = self._personas.get(persona) or _Persona(self._default_persona)
        answer = self._ask(entry, group, pages)
        if answer.granted:
            self._sessions[session] = entry
            self._personas[persona] = group
            group.sessions.add(session)
            self._count(entry, group, pages)
        return answer

    def grow(self, session: str, pages: int) -> Admission:
        """Grant more pages, or refuse and change nothing."""
        entry, group = self._entry(session)
        answer = self._ask(entry, group, pages)
        if answer.granted:
            self._count(entry, group, pages)
        return answer

    def shrink(self, session: str, pages: int) -> None:
        """The session gave pages back. GpuError where it does not hold as many."""
        entry, group = self._entry(session)
        if not 0 <= pages <= entry.pages:
            raise GpuError(f"Session {session} holds {entry.pages} pages, not {pages}", fix="This is a bug; report it")
        self._count(entry, group, -pages)

    def close(self, session: str) -> None:
        """The session and all of its pages are gone."""
        entry, group = self._entry(session)
        self._count(entry, group, -entry.pages)
        group.sessions.remove(session)
        del self._sessions[session]
        if not group.sessions and group.quota is self._default_persona:
            del self._personas[entry.persona]

    def limit_persona(self, persona: str, quota: Quota) -> None:
        """Give a persona a quota of its own. What it holds already it keeps."""
        self._personas.setdefault(persona, _Persona(quota)).quota = quota

    def over_soft(self) -> list[tuple[str, int]]:
        """(session, pages above what it is left alone with), most first: its own excess or its persona's."""
        found = []
        for name, entry in self._sessions.items():
            group = self._personas[entry.persona]
            own = entry.pages - entry.quota.soft_pages
            shared = min(entry.pages, group.pages - group.quota.soft_pages)
            excess = max(own, shared)
            if excess > 0:
                found.append((name, excess))
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))

    def check(self) -> None:
        """GpuError where the counts do not add up."""
        by_session = sum(entry.pages for entry in self._sessions.values())
        by_persona = sum(group.pages for group in self._personas.values())
        if not by_session == by_persona == self._held or self._held > self.arena_pages:
            raise GpuError(
                f"Quotas: {by_session} pages of sessions, {by_persona} of personas, {self._held} held",
                fix="This is a bug; report it",
            )

    def _ask(self, entry: _Session, group: _Persona, pages: int) -> Admission:
        left, limit = min(
            (self.arena_pages - self._held, "arena"),
            (entry.quota.hard_pages - entry.pages, "session"),
            (group.quota.hard_pages - group.pages, "persona"),
        )
        return Admission(0 <= pages <= left, limit, max(0, left))

    def _count(self, entry: _Session, group: _Persona, pages: int) -> None:
        entry.pages += pages
        group.pages += pages
        self._held += pages

    def _entry(self, session: str) -> tuple[_Session, _Persona]:
        entry = self._sessions.get(session)
        if entry is None:
            raise GpuError(f"There is no session {session}", fix="Open it first")
        return entry, self._personas[entry.persona]
