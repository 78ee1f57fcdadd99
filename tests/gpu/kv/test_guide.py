"""The guide's examples run as they are printed, one after the other, and are as short as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the guide is about torch models")

GUIDE = Path(__file__).parents[3] / "docs" / "arena.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the examples define, for the next one. Their files go to a folder of the test's."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    defined: dict[str, Any] = {}
    yield defined
    for arena in (value for name, value in defined.items() if name.endswith("arena")):
        arena.check()
        arena.close()
        assert arena.backend.pages_in_use == 0


def test_every_example_runs(names: dict[str, Any]) -> None:
    assert len(BLOCKS) == 4
    for number, block in enumerate(BLOCKS, 1):
        if "transformers" not in block:
            exec(compile(block, f"arena.md, example {number}", "exec"), names)
    assert len(set(names["ids"])) > 10
    assert (names["other"].position, names["begun"].length) == (31, 20)


def test_the_hugging_face_example_runs(names: dict[str, Any]) -> None:
    pytest.importorskip("transformers", minversion="5.24", reason="its model is what runs here")
    (block,) = (block for block in BLOCKS if "transformers" in block)
    exec(compile(block, "arena.md, Hugging Face", "exec"), names)
    assert names["output"].shape == (1, 23)


def test_the_examples_are_as_short_as_the_page_promises() -> None:
    lines = [len(block.splitlines()) for block in BLOCKS]
    assert lines[0] <= 20
    assert lines[2] <= 10
