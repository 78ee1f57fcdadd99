"""Bookkeeping of live transcripts, with a recogniser that writes down which hops it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.asr.growing import DecodeRequest, GrowingTranscript, join_segments
from audio.block import HOP_SAMPLES

_SECOND = 100


def _hop(number: int, level: float = 0.1) -> np.ndarray:
    hop = np.full(HOP_SAMPLES, level, dtype=np.float32)
    hop[0] = number * 1e-6  # too small to count as energy
    return hop


def _numbers(request: DecodeRequest) -> list[int]:
    return [round(float(value) * 1e6) for value in request.samples[::HOP_SAMPLES]]


class _Run:
    """Feeds hops and answers each request after `decode_hops`."""

    def __init__(self, decode_hops: int = 5) -> None:
        self.growing = GrowingTranscript()
        self.decode_hops = decode_hops
        self.requests: list[tuple[int, DecodeRequest]] = []
        self.count = 0
        self._due: tuple[int, int, DecodeRequest] | None = None

    def feed(self, hops: int, *, voiced: bool, level: float = 0.1) -> None:
        for _ in range(hops):
            self.growing.feed(_hop(self.count, level), voiced)
            self.count += 1
            now = self.count * HOP_SAMPLES
            if self._due is not None and now >= self._due[0]:
                _, asked, request = self._due
                self._due = None
                self.growing.on_result(request.id, self.text_of(request), asked, now)
            request = self.growing.next_decode(now)
            if request is not None:
                self.requests.append((self.count, request))
                self._due = (now + self.decode_hops * HOP_SAMPLES, now, request)

    @staticmethod
    def text_of(request: DecodeRequest) -> str:
        """A word for every half second."""
        return " ".join(f"w{number}" for number in _numbers(request)[::50])


def test_nothing_is_decoded_before_a_voice() -> None:
    run = _Run()
    run.feed(2 * _SECOND, voiced=False)
    assert run.requests == []
    assert run.growing.final_requests(run.count * HOP_SAMPLES) == ()
    assert run.growing.text == ""
    assert run.growing.is_settled


def test_decodes_every_300_ms_when_they_are_quick() -> None:
    run = _Run(decode_hops=5)
    run.feed(2 * _SECOND, voiced=True)
    at = [hop for hop, _ in run.requests]
    assert at[0] == 30
    assert set(np.diff(at)) == {30}
    assert _numbers(run.requests[2][1]) == list(range(90))


def test_a_slow_decode_is_asked_a_third_of_the_time() -> None:
    run = _Run(decode_hops=20)
    run.feed(4 * _SECOND, voiced=True)
    assert set(np.diff([hop for hop, _ in run.requests])[1:]) == {60}


def test_a_pause_is_decoded_at_once_and_then_left_alone() -> None:
    run = _Run()
    run.feed(97, voiced=True)
    before = len(run.requests)
    run.feed(_SECOND, voiced=False)
    assert [hop for hop, _ in run.requests[before:]] == [107]
    assert run.growing.final_requests(run.count * HOP_SAMPLES) == ()
    assert run.growing.is_settled
    assert run.growing.text == _Run.text_of(run.requests[-1][1])


def test_final_decodes_what_no_request_has_heard() -> None:
    run = _Run()
    run.feed(95, voiced=True)
    (request,) = run.growing.final_requests(run.count * HOP_SAMPLES)
    assert _numbers(request) == list(range(95))
    assert request.voiced_ms == 950
    assert not run.growing.is_settled
    assert run.growing.on_result(request.id, "the end", 95 * HOP_SAMPLES, 99 * HOP_SAMPLES)
    assert run.growing.is_settled
    assert run.growing.text == "the end"


def test_a_request_made_void_by_the_final_one_is_refused() -> None:
    run = _Run(decode_hops=1000)
    run.feed(60, voiced=True)
    (_, old), (final,) = run.requests[0], run.growing.final_requests(run.count * HOP_SAMPLES)
    assert run.growing.on_result(final.id, "new", 0, 1)
    assert not run.growing.on_result(old.id, "old", 0, 1)
    assert run.growing.text == "new"


def test_long_speech_is_cut_in_its_longest_pause() -> None:
    run = _Run()
    run.feed(5 * _SECOND, voiced=True)
    run.feed(10, voiced=False)
    run.feed(2 * _SECOND, voiced=True)
    run.feed(40, voiced=False)  # hops 710 to 750
    run.feed(6 * _SECOND, voiced=True)
    closed = [request for _, request in run.requests if request.segment == 0][-1]
    assert _numbers(closed) == list(range(730))
    later = [request for _, request in run.requests if request.segment == 1]
    assert _numbers(later[0])[0] == 730
    assert run.growing.text.startswith(_Run.text_of(closed))


def test_without_a_pause_it_is_cut_at_its_quietest_place_at_15_s() -> None:
    run = _Run()
    run.feed(9 * _SECOND, voiced=True)
    run.feed(10, voiced=True, level=0.001)
    run.feed(7 * _SECOND, voiced=True)
    closed = [(hop, request) for hop, request in run.requests if request.segment == 0][-1]
    assert 1500 <= closed[0] <= 1510
    assert 900 <= len(_numbers(closed[1])) <= 910


def test_a_pause_between_12_and_15_s_is_taken() -> None:
    run = _Run()
    run.feed(13 * _SECOND, voiced=True)
    run.feed(20, voiced=False)
    run.feed(_SECOND, voiced=True)
    closed = [request for _, request in run.requests if request.segment == 0][-1]
    assert 1300 <= len(_numbers(closed)) <= 1310


def test_stable_prefix_is_what_two_decodes_share_but_for_its_last_word() -> None:
    growing = GrowingTranscript()
    for number, text in enumerate(["And so", "And so my fellow", "And so my fellow Americans"]):
        for hop in range(40):
            growing.feed(_hop(hop), True)
        request = growing.next_decode((number + 1) * 40 * HOP_SAMPLES)
        assert request is not None
        growing.on_result(request.id, text, 0, 10)
    assert growing.text[: growing.stable_chars] == "And so my"


def test_words_behind_a_cut_are_not_said_twice() -> None:
    run = _Run(1)
    run.feed(8 * _SECOND, voiced=False)
    run.feed(4 * _SECOND, voiced=True)
    for request in run.growing.final_requests(run.count * HOP_SAMPLES):
        run.growing.on_result(request.id, "once", 0, 10)
    assert run.growing.text == "once"


def test_a_cut_in_the_silence_behind_the_words_does_not_ask_for_them_again() -> None:
    growing = GrowingTranscript()
    for number in range(500):
        growing.feed(_hop(number), True)
    for number in range(50):
        growing.feed(_hop(number), False)
    (final,) = growing.final_requests(0)
    for number in range(2000):  # a slow recogniser, and a microphone that stays open
        growing.feed(_hop(number), False)
        assert growing.next_decode(0) is None
    assert growing.on_result(final.id, "all of it", 0, 10)
    assert growing.final_requests(0) == ()
    assert (growing.text, growing.behind_ms) == ("all of it", 0)


def test_how_far_the_recogniser_is_behind_counts_from_the_oldest_text_that_is_owed() -> None:
    growing = GrowingTranscript()
    for number in range(40):
        growing.feed(_hop(number), True)
    partial = growing.next_decode(0)
    assert partial is not None
    for number in range(20):
        growing.feed(_hop(number), number < 10)
    assert growing.behind_ms == 200
    (final,) = growing.final_requests(0)
    assert [growing.is_awaited(request.id) for request in (partial, final)] == [False, True]
    assert growing.behind_ms == 200
    growing.on_result(final.id, "all of it", 0, 10)
    assert growing.behind_ms == 0


def test_wrong_hop_size_is_refused() -> None:
    with pytest.raises(ValueError, match="160"):
        GrowingTranscript().feed(np.zeros(80, dtype=np.float32), True)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=8), st.integers(1, 40))
def test_finals_hear_every_voiced_hop_once_and_twice_the_same(runs: list[tuple[int, bool]], decode_hops: int) -> None:
    """Whatever the pauses: the newest decodes of all segments cover each voiced hop exactly once, in order."""
    logs = []
    for _ in range(2):
        run = _Run(decode_hops)
        newest: dict[int, DecodeRequest] = {}
        for hops, voiced in runs:
            run.feed(hops, voiced=voiced)
        for _, request in run.requests:
            newest[request.segment] = request
        for request in run.growing.final_requests(run.count * HOP_SAMPLES):
            newest[request.segment] = request
        # A part without a voice is not decoded again; what was asked before the cut is void, its text too.
        newest = {part: request for part, request in newest.items() if run.growing._segments[part].requested_hops >= 0}
        heard = [number for segment in sorted(newest) for number in _numbers(newest[segment])]
        voiced_hops = {
            start + index
            for (hops, voiced), start in zip(runs, np.cumsum([0] + [hops for hops, _ in runs[:-1]]), strict=True)
            for index in range(hops)
            if voiced
        }
        assert heard == sorted(set(heard))
        assert voiced_hops <= set(heard)
        assert all(len(request.samples) <= 15 * 16_000 for _, request in run.requests)
        logs.append([(hop, request.id, request.segment, len(request.samples)) for hop, request in run.requests])
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([("It was late.", False), ("We went home.", False)], "It was late. We went home."),
        ([("It was the.", True), ("The best of times.", False)], "It was the the best of times."),
        ([("We met in.", True), ("Paris in May.", False)], "We met in Paris in May."),
        ([("", False), ("Hello.", False), ("", True)], "Hello."),
        ([], ""),
    ],
)
def test_joining(parts: list[tuple[str, bool]], joined: str) -> None:
    assert join_segments(parts) == joined
