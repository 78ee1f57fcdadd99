"""What was said and heard, as the model is told it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu.llm.protocol import LanguageModel, Message


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
        """The prompt for answering `user`. An empty system prompt leaves the model's own in place."""
        return self._render(self.exchanges, user)

    def fit(self, user: str, model: LanguageModel, *, reserve_tokens: int, limit_tokens: int) -> list[Message]:
        """The prompt for answering `user` with the oldest exchanges left out until it fits.

        `reserve_tokens` stay free for the reply; `limit_tokens` is the persona's quota for the prompt.
        """
        limit = min(limit_tokens, model.context_tokens - reserve_tokens)
        kept = list(self.exchanges)
        messages = self._render(kept, user)
        while kept and model.count_tokens(messages) > limit:
            # A quarter at a time: the model computes everything behind the cut again, so cut rarely.
            del kept[: max(1, len(kept) // 4)]
            messages = self._render(kept, user)
        return messages

    def _render(self, exchanges: Sequence[Exchange], user: str) -> list[Message]:
        messages = [Message("system", self.system_prompt)] if self.system_prompt else []
        for exchange in exchanges:
            messages.append(Message("user", exchange.user))
            if exchange.heard:
                messages.append(Message("assistant", exchange.heard))
        messages.append(Message("user", user))
        return messages
