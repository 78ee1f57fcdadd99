"""What a conversation asks of a language model. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a chat history."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. `temperature` 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    """Keskar et al. 2019 (CTRL): logits of seen tokens divided (positive) or multiplied (negative)."""
    seed: int = 0


class LanguageModel(Protocol):
    """A chat model with one conversation's KV session behind it."""

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        """Stream the assistant's reply to `messages` as text pieces, one a token (a piece may be "").

        Where the last message is the assistant's own, the reply goes on from its last word.

        What `messages` shares with what the session holds is not computed again, as far as the reply stays
        independent of earlier calls; the rest is truncated and prefilled. `cancelled` is asked before every
        token, so cancelling costs one.
        """
        ...

    def warm(self, messages: Sequence[Message]) -> int:
        """Compute ahead what the prompt of a later `generate` begins with; returns the tokens held."""
        ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Length of the rendered prompt in tokens."""
        ...

    @property
    def context_tokens(self) -> int:
        """Positions that the session can hold."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of weights, arena and workspace."""
        ...
