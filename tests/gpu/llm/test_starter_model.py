"""The starter model: our logits and greedy tokens equal transformers' on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.llm.chat import ChatTemplate  # noqa: E402
from gpu.llm.decoder import Decoder  # noqa: E402
from gpu.llm.model import LocalLanguageModel  # noqa: E402
from gpu.llm.protocol import Message, SamplingParams  # noqa: E402
from gpu.llm.tokenizer import Tokenizer  # noqa: E402
from gpu.llm.weights.gguf import open_gguf  # noqa: E402
from gpu.llm.weights.prepare import PreparedModel, prepare  # noqa: E402
from gpu.llm.weights.raw import RawModel  # noqa: E402

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ["What is the capital of France?", "Tell me about the moon.", "Who wrote Romeo and Juliet?"]


@pytest.fixture(scope="module")
def raw(model_path: Callable[[str, str], Path]) -> RawModel:
    return open_gguf(model_path("smollm2-135m", MODEL))


@pytest.fixture(scope="module")
def full(raw: RawModel) -> PreparedModel:
    return prepare(raw, "fp32")


def prompt(model: PreparedModel, question: str) -> list[int]:
    tokenizer = Tokenizer(model.tokenizer_json)
    template = ChatTemplate(model.chat_template, bos_token=model.bos_token, eos_token=model.eos_token)
    return tokenizer.encode(template.render([Message("user", question)], add_generation_prompt=True))


def session_of(model: PreparedModel) -> Session:
    c = model.config
    return Arena.open(ArenaSpec(c.layers, c.kv_heads, c.head_dim, 256)).session()


def greedy(decoder: Decoder, session: Session, ids: list[int], tokens: int) -> list[int]:
    scores, out = decoder.logits(decoder.forward(ids, session)[-1:])[0], list[int]()
    while len(out) < tokens:
        out.append(int(scores.argmax()))
        scores = decoder.logits(decoder.forward(out[-1:], session))[0]
    return out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_logits_and_64_greedy_tokens_equal_transformers(
    full: PreparedModel, reference_llama: Callable[[Any], Any]
) -> None:
    reference = reference_llama(full)
    decoder = Decoder(full.config, full.state, positions=256)
    for question in QUESTIONS:
        ids = prompt(full, question)
        ours = decoder.logits(decoder.forward(ids, session_of(full)))
        with torch.inference_mode():
            theirs = reference(torch.tensor([ids])).logits[0]
        error = float((ours - theirs).norm() / theirs.norm())
        print(f"{question} logits error {error:.2e}")
        assert error <= 1e-4
    ids = prompt(full, QUESTIONS[1])
    expected = reference.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=64,
        min_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(ids) :].tolist()
    assert greedy(decoder, session_of(full), ids, 64) == expected


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_int8_stays_close_to_fp32(raw: RawModel, full: PreparedModel) -> None:
    """Along fp32's own replies: the next-token distributions and the likeliest tokens.

    Measured on 12 prompts: divergence 0.008 nats, 95 % the same token; without the rotation 0.098 and 84 %.
    """
    int8 = prepare(raw, "int8")
    decoders = [Decoder(model.config, model.state, positions=256) for model in (full, int8)]
    ours, theirs = list[torch.Tensor](), list[torch.Tensor]()
    for question in QUESTIONS:
        ids = prompt(full, question)
        reply = greedy(decoders[0], session_of(full), ids, 24)
        for decoder, scores in zip(decoders, (theirs, ours), strict=True):
            hidden = decoder.forward([*ids, *reply[:-1]], session_of(full))
            scores.append(decoder.logits(hidden[-len(reply) :]).log_softmax(-1))
    log_ours, log_theirs = torch.cat(ours), torch.cat(theirs)
    divergence = float(torch.nn.functional.kl_div(log_ours, log_theirs, log_target=True, reduction="batchmean"))
    agreement = float((log_ours.argmax(-1) == log_theirs.argmax(-1)).float().mean())
    print(f"int8: divergence {divergence:.4f} nats, same likeliest token {agreement:.3f}")
    assert divergence <= 0.03
    assert agreement >= 0.90


def test_tokenizer_keeps_every_text(raw: RawModel) -> None:
    tokenizer = Tokenizer(raw.tokenizer_json)
    for text in ("Hello there!  It's 3.50 in 2026.\n", "你好，世界", "👍🏽 ok 👨‍👩‍👧", "Ünïcödé\tand\r\nlines"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        stream = tokenizer.stream()
        assert "".join(stream.push(token) for token in ids) + stream.flush() == text
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>") == [1, *tokenizer.encode("user\nHi"), 2]


def test_a_reply_that_was_cut_off_goes_on_behind_its_last_word(full: PreparedModel) -> None:
    """As after a crash: the greedy reply, begun by its own first words, is the greedy reply."""

    def reply(*messages: Message) -> str:
        pieces = model.generate(list(messages), SamplingParams(), max_tokens=24, cancelled=lambda: False)
        return "".join(pieces)

    model = LocalLanguageModel(full, context_tokens=256)
    question = Message("user", QUESTIONS[0])
    whole = reply(question)
    words = whole.split(" ")
    assert len(words) >= 5
    for heard in (1, 3, len(words) - 1):
        begun = " ".join(words[:heard])
        assert begun + reply(question, Message("assistant", begun)) == whole
