"""What a model has read of a conversation: other windows, and snapshots that another model goes on from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
pytest.importorskip("tokenizers", reason="makes the tokenizer")

from tiny_model import ROW_BYTES, tiny_prepared  # noqa: E402

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.pages import OutOfPagesError  # noqa: E402
from gpu.kv.snapshot import SnapshotError  # noqa: E402
from gpu.kv.spec import KvDtype  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402

SYSTEM = Message("system", "You are Anna. " * 10)
SAMPLING = SamplingParams()


def history(turns: int) -> list[Message]:
    """About 170 tokens a turn."""
    rng = random.Random(turns)
    messages = [SYSTEM]
    for turn in range(turns):
        words = " ".join(rng.choice(("red", "green", "blue", "grey")) for _ in range(8))
        messages += [Message("user", f"Question {turn}: {words}?"), Message("assistant", f"Answer {turn}: {words}.")]
    return messages


def new_model(context_tokens: int = 4096, seed: int = 11, kv_dtype: KvDtype = "auto") -> LocalLanguageModel:
    return LocalLanguageModel(tiny_prepared(seed), context_tokens=context_tokens, kv_dtype=kv_dtype)


def answer(model: LocalLanguageModel, messages: list[Message]) -> str:
    asked = [*messages, Message("user", "And now?")]
    return "".join(model.generate(asked, SAMPLING, max_tokens=12, cancelled=lambda: False))


def written(model: LocalLanguageModel, path: Path) -> int:
    kept = model.keep()
    try:
        return kept.save(path)
    finally:
        kept.close()


def counted(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the tokens of each forward pass from now on."""
    passes: list[int] = []
    original = model._decoder.forward

    def forward(ids: Any, session: Any) -> Any:
        passes.append(len(ids))
        return original(ids, session)

    monkeypatch.setattr(model._decoder, "forward", forward)
    return passes


def test_another_model_goes_on_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, path = history(8), tmp_path / "talk.kv"
    first = new_model()
    first.warm(messages)
    answer(first, messages)  # what it generated is not kept
    first.warm(messages)
    held = len(first.held_ids)
    assert written(first, path) == path.stat().st_size
    first._arena.check()
    second = new_model()
    assert second.resume(path) == held > 1000
    passes = counted(second, monkeypatch)
    resumed = answer(second, messages)
    assert resumed == answer(new_model(), messages)
    assert sum(passes) < 60, "only the new words and the reply are computed"
    longer = [*messages, Message("user", "And now?"), Message("assistant", resumed)]
    assert answer(second, longer) == answer(new_model(), longer)
    second._arena.check()


def test_only_what_is_common_is_used(tmp_path: Path) -> None:
    first = new_model()
    first.warm(history(5))
    written(first, tmp_path / "talk.kv")
    other = [SYSTEM, Message("user", "Something else entirely."), Message("assistant", "Indeed.")]
    second = new_model()
    second.resume(tmp_path / "talk.kv")
    assert answer(second, other) == answer(new_model(), other)


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.kv"
    model = new_model(1024)
    model.warm(history(1))
    held = model.held_ids
    with pytest.raises(SnapshotError, match="Cannot read"):
        model.resume(path)
    other = new_model(1024, seed=12)
    other.warm(history(2))
    written(other, path)
    with pytest.raises(SnapshotError, match="another model"):
        model.resume(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(SnapshotError, match="damaged"):
        model.resume(path)
    assert model.held_ids == held
    assert answer(model, history(1)) == answer(new_model(1024), history(1))
    model._arena.check()


def test_another_number_of_threads_is_another_model(tmp_path: Path) -> None:
    """The same sums in another order differ in the last bits."""
    path, model = tmp_path / "talk.kv", new_model(1024)
    model.warm(history(2))
    written(model, path)
    torch.set_num_threads(2)
    with pytest.raises(SnapshotError, match="another model"):
        new_model(1024).resume(path)


def test_the_model_goes_on_while_its_snapshot_is_written(tmp_path: Path) -> None:
    messages, path = history(8), tmp_path / "talk.kv"
    model = new_model()
    model.warm(messages)
    kept = model.keep()
    said = answer(model, history(3))  # cuts the session below what is kept, and writes over it
    kept.save(path)
    kept.close()
    assert said == answer(new_model(), history(3))
    again = new_model()
    again.resume(path)
    assert answer(again, messages) == answer(new_model(), messages)
    model._arena.check()


def test_who_is_stopped_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "talk.kv"
    model = new_model()
    model.warm(history(2))
    written(model, path)
    before = path.read_bytes()
    model.warm(history(3))
    kept = model.keep()
    assert kept.save(path, stopped=lambda: True) == 0
    kept.close()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["talk.kv"]


@pytest.mark.parametrize("context_tokens", [2048, 1024])
def test_a_smaller_window_frees_its_pages_and_keeps_what_fits(
    context_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, fitting = history(8), history(8)[:7]
    model = new_model()
    model.warm(messages)
    pages, reserved = model.page_bytes(), model.memory_bytes()
    promised = pages - model.window_bytes(context_tokens)
    model.resize_window(context_tokens)
    assert model.context_tokens == context_tokens
    assert reserved - model.memory_bytes() >= (4096 - context_tokens) * ROW_BYTES
    assert pages - model.page_bytes() >= promised
    assert (promised > 0) == (context_tokens == 1024)
    passes = counted(model, monkeypatch)
    assert answer(model, fitting) == answer(new_model(), fitting)
    assert sum(passes) < 260, "the chunks that fit were kept"
    model.resize_window(4096)
    assert model.context_tokens == 4096
    assert answer(model, messages) == answer(new_model(), messages)
    model._arena.check()


def test_spare_pages_are_given_back() -> None:
    model = new_model()
    model.warm(history(8))
    model.warm(history(1))
    spare, pages = model.spare_bytes(), model.page_bytes()
    assert spare > 0
    model.give_spare_back()
    assert pages - model.page_bytes() == spare
    assert model.spare_bytes() == 0
    assert answer(model, history(1)) == answer(new_model(), history(1))


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_quantised_conversation_does_all_of_it(tmp_path: Path, kv_dtype: KvDtype) -> None:
    messages, path = history(16), tmp_path / "talk.kv"
    expected = answer(new_model(kv_dtype=kv_dtype), messages)
    model = new_model(kv_dtype=kv_dtype)
    model.warm(messages)
    written(model, path)
    model.warm(history(1))
    spare, pages = model.spare_bytes(), model.page_bytes()
    model.give_spare_back()
    assert pages - model.page_bytes() >= spare
    model.warm(messages)
    pages = model.page_bytes()
    promised = pages - model.window_bytes(1024)
    model.resize_window(1024)
    assert pages - model.page_bytes() >= promised > 0
    model._arena.check()
    assert answer(model, history(2))
    model.resize_window(4096)
    model._arena.check()
    model.resume(path)
    assert answer(model, messages) == expected
    model._arena.check()


def test_no_memory_for_another_window_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(1024)
    model.warm(history(3))
    original = Arena.open

    def refuse(spec: ArenaSpec, **options: Any) -> Arena:
        if spec.positions < 1024:
            raise OutOfPagesError("no memory")
        return original(spec, **options)

    monkeypatch.setattr(Arena, "open", refuse)
    with pytest.raises(OutOfPagesError):
        model.resize_window(512)
    assert model.context_tokens == 1024
    assert answer(model, history(3)) == answer(new_model(1024), history(3))
