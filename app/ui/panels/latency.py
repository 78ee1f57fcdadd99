"""Latency: the last turns to the loudspeaker, their distribution, the budget, and whether the machine keeps up."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from app.ui.panel import Context, Panel
from app.ui.panels.figures import UNKNOWN, FiguresTable, Tile, legend_text, milliseconds_text
from app.ui.panels.waterfall import Waterfall
from app.viewmodel.latency import STEPS, Latency, RealTime, Turn


def make_model(context: Context) -> Latency:
    """With the budget of the configuration."""
    return Latency(context.loaded.config.ui.latency_budget_ms)


class LatencyPanel(Panel):
    """The same figures twice: painted, and as a table."""

    fps = 10.0

    def __init__(self, model: Latency, context: Context) -> None:
        super().__init__(model, context)
        self._latency = model
        self._p50, self._p95, self._p99, self._stop = self._tiles = tuple(Tile() for _ in range(4))
        self._button = QPushButton()
        self._button.setCheckable(True)
        self.waterfall = Waterfall(context.theme)
        self.table = FiguresTable()
        self._views = QStackedWidget()
        self._detail, self._legend, self._guard = QLabel(), QLabel(), QLabel()
        self._lay_out()
        self._button.toggled.connect(self._show_as_table)
        self.waterfall.selected_changed.connect(self._show_selected)
        self.retranslate()
        self.restyle()

    def _lay_out(self) -> None:
        self._views.addWidget(self.waterfall)
        self._views.addWidget(self.table)
        for label in (self._detail, self._legend, self._guard):
            label.setWordWrap(True)
        # Two lines always: what is under the mouse must not move while one looks.
        self._detail.setMinimumHeight(2 * self._detail.fontMetrics().lineSpacing())
        self._detail.setAlignment(Qt.AlignmentFlag.AlignTop)
        top = QHBoxLayout()
        top.setSpacing(14)
        for tile in self._tiles:
            top.addWidget(tile)
        top.addStretch(1)
        bottom = QHBoxLayout()
        bottom.addWidget(self._guard, 1)
        bottom.addWidget(self._button, 0, Qt.AlignmentFlag.AlignBottom)
        layout = QVBoxLayout(self)
        layout.addLayout(top)
        layout.addWidget(self._views, 1)
        layout.addWidget(self._legend)
        layout.addWidget(self._detail)
        layout.addLayout(bottom)
        QWidget.setTabOrder(self.waterfall, self.table)
        QWidget.setTabOrder(self.table, self._button)

    def refresh(self) -> None:
        """See `Panel`."""
        latency, total, stops = self._latency, self._latency.total(), self._latency.stops()
        latency.budget_ms = self.context.loaded.config.ui.latency_budget_ms  # may be another since a restart
        for tile, value in zip(self._tiles, (total.p50, total.p95, total.p99, stops.p50), strict=True):
            tile.set_value(milliseconds_text(value))
        budget = self.tr("budget {0}").format(milliseconds_text(latency.budget_ms))
        self.waterfall.show_turns(latency.turns, latency.budget_ms, budget)
        self._fill_table()
        self._show_selected()
        self._show_guard(latency.real_time())
        self._colour_tiles()

    def restyle(self) -> None:
        """See `Panel`."""
        marks = [QColor(name) for name in self.context.theme.colours.series]
        self._legend.setText(legend_text(list(zip(marks, self._step_names(), strict=True))))
        self._colour_tiles()
        self._show_guard(self._latency.real_time())
        self.update()

    def retranslate(self) -> None:
        """See `Panel`."""
        self._p50.set_name(self.tr("median"), self.tr("Half of the turns were answered in this time or less"))
        self._p95.set_name(self.tr("p95"), self.tr("19 of 20 turns were answered in this time or less"))
        self._p99.set_name(self.tr("p99"), self.tr("99 of 100 turns were answered in this time or less"))
        self._stop.set_name(
            self.tr("to fall silent"), self.tr("Median time for which a reply goes on after you begin to speak")
        )
        self._button.setText(self.tr("As &table"))
        self._button.setAccessibleName(self.tr("Latency as a table"))
        self._button.setToolTip(self.tr("Show the same figures as a table"))
        self.waterfall.setAccessibleName(self.tr("The last turns, step by step"))
        self.waterfall.setToolTip(self.tr("From your last word to the answer's first sound"))
        self.table.setAccessibleName(self.tr("Latency of the last turns in ms"))
        self._guard.setAccessibleName(self.tr("Real time"))
        self.refresh()
        self.restyle()

    def _step_names(self) -> list[str]:
        """In the order of `STEPS`."""
        names = {
            "endpoint": self.tr("end of turn"),
            "asr": self.tr("recognition"),
            "first_token": self.tr("first token"),
            "first_clause": self.tr("first clause"),
            "tts": self.tr("voice"),
            "playback": self.tr("playback"),
            "output": self.tr("output"),
        }
        return [names[step] for step in STEPS]

    def _show_as_table(self, is_table: bool) -> None:
        self._views.setCurrentWidget(self.table if is_table else self.waterfall)
        self._legend.setVisible(not is_table)
        self._detail.setVisible(not is_table)

    def _show_selected(self) -> None:
        turn = self.waterfall.selected
        text = self.tr("No turn yet: say something.") if turn is None else self._sentence(turn)
        self._detail.setText(text)
        self.waterfall.describe(text)

    def _sentence(self, turn: Turn) -> str:
        steps = ", ".join(
            f"{name} {step_ms:.0f}" for name, step_ms in zip(self._step_names(), turn.steps_ms, strict=True)
        )
        text = self.tr("Turn {0}: {1} — {2}").format(turn.turn, milliseconds_text(turn.total_ms), steps)
        if turn.stop_ms is not None:
            text += self.tr("; interrupted, silent after {0}").format(milliseconds_text(turn.stop_ms))
        return text

    def _show_guard(self, real_time: RealTime) -> None:
        verdicts = {
            "unknown": (self.tr("Real time: not measured yet"), "faint"),
            "good": (self.tr("Keeps up with the sound"), "good"),
            "warning": (self.tr("Hardly keeps up with the sound"), "warning"),
            "bad": (self.tr("Sound was lost"), "bad"),
        }
        words, role = verdicts[real_time.verdict]
        colour = self.context.theme.colour(role).name()
        if real_time.verdict == "unknown":
            self._guard.setText(f'<span style="color:{colour}">●</span> {words}')
            return
        figures = self.tr("ear done {0:.1f} ms after the block (p99), {1:.0f} ms lost, {2} late results").format(
            real_time.late.p99, real_time.lost_ms, real_time.late_results
        )
        sentence = self.tr("{0}: {1}").format(words, figures)
        self._guard.setText(f'<span style="color:{colour}">●</span> {sentence}')

    def _fill_table(self) -> None:
        latency, total, stops = self._latency, self._latency.total(), self._latency.stops()
        columns = [self.tr("turn"), self.tr("sum"), *self._step_names(), self.tr("to fall silent")]
        steps = latency.steps()
        rows = [
            [name, *(_plain(getattr(q, at)) for q in (total, *steps, stops))]
            for name, at in ((self.tr("median"), "p50"), ("p95", "p95"), ("p99", "p99"))
        ]
        rows += [
            [f"#{turn.turn}", *map(_plain, (turn.total_ms, *turn.steps_ms, _or_nan(turn.stop_ms)))]
            for turn in latency.turns
        ]
        self.table.show_figures(columns, rows)

    def _colour_tiles(self) -> None:
        total, theme = self._latency.total(), self.context.theme
        for tile, value_ms in zip(self._tiles, (total.p50, total.p95, total.p99, 0.0), strict=True):
            role = "bad" if value_ms > self._latency.budget_ms else "text"
            tile.set_colours(theme.colour(role), theme.colour("faint"))


def _plain(value_ms: float) -> str:
    return UNKNOWN if value_ms != value_ms else f"{value_ms:,.0f}"


def _or_nan(value_ms: float | None) -> float:
    return float("nan") if value_ms is None else value_ms
