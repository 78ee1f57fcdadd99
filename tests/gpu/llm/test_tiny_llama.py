"""Our decoder equals transformers' on tiny random Llamas, in logits, greedy tokens, chunks and truncation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
transformers = pytest.importorskip("transformers", reason="the reference implementation")

from gpu.errors import ArenaFullError, GpuError  # noqa: E402
from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.kv.spec import BodySpec  # noqa: E402
from gpu.llm.decoder import Decoder  # noqa: E402
from gpu.llm.weights.prepare import prepare  # noqa: E402
from gpu.llm.weights.safetensors import open_hf_directory  # noqa: E402

POSITIONS = 160
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PROMPT = [(7 * i * i + 3 * i + 5) % 211 for i in range(50)]


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return float((ours - reference).norm() / reference.norm())


def save_tiny(
    directory: Path, *, tied: bool, rope: dict[str, Any] | None, shard: str = "5GB", spread: float = 0.3
) -> Any:
    torch.manual_seed(1234)
    config = transformers.LlamaConfig(
        vocab_size=211,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters=rope or {"rope_type": "default", "rope_theta": 5000.0},
        eos_token_id=2,
        initializer_range=spread,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:  # transformers starts them at 1, where a forgotten norm weight would not show
            weight.data.uniform_(0.5, 1.5)
    model.save_pretrained(directory, max_shard_size=shard)
    (directory / "tokenizer.json").write_text("{}", encoding="utf-8")
    return model


def session_of(decoder: Decoder, positions: int = POSITIONS) -> Session:
    c = decoder.config
    spec = ArenaSpec(c.layers, c.kv_heads, c.head_dim, positions, dtype=str(decoder.dtype).removeprefix("torch."))
    return Arena.open(spec).session()


Pair = tuple[Any, Decoder]


@pytest.fixture(scope="module", params=["tied", "untied", "llama3-rope-sharded"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("tiny")
    rope = LLAMA3_ROPE if request.param.startswith("llama3") else None
    model = save_tiny(directory, tied=request.param == "tied", rope=rope, shard="60KB" if rope else "5GB")
    assert len(list(directory.glob("*.safetensors"))) == (1 if rope is None else 6) or rope
    prepared = prepare(open_hf_directory(directory), "fp32")
    return model, Decoder(prepared.config, prepared.state, positions=POSITIONS)


def reference_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def greedy(decoder: Decoder, session: Session, prompt: list[int], tokens: int) -> list[int]:
    scores, out = decoder.logits(decoder.forward(prompt, session)[-1:])[0], list[int]()
    while len(out) < tokens:
        out.append(int(scores.argmax()))
        scores = decoder.logits(decoder.forward(out[-1:], session))[0]
    return out


def test_prefill_logits(pair: Pair) -> None:
    model, decoder = pair
    ours = decoder.logits(decoder.forward(PROMPT, session_of(decoder)))
    assert relative(ours, reference_logits(model, PROMPT)) <= 1e-4


def test_decode_logits(pair: Pair) -> None:
    model, decoder = pair
    session = session_of(decoder)
    ours = torch.cat([decoder.logits(decoder.forward([token], session)) for token in PROMPT])
    assert relative(ours, reference_logits(model, PROMPT)) <= 1e-4


def test_64_greedy_tokens(pair: Pair) -> None:
    model, decoder = pair
    reference = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=64, min_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    assert len(set(reference)) > 8  # a constant reply would prove little
    assert greedy(decoder, session_of(decoder), PROMPT, 64) == reference


@pytest.mark.parametrize("chunk", [1, 7, 16, 49])
def test_chunked_prefill_equals_one_shot(pair: Pair, chunk: int) -> None:
    _, decoder = pair
    session, whole = session_of(decoder), session_of(decoder)
    for begin in range(0, len(PROMPT), chunk):
        hidden = decoder.forward(PROMPT[begin : begin + chunk], session)
    reference = decoder.forward(PROMPT, whole)
    assert relative(hidden[-1], reference[-1]) <= 1e-5
    for layer in range(decoder.config.layers):
        assert relative(session.keys(layer), whole.keys(layer)) <= 1e-5


def test_truncation_and_a_new_turn_equal_a_fresh_run(pair: Pair) -> None:
    _, decoder = pair
    used, fresh = session_of(decoder), session_of(decoder)
    greedy(decoder, used, PROMPT[:30], 40)
    used.truncate_to(20)
    decoder.forward(PROMPT[:20], fresh)
    turn = PROMPT[35:50]
    assert relative(decoder.logits(decoder.forward(turn, used)), decoder.logits(decoder.forward(turn, fresh))) <= 1e-5


@pytest.mark.parametrize(("code", "limit"), [("int8", 0.01), ("fp8", 0.04)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_quantised_body_says_nearly_the_same(tmp_path: Path, code: Any, limit: float, tied: bool) -> None:
    """After each of 96 given tokens, so that one answer that differs does not decide about all that follow."""
    save_tiny(tmp_path, tied=tied, rope=None, spread=0.1)
    prepared = prepare(open_hf_directory(tmp_path), "fp32")
    decoder = Decoder(prepared.config, prepared.state, positions=POSITIONS)
    c = decoder.config
    body = BodySpec(code, block=16, sinks=4, recent=16, slack=16, chunk=50)
    plain = session_of(decoder)
    session = Arena.open(replace(plain.spec, body=body)).session()
    reference, ours = ([decoder.logits(decoder.forward(PROMPT, each)[-1:])[0]] for each in (plain, session))
    for number in range(50, 146):
        token = [(7 * number * number + 3 * number + 5) % 211]
        for scores, each in ((reference, plain), (ours, session)):
            scores.append(decoder.logits(decoder.forward(token, each))[0])
    same = sum(int(one.argmax()) == int(other.argmax()) for one, other in zip(reference, ours, strict=True))
    error = relative(torch.stack(ours), torch.stack(reference))
    print(f"{code}: {same} of {len(ours)} greedy tokens the same, logits off by {error:.4f}")
    assert session.position == plain.position == len(PROMPT) + 96
    assert session.keys(0).shape == (1, c.kv_heads, session.position, c.head_dim)
    assert len({int(scores.argmax()) for scores in reference}) > 8  # a constant reply would prove little
    assert same >= 0.95 * len(ours)
    assert 0 < error <= limit


def test_a_rollback_over_a_quantised_body_equals_a_fresh_run(pair: Pair) -> None:
    """Bit for bit, within the slack: what a pass sees depends on where it begins alone."""
    _, decoder = pair
    spec = replace(session_of(decoder).spec, body=BodySpec("int8", block=8, sinks=2, recent=12, slack=24, chunk=32))
    used, fresh = Arena.open(spec).session(), Arena.open(spec).session()
    for session in (used, fresh):
        decoder.forward(PROMPT[:30], session)
        decoder.forward(PROMPT[30:40], session)
    for token in PROMPT[:24]:
        decoder.forward([token], used)
    used.truncate_to(40)
    turn = PROMPT[35:50]
    assert torch.equal(decoder.logits(decoder.forward(turn, used)), decoder.logits(decoder.forward(turn, fresh)))


def test_a_full_session_refuses_and_stays_as_it_was(pair: Pair) -> None:
    _, decoder = pair
    session = session_of(decoder, positions=12)
    decoder.forward(PROMPT[:10], session)
    with pytest.raises(ArenaFullError):
        decoder.forward(PROMPT[10:13], session)
    assert session.length == 10


def test_a_failed_pass_leaves_the_session_as_it_was(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    _, decoder = pair
    session = session_of(decoder)
    decoder.forward(PROMPT[:10], session)
    monkeypatch.setattr(Session, "values", lambda self, layer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoder.forward(PROMPT[10:13], session)
    assert session.length == 10


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.05), ("int8", 0.05)])
@pytest.mark.parametrize("tied", [True, False])
def test_lower_precisions_stay_close(tmp_path: Path, precision: Any, tolerance: float, tied: bool) -> None:
    model = save_tiny(tmp_path, tied=tied, rope=None, spread=0.1)
    prepared = prepare(open_hf_directory(tmp_path), precision)
    decoder = Decoder(prepared.config, prepared.state, positions=POSITIONS)
    ours = decoder.logits(decoder.forward(PROMPT, session_of(decoder)))
    error = relative(ours, reference_logits(model, PROMPT))
    print(f"{precision} logits error {error:.4f}")
    assert 1e-6 < error <= tolerance


def test_int8_with_seven_bits_where_the_cpu_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs without VNNI get 7-bit weights: every weight in [-63, 63], still close to the reference."""
    model = save_tiny(tmp_path, tied=True, rope=None, spread=0.1)
    monkeypatch.setattr("gpu.llm.linear.int8_weight_limit", lambda: 63)
    prepared = prepare(open_hf_directory(tmp_path), "int8")
    assert max(int(t.abs().max()) for t in prepared.state.values() if t.dtype == torch.int8) == 63
    decoder = Decoder(prepared.config, prepared.state, positions=POSITIONS)
    ours = decoder.logits(decoder.forward(PROMPT, session_of(decoder)))
    assert relative(ours, reference_logits(model, PROMPT)) <= 0.1


def test_int8_does_not_run_elsewhere(tmp_path: Path) -> None:
    save_tiny(tmp_path, tied=True, rope=None)
    prepared = prepare(open_hf_directory(tmp_path), "int8")
    with pytest.raises(GpuError, match="CPU only"):
        Decoder(prepared.config, prepared.state, positions=8, device="meta")


def _delete_shard(directory: Path) -> None:
    next(directory.glob("*.safetensors")).unlink()


def _truncate_weights(directory: Path) -> None:
    path = next(directory.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])


def _rewrite_config(old: str, new: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / "config.json"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_delete_shard, "no .safetensors file"),
        (_truncate_weights, "truncated or corrupt"),
        (lambda d: (d / "config.json").unlink(), "Cannot read"),
        (lambda d: (d / "config.json").write_text("{", encoding="utf-8"), "no JSON"),
        (lambda d: (d / "tokenizer.json").unlink(), "Cannot read"),
        (_rewrite_config('"model_type": "llama"', '"model_type": "mamba"'), "'mamba' are not supported"),
        (_rewrite_config('"hidden_size": 48', '"hidden_size": 40'), "shape"),
        (_rewrite_config('"num_hidden_layers": 3', '"num_hidden_layers": 4'), "lacks 9 tensors"),
        (_rewrite_config('"num_hidden_layers": 3', '"num_hidden_layers": "many"'), "config.json"),
    ],
)
def test_damaged_directories_say_what_to_do(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    save_tiny(tmp_path, tied=True, rope=None)
    damage(tmp_path)
    with pytest.raises(GpuError, match=message) as caught:
        prepare(open_hf_directory(tmp_path), "fp32")
    assert caught.value.fix
