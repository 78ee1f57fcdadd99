"""Sources of the configuration, their order, and the sentence for every mistake."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from app.config.keys import all_keys, flatten
from app.config.load import Loaded, load_config, unread_variables
from app.errors import ConfigError


def _load(
    *overrides: str, file: Path | None = None, env: dict[str, str] | None = None, home: str = "/nonexistent"
) -> Loaded:
    return load_config(file=file, env={"HOME": home, **(env or {})}, overrides=overrides)


def test_defaults_alone_are_complete() -> None:
    loaded = _load()
    assert loaded.config.personas["default"].max_reply_tokens == 96
    assert set(loaded.origins.values()) == {"default"}
    keys = {key.pattern for key in all_keys()}
    assert {key.replace(".default.", ".NAME.").replace(".brief.", ".NAME.")
            for key in flatten(loaded.config.model_dump())} == keys  # fmt: skip


def test_every_key_has_help_and_says_what_is_allowed() -> None:
    for key in all_keys():
        assert len(key.help) > 5, key.pattern
        assert key.allowed, key.pattern


def test_order_of_sources(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[llm]\nseed = 1\ntop_k = 1\ntop_p = 0.1\n", encoding="utf-8")
    env = {"VIVAVOCE__LLM__TOP_K": "2", "VIVAVOCE__LLM__TOP_P": "0.2"}
    loaded = _load("llm.top_p=0.3", file=file, env=env)
    assert (loaded.config.llm.seed, loaded.config.llm.top_k, loaded.config.llm.top_p) == (1, 2, 0.3)
    assert loaded.origins["llm.seed"] == f"{file}:2"
    assert loaded.origins["llm.top_k"] == "environment VIVAVOCE__LLM__TOP_K"
    assert loaded.origins["llm.top_p"] == "flag --set llm.top_p=0.3"
    assert loaded.origins["llm.model"] == "default"


def test_the_users_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "vivavoce").mkdir()
    (tmp_path / "vivavoce" / "config.toml").write_text("llm.seed = 9\n", encoding="utf-8")
    loaded = _load(env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert loaded.config.llm.seed == 9
    assert loaded.user_file == tmp_path / "vivavoce" / "config.toml"


def test_store_variable_and_its_precedence() -> None:
    env = {"VIVAVOCE_STORE": "/a"}
    assert _load(env=env).config.paths.store == "/a"
    assert _load(env={**env, "VIVAVOCE__PATHS__STORE": "/b"}).config.paths.store == "/b"
    assert _load("paths.store=~/x").config.paths.store == str(Path("~/x").expanduser())


def test_text_needs_no_quotes_and_lists_are_toml() -> None:
    config = _load("audio.input=USB Mic: 2", 'ear.chain=["echo"]', 'audio.output="x"').config
    assert (config.audio.input, config.ear.chain, config.audio.output) == ("USB Mic: 2", ["echo"], "x")


def test_a_persona_takes_what_it_leaves_out_from_the_default_one() -> None:
    config = _load("personas.pirate.prompt=Arr", "persona=pirate").config
    assert config.active_persona().prompt == "Arr"
    assert config.active_persona().max_reply_tokens == config.personas["default"].max_reply_tokens


def test_configuration_travels_to_another_process() -> None:
    config = _load("llm.seed=5").config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("override", "key", "sentence"),
    [
        ("llm.temperature=3", "llm.temperature", "cannot be 3 (flag --set llm.temperature=3). Allowed: a number"),
        ("llm.temperature=nan", "llm.temperature", "Allowed: a number, 0.0 to 2.0"),
        ("llm.temprature=1", "llm.temprature", "Did you mean llm.temperature?"),
        ("llm.precision=int4", "llm.precision", "Allowed: auto, fp32, bf16 or int8"),
        ("llm.seed=abc", "llm.seed", "Allowed: a whole number, 0 to 2147483647"),
        ("llm.top_p=0", "llm.top_p", "Allowed: a number, more than 0.0 to 1.0"),
        ('ear.chain=["reverb"]', "ear.chain", "Allowed: a list of echo or denoise"),
        ('ear.chain=["echo","echo"]', "ear.chain", "Allowed: each stage once"),
        ("memory.guard=perhaps", "memory.guard", "Allowed: true or false"),
        ("memory.tight_mb=-1", "memory.tight_mb", "Allowed: a whole number, 0 to 1048576"),
        ("memory.least_context_tokens=16", "memory.least_context_tokens", "Allowed: a whole number, 256 to 131072"),
        ("memory.least_context_tokens=4096", "memory.least_context_tokens",
         "Allowed: at most llm.context_tokens, which is 2048"),
        ("personas.default.max_history_tokens=2049", "personas.default.max_history_tokens",
         "Allowed: at most llm.context_tokens, which is 2048"),
        ("llm.snapshots=7", "llm.snapshots", "Allowed: true or false"),
        ("turn.preroll_ms=100", "turn.preroll_ms", "Allowed: a whole number, 250 to 2000"),
        ("persona=nobody", "persona", "Allowed: default, brief"),
        ("personas.default.promt=x", "personas.default.promt", "Did you mean personas.default.prompt?"),
        ("ear.speech_off=0.9", "ear.speech_off", "Allowed: at most ear.speech_on, which is 0.5"),
        ("llm", "llm", "has no '='"),
        ("zzz=1", "zzz", "See: vivavoce config keys"),
    ],
)  # fmt: skip
def test_mistakes_in_flags(override: str, key: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(override)
    assert sentence in str(caught.value)
    assert caught.value.key == key
    assert f"--set {override}" in caught.value.origin
    assert caught.value.exit_code == 2


def test_defaults_give_way_to_a_smaller_window() -> None:
    assert _load("llm.context_tokens=256").config.llm.context_tokens == 256
    assert _load("llm.context_tokens=4096", "personas.default.max_history_tokens=4096")
    with pytest.raises(ConfigError, match=r"personas\.x\.max_history_tokens cannot be 4000"):
        _load("persona=x", "personas.x.prompt=Hi", "personas.default.max_history_tokens=4000")


def test_mistake_in_a_file_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("# mine\n[turn]\nbarge_in_ms = 5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"turn\.barge_in_ms cannot be 5 \({file}:3\)"):
        _load(file=file)
    file.write_text("[tunr]\nbarge_in_ms = 50\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{file}:2\)\. Did you mean turn\.barge_in_ms\?"):
        _load(file=file)


def test_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="environment VIVAVOCE__LLM__SED"):
        _load(env={"VIVAVOCE__LLM__SED": "1"})


@pytest.mark.parametrize(
    ("data", "part"),
    [(b"[llm\n", "not valid TOML"), (b"\xff\xfe", "not UTF-8"), (b"llm = 3\n", "Unknown configuration key llm")],
)
def test_broken_files(tmp_path: Path, data: bytes, part: str) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=part):
        _load(file=file)


def test_missing_file_given_by_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        _load(file=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("VIVAVOCE_LLM_TEMPERATURE", "VIVAVOCE__LLM__TEMPERATURE"),
        ("VIVAVOCE_LLM__TEMPERATURE", "VIVAVOCE__LLM__TEMPERATURE"),
        ("VIVAVOCE_TURN_MIN_SILENCE_MS", "VIVAVOCE__TURN__MIN_SILENCE_MS"),
        ("VIVAVOCE_ASR_MODL", "VIVAVOCE__ASR__MODEL"),
    ],
)
def test_a_variable_with_too_few_underscores_is_pointed_out(name: str, meant: str) -> None:
    assert unread_variables({name: "1"}) == [f"the variable {name} is not read. Did you mean {meant}?"]


def test_variables_that_are_read_or_have_another_purpose_are_not_pointed_out() -> None:
    names = ("VIVAVOCE_STORE", "VIVAVOCE_OFFLINE", "VIVAVOCE_TEST_DATA", "VIVAVOCE__LLM__SEED", "LLM_SEED", "PATH")
    assert unread_variables(dict.fromkeys(names, "1")) == []
