"""What was said and heard, as the model is told it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu.llm.protocol import LanguageModel, Message

_CUT_EXCHANGES = 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """One user turn and what the user heard of the answer ("" if nothing)."""

    user: str
    heard: str


class History:
    """The conversation under one system prompt. Replies are held only as far as they were heard."""

    def __init__(self, system_prompt: str, exchanges: Sequence[Exchange] = ()) -> None:
        self.system_prompt = system_prompt
        self.exchanges: list[Exchange] = list(exchanges)
        """Oldest first."""

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

        `begun` is the part of the answer that the user has heard already; the model goes on behind it.

        `reserve_tokens` stay free for the reply; `limit_tokens` is the persona's quota for the prompt. The cut
        falls on every `_CUT_EXCHANGES`th exchange only: what lies behind it is computed again when it moves.
        """
        limit = min(limit_tokens, model.context_tokens - reserve_tokens)
        first = self._first_that_may_fit(model, limit)
        messages = self._render(self.exchanges[first:], user, begun)
        while first < len(self.exchanges) and model.count_tokens(messages) > limit:
            first = min(first + 1, len(self.exchanges))
            if len(self.exchanges) - first > _CUT_EXCHANGES:
                first = -(-first // _CUT_EXCHANGES) * _CUT_EXCHANGES
            messages = self._render(self.exchanges[first:], user, begun)
        return messages

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
