"""The *Devices* panel: which microphone and loudspeaker, what is wrong with them, and a test of both."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import (
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.cli.probe import ask_in_child
from app.config.load import Loaded, load_config
from app.config.save import save_keys
from app.engine.device_check import ECHO, LISTENING, TONE, Finding, check_pair, play_tone
from app.ui.panel import Context, Panel
from app.ui.panels.findings import Findings
from app.ui.panels.level_meter import LevelMeter
from app.viewmodel.base import ViewModel
from app.viewmodel.device_list import Choice
from app.viewmodel.devices import CheckKind, Devices, DeviceTools, Show
from audio.io.identity import DeviceInfo
from audio.io.portaudio import list_devices
from audio.io.pulse import look
from audio.io.server import ServerView

_LIST_LIMIT_S = 10.0
_SETTLE_MS = 100


def make_model(context: Context) -> ViewModel:
    """See `PanelSpec`."""
    return Devices(lambda: context.loaded, context.send, context.restart, DeviceTools(_look, _list, _check, _save))


def make_widget(model: ViewModel, context: Context) -> Panel:
    """See `PanelSpec`."""
    assert isinstance(model, Devices)
    return DevicesPanel(model, context)


def _look() -> ServerView | None:
    return look()[0]


def _list() -> Sequence[DeviceInfo] | None:
    """PortAudio shows a process only what was there when it started, so a fresh one is asked."""
    found: list[DeviceInfo] | None = ask_in_child(list_devices, timeout_s=_LIST_LIMIT_S)
    return found


def _check(kind: CheckKind, input_name: str, output_name: str, rate_hz: int | None, show: Show) -> list[Finding]:
    if kind == "tone":
        stream = play_tone(input_name, output_name, rate_hz, show)
        return [Finding("loudspeaker", "ok", f"{stream.output_name}, {stream.rate_hz} Hz")]
    return check_pair(input_name, output_name, rate_hz, show)[1]


def _save(loaded: Loaded, changes: dict[str, object]) -> Loaded:
    """Without a name there is no key: that is the default."""
    save_keys(loaded.user_file, {key: name or None for key, name in changes.items()})
    return load_config(file=loaded.user_file, env=os.environ, overrides=loaded.overrides)


class _End:
    """One direction: its picker and its meter."""

    def __init__(self, panel: DevicesPanel, role: str, *, is_input: bool) -> None:
        self.is_input = is_input
        self.label, self.picker = QLabel(), QComboBox()
        self.meter = LevelMeter(panel.context.theme, role)
        self.picker.setMinimumContentsLength(8)
        self.picker.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.label.setBuddy(self.picker)
        self.shown: list[Choice] = []
        self.configured = ""

    @property
    def value(self) -> str:
        """What the configuration would say for what is picked."""
        index = self.picker.currentIndex()
        return self.shown[index].value if 0 <= index < len(self.shown) else self.configured


class DevicesPanel(Panel):
    """Pickers above, what is wrong beneath them, the test at the bottom."""

    fps = 10.0

    def __init__(self, model: Devices, context: Context) -> None:
        super().__init__(model, context)
        self._model = model
        self._source = _End(self, "user", is_input=True)
        self._sink = _End(self, "accent", is_input=False)
        self._present, self._warnings, self._outcome = QLabel(), Findings(context.theme), Findings(context.theme)
        self._apply, self._again = QPushButton(), QPushButton()
        self._tone, self._pair = QPushButton(), QPushButton()
        self._test_title, self._note, self._step = QLabel(), QLabel(), QLabel()
        self._test_meter = LevelMeter(context.theme, "user")
        self._lay_out()
        self._connect()
        self._shown_state = -1
        self._settling = QTimer(self)  # also while hidden: a conversation waits for the end of a check
        self._settling.timeout.connect(self._settle)
        self.retranslate()

    def _lay_out(self) -> None:
        inner = QWidget()
        column = QVBoxLayout(inner)
        grid = QGridLayout()
        grid.setColumnStretch(1, 1)
        for row, end in enumerate((self._source, self._sink)):
            grid.addWidget(end.label, row * 2, 0)
            grid.addWidget(end.picker, row * 2, 1)
            grid.addWidget(end.meter, row * 2 + 1, 1)
        column.addLayout(grid)
        for label in (self._present, self._note, self._step):
            label.setWordWrap(True)
        column.addWidget(self._present)
        column.addLayout(_row(self._apply, self._again))
        column.addWidget(self._warnings)
        column.addSpacing(self.fontMetrics().height())
        column.addWidget(self._test_title)
        column.addWidget(self._note)
        column.addLayout(_row(self._tone, self._pair))
        column.addWidget(self._step)
        column.addWidget(self._test_meter)
        column.addWidget(self._outcome)
        column.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidget(inner)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll, self._inner = scroll, inner
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)
        self._test_title.setProperty("heading", True)  # a font of its own would not outlive a change of the theme
        self._apply.setProperty("primary", True)

    def _connect(self) -> None:
        for end in (self._source, self._sink):
            end.picker.currentIndexChanged.connect(lambda _index: self._show_state())
        self._apply.clicked.connect(lambda: self._model.apply(self._source.value, self._sink.value))
        self._again.clicked.connect(self._model.look_again)
        self._tone.clicked.connect(lambda: self._begin("tone"))
        self._pair.clicked.connect(lambda: self._begin("pair"))

    def _begin(self, kind: CheckKind) -> None:
        self._model.begin_check(kind, self._source.value, self._sink.value, time.monotonic())
        self._settling.start(_SETTLE_MS)

    def _settle(self) -> None:
        self._model.settle(time.monotonic())
        if not self._model.is_busy:
            self._settling.stop()

    def poll(self) -> None:
        """See `Panel`."""
        self._model.poll(time.monotonic())

    # -- showing ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See `Panel`."""
        model = self._model
        if model.state_revision != self._shown_state:
            self._shown_state = model.state_revision
            for end in (self._source, self._sink):
                self._show_choices(end)
            self._show_state()
        self._source.meter.show_level(model.level_db, model.level_db)
        self._sink.meter.show_level(model.far_level_db, model.far_level_db)
        self._test_meter.show_level(model.check.level_db, model.check.level_db)

    def _show_choices(self, end: _End) -> None:
        """Fill a picker where the list is another one; what the user has picked stays, as long as it is there."""
        choices, index = self._model.choices(is_input=end.is_input)
        configured = choices[index].value
        if choices == end.shown and configured == end.configured:
            return
        picked = end.value if end.shown and configured == end.configured else configured
        end.shown, end.configured = choices, configured
        end.picker.blockSignals(True)
        end.picker.clear()
        end.picker.addItems([self._choice_text(choice) for choice in choices])
        values = [choice.value for choice in choices]
        end.picker.setCurrentIndex(values.index(picked) if picked in values else index)
        end.picker.blockSignals(False)

    def _choice_text(self, choice: Choice) -> str:
        if not choice.is_present:
            return self.tr("{0} (not connected)").format(choice.label)
        if not choice.value:
            return self.tr("System default: {0}").format(choice.label) if choice.label else self.tr("System default")
        return f"{choice.label} — {choice.detail}" if choice.detail else choice.label

    def _show_state(self) -> None:
        """Everything but lists and levels."""
        for end in (self._source, self._sink):
            tip = self.tr("By name: it is found again wherever it is plugged in")
            end.picker.setToolTip(f"{end.picker.currentText()}\n{tip}")
        model = self._model
        opened = model.opened
        if opened is None:
            self._present.setText(self.tr("In use: —"))
        else:
            self._present.setText(
                self.tr("In use: {0}; {1} Hz, {2} ms output latency, {3}").format(
                    " → ".join(dict.fromkeys((opened.input_name, opened.output_name))),
                    opened.rate_hz,
                    f"{opened.output_latency_ms:.0f}",
                    opened.scheduling,
                )
            )
        is_other = any(end.value != end.configured for end in (self._source, self._sink))
        self._apply.setEnabled(is_other and not model.is_busy)
        for button in (self._tone, self._pair):
            button.setEnabled(not model.is_busy)
        self._warnings.show_lines(self._warning_lines())
        self._show_check()

    def _warning_lines(self) -> list[tuple[str, str]]:
        model = self._model
        lines: list[tuple[str, str]] = []
        if model.lost is not None:
            lines.append(("wrong", self.tr("Lost {0}: {1}").format(model.lost.device, model.lost.reason)))
        if model.has_no_signal:
            sentence = self.tr(
                "The microphone gives no signal. Unmute it, on the device too; allow programs to use it; "
                "or choose another."
            )
            lines.append(("wrong", sentence))
        if advice := model.bluetooth_advice(self._source.value, self._sink.value):
            lines.append(("warning", advice))
        if model.is_unanswered:
            lines.append(("warning", self.tr("The sound system did not answer when it was asked for its devices.")))
        if model.problem:
            lines.append(("wrong", model.problem))
        if model.outranked_by:
            sentence = self.tr("The choice is kept, but {0} says otherwise and counts for more.")
            lines.append(("warning", sentence.format(model.outranked_by)))
        return lines

    def _show_check(self) -> None:
        check = self._model.check
        steps = {
            "": self.tr("Opening the devices…"),
            LISTENING: self.tr("Listening: say something"),
            TONE: self.tr("You should hear a tone"),
            ECHO: self.tr("Measuring the echo: three sweeps"),
        }
        texts = {
            "stopping": self.tr("Ending the conversation…"),
            "running": steps.get(check.step, check.step),
        }
        self._step.setText(texts.get(check.state, ""))
        for widget in (self._step, self._test_meter):
            widget.setVisible(self._model.is_checking)
        self._outcome.show_lines(self._outcome_lines())

    def _outcome_lines(self) -> list[tuple[str, str]]:
        check = self._model.check
        if check.is_stuck:
            return [("wrong", self.tr("The conversation does not end, so nothing was tested."))]
        if check.problem:
            return [("wrong", check.problem)]
        lines = [(f.status, f"{f.name}: {f.found}" + (f". {f.fix}" if f.fix else "")) for f in check.findings]
        if check.kind == "tone" and check.findings:
            lines.append(("", self.tr("If you heard no tone, turn the loudspeaker up or choose another.")))
        return lines

    def restyle(self) -> None:
        """See `Panel`."""
        self._warnings.restyle()
        self._outcome.restyle()
        self.update()

    # -- texts ------------------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        """See `Panel`."""
        for end, text in ((self._source, self.tr("&Microphone")), (self._sink, self.tr("&Loudspeaker"))):
            plain = text.replace("&", "")
            end.label.setText(text)
            end.picker.setAccessibleName(plain)
            end.meter.setAccessibleName(self.tr("Level of {0}").format(plain))
            end.meter.setToolTip(self.tr("Level in the conversation that runs"))
            end.shown = []
        buttons = (
            (self._apply, self.tr("&Use these"), self.tr("Keep the choice; the conversation begins again with it")),
            (self._again, self.tr("L&ook again"), self.tr("List the devices anew")),
            (self._tone, self.tr("Play a &tone"), self.tr("A second of 440 Hz from the loudspeaker above")),
            (self._pair, self.tr("&Check both"), self.tr("Microphone, tone and three sweeps: about 11 seconds")),
        )
        for button, text, tip in buttons:
            button.setText(text)
            button.setAccessibleName(text.replace("&", ""))
            button.setToolTip(tip)
        self._test_title.setText(self.tr("Test"))
        self._note.setText(
            self.tr("For a test the conversation ends, and begins again behind it with what was said so far.")
        )
        self._test_meter.setAccessibleName(self.tr("Level in the test"))
        self._warnings.setAccessibleName(self.tr("Warnings"))
        self._outcome.setAccessibleName(self.tr("Result of the test"))
        self._shown_state = -1
        self.refresh()
        self._fit()

    def _fit(self) -> None:
        """Narrower than its buttons it does not become; lines wrap."""
        bar = self._scroll.verticalScrollBar().sizeHint().width()
        self._scroll.setMinimumWidth(self._inner.minimumSizeHint().width() + bar)


def _row(*buttons: QPushButton) -> QHBoxLayout:
    row = QHBoxLayout()
    for button in buttons:
        row.addWidget(button)
    row.addStretch(1)
    return row
