"""Saving keys: comments survive, what would not load is refused, and whatever is valid comes back."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.keys import ANY_NAME, Key, all_keys, flatten
from app.config.load import load_config
from app.config.save import edited, save_keys
from app.errors import ConfigError

_OWN = """\
# My own file.
persona = "pirate"   # who

[llm]  # the model
# slow but good
seed = 3
top_k=2

[personas.pirate]
prompt = "Arr"  # short
"""


def _values(file: Path) -> dict[str, Any]:
    return flatten(load_config(file=file, env={}).config.model_dump())


def test_only_the_changed_lines_change(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(_OWN)
    save_keys(file, {"llm.seed": 4, "llm.temperature": 0.5, "turn.barge_in_ms": 200, "persona": "default"})
    expected = _OWN.replace("seed = 3", "seed = 4").replace('persona = "pirate"', 'persona = "default"')
    text = file.read_text()
    for line in expected.splitlines():
        assert line in text.splitlines()
    assert text.startswith('# My own file.\npersona = "default"   # who\n')
    values = _values(file)
    assert (values["llm.temperature"], values["turn.barge_in_ms"], values["llm.top_k"]) == (0.5, 200, 2)


def test_none_goes_back_to_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(_OWN)
    save_keys(file, {"llm.seed": None, "llm.top_k": None, "ear.gate_mode": None})
    assert "[llm]  # the model\n# slow but good\n" in file.read_text()
    assert (_values(file)["llm.seed"], _values(file)["llm.top_k"]) == (0, 0)
    save_keys(file, {"persona": None, "personas.pirate.prompt": None})
    assert "pirate" not in file.read_text()


def test_a_new_file_is_made_with_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.toml"
    save_keys(file, {"personas.Käpt'n x.prompt": 'a "quoted"\nline', "ear.chain": [], "ear.vad_after": ""})
    values = _values(file)
    assert values["personas.Käpt'n x.prompt"] == 'a "quoted"\nline'
    assert values["ear.chain"] == []


@pytest.mark.parametrize(
    "text",
    [
        "llm.seed = 3\nllm.top_k = 2\n",
        "llm = { seed = 3, top_k = 2 }\n",
        "[llm]\nseed = 3\n[tts]\n[personas.a]\nprompt = 'x'\n[turn]\n[personas.b]\nprompt = ''\n",
        "[llm]\r\nseed = 3 # dos\r\n",
        "",
    ],
)
def test_every_way_to_write_a_file_can_be_changed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode())
    save_keys(file, {"llm.seed": 7, "personas.a.prompt": "new", "persona": "a", "tts.model": "joe-medium"})
    values = _values(file)
    assert (values["llm.seed"], values["personas.a.prompt"], values["persona"]) == (7, "new", "a")
    assert ("# dos" in text) == ("# dos\r\n" in file.read_bytes().decode())
    save_keys(file, dict.fromkeys(("llm.seed", "personas.a.prompt", "persona", "tts.model")))
    assert _values(file)["llm.seed"] == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"llm.temperature": 3}, "llm.temperature cannot be 3"),
        ({"ear.speech_off": 0.9}, "Allowed: at most ear.speech_on, which is 0.5"),
        ({"persona": "nobody"}, "Allowed: default, brief, pirate"),
        ({"llm.sed": 1}, "Did you mean llm.seed?"),
        ({"llm": 1}, "was not changed"),
    ],
)
def test_what_would_not_load_is_refused_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(_OWN)
    with pytest.raises(ConfigError) as caught:
        save_keys(file, changes)
    assert sentence in str(caught.value)
    assert file.read_text() == _OWN
    assert os.listdir(tmp_path) == ["config.toml"]


def test_a_broken_file_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[llm\n")
    with pytest.raises(ConfigError, match="was not changed"):
        save_keys(file, {"llm.seed": 1})
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"it is not UTF-8 text\. Edit it by hand"):
        save_keys(file, {"llm.seed": 1})
    assert file.read_bytes() == b"\xff"


def test_permissions_and_a_link_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text(_OWN)
    kept.chmod(0o600)
    link = tmp_path / "config.toml"
    link.symlink_to(kept)
    save_keys(link, {"llm.seed": 5})
    assert link.is_symlink()
    assert "seed = 5" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_folder_in_the_way_and_a_full_disk_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(ConfigError, match=r"Cannot (read|write) the configuration file .*Not a directory"):
        save_keys(tmp_path / "plain" / "config.toml", {"llm.seed": 5})
    file = tmp_path / "config.toml"
    file.write_text(_OWN)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"No space left on device\. Check its permissions and the disk"):
        save_keys(file, {"llm.seed": 5})
    assert file.read_text() == _OWN
    assert sorted(os.listdir(tmp_path)) == ["config.toml", "plain"]


# --- whatever is valid comes back ----------------------------------------------------------------------------

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=30)
_EXAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "llm.device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    "persona": st.sampled_from(["default", "brief"]),
    "ear.chain": st.lists(st.sampled_from(["echo", "denoise"]), unique=True),
    "paths.store": st.just("/somewhere else"),
    "paths.data": st.just("/d"),
}


def _strategy(key: Key) -> st.SearchStrategy[Any]:
    if key.pattern in _EXAMPLES:
        return _EXAMPLES[key.pattern]
    if key.choices:
        return st.sampled_from(key.choices)
    if key.kind is bool:
        return st.booleans()
    if key.kind is int:
        return st.integers(int(key.low or 0), int(key.high or 0))
    if key.kind is float:
        return st.floats(key.low, key.high, exclude_min=key.is_low_excluded)
    return _TEXT


_RELATED = (
    *("ear.speech_o", "asr.soft_cut", "asr.hard_cut", "turn.min_silence", "turn.max_silence", "ear.vad_after"),
    *("llm.context_tokens", "memory.least_context_tokens"),
)
"""These may be refused together with others; each alone is tried in the tests of loading."""
_ONE_CHANGE = st.sampled_from([key for key in all_keys() if not key.pattern.startswith((*_RELATED, "ear.chain"))])
_CHANGES = st.lists(
    _ONE_CHANGE.flatmap(lambda key: st.tuples(st.just(key.pattern.replace(ANY_NAME, "new one")), _strategy(key))),
    max_size=6,
).map(dict)


@given(changes=_CHANGES, more=_CHANGES, text=st.sampled_from(["", _OWN, _OWN.replace("\n", "\r\n")]))
def test_any_valid_value_is_loaded_back(changes: dict[str, Any], more: dict[str, Any], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_bytes(text.encode())
        comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
        for step in (changes, more):
            save_keys(file, step)
            values = _values(file)
            assert {key: values[key] for key in step} == step
        saved = file.read_text()
        assert all(comment in saved for comment in comments)
        save_keys(file, dict.fromkeys([*changes, *more]))
        origins = load_config(file=file, env={}).origins
        assert all(not origins.get(key, "").startswith(str(file)) for key in [*changes, *more])


def test_changes_that_the_library_gets_wrong_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.config.save.tomlkit.dumps", lambda document: "[llm]\nseed = 99\n")
    with pytest.raises(ConfigError, match=r"cannot be changed safely\. Edit it by hand"):
        edited(_OWN, Path("config.toml"), {"llm.seed": 4})
