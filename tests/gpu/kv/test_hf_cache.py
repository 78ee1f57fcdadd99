"""Hugging Face models on the arena: the same tokens as with transformers' own cache, whatever is done in between."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")
transformers = pytest.importorskip("transformers", minversion="5.24", reason="its models are what runs here")

from gpu.errors import ArenaFullError, GpuError  # noqa: E402
from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.hf_cache import ArenaCache, spec_for  # noqa: E402
from gpu.kv.spec import BodySpec  # noqa: E402
from gpu.kv.window import WindowSpec  # noqa: E402

NEW_TOKENS = 200
POSITIONS = 320
WINDOW = 24
MODELS = ["llama", "qwen3", "gemma3"]
BACKENDS = [
    "host",
    "plain",
    pytest.param("vmm", marks=pytest.mark.gpu),
    pytest.param("plain-gpu", marks=pytest.mark.gpu),
]
SHAPE = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that the output does not repeat itself after a few tokens
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}

NewArena = Callable[..., Arena]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small matrices, and the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def model_of(kind: str, device: str = "cpu") -> Any:
    """A tiny model with random weights, in float32."""
    torch.manual_seed(7)
    if kind == "llama":
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **SHAPE))
    elif kind == "qwen3":
        made = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(num_hidden_layers=2, **SHAPE))
    else:
        types = ["sliding_attention", "full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(
            num_hidden_layers=3,
            layer_types=types,
            sliding_window=WINDOW,
            query_pre_attn_scalar=16,
            tie_word_embeddings=False,  # tied ones repeat the last token for ever
            **SHAPE,
        )
        made = transformers.Gemma3ForCausalLM(config)
    return made.eval().to(device)


def prompt(count: int, seed: int) -> list[int]:
    return torch.randint(1, 199, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(model: Any, ids: list[int], cache: Any, count: int, **options: Any) -> list[int]:
    """The `count` tokens that follow `ids`, of which the cache may hold the first ones."""
    given = torch.tensor([ids], device=model.device)
    output = model.generate(given, cache=cache, max_new_tokens=count, do_sample=False, **options)
    return output[0, len(ids) :].tolist()


@functools.cache
def reference(kind: str, device: str, length: int, seed: int, count: int = NEW_TOKENS) -> list[int]:
    """What transformers' own cache makes of a prompt."""
    model = model_of(kind, device)
    return greedy(model, prompt(length, seed), transformers.DynamicCache(config=model.config), count)


def logits(model: Any, ids: list[int], cache: Any = None, **options: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids], device=model.device), cache=cache, **options).logits[0]


def spec_of(kind: str, positions: int = POSITIONS) -> ArenaSpec:
    return spec_for(model_of(kind).config, positions)


@pytest.fixture
def arenas(new_arena: NewArena) -> Iterator[NewArena]:
    """`arenas(kind, backend="host")`: an arena for such a model, checked and closed at the end."""
    made: list[Arena] = []

    def build(kind: str, backend: str = "host") -> Arena:
        made.append(new_arena(spec_of(kind), backend=backend))
        return made[-1]

    yield build
    for arena in made:
        arena.check()
        arena.close()
        assert arena.backend.pages_in_use == 0


@pytest.fixture
def on_host(arenas: NewArena) -> Callable[[str], tuple[Any, ArenaCache]]:
    """`on_host(kind)`: (model, an empty cache of an arena of its own)."""

    def build(kind: str) -> tuple[Any, ArenaCache]:
        model = model_of(kind)
        return model, ArenaCache(arenas(kind).session(), model.config)

    return build


OnHost = Callable[[str], tuple[Any, ArenaCache]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", MODELS)
def test_greedy_output_equals_transformers_own_cache(arenas: NewArena, kind: str, backend: str) -> None:
    session = arenas(kind, backend).session()
    model = model_of(kind, session.spec.device)
    cache = ArenaCache(session, model.config)
    ours = greedy(model, prompt(40, 1), cache, NEW_TOKENS)
    assert ours == reference(kind, session.spec.device, 40, 1)
    assert len(set(ours)) > 40
    assert cache.position == cache.get_seq_length() == session.length == 40 + NEW_TOKENS - 1


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", MODELS)
def test_passes_of_many_tokens_equal_one_pass(on_host: OnHost, kind: str, attention: str) -> None:
    """Every token's logits, for passes shorter and longer than the sliding window; sliding layers known or not."""
    model, cache = on_host(kind)
    model.set_attn_implementation(attention)
    ids = prompt(120, 2)
    whole = logits(model, ids)
    without_config = ArenaCache(cache.session.fork())
    try:
        for ours in (cache, without_config):
            pieces, begin = [], 0
            for size in (5, 19, 1, 7, 40, 1, 47):
                pieces.append(logits(model, ids[begin : begin + size], ours))
                begin += size
            torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-4, atol=1e-4)
    finally:
        model.set_attn_implementation("sdpa")
        without_config.session.close()


def test_attention_gets_views_and_sliding_layers_no_more_than_their_window(on_host: OnHost) -> None:
    model, cache = on_host("gemma3")
    logits(model, prompt(100, 3), cache)
    new = torch.randn(1, 2, 3, 16)
    assert cache.is_sliding == [True, False, True]
    assert [cache.get_mask_sizes(3, layer) for layer in range(3)] == [(26, 77), (103, 0), (26, 77)]
    for layer, rows in enumerate((26, 103, 26)):
        assert cache.get_seq_length(layer) == 100
        keys, values = cache.update(new, new + 1, layer)
        assert keys.shape == values.shape == (1, 2, rows, 16)
        assert torch.equal(keys[:, :, -3:], new)
        assert torch.equal(values[:, :, -3:], new + 1)
        assert keys.untyped_storage().data_ptr() == cache.session.buffer().untyped_storage().data_ptr()
        assert cache.get_seq_length(layer) == 103
    assert cache.get_max_length() == POSITIONS
    assert not cache.is_compileable


@pytest.mark.parametrize("kind", MODELS)
def test_truncation_and_a_new_turn_equal_a_fresh_run(on_host: OnHost, kind: str) -> None:
    model, cache = on_host(kind)
    said = prompt(40, 1)
    heard = greedy(model, said, cache, 60)[:17]
    cache.truncate_to(len(said) + len(heard))
    turn = said + heard + prompt(12, 4)
    ours = greedy(model, turn, cache, 40)
    assert ours == greedy(model, turn, transformers.DynamicCache(config=model.config), 40)
    cache.reset()
    assert greedy(model, turn, cache, 40) == ours
    cache.session.truncate_to(len(said))
    assert greedy(model, turn, cache, 40) == ours


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_forks_go_their_own_ways(on_host: OnHost, kind: str) -> None:
    model, cache = on_host(kind)
    said = prompt(40, 1)
    logits(model, said, cache)
    forks = [cache.fork(), copy.deepcopy(cache), cache.fork(30)]
    assert [fork.position for fork in forks] == [40, 40, 30]
    for seed, fork in enumerate(forks):
        turn = said[: fork.position] + prompt(9, seed)
        fresh = transformers.DynamicCache(config=model.config)
        assert greedy(model, turn, fork, 30) == greedy(model, turn, fresh, 30)
        assert fork.is_sliding == cache.is_sliding
    assert cache.position == 40
    cache.truncate_to(39)
    assert greedy(model, said, cache, 60) == reference(kind, "cpu", 40, 1)[:60]
    for fork in forks:
        fork.session.close()


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_a_prefix_is_computed_once(arenas: NewArena, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, arena = model_of(kind), arenas(kind)
    persona = prompt(60, 5)
    first = ArenaCache(arena.session(), model.config)
    logits(model, persona, first)
    prefix = arena.prefixes.add(persona, first.session)
    first.session.close()
    extended: list[int] = []
    extend = type(first.session).extend
    monkeypatch.setattr(type(first.session), "extend", lambda self, n: (extended.append(n), extend(self, n))[1])
    for seed in range(2):
        turn = persona + prompt(11, seed)
        cache = ArenaCache(arena.session(prefix=prefix), model.config)
        fresh = transformers.DynamicCache(config=model.config)
        assert greedy(model, turn, cache, 30) == greedy(model, turn, fresh, 30)
        assert extended == [11] + [1] * 29
        extended.clear()
    assert arena.stats().shared_pages > 0


def test_a_session_may_go_to_the_host_in_between(on_host: OnHost) -> None:
    model, cache = on_host("gemma3")
    ids, expected = prompt(40, 1), reference("gemma3", "cpu", 40, 1)
    ids += greedy(model, ids, cache, 30)
    assert cache.session.park() > 0
    assert cache.session.is_parked
    ids += greedy(model, ids, cache, 30)
    arena = cache.session._arena
    arena.sleep()
    with pytest.raises(GpuError, match="sleeps"):
        logits(model, [1], cache)
    arena.wake()
    ids += greedy(model, ids, cache, 30)
    assert ids[40:] == expected[:90]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_guessed_tokens_are_taken_back(on_host: OnHost, kind: str) -> None:
    """transformers' prompt lookup guesses some tokens at a time and crops those that were wrong."""
    model, cache = on_host(kind)
    ids = prompt(10, 6) * 4
    fresh = greedy(model, ids, transformers.DynamicCache(config=model.config), 60)
    cropped: list[int] = []
    crop = cache.crop
    cache.crop = lambda tokens: (cropped.append(tokens), crop(tokens))[1]  # type: ignore[method-assign]
    assert greedy(model, ids, cache, 60, prompt_lookup_num_tokens=3) == fresh
    assert min(cropped) < 0


@pytest.mark.parametrize("chunk", [1, 7])
def test_an_endless_session_equals_an_explicit_mask(arenas: NewArena, chunk: int) -> None:
    """The tokens of one pass all see what its first one sees, and one another."""
    model, arena = model_of("llama"), arenas("llama")
    window = WindowSpec(window=32, sinks=4, step=8, chunk=16)
    cache = ArenaCache(arena.session(window=window), model.config)
    assert cache.get_max_length() == -1
    ids = prompt(203, 7)
    pieces = [logits(model, ids[begin : begin + chunk], cache) for begin in range(0, 203, chunk)]
    mask = torch.zeros(203, 203, dtype=torch.bool)
    for query in range(203):
        hidden = window.hidden(query // chunk * chunk + 1)
        mask[query, : min(window.sinks, query + 1)] = True
        mask[query, min(window.sinks + hidden, query) : query + 1] = True
    whole = logits(model, ids, attention_mask=mask[None, None])
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-4, atol=1e-4)
    assert cache.session.length < 36 + chunk
    assert cache.position == 203


def test_an_evicted_session_goes_on_with_the_rows_that_are_left(on_host: OnHost) -> None:
    model, cache = on_host("llama")
    ids = prompt(50, 9)
    logits(model, ids, cache)
    kept = [*range(4), *range(20, 50)]
    cache.session.compact(torch.tensor(kept).expand(2, 2, -1), tail=30)
    mask = torch.ones(57, 57, dtype=torch.bool).tril()
    mask[50:, 4:20] = False
    turn = prompt(7, 10)
    whole = logits(model, ids + turn, attention_mask=mask[None, None])
    torch.testing.assert_close(logits(model, turn, cache), whole[50:], rtol=1e-4, atol=1e-4)


def test_sliding_layers_need_every_row(on_host: OnHost, arenas: NewArena) -> None:
    model, cache = on_host("gemma3")
    logits(model, prompt(50, 9), cache)
    cache.session.compact(torch.arange(20, 50).expand(3, 2, -1), tail=30)
    with pytest.raises(GpuError, match="sliding layers need"):
        logits(model, [1], cache)


def test_a_pass_that_stopped_half_way_is_noticed(on_host: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = on_host("llama")
    ids = prompt(40, 1)
    logits(model, ids[:30], cache)

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1].mlp, "forward", lambda x: x)
        patch.setattr(model.model.layers[1].self_attn, "forward", broken)
        with pytest.raises(KeyboardInterrupt):
            logits(model, ids[30:35], cache)
    assert [cache.get_seq_length(layer) for layer in range(2)] == [35, 30]
    for position in (35, 33):
        cache.truncate_to(position)
        for refused in (lambda: logits(model, ids[35:], cache), cache.fork):
            with pytest.raises(GpuError, match=r"before layer 1 had written .* truncate_to\(30\)"):
                refused()
    cache.truncate_to(30)
    assert greedy(model, ids, cache, 60) == reference("llama", "cpu", 40, 1)[:60]


def test_what_is_stored_carries_no_gradients(on_host: OnHost) -> None:
    model, cache = on_host("llama")
    output = model(torch.tensor([prompt(5, 1)]), cache=cache).logits
    assert output.requires_grad
    assert not cache.session.rows().requires_grad


@pytest.mark.parametrize(
    "options", [{"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}], ids=["beams", "sequences"]
)
def test_a_batch_is_refused(on_host: OnHost, options: dict[str, Any]) -> None:
    model, cache = on_host("llama")
    with pytest.raises(GpuError, match="one text, not a batch"):
        model.generate(torch.tensor([prompt(5, 1)]), cache=cache, max_new_tokens=4, **options)
    assert cache.position == 0
    index = torch.tensor([0, 0])
    for call in (cache.reorder_cache, cache.batch_select_indices, cache.batch_repeat_interleave):
        with pytest.raises(GpuError, match="one text, not a batch"):
            call(index)


def test_a_model_that_the_arena_was_not_opened_for_is_refused(arenas: NewArena) -> None:
    session = arenas("llama").session()
    cache, rows = ArenaCache(session), torch.randn(1, 2, 3, 16)
    with pytest.raises(GpuError, match="3 layers, the arena 2"):
        ArenaCache(session, model_of("gemma3").config)
    with pytest.raises(GpuError, match="a layer 2, the arena 2 layers"):
        cache.update(rows, rows, 2)
    with pytest.raises(GpuError, match=r"keys of 2 heads x 8 and values of 2 x 16, .* 2 x 16"):
        cache.update(rows[..., :8], rows, 0)
    with pytest.raises(GpuError, match=r"computes in torch\.bfloat16 on cpu, the arena holds torch\.float32 on cpu"):
        cache.update(rows.bfloat16(), rows.bfloat16(), 0)
    assert session.position == 0
    cache.update(rows, rows, 0)
    with pytest.raises(GpuError, match="layer 1 brings 2 tokens, the first one of this pass 3"):
        cache.update(rows[:, :, :2], rows[:, :, :2], 1)
    with pytest.raises(GpuError, match="a length no more"):
        cache.crop(2)
    cache.crop(0)
    cache.crop(-3)
    assert cache.position == 0


def test_without_transformers_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gpu.kv.hf_cache")
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    with pytest.raises(ImportError, match="install the extra 'hf'"):
        importlib.import_module("gpu.kv.hf_cache")


def test_unrotated_keys_are_refused() -> None:
    spec = ArenaSpec(layers=1, kv_heads=1, head_dim=2, positions=4, unrotated_keys=True)
    arena = Arena.open(spec, page_bytes=4096)
    with pytest.raises(GpuError, match="rotated keys only"):
        ArenaCache(arena.session())
    arena.close()


def test_a_quantised_session_takes_a_long_prompt_in_passes_of_its_chunk() -> None:
    """As docs/arena.md says; in one pass it is refused, and nothing has changed."""
    model, ids = model_of("llama"), prompt(450, 3)
    arena = Arena.open(replace(spec_of("llama", 1000), body=BodySpec("int8")))
    cache, passes = (ArenaCache(arena.session(), model.config) for _ in range(2))
    with pytest.raises(ArenaFullError, match="takes 256 tokens at once, not 450"):
        greedy(model, ids, cache, 1)
    assert cache.position == 0
    found = greedy(model, ids, cache, 5, prefill_chunk_size=256)
    for begin in (0, 256):
        last = logits(model, ids[begin : begin + 256], passes)[-1]
    assert passes.session.coded == 64  # type: ignore[attr-defined]  # what the second pass saw
    for token in found[:-1]:
        assert int(last.argmax()) == token
        last = logits(model, [token], passes)[-1]
    assert int(last.argmax()) == found[-1]
    arena.check()
    arena.close()


def test_a_full_session_says_so_and_stays_as_it_was(on_host: OnHost) -> None:
    model, cache = on_host("llama")
    logits(model, prompt(POSITIONS, 1), cache)
    with pytest.raises(ArenaFullError, match="320 of 320"):
        logits(model, [1], cache)
    cache.truncate_to(POSITIONS - 1)
    logits(model, [1], cache)


def test_the_arena_for_a_configuration() -> None:
    assert spec_of("gemma3", 9) == ArenaSpec(layers=3, kv_heads=2, head_dim=16, positions=9)
    spec = spec_for(transformers.GPT2Config(n_layer=2, n_head=4, n_embd=32), 5, torch.bfloat16, torch.device("cuda", 0))
    assert spec == ArenaSpec(2, 4, 8, 5, dtype="bfloat16", device="cuda:0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("T5Config", "has an encoder"),
        ("MambaConfig", "LinearAttentionLayer"),
        ("Gemma3nTextConfig", "DummyLayer"),
        ("Gemma4TextConfig", "heads of"),
    ],
)
def test_models_that_keep_something_else_are_refused(name: str, message: str) -> None:
    with pytest.raises(GpuError, match=message):
        spec_for(getattr(transformers, name)(), 8)
