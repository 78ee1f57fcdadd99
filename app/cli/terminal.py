"""The conversation in a terminal: captions of both sides, state, levels, and where each turn's time went."""

from __future__ import annotations

import errno
import re
import shutil
from typing import TextIO

from app import events
from app.errors import AgentError
from app.histogram import Rolling
from audio.block import SAMPLE_RATE_HZ

_BAR = " ▁▂▃▄▅▆▇█"
_FLOOR_DB, _CEILING_DB = -60.0, 0.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RUNGS = {
    "spare pages": ("pages that held no words were given back", "pages may be held ahead"),
    "window": ("half of the conversation's window was given up", "the window is whole"),
    "kv int8": ("the conversation is held in 8 bits", "the conversation is held as it was computed"),
    "llm on the cpu": ("the language model moved to the CPU", "the language model is back on the GPU"),
}
"""What was given up, and what was taken back."""
_PROGRESS_SAMPLES = 60 * SAMPLE_RATE_HZ


class TerminalFace:
    """Lines for what is final, one line that is written over for what still changes (on a terminal only)."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_live = out.isatty()
        self._is_gone = False
        self._end_samples = 0
        self._next_progress_samples = 0
        self._state = "listening"
        self._partial = ""
        self._reply = ""
        self._heard_chars = 0
        self._meters = ""
        self._latency = Rolling()

    def show(self, event: events.Event) -> None:
        """Any event."""
        match event:
            case events.Meters():
                self._meters = f"you {_bar(event.clean_level_db)} agent {_bar(event.far_level_db)}"
            case events.StateChanged(state=state):
                self._state = state
            case events.UserTranscript(text=text, final=True):
                self._partial = ""
                self.line(f"  you: {text}")
            case events.UserTranscript(text=text):
                self._partial = text
            case events.AgentText(text=text, clause=clause, start_chars=start):
                before = "" if clause == 1 else self._reply
                self._reply = before.ljust(start) + text  # so that the heard characters count alike
            case events.AgentWord(chars=chars):
                self._heard_chars = chars
            case events.AgentSaid():
                self._said(event)
            case _:
                self._other(event)
        self._progress(event.at_samples)
        self._status()

    def tell_progress(self, end_samples: int) -> None:
        """From now on a line after each minute of a session that does not wait for the clock; 0: its end is not known.

        On a terminal only.
        """
        self._end_samples, self._next_progress_samples = end_samples, _PROGRESS_SAMPLES

    def line(self, text: str) -> None:
        """A line that stays. Raises AgentError where the disk behind it is full."""
        self._clear()
        self._put(_plain(text) + "\n")

    def close(self) -> None:
        """Leave the terminal clean."""
        self._clear()

    def summary(self) -> str:
        """One sentence about the session's latency, "" where no turn was answered."""
        q = self._latency.summary()
        if not q.count:
            return ""
        return f"{q.count} answers, voice to voice p50 {q.p50:.0f} ms, p95 {q.p95:.0f} ms"

    def _said(self, event: events.AgentSaid) -> None:
        self._reply, self._heard_chars = "", 0
        if event.interrupted:
            self.line(f"agent: {event.heard} — (interrupted)")
        else:
            self.line(f"agent: {event.text}")

    def _other(self, event: events.Event) -> None:
        match event:
            case events.TurnLatency():
                self._latency.add(event.voice_to_voice_ms)
                self.line(
                    f"       {event.voice_to_voice_ms:.0f} ms from your last word: "
                    f"end of turn {event.endpoint_ms:.0f}, words {event.asr_ms:.0f}, "
                    f"first token {event.first_token_ms:.0f}, clause {event.first_clause_ms:.0f}, "
                    f"voice {event.tts_ms:.0f}, playback {event.playback_ms + event.output_ms:.0f}"
                )
            case events.BargeIn(stop_ms=stop_ms):
                self.line(f"       interrupted; silent {stop_ms:.0f} ms after your first sound")
            case events.DeviceOpened():
                self.line(
                    f"microphone: {event.input_name}; loudspeaker: {event.output_name}; {event.rate_hz} Hz, "
                    f"output latency {event.output_latency_ms:.0f} ms, audio scheduling {event.scheduling}"
                )
            case events.DeviceRoundTrip(delay_ms=delay_ms):
                self.line(f"       loudspeaker to microphone takes {delay_ms:.0f} ms")
            case events.DeviceLost(device=device, reason=reason):
                self.line(f"lost {device}: {reason}")
            case events.DeviceBack(device=device):
                self.line(f"{device} is back")
            case events.ProcessLost(process=process, reason=reason):
                self.line(f"the {process} was lost ({reason}); starting another one")
            case events.ProcessBack(process=process, after_ms=after_ms):
                self.line(f"the {process} is back after {after_ms / 1000:.1f} s")
            case events.MemoryDegraded(level=level, rung=rung, freed_bytes=freed):
                self.line(f"memory is {level}: {_RUNGS[rung][0]}, {freed / 1e6:.0f} MB came free")
            case events.MemoryRestored(rung=rung):
                self.line(f"there is memory again: {_RUNGS[rung][1]}")
            case events.Notice(severity=severity, message=message):
                self.line(f"{severity}: {message}")

    def _status(self) -> None:
        """The line that is written over."""
        if not self._is_live:
            return
        if self._partial:
            text = f"  you: {self._partial} …"
        elif self._reply:
            text = f"agent: {self._reply[: self._heard_chars] or '…'}"
        else:
            text = ""
        width = shutil.get_terminal_size().columns - 1
        self._clear()
        self._put(_plain(f"[{self._state:>9}] {self._meters}  {text}")[:width])

    def _progress(self, at_samples: int) -> None:
        if not self._is_live or not 0 < self._next_progress_samples <= at_samples:
            return
        self._next_progress_samples = (at_samples // _PROGRESS_SAMPLES + 1) * _PROGRESS_SAMPLES
        of_all = f" of {self._end_samples / _PROGRESS_SAMPLES:.0f}" if self._end_samples else ""
        self.line(f"       {at_samples // _PROGRESS_SAMPLES}{of_all} min")

    def _clear(self) -> None:
        if self._is_live:
            self._put("\r\x1b[K")

    def _put(self, text: str) -> None:
        """A terminal that was closed shows nothing any more, and nobody minds."""
        if self._is_gone:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self._is_gone = True
            if error.errno != errno.EIO:
                fix = "Free some disk space, or write elsewhere"
                raise AgentError(f"the standard output cannot be written: {error.strerror}", fix=fix) from None


def _plain(text: str) -> str:
    """Without what steers a terminal: words of a model or of a file name are only shown."""
    return _CONTROL.sub("", text)


def _bar(level_db: float) -> str:
    """Eight steps from -60 to 0 dBFS."""
    share = (level_db - _FLOOR_DB) / (_CEILING_DB - _FLOOR_DB)
    return _BAR[round(min(1.0, max(0.0, share)) * (len(_BAR) - 1))]
