"""Which microphone and loudspeaker there are, which are in use, what is wrong with them, and a check of the pair.

Lists, checks and the user's file take longer than a frame: they are callables, run in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from app import events
from app.commands import Command, Quit
from app.config.load import Loaded
from app.errors import AgentError
from app.notices import NO_SIGNAL, SIGNAL_BACK
from app.viewmodel.background import Background
from app.viewmodel.base import ViewModel
from app.viewmodel.device_list import Choice, DeviceList, signature
from audio.block import SILENCE_DB
from audio.errors import AudioError, DeviceError
from audio.io.bluetooth import advise
from audio.io.identity import DeviceInfo
from audio.io.server import ServerView

_LOOK_EVERY_S = 3.0
_LIST_EVERY_S = 9.0
"""Where no sound server says that something has changed."""
_STOP_LIMIT_S = 10.0

CheckKind = Literal["tone", "pair"]
CheckState = Literal["", "stopping", "running", "done"]
Show = Callable[[str, float], None]


class Finding(Protocol):
    """One line of a check's report; see `app.engine.device_check`."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def found(self) -> str: ...
    @property
    def fix(self) -> str: ...


@dataclass(frozen=True, slots=True)
class DeviceTools:
    """What reaches the machine. All of it may take seconds, and runs in threads."""

    look: Callable[[], ServerView | None]
    """Ask the sound server: some ms."""
    list_devices: Callable[[], Sequence[DeviceInfo] | None]
    """Ask PortAudio in a fresh process: half a second. None where it does not answer."""
    check: Callable[[CheckKind, str, str, int | None, Show], Sequence[Finding]]
    """Play a tone, or check the pair, by names and rate. Raises DeviceError or AudioError."""
    save: Callable[[Loaded, dict[str, object]], Loaded]
    """Write keys to the user's file and read the configuration anew. Raises AgentError."""


@dataclass(slots=True)
class Check:
    """The test that runs, or the one that ran last."""

    kind: CheckKind = "tone"
    state: CheckState = ""
    step: str = ""
    """What is being done, as `app.engine.device_check` names it."""
    level_db: float = SILENCE_DB
    findings: list[Finding] = field(default_factory=list)
    problem: str = ""
    """Why it could not be done."""
    is_stuck: bool = False
    """It was not begun, because the conversation did not end."""


class Devices(ViewModel):
    """`poll` while somebody looks, `settle` while `is_busy`; both with the monotonic time."""

    def __init__(
        self,
        loaded: Callable[[], Loaded],
        send: Callable[[Command], None],
        restart: Callable[[Loaded], None],
        tools: DeviceTools,
    ) -> None:
        """`loaded`: the configuration of the conversation that runs."""
        super().__init__()
        self.state_revision = 0
        """Grows with `revision`, but for levels, which are new ten times a second."""
        self._loaded = loaded
        self._send = send
        self._restart = restart
        self._tools = tools
        self._lists, self._work = Background("device list"), Background("device work")
        self._next_look_s = self._next_list_s = 0.0
        self._wants_list = False
        self._stop_until_s = 0.0
        self._is_running = False
        self.list: DeviceList | None = None
        """None until the first answer."""
        self.is_unanswered = False
        """PortAudio did not answer when it was asked last."""
        self.opened: events.DeviceOpened | None = None
        """What is in use; None while no conversation has a device."""
        self.lost: events.DeviceLost | None = None
        self.has_no_signal = False
        self.level_db, self.far_level_db = SILENCE_DB, SILENCE_DB
        self.check = Check()
        self._pair = ("", "")
        self.problem = ""
        """Why the last choice could not be kept."""
        self.outranked_by = ""
        """Where a value comes from that counts for more than the user's file, after a choice that it overrules."""

    def changed(self) -> None:
        """See `ViewModel`."""
        super().changed()
        self.state_revision += 1

    # -- events -----------------------------------------------------------------------------------------------

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.Meters():
                self.level_db, self.far_level_db = event.level_db, event.far_level_db
                self.revision += 1
                return
            case events.DeviceOpened():
                self.opened, self.lost, self._is_running = event, None, True
                self._wants_list = True
            case events.DeviceLost():
                self.lost, self._wants_list = event, True
                self.level_db = self.far_level_db = SILENCE_DB
            case events.DeviceBack():
                self.lost, self._wants_list = None, True
            case events.Notice(message=message) if message in (NO_SIGNAL, SIGNAL_BACK):
                self.has_no_signal = message == NO_SIGNAL
            case events.ProcessLost(process="engine"):
                self.has_no_signal = False  # its successor says so again where it is so
            case events.SessionEnded():
                self._end_session()
            case _:
                return
        self.changed()

    def _end_session(self) -> None:
        self._is_running, self.opened, self.lost, self.has_no_signal = False, None, None, False
        self.level_db = self.far_level_db = SILENCE_DB
        if self.check.state == "stopping":
            self._begin_check()

    # -- the list ---------------------------------------------------------------------------------------------

    def poll(self, now_s: float) -> None:
        """Ask what devices there are where it is time, and take what threads have found."""
        self.settle(now_s)
        if not self._lists.is_busy and (self._wants_list or now_s >= self._next_look_s):
            self._look(now_s)

    def settle(self, now_s: float) -> None:
        """Take what threads have found or done."""
        if self._lists.poll() | self._work.poll():
            self.changed()
        if self.check.state == "stopping" and now_s > self._stop_until_s:
            self.check.is_stuck = True
            self._finish_check([], "")

    def look_again(self) -> None:
        """The user wants the list anew."""
        self._wants_list = True

    def _look(self, now_s: float) -> None:
        known = self.list
        is_due = known is None or self._wants_list or (known.view is None and now_s >= self._next_list_s)
        self._wants_list = False
        self._next_look_s = now_s + _LOOK_EVERY_S
        if is_due:
            self._next_list_s = now_s + _LIST_EVERY_S

        def work() -> DeviceList | None:
            view = self._tools.look()
            if known is not None and not is_due and signature(view) == known.signature:
                return None
            devices = self._tools.list_devices()
            self._lists.hand_over(lambda: self._note_answer(devices is not None))
            return DeviceList(tuple(devices or ()), view)

        self._lists.start(work, self._take_list)

    def _note_answer(self, is_answer: bool) -> None:
        self.is_unanswered = not is_answer

    def _take_list(self, found: DeviceList | None) -> None:
        if found is not None:
            self.list = found

    # -- what is chosen -----------------------------------------------------------------------------------------

    def configured(self, *, is_input: bool) -> str:
        """The name that the configuration has; "" is the system's default."""
        audio = self._loaded().config.audio
        return audio.input if is_input else audio.output

    def choices(self, *, is_input: bool) -> tuple[list[Choice], int]:
        """What there is to choose from, and the place of what is configured: it is listed even if it is not there."""
        name = self.configured(is_input=is_input)
        known = self.list or DeviceList()
        choices, index = known.choices(is_input=is_input), known.index_of(name, is_input=is_input)
        if index < 0:
            choices.append(Choice(name, name, is_present=False))
            index = len(choices) - 1
        return choices, index

    def bluetooth_advice(self, input_name: str, output_name: str) -> str:
        """What these two would do to a headset, in the words of `audio.io.bluetooth`; "" where nothing is lost."""
        if self.list is None or self.list.view is None:
            return ""
        try:
            advice = advise(self.list.view, input_name, output_name)
        except DeviceError:  # two alike; opening them says so
            return ""
        # What to write on a command line is no advice here: the picker is before the user.
        return advice.warning if advice.input_name or not advice.fix else f"{advice.warning}. {advice.fix}"

    def apply(self, input_name: str, output_name: str) -> None:
        """Keep the choice in the user's file and begin the conversation anew with it."""
        loaded = self._loaded()
        wanted = {"audio.input": input_name, "audio.output": output_name}
        present = {"audio.input": loaded.config.audio.input, "audio.output": loaded.config.audio.output}
        changes: dict[str, object] = {key: name for key, name in wanted.items() if name != present[key]}
        if not changes or self._work.is_busy:
            return
        self.problem = self.outranked_by = ""

        def work() -> Loaded | str:
            try:
                return self._tools.save(loaded, changes)
            except AgentError as error:
                return _sentence(error)

        self._work.start(work, lambda saved: self._take_saved(saved, wanted))
        self.changed()

    def _take_saved(self, saved: Loaded | str, wanted: dict[str, str]) -> None:
        if isinstance(saved, str):
            self.problem = saved
            return
        audio = {"audio.input": saved.config.audio.input, "audio.output": saved.config.audio.output}
        overruled = [key for key in wanted if audio[key] != wanted[key]]
        self.outranked_by = saved.origins.get(overruled[0], "") if overruled else ""
        self._restart(saved)

    # -- the check --------------------------------------------------------------------------------------------

    @property
    def is_checking(self) -> bool:
        """A check runs or is about to."""
        return self.check.state in ("stopping", "running")

    @property
    def is_busy(self) -> bool:
        """A check or a change is under way: begin no other."""
        return self.is_checking or self._work.is_busy

    def begin_check(self, kind: CheckKind, input_name: str, output_name: str, now_s: float) -> None:
        """End the conversation, which holds devices; check the two that are named; begin it again."""
        if self.is_busy:
            return
        self.check = Check(kind, "stopping")
        self._pair = (input_name, output_name)
        self._stop_until_s = now_s + _STOP_LIMIT_S
        self._send(Quit())
        if not self._is_running:
            self._begin_check()
        self.changed()

    def _begin_check(self) -> None:
        check, (input_name, output_name) = self.check, self._pair
        rate_hz = self._loaded().config.audio.rate_hz or None
        check.state = "running"

        def show(step: str, level_db: float) -> None:
            self._work.hand_over(lambda: self._show(check, step, level_db))

        def work() -> tuple[Sequence[Finding], str]:
            try:
                return self._tools.check(check.kind, input_name, output_name, rate_hz, show), ""
            except (AudioError, AgentError) as error:
                return [], _sentence(error)

        self._work.start(work, lambda result: self._finish_check(*result))

    def _show(self, check: Check, step: str, level_db: float) -> None:
        check.step, check.level_db = step, level_db

    def _finish_check(self, findings: Sequence[Finding], problem: str) -> None:
        self.check.state, self.check.step, self.check.level_db = "done", "", SILENCE_DB
        self.check.findings, self.check.problem = list(findings), problem
        self._restart(self._loaded())
        self.changed()


def _sentence(error: AudioError | AgentError) -> str:
    return f"{error.message}. {error.fix}" if error.fix else error.message
