"""Users for the simulated device: a recording played once, or a script that listens to the agent.

They hear only what leaves the loudspeaker and count time in device frames.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from audio.block import SILENCE_DB, Float32Array
from audio.io.device import AudioSource, ScriptSpec, SpokenUtterance, Utterance
from audio.io.room import load_source

_SILENCE_BELOW_PEAK_DB = 40.0
"""Leading and trailing 10 ms frames this far below a recording's loudest one are not speech."""
_STILL_AUDIBLE_BLOCKS = 20
"""An agent that was silent for less (between words) is interrupted."""


class User(Protocol):
    """Speaks into the microphone, block by block."""

    @property
    def finished(self) -> bool:
        """Nothing more will be said or waited for."""
        ...

    def speak(self, near: Float32Array) -> None:
        """Fill the microphone block (B,)."""
        ...

    def hear(self, far: Float32Array) -> None:
        """The loudspeaker block (B,) of the same time."""
        ...

    def miss(self, frames: int) -> None:
        """So much time has passed while no device listened."""
        ...

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """What has been begun so far."""
        ...


class RecordedUser:
    """One recording from the start (None: silence without end), then `tail_s` of silence."""

    def __init__(self, source: AudioSource | None, rate_hz: int, tail_s: float) -> None:
        self._samples = np.zeros(0, np.float32) if source is None else load_source(source, rate_hz)
        self._end = None if source is None else len(self._samples) + round(tail_s * rate_hz)
        self._at = 0

    @property
    def finished(self) -> bool:
        """See `User`."""
        return self._end is not None and self._at >= self._end

    def speak(self, near: Float32Array) -> None:
        """See `User`."""
        _copy_part(self._samples, self._at, near)
        self._at += len(near)

    def hear(self, far: Float32Array) -> None:
        """See `User`: a recording does not listen."""

    def miss(self, frames: int) -> None:
        """See `User`."""
        self._at += frames

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `User`."""
        return ()


class ScriptedUser:
    """Says the utterances of a script in turn; see `ScriptSpec` for the rules."""

    def __init__(self, spec: ScriptSpec, rate_hz: int) -> None:
        self._utterances = spec.utterances
        self._sounds = [_load(utterance, rate_hz) for utterance in spec.utterances]
        self._pause = round(spec.pause_s * rate_hz)
        self._last_pause = round(spec.last_pause_s * rate_hz)
        self._timeout = round(spec.timeout_s * rate_hz)
        self._interrupt_after = [_frames(utterance.interrupt_after_s, rate_hz) for utterance in spec.utterances]
        self._audible_power = 10 ** (spec.audible_db / 10)
        self._window = rate_hz // 100
        self._spoken: list[SpokenUtterance] = []
        self._sound: Float32Array | None = None  # being spoken
        self._at = 0
        self._start = round(spec.lead_s * rate_hz)  # of the utterance spoken now or next, once that is known
        self._is_waiting = False  # for the agent's answer to the utterance before
        self._is_done = not spec.utterances
        self._wait_since = 0
        self._answer_began: int | None = None
        self._last_audible = 0

    @property
    def finished(self) -> bool:
        """All is said, and the last answer is over."""
        return self._is_done

    def speak(self, near: Float32Array) -> None:
        """See `User`."""
        near.fill(0.0)
        block_end = self._at + len(near)
        if self._is_waiting:
            self._decide()
        if not self._is_waiting and not self._is_done and self._start < block_end:
            if self._sound is None:
                self._sound = self._begin()
            _copy_part(self._sound, self._at - self._start, near)
            if block_end >= self._start + len(self._sound):
                self._is_waiting = True
                self._wait_since = self._start + len(self._sound)
                self._answer_began = None
                self._sound = None
        self._at = block_end

    def hear(self, far: Float32Array) -> None:
        """See `User`. Called after `speak` of the same block."""
        if float(np.mean(np.square(far))) < self._audible_power:
            return
        self._last_audible = self._at
        if self._is_waiting and self._answer_began is None:
            self._answer_began = self._at - len(far)

    def miss(self, frames: int) -> None:
        """See `User`: a script that nobody heard begins anew."""

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `User`."""
        return tuple(self._spoken)

    def _decide(self) -> None:
        """Whether the wait for an answer ends here, and when the next utterance starts."""
        upcoming = len(self._spoken)
        is_last = upcoming == len(self._sounds)
        pause = self._last_pause if is_last else self._pause
        silent = self._at - max(self._wait_since, self._last_audible)
        is_over = silent >= (self._timeout if self._answer_began is None else pause)
        if not is_last and self._answer_began is not None:
            interrupt_after = self._interrupt_after[upcoming]
            if interrupt_after is not None and self._at >= self._answer_began + interrupt_after:
                is_over = True
        if is_over:
            self._is_waiting = False
            self._is_done = is_last
            self._start = self._at

    def _begin(self) -> Float32Array:
        """Note when the next utterance is spoken; its sound."""
        number = len(self._spoken)
        sound = self._sounds[number]
        onset, end = _speech_range(sound, self._window)
        source = self._utterances[number].source
        silent = self._start - self._last_audible
        self._spoken.append(
            SpokenUtterance(
                name=source if isinstance(source, str) else f"utterance {number}",
                start_frames=self._start,
                onset_frames=self._start + onset,
                end_frames=self._start + end,
                is_interruption=self._last_audible > 0 and silent < _STILL_AUDIBLE_BLOCKS * self._window,
            )
        )
        return sound


def _load(utterance: Utterance, rate_hz: int) -> Float32Array:
    return load_source(utterance.source, rate_hz) * np.float32(10 ** (utterance.gain_db / 20))


def _frames(duration_s: float | None, rate_hz: int) -> int | None:
    return None if duration_s is None else round(duration_s * rate_hz)


def _copy_part(samples: Float32Array, at: int, out: Float32Array) -> None:
    """out[i] = samples[at + i] where there is such a sample, else 0."""
    out.fill(0.0)
    first, end = max(at, 0), min(at + len(out), len(samples))
    if first < end:
        out[first - at : end - at] = samples[first:end]


def _speech_range(sound: Float32Array, window: int) -> tuple[int, int]:
    """First frame and end of the part that is not silence, in steps of `window`."""
    whole = -(-len(sound) // window) * window
    power = np.pad(sound, (0, whole - len(sound))).reshape(-1, window).astype(np.float64)
    level = 10 * np.log10(np.mean(power**2, axis=1) + 10 ** (SILENCE_DB / 10))
    loud = np.flatnonzero(level > max(level.max() - _SILENCE_BELOW_PEAK_DB, SILENCE_DB + 1))
    if len(loud) == 0:
        return 0, len(sound)
    return int(loud[0]) * window, min(int(loud[-1] + 1) * window, len(sound))
