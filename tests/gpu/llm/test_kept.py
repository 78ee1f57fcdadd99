"""What a model has read of a conversation: other windows, and snapshots that another model goes on from."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
pytest.importorskip("tokenizers", reason="makes the tokenizer")

from tiny_model import ROW_BYTES, tiny_prepared  # noqa: E402

from gpu.errors import ArenaFullError, GpuError  # noqa: E402
from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.pages import OutOfPagesError  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.snapshot import SnapshotError  # noqa: E402
from gpu.kv.spec import KvDtype  # noqa: E402
from gpu.llm.kept import identity_of, stamp_of  # noqa: E402
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
    assert reserved - model.memory_bytes() >= (4096 - context_tokens) * ROW_BYTES - model._arena.backend.page_bytes
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


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for this process's memory")
def test_a_smaller_window_takes_no_memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever shrinks has none: nothing is copied, the addresses stay, and what the system gave goes back to it."""
    model, messages = new_model(), history(20)
    model.warm(messages)
    address, pages = model._session.rows().data_ptr(), model.page_bytes()
    opened: list[ArenaSpec] = []
    monkeypatch.setattr(Arena, "open", opened.append)
    before, most = resident_bytes(), [0]
    trim = Session.trim

    def watched(session: Session) -> int:
        most[0] = resident_bytes() - before
        return trim(session)

    monkeypatch.setattr(Session, "trim", watched)
    model.resize_window(512)
    assert opened == []
    assert most[0] < 2 << 20
    assert pages - model.page_bytes() > 16 << 20
    assert model._session.rows().data_ptr() == address
    if model._arena.backend.aliases:
        assert before - resident_bytes() > 12 << 20


def test_int8_takes_what_it_says_beside_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model()
    model.warm(history(20))
    takes, frees, pages, before = model.int8_takes_bytes(), model.int8_frees_bytes(), model.page_bytes(), model._arena
    most: list[int] = []
    close = Arena.close

    def watched(arena: Arena) -> None:
        new = model._arena
        assert new is not before
        most.append(new.backend.pages_in_use * new.backend.page_bytes + new._workspace.memory_bytes())  # type: ignore[union-attr]
        assert before.backend.pages_in_use * before.backend.page_bytes == pages, "nothing was copied meanwhile"
        close(arena)

    monkeypatch.setattr(Arena, "close", watched)
    model.hold_as("int8")
    assert takes // 2 < most[0] <= takes
    assert pages - model.page_bytes() >= frees
    assert model.int8_takes_bytes() == 0


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("error", [OutOfPagesError("no memory"), torch.OutOfMemoryError("CUDA out of memory")])
@pytest.mark.parametrize("where", ["open", "session", "append"])
def test_no_memory_for_another_form_leaves_the_conversation_as_it_was(
    where: str, error: Exception, kv_dtype: KvDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, however often: nothing is closed before its successor is whole, and nothing stays open."""
    model, messages = new_model(4096, kv_dtype=kv_dtype), history(8)
    model.warm(messages)
    held, arena, opened = model.held_ids, model._arena, list[Arena]()
    original = Arena.open

    def noted(spec: ArenaSpec, **options: Any) -> Arena:
        opened.append(original(spec, **options))
        return opened[-1]

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Arena, "open", noted if where != "open" else refuse)
        if where == "session":
            patched.setattr(Arena, "session", refuse)
        if where == "append":
            patched.setattr(Session, "append", refuse)
        for _ in range(2):
            if where == "append" and kv_dtype != "auto":
                break  # its rows are quantised: none is copied
            with pytest.raises(GpuError, match="memory"):
                model.hold_as("int8" if kv_dtype == "auto" else "auto")
    assert (model.held_ids, model._arena) == (held, arena)
    assert all(made.backend.pages_in_use == 0 for made in opened)
    assert answer(model, messages) == answer(new_model(kv_dtype=kv_dtype), messages)
    model._arena.check()


def test_the_window_holds_though_the_session_could_hold_more() -> None:
    model = new_model(4096)
    model.resize_window(512)
    reply = list(
        model.generate([SYSTEM, Message("user", "Go on. " * 20)], SAMPLING, max_tokens=900, cancelled=lambda: False)
    )
    assert model._session.length == 512 or len(reply) < 300
    with pytest.raises(ArenaFullError, match="the session holds 512"):
        model.warm(history(8))
    model.resize_window(100_000)
    assert model.context_tokens == 4096


def test_a_prompt_needs_its_persona_and_what_is_asked() -> None:
    model, talk = new_model(), history(6)
    answer(model, talk)
    persona, asked = model.warm([SYSTEM]), Message("user", "And now?")
    persona = len(model._prompts.encode([SYSTEM], generation=False))
    assert model.prompt_tokens == persona
    answer(model, talk)
    whole = model.count_tokens([SYSTEM, asked])
    assert 0 <= model.prompt_tokens - whole < 10, "an answer's end may be a token further on"
    model.warm(talk)
    assert model.prompt_tokens == persona


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_what_is_kept_is_as_large_as_its_file(tmp_path: Path, kv_dtype: KvDtype) -> None:
    model = new_model(kv_dtype=kv_dtype)
    model.warm(history(16))
    kept = model.keep()
    size = kept.save(tmp_path / "talk.kv")
    assert kept.size_bytes <= size < kept.size_bytes + 64_000  # the header: tokens as text, a row that is filled up
    kept.close()


def test_weights_that_differ_inside_are_another_model(tmp_path: Path) -> None:
    one, other = tiny_prepared(), tiny_prepared()
    assert identity_of(one, "cpu") == identity_of(other, "cpu")
    for name, tensor in other.state.items():
        numbers = tensor.numel()
        if numbers < 4 * 1024:
            continue
        tensor.view(-1)[numbers // 3 : numbers // 2].add_(1.0)
        assert identity_of(one, "cpu") != identity_of(other, "cpu"), name
        tensor.copy_(one.state[name])


def test_a_file_that_was_edited_is_another_model(tmp_path: Path) -> None:
    """However little of it changed, and wherever."""
    path, prepared = tmp_path / "model.safetensors", tiny_prepared()
    path.write_bytes(b"abc")
    before = {place: identity_of(prepared, "cpu", stamp_of(place)) for place in (path, tmp_path)}
    assert before == {place: identity_of(prepared, "cpu", stamp_of(place)) for place in before}
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert all(identity_of(prepared, "cpu", stamp_of(place)) != known for place, known in before.items())
