"""Changing settings: what is valid is saved, what is not says why, and everything can be taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.load import Loaded, load_config
from app.models.catalog import load_catalog
from app.viewmodel.settings import SettingsModel

_OWN = """\
# mine
[llm]
seed = 3  # lucky

[personas.pirate]
prompt = "Arr"
max_reply_tokens = 50
"""


class _Given:
    def __init__(self, file: Path, text: str | None, *overrides: str, **env: str) -> None:
        if text is not None:
            file.write_text(text)
        self.file = file
        self.env = {"XDG_CONFIG_HOME": str(file.parent.parent), "HOME": "/nonexistent", **env}
        self.restarts: list[Loaded] = []
        loaded = load_config(file=None, env=self.env, overrides=overrides)
        self.model = SettingsModel(loaded, load_catalog(), env=self.env, restart=self.restarts.append)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vivavoce" / "config.toml"
    path.parent.mkdir()
    return path


def test_values_and_where_they_came_from(file: Path) -> None:
    model = _Given(file, _OWN, "llm.top_k=5", VIVAVOCE__LLM__TEMPERATURE="0.5").model
    origins = {name: model.setting(name).origin for name in ("llm.seed", "llm.top_k", "llm.temperature", "llm.top_p")}
    assert origins == {
        "llm.seed": "file",
        "llm.top_k": "flag",
        "llm.temperature": "environment",
        "llm.top_p": "default",
    }
    assert model.setting("personas.pirate.voice").origin == "persona"
    assert model.setting("llm.temperature").origin_text == "environment VIVAVOCE__LLM__TEMPERATURE"
    assert [model.setting(name).is_locked for name in origins] == [False, True, True, False]
    with pytest.raises(KeyError):
        model.setting("llm.sed")


def test_every_key_is_in_one_section_and_has_an_editor(file: Path) -> None:
    model = _Given(file, _OWN).model
    found = [setting for section in model.sections for setting in model.settings(section)]
    assert len(found) == len({setting.name for setting in found}) == len(model.matching(""))
    assert {setting.name for setting in found} > {"persona", "ui.theme", "personas.pirate.prompt", "ear.chain"}
    editors = {setting.name: setting.editor for setting in found}
    assert [editors[name] for name in ("llm.precision", "llm.device", "memory.guard", "llm.seed", "llm.top_p")] == [
        "choice", "suggestions", "switch", "whole", "number"]  # fmt: skip
    assert [editors[name] for name in ("audio.input", "personas.brief.prompt", "ear.chain", "paths.data")] == [
        "text", "long_text", "list", "folder"]  # fmt: skip
    assert model.setting("asr.model").suggestions == ("moonshine-tiny-en",)
    assert model.setting("persona").suggestions == ("default", "brief", "pirate")
    units = {name: model.setting(name).unit for name in ("turn.barge_in_ms", "asr.hard_cut_s", "llm.top_k", "llm.seed")}
    assert units == {"turn.barge_in_ms": "ms", "asr.hard_cut_s": "s", "llm.top_k": "", "llm.seed": ""}


def test_filter_looks_at_key_help_and_value(file: Path) -> None:
    model = _Given(file, _OWN).model
    assert {setting.name for setting in model.matching("TEMPER")} == {"llm.temperature"}
    assert "llm.temperature" in {setting.name for setting in model.matching("likely token")}
    assert [setting.name for setting in model.matching("arr")] == ["personas.pirate.prompt"]
    assert model.matching("no such thing") == []


def test_apply_saves_keeps_comments_and_restarts_with_the_new_configuration(file: Path) -> None:
    given = _Given(file, _OWN)
    given.model.set_value("llm.seed", 9)
    given.model.set_value("ear.chain", ["echo", "denoise"])
    assert file.read_text() == _OWN
    assert given.model.can_apply
    assert given.model.apply()
    assert "seed = 9  # lucky" in file.read_text()
    assert file.read_text().startswith("# mine\n")
    (new,) = given.restarts
    assert (new.config.llm.seed, new.config.ear.chain) == (9, ["echo", "denoise"])
    assert new.origins["llm.seed"] == f"{file}:3"
    assert not any((given.model.has_changes, given.model.can_undo, given.model.apply()))


def test_flags_and_environment_still_hold_after_saving(file: Path) -> None:
    given = _Given(file, _OWN, "llm.top_k=5", VIVAVOCE__LLM__TEMPERATURE="0.5")
    given.model.set_value("llm.top_k", 7)
    given.model.set_default("llm.temperature")
    assert not given.model.has_changes
    given.model.set_value("llm.seed", 9)
    assert given.model.apply()
    config = given.restarts[0].config
    assert (config.llm.top_k, config.llm.temperature, config.llm.seed) == (5, 0.5, 9)
    assert "top_k" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("llm.temperature", 3.0, "llm.temperature cannot be 3.0. Allowed: a number, 0.0 to 2.0"),
        ("llm.device", "gpu", r"llm.device cannot be 'gpu'. Allowed: text of the form ^(auto|cpu|cuda(:\d+)?)$"),
        ("ear.speech_off", 0.9, "ear.speech_off cannot be 0.9. Allowed: at most ear.speech_on, which is 0.5"),
        ("ear.chain", ["reverb"], "ear.chain cannot be ['reverb']. Allowed: a list of echo or denoise"),
        ("persona", "nobody", "persona cannot be 'nobody'. Allowed: default, brief, pirate"),
    ],
)
def test_what_is_not_allowed_says_why_and_saves_nothing(file: Path, name: str, value: object, sentence: str) -> None:
    given = _Given(file, _OWN)
    given.model.set_value("llm.seed", 4)
    given.model.set_value(name, value)
    setting = given.model.setting(name)
    assert (setting.problem, setting.value) == (sentence, value)
    assert not given.model.can_apply
    assert not given.model.apply()
    assert (file.read_text(), given.restarts) == (_OWN, [])
    given.model.undo()
    assert given.model.setting(name).problem == ""
    assert given.model.setting("llm.seed").value == 4
    assert given.model.can_apply


def test_every_wrong_key_is_told(file: Path) -> None:
    model = _Given(file, _OWN).model
    model.set_value("llm.temperature", 3.0)
    model.set_value("turn.barge_in_ms", 1)
    model.set_value("llm.seed", 8)
    assert set(model.problems) == {"llm.temperature", "turn.barge_in_ms"}


def test_keys_that_must_fit_each_other_name_the_one_that_does_not(file: Path) -> None:
    model = _Given(file, _OWN).model
    model.set_value("ear.speech_on", 0.2)
    assert model.setting("ear.speech_off").problem.endswith("at most ear.speech_on, which is 0.2")
    assert not model.can_apply
    model.set_value("ear.speech_off", 0.1)
    assert model.can_apply


def test_undo_is_one_step_a_change_and_default_is_a_change(file: Path) -> None:
    model = _Given(file, _OWN).model
    model.set_value("llm.seed", 4)
    model.set_value("llm.seed", 5)
    model.set_default("llm.seed")
    assert (model.setting("llm.seed").value, model.setting("llm.seed").origin) == (0, "default")
    values = []
    while model.can_undo:
        model.undo()
        values.append(model.setting("llm.seed").value)
    assert values == [5, 4, 3]
    model.undo()
    assert not model.has_changes
    model.set_value("llm.seed", 4)
    model.set_value("llm.seed", 3)  # what is saved is no change
    assert not model.has_changes
    model.set_value("llm.seed", 4)
    model.discard()
    assert (model.has_changes, model.can_undo) == (False, True)
    model.undo()
    assert model.setting("llm.seed").value == 4


def test_back_to_default_takes_the_key_out_of_the_file(file: Path) -> None:
    given = _Given(file, _OWN)
    assert not given.model.setting("llm.top_p").can_be_default
    given.model.set_default("llm.seed")
    assert given.model.apply()
    assert "seed" not in file.read_text()
    assert given.restarts[0].config.llm.seed == 0


# --- personas


def test_a_new_persona_begins_like_the_default(file: Path) -> None:
    given = _Given(file, None)
    model = given.model
    assert [model.can_name(name) for name in ("default", "", " ", "a.b", 'a"b', "Käpt'n", "two words")] == [
        False, False, False, False, False, True, True]  # fmt: skip
    model.add_persona("two words")
    assert model.personas == ("default", "brief", "two words")
    assert not model.setting("personas.two words.prompt").can_be_default  # it would be gone
    model.set_value("personas.two words.max_reply_tokens", 33)
    model.set_value("persona", "two words")
    assert model.apply()
    config = given.restarts[0].config
    assert config.active_persona().max_reply_tokens == 33
    assert config.active_persona().max_history_tokens == config.personas["default"].max_history_tokens
    with pytest.raises(ValueError, match="no persona can be called"):
        model.add_persona("two words")


def test_rename_and_remove_a_persona(file: Path) -> None:
    given = _Given(file, f'persona = "pirate"\n{_OWN}')
    model = given.model
    assert [model.can_remove(name) for name in ("default", "brief", "pirate")] == [False, False, True]
    model.rename_persona("pirate", "captain")
    assert model.personas == ("default", "brief", "captain")
    assert model.setting("persona").value == "captain"
    assert model.can_apply
    assert model.apply()
    config = given.restarts[0].config
    assert (config.active_persona().prompt, config.active_persona().max_reply_tokens) == ("Arr", 50)
    assert "pirate" not in file.read_text()
    model.remove_persona("captain")
    assert model.personas == ("default", "brief")
    model.undo()
    assert model.personas == ("default", "brief", "captain")
    model.remove_persona("captain")
    assert model.apply()
    assert given.restarts[1].config.persona == "default"
    assert not model.has("personas.captain.prompt")
    with pytest.raises(KeyError):
        model.setting("personas.captain.prompt")
    assert file.read_text().count("captain") == 0
    model.remove_persona("default")
    model.rename_persona("brief", "x")
    assert not model.has_changes


def test_renaming_back_before_saving(file: Path) -> None:
    model = _Given(file, _OWN).model
    model.rename_persona("pirate", "captain")
    model.rename_persona("captain", "pirate")
    assert model.personas == ("default", "brief", "pirate")
    assert model.setting("personas.pirate.prompt").value == "Arr"
    assert model.apply()


# --- the file


def test_a_change_of_the_file_by_others_is_followed(file: Path) -> None:
    given = _Given(file, _OWN)
    given.model.set_value("llm.top_k", 4)
    file.write_text(_OWN.replace("seed = 3", "seed = 77"))
    given.model.poll()
    assert given.model.setting("llm.seed").value == 77
    assert given.model.setting("llm.top_k").value == 4
    file.write_text("[llm\n")
    given.model.poll()
    assert "is not valid TOML" in given.model.trouble
    given.model.set_value("llm.top_k", 5)
    assert "was not changed" in given.model.problems[""]
    assert not given.model.apply()
    assert file.read_text() == "[llm\n"


def test_a_disk_that_fails_is_told_and_can_be_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = _Given(file, _OWN)
    given.model.set_value("llm.seed", 9)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("app.config.save.os.fsync", full)
        assert not given.model.apply()
    assert "No space left on device" in given.model.trouble
    assert (given.restarts, file.read_text()) == ([], _OWN)
    assert given.model.apply()
    assert given.model.trouble == ""
    assert given.restarts[0].config.llm.seed == 9
