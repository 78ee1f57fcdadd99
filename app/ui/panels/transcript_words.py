"""What stands in a transcript beside the words that were said, in the user's language."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app import events
from app.viewmodel.conversation import Line
from app.viewmodel.conversation_export import ExportWords

_SEVERITIES = {
    events.ProcessLost: "error",
    events.DeviceLost: "error",
    events.MemoryDegraded: "warning",
    events.SessionEnded: "error",
}


class TranscriptWords(QObject):
    """Names of the speakers and sentences of the notices."""

    def speaker(self, line: Line) -> str:
        """Who says it."""
        if line.kind == "agent":
            return self.tr("Agent")
        return self.tr("You (typed)") if line.is_typed else self.tr("You")

    def severity(self, line: Line) -> str:
        """`info`, `warning` or `error`."""
        if isinstance(line.event, events.Notice):
            return line.event.severity
        return _SEVERITIES.get(type(line.event), "info")

    def describe(self, line: Line) -> str:
        """The sentence of a notice."""
        sentence = self._sentence(line)
        return sentence if line.count == 1 else self.tr("{0} ({1} times)").format(sentence, line.count)

    def for_export(self) -> ExportWords:
        """The same for a file."""
        return ExportWords(self.tr("You"), self.tr("Agent"), self.tr("not heard"), self.describe)

    def _sentence(self, line: Line) -> str:
        match line.event:
            case events.Notice(severity="error", message=message):
                return self.tr("Error: {0}").format(message)
            case events.Notice(severity="warning", message=message):
                return self.tr("Warning: {0}").format(message)
            case events.Notice(message=message):
                return message
            case events.ProcessLost(process=process, reason=reason):
                return self.tr("Lost the {0} ({1}); another one is being started.").format(
                    self._process(process), reason
                )
            case events.ProcessBack(process=process, after_ms=after_ms):
                return self.tr("The {0} is back after {1:.1f} s.").format(self._process(process), after_ms / 1000)
            case events.DeviceLost(device=device, reason=reason):
                return self.tr("Lost {0}: {1}").format(device, reason)
            case events.DeviceBack(device=device):
                return self.tr("{0} is back.").format(device)
            case events.MemoryDegraded(rung=rung, freed_bytes=freed):
                return self.tr("Memory is short: {0}; {1:.0f} MB came free.").format(self._given_up(rung), freed / 1e6)
            case events.MemoryRestored(rung=rung):
                return self.tr("There is memory again: {0}.").format(self._taken_back(rung))
            case events.SessionEnded(reason=reason):
                return self.tr("The conversation has ended: {0}").format(reason)
        return ""

    def _process(self, name: str) -> str:
        return {"ear": self.tr("ear"), "engine": self.tr("engine")}.get(name, name)

    def _given_up(self, rung: str) -> str:
        """A rung of `gpu.memory.ladder`."""
        return {
            "spare pages": self.tr("pages that held no words were given back"),
            "window": self.tr("half of the conversation's window was given up"),
            "kv int8": self.tr("the conversation is held in 8 bits"),
            "llm on the cpu": self.tr("the language model moved to the CPU"),
        }.get(rung, rung)

    def _taken_back(self, rung: str) -> str:
        return {
            "spare pages": self.tr("pages may be held ahead"),
            "window": self.tr("the window is whole"),
            "kv int8": self.tr("the conversation is held as it was computed"),
            "llm on the cpu": self.tr("the language model is back on the GPU"),
        }.get(rung, rung)
