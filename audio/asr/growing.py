"""Live transcript of one user turn by decoding its growing audio again and again. Pure bookkeeping.

No thread, no clock, no model: hops go in, decode requests come out, results come back with the sample
indices at which they were asked for and arrived. The same calls give the same requests.

The turn is a row of segments. Only the last one is open; a closed one is decoded once more and its text
kept. Long segments are closed at a pause, because decoding costs grow and the recogniser was trained on
short ones; it gives no word times, so cuts follow the voice activity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from audio.block import HOP_MS, HOP_SAMPLES, Float32Array, ms_to_samples


@dataclass(frozen=True, slots=True)
class GrowingConfig:
    """When to decode and where to cut; all in ms."""

    interval_ms: float = 300.0
    """Least time from one request to the next."""
    busy_factor: float = 3.0
    """... and at least this many times the last decode, so that decoding takes a third of a core at most."""
    settle_ms: float = 100.0
    """This long after the last voiced hop the segment is decoded at once: often that is already the final."""
    tail_ms: float = 300.0
    """Silence kept behind the last voiced hop in what is decoded."""
    cut_after_ms: float = 12_000.0
    """From this length on the segment is cut at a pause, one already past if there was any."""
    cut_at_ms: float = 15_000.0
    """At this length it is cut at its quietest place."""
    min_part_ms: float = 4_000.0
    """Neither side of a cut at a past place is shorter; a decode needs context."""
    min_pause_ms: float = 80.0
    """A run of unvoiced hops this long is a pause."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """Audio to transcribe; hand its `id` back to `on_result`."""

    id: int
    segment: int
    samples: Float32Array
    voiced_ms: float
    """Voiced time inside, for `audio.asr.filter.spoken_text`."""


@dataclass(slots=True)
class _Segment:
    hops: list[Float32Array] = field(default_factory=list)
    voiced: list[bool] = field(default_factory=list)
    text: str = ""
    previous_text: str = ""
    is_closed: bool = False
    was_cut_in_speech: bool = False
    requested_hops: int = -1
    """Hops that the newest request covers; -1 before the first."""
    decoded_hops: int = -1

    def last_voiced_hops(self) -> int:
        """Number of hops up to and with the last voiced one."""
        for index in range(len(self.voiced) - 1, -1, -1):
            if self.voiced[index]:
                return index + 1
        return 0


def _hops(duration_ms: float) -> int:
    return ms_to_samples(duration_ms) // HOP_SAMPLES


class GrowingTranscript:
    """The transcript of one turn. Feed from 300 ms before the onset on; at most one request is out at a time."""

    def __init__(self, config: GrowingConfig | None = None) -> None:
        self._config = config or GrowingConfig()
        self._segments = [_Segment()]
        self._next_id = 0
        self._outstanding: dict[int, tuple[int, int]] = {}
        """Request id to (segment, hops covered)."""
        self._last_request_samples: int | None = None
        self._last_decode_samples = 0
        self._fed_hops = 0
        self._waiting_since: dict[int, int] = {}
        """Segment to the hop at which a decode of it was due that has not come back yet."""

    # --- audio in -------------------------------------------------------------------------------------

    def feed(self, clean: Float32Array, voiced: bool) -> None:
        """One hop (HOP_SAMPLES,) and the judge's opinion of it."""
        if clean.shape != (HOP_SAMPLES,):
            raise ValueError(f"a hop has {HOP_SAMPLES} samples, not {clean.shape}")
        self._fed_hops += 1
        segment = self._segments[-1]
        segment.hops.append(np.array(clean, dtype=np.float32))
        segment.voiced.append(voiced)
        length = len(segment.hops)
        if length < _hops(self._config.cut_after_ms):
            return
        cut = self._pause_cut(segment)
        if cut is None and length >= _hops(self._config.cut_at_ms):
            cut = self._quiet_cut(segment)
        if cut is not None:
            self._close_at(*cut)

    def _pause_cut(self, segment: _Segment) -> tuple[int, bool] | None:
        """Middle of the longest pause that leaves both parts long enough, or of the pause that goes on now."""
        least = _hops(self._config.min_part_ms)
        shortest = _hops(self._config.min_pause_ms)
        best: tuple[int, int] | None = None
        start: int | None = None
        for index, voiced in enumerate([*segment.voiced, True]):
            if not voiced and start is None:
                start = index
            if voiced and start is not None:
                run, middle = index - start, (index + start) // 2
                is_late_enough = middle >= least
                is_early_enough = index == len(segment.voiced) or len(segment.voiced) - middle >= least
                if run >= shortest and is_late_enough and is_early_enough and (best is None or run >= best[0]):
                    best = (run, middle)
                start = None
        return None if best is None else (best[1], False)

    def _quiet_cut(self, segment: _Segment) -> tuple[int, bool]:
        """Middle of the quietest 50 ms that leaves both parts long enough."""
        width = 5
        least = _hops(self._config.min_part_ms)
        energy = np.array([float(np.dot(hop, hop)) for hop in segment.hops])
        window = np.convolve(energy, np.ones(width), mode="valid")
        return least + int(np.argmin(window[least : len(window) - least])) + width // 2, True

    def _close_at(self, hop: int, in_speech: bool) -> None:
        old = self._segments[-1]
        new = _Segment(hops=old.hops[hop:], voiced=old.voiced[hop:])
        del old.hops[hop:], old.voiced[hop:]
        old.is_closed, old.was_cut_in_speech = True, in_speech
        if not (self._covers(old.requested_hops, old) and old.requested_hops <= hop):
            self._void(self._open)
        elif old.decoded_hops == old.requested_hops:
            old.hops = []
        self._segments.append(new)

    def _void(self, index: int) -> None:
        """What was asked of this segment covers audio that is now partly the next one's, or not all of its own."""
        segment = self._segments[index]
        segment.requested_hops = segment.decoded_hops = -1
        segment.previous_text = ""
        self._outstanding = {key: value for key, value in self._outstanding.items() if value[0] != index}
        if segment.last_voiced_hops():
            self._waiting_since.setdefault(index, self._fed_hops)
        else:
            segment.text = ""  # its words lie behind the cut, and nothing of it is decoded again
            self._waiting_since.pop(index, None)

    @property
    def _open(self) -> int:
        return len(self._segments) - 1

    # --- decoding -------------------------------------------------------------------------------------

    def next_decode(self, now_samples: int) -> DecodeRequest | None:
        """The request that is due at index `now_samples`, or None. Closed segments come first."""
        if self._outstanding:
            return None
        for index, segment in enumerate(self._segments[:-1]):
            if segment.requested_hops < 0 and segment.last_voiced_hops():
                return self._request(index, now_samples)
        return self._request(self._open, now_samples) if self._is_open_due(now_samples) else None

    def _is_open_due(self, now_samples: int) -> bool:
        segment, config = self._segments[-1], self._config
        spoken = segment.last_voiced_hops()
        if not spoken or self._covers(segment.requested_hops, segment):
            return False
        if len(segment.hops) - spoken >= _hops(config.settle_ms):
            return True
        if self._last_request_samples is None:
            return len(segment.hops) >= _hops(config.interval_ms)
        wait = max(ms_to_samples(config.interval_ms), round(config.busy_factor * self._last_decode_samples))
        return now_samples - self._last_request_samples >= wait

    def _covers(self, hops: int, segment: _Segment) -> bool:
        """Does a decode of the first `hops` hear all that was said, with silence enough to know it?"""
        return hops >= segment.last_voiced_hops() + _hops(self._config.settle_ms)

    def _request(self, index: int, now_samples: int) -> DecodeRequest:
        segment = self._segments[index]
        end = min(len(segment.hops), segment.last_voiced_hops() + _hops(self._config.tail_ms))
        if segment.is_closed:
            end = len(segment.hops)
        segment.requested_hops = end
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._outstanding[request_id] = (index, end)
        self._waiting_since.setdefault(index, self._fed_hops)
        self._last_request_samples = now_samples
        voiced_ms = sum(segment.voiced[:end]) * float(HOP_MS)
        return DecodeRequest(request_id, index, np.concatenate(segment.hops[:end]), voiced_ms)

    def on_result(self, request_id: int, text: str, requested_samples: int, arrived_samples: int) -> bool:
        """Take a result; False where it answers a request that a cut has made void.

        `text` has been through `audio.asr.filter.spoken_text` with the request's voiced time.
        """
        self._last_decode_samples = arrived_samples - requested_samples
        entry = self._outstanding.pop(request_id, None)
        if entry is None:
            return False
        segment = self._segments[entry[0]]
        segment.previous_text, segment.text = segment.text, text.strip()
        segment.decoded_hops = entry[1]
        del self._waiting_since[entry[0]]
        if segment.is_closed:
            segment.hops = []  # an open microphone may keep one turn going for hours
        return True

    def final_requests(self, now_samples: int) -> tuple[DecodeRequest, ...]:
        """What must still be decoded before `text` is final: none where the last decode heard it all.

        Requests that are already out and still good are not repeated; wait until `is_settled`.
        """
        requests = []
        for index, segment in enumerate(self._segments):
            enough = segment.requested_hops >= 0 if segment.is_closed else self._covers(segment.requested_hops, segment)
            if segment.last_voiced_hops() and not enough:
                self._outstanding = {key: value for key, value in self._outstanding.items() if value[0] != index}
                requests.append(self._request(index, now_samples))
        return tuple(requests)

    def is_awaited(self, request_id: int) -> bool:
        """Whether this request's result is still of use: it has not come, and no cut or longer request replaced it."""
        return request_id in self._outstanding

    @property
    def behind_ms(self) -> float:
        """How long the recogniser has owed the text that was due first; 0 where it owes none. Counted in hops fed."""
        return (self._fed_hops - min(self._waiting_since.values(), default=self._fed_hops)) * float(HOP_MS)

    @property
    def is_settled(self) -> bool:
        """No request is out."""
        return not self._outstanding

    # --- text out -------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The newest text of all segments."""
        return join_segments([(segment.text, segment.was_cut_in_speech) for segment in self._segments])

    @property
    def stable_chars(self) -> int:
        """Length of the prefix of `text` that two decodes agree on.

        Closed and decoded segments, then the words that the last two decodes of the next one have in
        common, but for the last of them. A later decode can still overrule it; rarely does.
        """
        parts: list[tuple[str, bool]] = []
        for segment in self._segments:
            if segment.is_closed and segment.decoded_hops >= 0:
                parts.append((segment.text, segment.was_cut_in_speech))
                continue
            agreed = _common(segment.previous_text.split(), segment.text.split())
            parts.append((" ".join(agreed[:-1]), False))
            break
        # The full stop at a cut in speech goes only when a next segment has text.
        return len(_common(self.text, join_segments(parts)))


def _common(first: Sequence[str], second: Sequence[str]) -> Sequence[str]:
    """The longest prefix that both share."""
    pairs = enumerate(zip(first, second, strict=False))
    return first[: next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))]


_JOINING_WORDS = frozenset(
    "a an and are as at be but by can do for from had has have he her his if in is it its my no not of on or our "
    "she so than that the their them then there they this to was we were what when where which who will with "
    "would you your".split()
)
"""Words that are not names, so that a capital in the middle of a sentence comes only from the cut."""


def join_segments(parts: Sequence[tuple[str, bool]]) -> str:
    """Join segment texts with single spaces; each comes with whether the cut behind it fell into speech.

    There the full stop and the capital that the recogniser made up are taken back.
    """
    joined, is_inside = "", False
    for text, was_cut_in_speech in parts:
        if not text:
            continue
        if is_inside and joined:
            joined = joined.rstrip(".")
            if text.split()[0].lower().strip(",") in _JOINING_WORDS:
                text = text[0].lower() + text[1:]
        joined = f"{joined} {text}" if joined else text
        is_inside = was_cut_in_speech
    return joined
