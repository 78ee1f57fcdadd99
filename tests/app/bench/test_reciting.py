"""The model that recites: the same question, the same words; an answer that goes on is not begun again."""

from __future__ import annotations

from app.bench.reciting import RecitingModel
from gpu.llm.protocol import Message, SamplingParams


def recite(*messages: Message) -> str:
    pieces = RecitingModel(sentences=2).generate(messages, SamplingParams(), max_tokens=1000, cancelled=lambda: False)
    return "".join(pieces)


def test_an_answer_goes_on_where_it_was_broken_off() -> None:
    question = Message("user", "And then?")
    whole = recite(question)
    begun = whole[: whole.index(",") + 1]
    assert f"{begun} {recite(question, Message('assistant', begun))}" == whole
    assert recite(question, Message("assistant", whole)) == ""
    assert recite(question, Message("assistant", "Something else.")) == whole
