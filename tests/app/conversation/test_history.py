"""What the model is told of a conversation: never more than it can read, and never nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.history import Exchange, History, longest_beginning
from app.errors import AgentError
from gpu.llm.protocol import Message

CONTEXT, RESERVE, TEMPLATE = 100, 20, 3


class Counting:
    """A token for three characters, and `TEMPLATE` around each message."""

    context_tokens = CONTEXT

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return sum(TEMPLATE + -(-len(message.content.encode()) // 3) for message in messages)


def fit(history: History, user: str, *, limit: int = 50, begun: str = "") -> list[Message]:
    model: Any = Counting()
    messages = history.fit(user, model, reserve_tokens=RESERVE, limit_tokens=limit, begun=begun)
    assert model.count_tokens(messages) <= CONTEXT - RESERVE
    return messages


@given(
    st.text(max_size=400),
    st.lists(st.builds(Exchange, st.text(max_size=300), st.text(max_size=300)), max_size=12),
    st.text(max_size=60),
    st.integers(5, 200),
)
def test_whatever_was_said_the_prompt_fits_and_begins_with_the_users_words(
    user: str, exchanges: list[Exchange], begun: str, limit: int
) -> None:
    history = History("Be brief.", exchanges)
    messages = fit(history, user, limit=limit, begun=begun)
    asked = messages[-2] if begun else messages[-1]
    assert asked.role == "user"
    if not history.left_out:
        assert asked.content.endswith(user)
        return
    (left_out,) = history.left_out
    assert asked.content
    assert user.startswith(asked.content)
    assert len(user[len(asked.content) :].strip()) == left_out.characters
    assert left_out.context_tokens == CONTEXT


def test_the_end_of_a_long_message_is_left_out_word_by_word_and_told() -> None:
    history = History("", [Exchange("one", "two")])
    words = [f"word{number}" for number in range(500)]
    (message,) = fit(history, " ".join(words))
    kept = message.content.split()
    assert kept == words[: len(kept)]
    assert len(message.content) > 3 * (CONTEXT - RESERVE - TEMPLATE) - 9
    told = str(history.left_out[0])
    assert f"its last {500 - len(kept)} words were left out" in told
    assert "llm.context_tokens (now 100)" in told


def test_a_word_that_is_longer_than_the_window_is_cut_between_characters() -> None:
    history = History("")
    (message,) = fit(history, "你" * 1_000)
    assert message.content == "你" * (CONTEXT - RESERVE - TEMPLATE)
    assert f"its last {1_000 - len(message.content)} characters were left out" in str(history.left_out[0])


def test_a_message_that_is_over_the_personas_quota_but_not_over_the_window_is_whole() -> None:
    history = History("", [Exchange("one", "two")])
    assert fit(history, "x" * 210, limit=30) == [Message("user", "x" * 210)]
    assert not history.left_out


def test_where_not_a_character_fits_the_users_sentence_is_ours() -> None:
    with pytest.raises(AgentError, match="no room") as refused:
        fit(History("p" * 3 * (CONTEXT - RESERVE)), "hello")
    assert "llm.context_tokens" in str(refused.value)


@given(st.text(max_size=80), st.integers(0, 80))
def test_the_longest_beginning_ends_behind_a_word_where_one_fits(text: str, room: int) -> None:
    kept = longest_beginning(text, lambda part: len(part) <= room)
    assert text.startswith(kept)
    assert len(kept) <= room
    rest = text[len(kept) :]
    if room and text.split() and len(kept) < len(text.rstrip()):
        is_word_end = rest[:1].isspace() or not rest
        assert is_word_end or not any(len(text[: text.index(word) + len(word)]) <= room for word in text.split()[:1])
