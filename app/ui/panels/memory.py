"""Memory: who holds the GPU's (or the RAM), the arena page by page, and what is given up while it is scarce."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QVBoxLayout, QWidget

from app.ui.panel import Context, Panel
from app.ui.panels.figures import UNKNOWN, FiguresTable, legend_text, size_text
from app.ui.panels.memory_bars import ArenaMap, PartsBar, page_colours
from app.viewmodel.memory import PARTS, Holder, Memory, RungRow

_LEVEL_ROLES = {"calm": "good", "tight": "warning", "critical": "bad"}
_RUNG_ROLES = {"given": "warning", "open": "good", "nothing": "line"}
_NAMED_PROCESSES = 3
_STAGE_LEAST_BYTES = 1_000_000


def make_model(context: Context) -> Memory:
    """Of nothing known yet."""
    return Memory()


class MemoryPanel(Panel):
    """Four sections, one below the other."""

    fps = 4.0

    def __init__(self, model: Memory, context: Context) -> None:
        super().__init__(model, context)
        self._memory = model
        self._place, self._others, self._level = QLabel(), QLabel(), QLabel()
        self.bar, self.own_bar = PartsBar(context.theme), PartsBar(context.theme)
        self._own, self.parts = QLabel(), FiguresTable(is_whole=True)
        self._arena, self._arena_legend = QLabel(), QLabel()
        self.map = ArenaMap(context.theme)
        self.ladder, self.stages = FiguresTable(is_whole=True), FiguresTable(is_whole=True)
        self._stages_title = QLabel()
        self._lay_out()
        self.retranslate()

    def _lay_out(self) -> None:
        inside = QWidget()
        layout = QVBoxLayout(inside)
        for label in (
            self._place,
            self._own,
            self._others,
            self._arena,
            self._arena_legend,
            self._level,
            self._stages_title,
        ):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.RichText)
        sections = (
            (self._place, self.bar, self._own, self.own_bar, self.parts, self._others),
            (self._arena, self.map, self._arena_legend),
            (self._level, self.ladder),
            (self._stages_title, self.stages),
        )
        for number, section in enumerate(sections):
            if number:
                layout.addSpacing(10)
            for widget in section:
                layout.addWidget(widget)
        layout.addStretch(1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(inside)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(area)

    def poll(self) -> None:
        """See `Panel`."""
        self._memory.poll()

    def refresh(self) -> None:
        """See `Panel`."""
        self._show_parts()
        self._show_arena()
        self._show_ladder()
        self._show_stages()

    def restyle(self) -> None:
        """See `Panel`."""
        self.refresh()

    def retranslate(self) -> None:
        """See `Panel`."""
        self.bar.setAccessibleName(self.tr("Memory by holder"))
        self.own_bar.setAccessibleName(self.tr("Vivavoce's own memory by holder"))
        for bar in (self.bar, self.own_bar):
            bar.setToolTip(self.tr("The parts of the table below, to scale"))
        self.parts.setAccessibleName(self.tr("Memory by holder"))
        self.map.setAccessibleName(self.tr("Pages of the conversation's memory"))
        self.map.setToolTip(self.tr("One box is one page: filled where it exists, empty where it may still come"))
        self.ladder.setAccessibleName(self.tr("What can be given up while memory is scarce"))
        self.stages.setAccessibleName(self.tr("Models and what they hold"))
        self.refresh()

    # -- the memory as a whole --------------------------------------------------------------------------------

    def _show_parts(self) -> None:
        memory, parts = self._memory, self._memory.parts()
        total = memory.total_bytes
        if memory.is_gpu:
            title = self.tr("Memory of {0}: {1}").format(memory.place_name, size_text(total))
            self._place.setText(_bold(title))
        else:
            title = self.tr("RAM: {0}").format(size_text(total) if total else UNKNOWN)
            plain = self.tr("The language model runs on the CPU, so this is the computer's main memory.")
            self._place.setText(f"{_bold(title)}<br>{plain}" if memory.state else _bold(title))
        colours = dict(zip(PARTS, self._part_colours(), strict=True))
        names = dict(zip(PARTS, self._part_names(), strict=True))
        shown = [name for name in PARTS if name in parts and (parts[name] or name not in ("speech", "rest"))]
        self.bar.show_parts([(colours[name], parts[name]) for name in shown])
        own = [name for name in shown if name not in ("others", "free")]
        self.own_bar.show_parts([(colours[name], parts[name]) for name in own])
        size = size_text(sum(parts[name] for name in own)) if parts else UNKNOWN
        self._own.setText(self.tr("Of this Vivavoce's own: {0}").format(size))
        rows = [[names[name], size_text(parts[name]), f"{100 * parts[name] / total:.1f} %"] for name in shown]
        columns = [self.tr("held by"), self.tr("size"), self.tr("share")]
        self.parts.show_figures(columns, rows, [colours[name] for name in shown])
        for bar in (self.bar, self.own_bar):
            bar.setAccessibleDescription(", ".join(f"{row[0]} {row[1]}" for row in rows))
        self._show_others()

    def _show_others(self) -> None:
        others = self._memory.other_processes()[:_NAMED_PROCESSES]
        named = ", ".join(
            self.tr("process {0}: {1}").format(
                other.pid, UNKNOWN if other.used_bytes is None else size_text(other.used_bytes)
            )
            for other in others
        )
        sentences = [sentence for sentence in (named, self._memory.note) if sentence]
        self._others.setText("<br>".join(sentences))
        self._others.setVisible(bool(sentences))

    def _part_colours(self) -> list[QColor]:
        theme = self.context.theme
        series = [QColor(name) for name in theme.colours.series]
        return [series[0], series[1], series[2], series[3], series[5], theme.colour("surface")]

    def _part_names(self) -> list[str]:
        """In the order of `PARTS`."""
        others = self.tr("other programs and the system") if not self._memory.is_gpu else self.tr("other programs")
        return [
            self.tr("language model"),
            self.tr("its conversation"),
            self.tr("speech models"),
            self.tr("the rest of Vivavoce"),
            others,
            self.tr("free"),
        ]

    # -- the arena --------------------------------------------------------------------------------------------

    def _show_arena(self) -> None:
        state = self._memory.state
        title = self.tr("What the model remembers")
        if state is None:
            self._arena.setText(f"{_bold(title)}<br>{UNKNOWN}")
        else:
            figures = self.tr("{0:,} of {1:,} tokens in {2} pages of {3}, {4} of them shared").format(
                state.live_tokens, state.window_tokens, state.pages, size_text(state.page_bytes), state.shared_pages
            )
            if state.parked_sessions:
                figures += self.tr("; {0} sessions lie on the host").format(state.parked_sessions)
            self._arena.setText(f"{_bold(title)}<br>{figures}")
        rows = [(self._holder_name(one), one, self._holder_words(one)) for one in self._memory.holders()]
        self.map.show_holders(rows)
        self.map.setAccessibleDescription("; ".join(f"{name}: {words}" for name, _, words in rows))
        self.map.setVisible(bool(rows))
        shared, own = page_colours(self.context.theme)
        self._arena_legend.setText(
            legend_text(
                [(own, self.tr("page of its own")), (shared, self.tr("page that several share"))],
                [(self.context.theme.colour("faint"), self.tr("may still come"))],
            )
        )
        self._arena_legend.setVisible(bool(rows))

    def _holder_name(self, holder: Holder) -> str:
        if holder.kind == "conversation":
            return self.tr("conversation")
        if holder.kind == "session":
            return self.tr("session {0}").format(holder.number)
        return self.tr("persona {0}").format(holder.number)

    def _holder_words(self, holder: Holder) -> str:
        return self.tr("{0} of {1} pages, {2:,} tokens").format(holder.pages, holder.room_pages, holder.tokens)

    # -- the ladder -------------------------------------------------------------------------------------------

    def _show_ladder(self) -> None:
        level, theme = self._memory.level, self.context.theme
        words = {
            "calm": self.tr("Enough memory is free"),
            "tight": self.tr("Memory is tight: something is given up"),
            "critical": self.tr("Memory is critical: things are given up at once"),
        }
        dot = f'<span style="color:{theme.colour(_LEVEL_ROLES.get(level, "faint")).name()}">●</span>'
        unknown = self.tr("Pressure: nobody watches the memory")
        if self._memory.state is None and not level:
            unknown = self.tr("Pressure: not known yet")
        self._level.setText(f"{dot} {_bold(words.get(level, unknown))}")
        rungs = self._memory.ladder()
        rows = [[self._rung_name(rung.name), self._rung_state(rung), self._rung_size(rung)] for rung in rungs]
        columns = [self.tr("mildest first"), self.tr("state"), self.tr("size")]
        self.ladder.show_figures(columns, rows, [theme.colour(_RUNG_ROLES[rung.state]) for rung in rungs])

    def _rung_name(self, name: str) -> str:
        names = {
            "spare pages": self.tr("spare pages"),
            "window": self.tr("half of the window"),
            "kv int8": self.tr("conversation in 8 bits"),
            "weights": self.tr("smaller weights"),
            "ear on the cpu": self.tr("ear on the CPU"),
            "smaller model": self.tr("smaller model"),
            "llm on the cpu": self.tr("model on the CPU"),
        }
        return names.get(name, name)

    def _rung_state(self, rung: RungRow) -> str:
        states = {
            "given": self.tr("given up"),
            "open": self.tr("possible"),
            "nothing": self.tr("nothing now"),
        }
        return states[rung.state]

    def _rung_size(self, rung: RungRow) -> str:
        if rung.size_bytes is None:
            return UNKNOWN
        if rung.state == "given":
            return self.tr("{0} came free").format(size_text(rung.size_bytes))
        return self.tr("{0} would come free").format(size_text(rung.size_bytes))

    # -- the stages -------------------------------------------------------------------------------------------

    def _show_stages(self) -> None:
        stages = [one for one in self._memory.stages.values() if one.memory_bytes >= _STAGE_LEAST_BYTES]
        stages.sort(key=lambda stage: -stage.memory_bytes)
        rows = [[self._stage_name(one.stage), one.backend, size_text(one.memory_bytes)] for one in stages]
        self.stages.show_figures([self.tr("model"), self.tr("runs on"), self.tr("holds at most")], rows)
        self._stages_title.setText(_bold(self.tr("Models")))
        self.stages.setVisible(bool(rows))
        self._stages_title.setVisible(bool(rows))

    def _stage_name(self, stage: str) -> str:
        names = {
            "asr": self.tr("recognition"),
            "turn": self.tr("end of turn"),
            "llm": self.tr("language model, window"),
            "tts": self.tr("voice"),
            "vad": self.tr("speech detector"),
        }
        return names.get(stage, stage)


def _bold(text: str) -> str:
    return f"<b>{text}</b>"
