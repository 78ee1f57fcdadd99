"""The models in the window: what is said of each, and that the buttons do what they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_rig import Handler, Server, pack, row, running_server
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel

from app.engine.builder import Places
from app.models.catalog import Catalog
from app.ui.panel import Context
from app.ui.panels.model_card import ModelCard
from app.ui.panels.models import ModelsPanel, make_model
from app.viewmodel.models import ModelsModel


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with running_server() as rules:
        yield rules


@pytest.fixture
def panel(context: Context, server: Server, tmp_path: Path, qtbot: Any) -> ModelsPanel:
    packs = {name: pack(name) for name in ("voice", "ear")}
    for packed in packs.values():
        server.publish(packed)
    catalog = Catalog(tuple(row(name, packed) for name, packed in packs.items()))
    where = Places(tmp_path / "store", tmp_path / "cache", tmp_path)
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{server.url}/simple", "PIP_TIMEOUT": "20"}
    made = ModelsPanel(ModelsModel(context.loaded.config, where, catalog, env=env, is_offline=False), context)
    qtbot.addWidget(made)
    made.show()
    return made


def _wait(panel: ModelsPanel, qtbot: Any, until: Callable[[], bool]) -> None:
    def polled() -> bool:
        panel.poll()
        panel.refresh_if_changed()
        return until()

    qtbot.waitUntil(polled, timeout=20_000)


def _idle(panel: ModelsPanel, qtbot: Any) -> None:
    _wait(panel, qtbot, lambda: not panel.view_model.is_busy)


def _texts(card: ModelCard) -> str:
    return "\n".join(label.text() for label in card.findChildren(QLabel) if label.isVisible())


def _buttons(card: ModelCard) -> list[str]:
    return [button.text() for button in card.buttons.values() if button.isVisible()]


def test_download_verify_and_remove(panel: ModelsPanel, qtbot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _idle(panel, qtbot)
    card = panel.cards["voice"]
    assert _buttons(card) == ["Download"]
    assert "Not installed" in _texts(card)
    assert "Licence MIT" in _texts(card)
    card.buttons["fetch"].setFocus()
    qtbot.keyClick(card.buttons["fetch"], Qt.Key.Key_Space)
    _idle(panel, qtbot)
    assert _buttons(card) == ["Verify", "Remove…"]
    assert "Installed and verified" in _texts(card)
    card.buttons["verify"].click()
    _idle(panel, qtbot)
    questions: list[str] = []
    answers = iter([False, True])
    monkeypatch.setattr(panel, "is_sure", lambda question: questions.append(question) or next(answers))
    card.buttons["remove"].click()
    assert not panel.view_model.is_busy  # the user said no
    card.buttons["remove"].click()
    _idle(panel, qtbot)
    assert questions[0].startswith("Delete voice (0.3 MB) from the store?")
    assert _buttons(card) == ["Download"]


def test_a_download_shows_how_far_it_is_and_can_be_paused_and_resumed(
    panel: ModelsPanel, server: Server, qtbot: Any
) -> None:
    def slow(handler: Handler, data: bytes) -> None:
        handler.head(200, {"ETag": '"half"', "Content-Length": str(len(data))})
        handler.wfile.write(data[:150_000])
        server.released.wait(20)
        handler.wfile.write(data[150_000:])

    _idle(panel, qtbot)
    card = panel.cards["voice"]
    server.answers["/files/voice-1.0-py3-none-any.whl"] = [slow, Handler.serve]
    card.buttons["fetch"].click()
    panel.cards["ear"].buttons["fetch"].click()
    _wait(panel, qtbot, lambda: "0.1 MB of 0.3 MB" in _texts(card) or "0.2 MB of 0.3 MB" in _texts(card))
    assert "Downloading" in _texts(card)
    assert _buttons(card) == ["Pause", "Cancel"]
    assert "Waiting for its turn" in _texts(panel.cards["ear"])
    card.buttons["pause"].click()
    panel.refresh_if_changed()
    assert "Pausing…" in _texts(card)
    server.released.set()
    _idle(panel, qtbot)
    assert _buttons(card) == ["Resume", "Discard"]
    assert "Installed and verified" in _texts(panel.cards["ear"])
    card.buttons["resume"].click()
    _idle(panel, qtbot)
    assert "Installed and verified" in _texts(card)


def test_what_goes_wrong_is_said_in_the_stores_words(panel: ModelsPanel, server: Server, qtbot: Any) -> None:
    _idle(panel, qtbot)
    server.files.clear()
    panel.cards["voice"].buttons["fetch"].click()
    _idle(panel, qtbot)
    assert f"Cannot fetch voice: there is no {server.url}/simple/voice/" in _texts(panel.cards["voice"])
    assert _buttons(panel.cards["voice"]) == ["Download"]


def test_the_shipped_catalog_with_the_verdict_of_the_memory_plan(
    context: Context, tmp_path: Path, qtbot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    made = ModelsPanel(make_model(context), context)
    qtbot.addWidget(made)
    made.show()
    _idle(made, qtbot)
    fit = made.view_model.row("smollm2-135m").fit
    assert fit is not None
    verdict = "Fits" if fit.fits else "Does not fit"
    assert f"{verdict}: needs {fit.needs_bytes / 1e9:.2f} GB" in _texts(made.cards["smollm2-135m"])
    assert all("in use" in _texts(card) for card in made.cards.values())
    assert all(button.accessibleName() for card in made.cards.values() for button in card.buttons.values())


def test_hidden_it_is_idle_and_looks_only_when_first_shown(
    context: Context, tmp_path: Path, qtbot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "none"))
    made = ModelsPanel(make_model(context), context)
    qtbot.addWidget(made)
    assert not made.view_model.is_busy
    assert not made.refresh_if_changed()


def test_colours_follow_the_theme(panel: ModelsPanel, both_themes: Callable[[str], None], qtbot: Any) -> None:
    _idle(panel, qtbot)
    pixels = set()
    for name in ("light", "dark"):
        both_themes(name)
        panel.restyle()
        pixels.add(panel.cards["voice"].grab().toImage().pixelColor(20, 4).name())
    assert len(pixels) == 2
