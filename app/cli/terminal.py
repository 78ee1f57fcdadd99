"""The conversation in a terminal: captions of both sides, state, levels, and where each turn's time went."""

from __future__ import annotations

import shutil
from typing import TextIO

from app import events
from app.histogram import Rolling

_BAR = " ▁▂▃▄▅▆▇█"
_FLOOR_DB, _CEILING_DB = -60.0, 0.0


class TerminalFace:
    """Lines for what is final, one line that is written over for what still changes (on a terminal only)."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_live = out.isatty()
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
        self._status()

    def line(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._out, flush=True)

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
        self._out.write(f"[{self._state:>9}] {self._meters}  {text}"[:width])
        self._out.flush()

    def _clear(self) -> None:
        if self._is_live:
            self._out.write("\r\x1b[K")


def _bar(level_db: float) -> str:
    """Eight steps from -60 to 0 dBFS."""
    share = (level_db - _FLOOR_DB) / (_CEILING_DB - _FLOOR_DB)
    return _BAR[round(min(1.0, max(0.0, share)) * (len(_BAR) - 1))]
