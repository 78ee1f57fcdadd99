"""A persona that leaves no room to talk is refused in one sentence that names it and the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.config.load import load_config
from app.engine.persona import check_persona
from app.errors import AgentError
from gpu.llm.protocol import Message


class Counting:
    """A token a word, and ten of the template's own."""

    def __init__(self, context_tokens: int) -> None:
        self.context_tokens = context_tokens

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return 10 + sum(len(message.content.split()) for message in messages)


def check(prompt_words: int, reply_tokens: int, context_tokens: int) -> None:
    overrides = [
        f'personas.default.prompt="{"word " * prompt_words}"',
        f"personas.default.max_reply_tokens={reply_tokens}",
    ]
    llm: Any = Counting(context_tokens)
    check_persona(load_config(file=None, env={"XDG_CONFIG_HOME": "/nowhere"}, overrides=overrides).config, llm)


@pytest.mark.parametrize(
    ("prompt_words", "reply_tokens", "context_tokens"), [(0, 230, 256), (130, 100, 256), (1_926, 96, 2_048)]
)
def test_the_last_persona_that_leaves_room_and_the_first_that_does_not(
    prompt_words: int, reply_tokens: int, context_tokens: int
) -> None:
    check(prompt_words, reply_tokens, context_tokens)
    with pytest.raises(AgentError, match="persona default leaves no room") as refused:
        check(prompt_words + 1, reply_tokens, context_tokens)
    assert refused.value.exit_code == 2
    for name in ("llm.context_tokens", "personas.default.prompt", f"{prompt_words + 11} tokens"):
        assert name in str(refused.value)
