"""What was said and heard, as the model is told it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.errors import AgentError
from gpu.llm.protocol import LanguageModel, Message

_CUT_EXCHANGES = 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """One user turn and what the user heard of the answer ("" if nothing)."""

    user: str
    heard: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the user said is longer than the model's window: this much of its end was not read."""

    words: int
    characters: int
    context_tokens: int

    def __str__(self) -> str:
        amount = f"{self.words} words" if self.words > 1 else f"{self.characters} characters"
        return (
            f"that was longer than the model can read at once, its last {amount} were left out; "
            f"a greater llm.context_tokens (now {self.context_tokens}) takes more"
        )


class History:
    """The conversation under one system prompt. Replies are held only as far as they were heard."""

    def __init__(self, system_prompt: str, exchanges: Sequence[Exchange] = ()) -> None:
        self.system_prompt = system_prompt
        self.exchanges: list[Exchange] = list(exchanges)
        """Oldest first."""
        self.left_out: tuple[LeftOut, ...] = ()
        """What the last `fit` left out of the user's own words, at most one."""

    def add(self, user: str, heard: str) -> None:
        """Commit one exchange."""
        self.exchanges.append(Exchange(user, heard))

    def messages(self, user: str) -> list[Message]:
        """The whole prompt for answering `user`. An empty system prompt leaves the model's own in place."""
        return self._render(self.exchanges, user)

    def fit(
        self, user: str, model: LanguageModel, *, reserve_tokens: int, limit_tokens: int, begun: str = ""
    ) -> list[Message]:
        """The prompt for answering `user`, without the oldest exchanges where it would be too long.

        Where `user` alone is longer than the window, as many of its first words as there is room for (`left_out`).

        `begun` is the part of the answer that the user has heard already; the model goes on behind it.

        `reserve_tokens` stay free for the reply; `limit_tokens` is the persona's quota for the prompt. The cut
        falls on every `_CUT_EXCHANGES`th exchange only: what lies behind it is computed again when it moves.

        Raises:
            AgentError: there is no room for any word.
        """
        self.left_out = ()
        limit = min(limit_tokens, model.context_tokens - reserve_tokens)
        first = self._first_that_may_fit(model, limit)
        messages = self._render(self.exchanges[first:], user, begun)
        while first < len(self.exchanges) and model.count_tokens(messages) > limit:
            first = min(first + 1, len(self.exchanges))
            if len(self.exchanges) - first > _CUT_EXCHANGES:
                first = -(-first // _CUT_EXCHANGES) * _CUT_EXCHANGES
            messages = self._render(self.exchanges[first:], user, begun)
        room = model.context_tokens - reserve_tokens
        if first < len(self.exchanges) or model.count_tokens(messages) <= room:
            return messages

        def fits(kept: str) -> bool:
            return model.count_tokens(self._render((), kept, begun)) <= room

        kept = longest_beginning(user, fits)
        if not kept:
            raise no_room(model.context_tokens)
        rest = user[len(kept) :]
        self.left_out = (LeftOut(len(rest.split()), len(rest.strip()), model.context_tokens),)
        return self._render((), kept, begun)

    def _first_that_may_fit(self, model: LanguageModel, limit: int) -> int:
        """Count backwards until it is too much, so that a long history costs no more than a short one."""
        total, first = 0, len(self.exchanges)
        while first and total <= limit:
            first -= 1
            total += model.count_tokens([Message("user", self.exchanges[first].user)])
            total += model.count_tokens([Message("user", self.exchanges[first].heard)])
            total -= 2 * model.count_tokens([Message("user", "")])
        return first // _CUT_EXCHANGES * _CUT_EXCHANGES

    def _render(self, exchanges: Sequence[Exchange], user: str, begun: str = "") -> list[Message]:
        messages = [Message("system", self.system_prompt)] if self.system_prompt else []
        asked: list[str] = []  # since the last answer: one message, for many templates refuse two in a row
        for exchange in exchanges:
            asked.append(exchange.user)
            if exchange.heard:
                messages += [Message("user", "\n".join(asked)), Message("assistant", exchange.heard)]
                asked = []
        messages.append(Message("user", "\n".join([*asked, user])))
        if begun:
            messages.append(Message("assistant", begun))
        return messages


def longest_beginning(text: str, fits: Callable[[str], bool]) -> str:
    """The longest beginning of `text` that fits, in whole words where one fits; "" where no character does."""
    word_ends = [match.end() for match in re.finditer(r"\S+", text)]
    return _longest(text, word_ends, fits) or _longest(text, range(1, len(text) + 1), fits)


def _longest(text: str, ends: Sequence[int], fits: Callable[[str], bool]) -> str:
    """The longest of `text[:end]` that fits; `ends` rise, and what is behind one that does not fit does not either."""
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[: ends[middle - 1]]) else (low, middle - 1)
    return text[: ends[low - 1]] if low else ""


def no_room(context_tokens: int) -> AgentError:
    """Persona and reply take the whole window."""
    return AgentError(
        f"the persona's prompt and its longest reply leave no room for a question in {context_tokens} tokens",
        fix="Raise llm.context_tokens, or shorten the persona's prompt or its max_reply_tokens",
    )
