"""The language model on the arena: endless sessions equal an explicit mask, personas share their first pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
transformers = pytest.importorskip("transformers", reason="the reference implementation")
tokenizers = pytest.importorskip("tokenizers", reason="makes the tokenizer")

from gpu.errors import GpuError  # noqa: E402
from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.pager import Pager  # noqa: E402
from gpu.kv.pages import OutOfPagesError  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402
from gpu.llm.decoder import Decoder  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402
from gpu.llm.weights.prepare import PreparedModel, prepare  # noqa: E402
from gpu.llm.weights.safetensors import open_hf_directory  # noqa: E402
from gpu.memory.rungs import KvRung  # noqa: E402

SHAPE = WindowSpec(window=40, sinks=4, slack=16, chunk=12, step=8)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(autouse=True, scope="module")
def _no_progress_thread() -> None:
    tqdm = pytest.importorskip("tqdm")
    tqdm.tqdm.monitor_interval = 0  # its monitor thread would outlive the tests


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Results are compared bit for bit, and the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"), layers=3)


def tiny(path: Path, *, layers: int) -> Path:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    document = json.loads(backend.to_str())
    document["model"]["vocab"] = {letter: number + 2 for number, letter in enumerate(letters)}
    (path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        eos_token_id=1,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    transformers.LlamaForCausalLM(config).eval().save_pretrained(path)
    (path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}', encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def prepared(folder: Path) -> PreparedModel:
    return prepare(open_hf_directory(folder), "fp32")


def decoder_and_spec(prepared: PreparedModel, positions: int, **options: Any) -> tuple[Decoder, ArenaSpec]:
    decoder = Decoder(prepared.config, prepared.state, positions=positions)
    c, dtype = decoder.config, str(decoder.dtype).removeprefix("torch.")
    return decoder, ArenaSpec(c.layers, c.kv_heads, c.head_dim, 64, dtype, **options)


@pytest.mark.parametrize("chunk", [1, 7, 12])
def test_an_endless_session_equals_an_explicit_mask(folder: Path, prepared: PreparedModel, chunk: int) -> None:
    """Ten windows long, logits of every token, whatever the chunks were."""
    count = 10 * SHAPE.window
    ids = [(7 * i * i + 3 * i + 5) % 251 + 2 for i in range(count)]
    decoder, spec = decoder_and_spec(prepared, 512)
    session = Arena.open(spec).session(window=SHAPE)
    ours = torch.cat(
        [decoder.logits(decoder.forward(ids[begin : begin + chunk], session)) for begin in range(0, count, chunk)]
    )
    mask = torch.full((count, count), float("-inf"))
    for query in range(count):
        mask[query, : min(SHAPE.sinks, query + 1)] = 0.0
        mask[query, min(SHAPE.sinks + SHAPE.hidden(query + 1), query) : query + 1] = 0.0
    model = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        theirs = model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]
    error = float((ours - theirs).norm() / theirs.norm())
    print(f"chunks of {chunk}: {error:.1e}")
    assert error <= 1e-5
    assert session.length <= SHAPE.sinks + SHAPE.window + chunk


@pytest.mark.parametrize(("precision", "unrotated"), [("fp32", False), ("bf16", True)])
def test_a_session_outlives_the_models_positions(folder: Path, precision: Any, unrotated: bool) -> None:
    """Positions stay below the limit, memory stays flat, and a rollback goes on like a fork."""
    decoder, spec = decoder_and_spec(prepare(open_hf_directory(folder), precision), 160, unrotated_keys=unrotated)
    arena = Arena.open(spec, page_bytes=4096)
    session = arena.session(window=SHAPE)
    pages = 0
    for begin in range(0, 900, 9):
        hidden = decoder.forward([(begin * 31 + step) % 256 + 2 for step in range(9)], session)
        assert bool(torch.isfinite(hidden).all())
        assert session.rope_position <= 160
        if begin == 450:
            pages = arena.stats().pages_in_use
    assert session.position == 900
    assert session.shift > 700
    assert arena.stats().pages_in_use == pages
    other = session.fork(890)
    session.truncate_to(890)
    assert torch.equal(decoder.forward([5], session), decoder.forward([5], other))
    arena.check()


def say(model: LocalLanguageModel, *messages: Message) -> list[str]:
    return list(model.generate(messages, SamplingParams(), max_tokens=12, cancelled=lambda: False))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each forward pass."""
    counts: list[int] = []
    forward = Decoder.forward

    def counted(self: Decoder, ids: Any, session: Session) -> Any:
        counts.append(len(ids))
        return forward(self, ids, session)

    monkeypatch.setattr(Decoder, "forward", counted)
    return counts


ANNA = Message("system", "You are Anna, who knows the stars and says little about them. " * 12)
BERT = Message("system", "You are Bert, a gardener with an opinion on every kind of soil. " * 12)
ASKED = Message("user", "What do you do at night?")


def test_a_persona_that_spoke_before_costs_nothing(
    prepared: PreparedModel, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.kv.spec._PAGE_TOKENS", 1)
    fresh = {persona: say(LocalLanguageModel(prepared), persona, ASKED) for persona in (ANNA, BERT)}
    assert fresh[ANNA] != fresh[BERT]
    model = LocalLanguageModel(prepared)
    words = model.count_tokens([ANNA, ASKED]) - model.warm([ANNA])
    say(model, BERT, ASKED)
    for persona in (ANNA, BERT, ANNA, ANNA, BERT):
        computed.clear()
        assert say(model, persona, ASKED) == fresh[persona]
        assert sum(count for count in computed if count > 1) == words
    stats = model._arena.stats()
    assert stats.prefixes == 2
    assert stats.sessions == 1
    assert stats.shared_pages > 10
    model._arena.check()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_personas_and_turns_on_a_quantised_conversation(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kv_dtype: Any
) -> None:
    """The same replies as of a fresh model, whatever came before; and a snapshot goes on with them."""
    monkeypatch.setattr("gpu.kv.spec._PAGE_TOKENS", 1)

    def opened() -> LocalLanguageModel:
        return LocalLanguageModel(prepared, kv_dtype=kv_dtype)

    fresh = {persona: say(opened(), persona, ASKED) for persona in (ANNA, BERT)}
    model, plain = opened(), LocalLanguageModel(prepared)
    for persona in (ANNA, BERT, ANNA, ANNA, BERT):
        assert say(model, persona, ASKED) == fresh[persona]
    stats = model._arena.stats()
    assert (stats.prefixes, stats.sessions) == (2, 1)
    assert stats.shared_pages > 10
    model._arena.check()
    say(plain, BERT, ASKED)
    assert model._session.coded >= 512  # type: ignore[attr-defined]
    # 770 of 2048 rows stay as they came, in float32.
    assert model._session.memory_bytes() < 0.7 * plain._session.memory_bytes()
    kept = model.keep()
    kept.save(tmp_path / "talk.kv")
    kept.close()
    resumed = opened()
    assert resumed.resume(tmp_path / "talk.kv") > 600
    assert say(resumed, BERT, ASKED) == fresh[BERT]


def test_the_int8_rung_frees_what_it_says_and_loses_nothing(
    tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(open_hf_directory(tiny(tmp_path, layers=12)), "fp32")
    monkeypatch.setattr("gpu.kv.spec._PAGE_TOKENS", 1)
    talk = [ANNA, *[Message(("user", "assistant")[turn % 2], f"{turn} and so on and on. " * 7) for turn in range(7)]]
    model = LocalLanguageModel(prepared)
    model.warm(talk[:-1])
    rung, before = KvRung(model), model.page_bytes()
    promised = rung.frees_bytes()
    rung.apply()
    assert model._session.coded > 800  # type: ignore[attr-defined]
    print(f"{promised} of {before} bytes promised, {before - model.page_bytes()} came free")
    assert 0.1 * before < promised <= before - model.page_bytes()
    assert rung.frees_bytes() == 0
    computed.clear()
    reply = say(model, *talk)
    assert len(reply) > 0
    assert sum(computed) < 300  # the last message, and the reply: nothing was read again
    rung.undo()
    assert say(model, *talk) == say(LocalLanguageModel(prepared), *talk)
    model._arena.check()


def test_without_memory_for_int8_the_conversation_stays_as_it_was(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, expected = LocalLanguageModel(prepared), say(LocalLanguageModel(prepared), ANNA, ASKED)
    model.warm([ANNA])
    opened = Arena.open

    def refused(spec: ArenaSpec, **options: Any) -> Arena:
        if spec.body is not None:
            raise OutOfPagesError("no memory")
        return opened(spec, **options)

    monkeypatch.setattr(Arena, "open", refused)
    with pytest.raises(OutOfPagesError):
        model.hold_as("int8")
    assert say(model, ANNA, ASKED) == expected


def test_a_persona_is_found_only_where_its_chunks_are(prepared: PreparedModel, computed: list[int]) -> None:
    """A prompt whose first tokens are known but were cut elsewhere is computed: the same bits, always."""
    model, longer = LocalLanguageModel(prepared), Message("user", "x " * 300)
    model.warm([ANNA])
    prefix = next(model._arena.prefixes.entries())
    prefix.cuts = (len(prefix.ids),)
    computed.clear()
    assert len(model._plan([ANNA, longer], generation=True)[1]) > 2
    model._held, model._held_cuts = [], []
    model._session.truncate_to(0)
    expected = say(LocalLanguageModel(prepared), ANNA, longer)
    computed.clear()
    assert say(model, ANNA, longer) == expected
    assert sum(count for count in computed if count > 1) == model.count_tokens([ANNA, longer])


def test_without_room_for_a_prefix_the_conversation_goes_on(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [say(LocalLanguageModel(prepared), persona, ASKED) for persona in (ANNA, BERT, ANNA)]
    model = LocalLanguageModel(prepared)

    def no_room(*_: object) -> None:
        raise OutOfPagesError("no memory")

    monkeypatch.setattr(Pager, "share_from", no_room)
    assert [say(model, persona, ASKED) for persona in (ANNA, BERT, ANNA)] == expected
    assert model._arena.stats().prefixes == 0


@pytest.mark.parametrize("call", ["extend", "write", "keys", "values", "truncate_to"])
def test_the_conversation_runs_on_the_arena(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """With an arena that raises there is no reply."""
    model = LocalLanguageModel(prepared)

    def broken(*_: object, **__: object) -> None:
        raise GpuError("no arena")

    monkeypatch.setattr(Session, call, broken)
    with pytest.raises(GpuError, match="no arena"):
        say(model, ANNA, ASKED)


def test_an_interruption_truncates_the_session(prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[int] = []
    truncate: Callable[[Session, int], None] = Session.truncate_to
    monkeypatch.setattr(Session, "truncate_to", lambda self, to: (cuts.append(to), truncate(self, to))[1])
    model = LocalLanguageModel(prepared)
    pieces = model.generate([ANNA, ASKED], SamplingParams(), max_tokens=12, cancelled=lambda: False)
    heard = next(pieces) + next(pieces)
    pieces.close()
    before = model._session.position
    model.warm([ANNA, ASKED, Message("assistant", heard)])
    assert cuts[-1] < before
    assert cuts[-1] == model.count_tokens([ANNA, ASKED])
