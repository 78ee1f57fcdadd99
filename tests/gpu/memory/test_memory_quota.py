"""Pages are granted by arithmetic: never more than any limit allows, and fast."""

from __future__ import annotations

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpu.errors import GpuError
from gpu.memory.quota import Admission, Quota, QuotaBook

PAGES, SESSION, PERSONA = 40, Quota(4, 10), Quota(8, 18)


class QuotaMachine(RuleBasedStateMachine):
    """Against a dictionary of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.book = QuotaBook(PAGES, session=SESSION, persona=PERSONA)
        self.held: dict[str, int] = {}

    def persona(self, session: str) -> str:
        return session[0]

    def left(self, session: str) -> int:
        shared = sum(pages for name, pages in self.held.items() if self.persona(name) == self.persona(session))
        own = self.held.get(session, 0)
        return min(SESSION.hard_pages - own, PERSONA.hard_pages - shared, PAGES - sum(self.held.values()))

    @rule(session=st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1"]), pages=st.integers(0, 12))
    def ask(self, session: str, pages: int) -> None:
        left = self.left(session)
        is_new = session not in self.held
        if is_new:
            answer = self.book.open(session, self.persona(session), pages)
        else:
            answer = self.book.grow(session, pages)
        assert (answer.granted, answer.left_pages) == (pages <= left, left)
        if answer.granted:
            self.held[session] = self.held.get(session, 0) + pages

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if not self.held:
            return
        session = data.draw(st.sampled_from(sorted(self.held)))
        pages = data.draw(st.integers(0, self.held[session]))
        if pages == self.held[session]:
            self.book.close(session)
            del self.held[session]
        else:
            self.book.shrink(session, pages)
            self.held[session] -= pages

    @invariant()
    def adds_up(self) -> None:
        self.book.check()
        assert self.book.held_pages == sum(self.held.values())
        for session, excess in self.book.over_soft():
            assert 0 < excess <= self.held[session]


TestQuotaMachine = QuotaMachine.TestCase
TestQuotaMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_tightest_limit_is_named() -> None:
    book = QuotaBook(20, session=Quota(4, 10), persona=Quota(8, 12))
    assert book.open("a", "x", 10) == Admission(True, "session", 10)
    assert book.grow("a", 1) == Admission(False, "session", 0)
    assert book.open("b", "x", 3) == Admission(False, "persona", 2)
    assert book.open("c", "y", 9).granted
    assert book.open("d", "z", 2) == Admission(False, "arena", 1)
    with pytest.raises(GpuError, match="no session d"):
        book.grow("d", 1)


def test_a_persona_with_a_quota_of_its_own_keeps_it() -> None:
    book = QuotaBook(100, session=Quota(50, 50), persona=Quota(20, 20))
    book.limit_persona("guest", Quota(1, 3))
    assert not book.open("a", "guest", 4).granted
    assert book.open("a", "guest", 3).granted
    book.close("a")
    assert book.open("b", "guest", 4) == Admission(False, "persona", 3)
    assert book.open("c", "host", 20).granted


def test_over_soft_lists_the_largest_excess_first() -> None:
    book = QuotaBook(100, session=Quota(4, 30), persona=Quota(10, 40))
    for name, persona, pages in (("a", "x", 4), ("b", "x", 9), ("c", "y", 6)):
        assert book.open(name, persona, pages).granted
    assert book.over_soft() == [("b", 5), ("a", 3), ("c", 2)]  # a is within its own, but x holds 13


@pytest.mark.parametrize("quota", [(-1, 3), (4, 3)])
def test_quotas_without_sense(quota: tuple[int, int]) -> None:
    with pytest.raises(GpuError, match="quota"):
        Quota(*quota)


def test_misuse_is_refused() -> None:
    book = QuotaBook(10, session=SESSION, persona=PERSONA)
    book.open("a", "x", 2)
    with pytest.raises(GpuError, match="open already"):
        book.open("a", "x")
    with pytest.raises(GpuError, match="holds 2 pages"):
        book.shrink("a", 3)
    assert not book.grow("a", -1).granted
    with pytest.raises(GpuError, match="without pages"):
        QuotaBook(0, session=SESSION, persona=PERSONA)


def test_admission_takes_far_less_than_a_millisecond() -> None:
    book = QuotaBook(10**6, session=Quota(0, 100), persona=Quota(0, 10**6))
    for index in range(2000):
        book.open(f"s{index}", f"p{index % 7}", 1)
    begin_s = time.perf_counter()
    for index in range(2000):
        assert book.grow(f"s{index}", 1).granted
    assert (time.perf_counter() - begin_s) / 2000 < 1e-3
