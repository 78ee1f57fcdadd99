"""The status bar: what the agent does, on which devices, how fast it answers, and what is wrong."""

from __future__ import annotations

from app import events
from app.histogram import Rolling
from app.viewmodel.base import ViewModel


class Status(ViewModel):
    """`state` is the conversation's (`listening`, `hearing`, ...), or `loading` or `ended`."""

    def __init__(self) -> None:
        super().__init__()
        self.state = "loading"
        self.problem = ""
        """The last thing that went wrong and has not been mended; "" where all is well."""
        self.input_name = self.output_name = ""
        self.latency_p50_ms: int | None = None
        self._latency = Rolling(100)

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.StateChanged(state=state):
                self.state = state
            case events.SessionStarted():
                self.state, self.problem = "listening", ""
            case events.SessionEnded():
                self.state = "ended"
            case events.DeviceOpened(input_name=source, output_name=sink):
                self.input_name, self.output_name = source, sink
            case events.TurnLatency(voice_to_voice_ms=total_ms):
                self._latency.add(total_ms)
                self.latency_p50_ms = round(self._latency.summary().p50)
            case events.DeviceLost(reason=reason) | events.ProcessLost(reason=reason):
                self.problem = reason
            case events.DeviceBack() | events.ProcessBack():
                self.problem = ""
            case events.Notice(severity="error", message=message):
                self.problem = message
            case _:
                return
        self.changed()

    def run_state(self, state: str, problem: str) -> None:
        """What the conversation's thread says of itself: `loading`, or `ended` with the reason."""
        if (state, problem) != (self.state, self.problem):
            self.state, self.problem = state, problem
            self.changed()
