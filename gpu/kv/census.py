"""Who holds the arena's pages now: for a map of it. Reads counts only, under the arena's lock."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.kv.arena import Arena
from gpu.kv.pager import Pager
from gpu.kv.session import Session


@dataclass(frozen=True, slots=True)
class Holder:
    """One session, or the content of one prefix."""

    pages: int
    """Physical ones that it shows."""
    shared_pages: int
    """Those of them that somebody else shows too."""
    room_pages: int
    """Pages that it may grow to."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Census:
    """The arena by holders."""

    page_bytes: int
    pages: int
    """Physical ones: what is shared counts once."""
    shared_pages: int
    parked_sessions: int
    sessions: tuple[Holder, ...]
    """The `first` one first."""
    prefixes: tuple[Holder, ...]


def census(arena: Arena, first: Session) -> Census:
    """Count. `first` is the session that the caller wants at the head of the list."""
    with arena.lock:
        held = {id(prefix.session) for prefix in arena.prefixes.entries()}
        whole = sorted(arena.whole_sessions(), key=lambda session: session is not first)
        shared = set[int]()
        holders = [(id(session) in held, _holder(session, shared)) for session in whole]
        return Census(
            page_bytes=arena.backend.page_bytes,
            pages=arena.backend.pages_in_use,
            shared_pages=len(shared),
            parked_sessions=sum(session.is_parked for session in whole),
            sessions=tuple(holder for is_prefix, holder in holders if not is_prefix),
            prefixes=tuple(holder for is_prefix, holder in holders if is_prefix),
        )


def _holder(session: Session, shared: set[int]) -> Holder:
    pagers = [pager for pager in (session.pager, session.pager.beside) if pager is not None]
    counts = [_count(pager, shared) for pager in pagers]
    return Holder(
        pages=sum(pages for pages, _ in counts),
        shared_pages=sum(common for _, common in counts),
        room_pages=sum(pager.body_pages + pager.store_pages for pager in pagers),
        tokens=session.length,
    )


def _count(pager: Pager, shared: set[int]) -> tuple[int, int]:
    """(pages awake, shared ones) of one range; the shared ones are added to `shared`."""
    number = pager.range.number
    pages = {id(page): page for page in pager.range.slots if page is not None and page.is_awake}
    common = [
        key
        for key, page in pages.items()
        if len(page.mappings) > 1 and any(other != number for other, _ in page.mappings)
    ]
    shared.update(common)
    return len(pages), len(common)
