"""Messages to token ids, and to the chunks in which a prompt is computed: by the messages alone, so always the same."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu.errors import ArenaFullError, GpuError
from gpu.llm.chat import ChatTemplate
from gpu.llm.protocol import Message
from gpu.llm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpu.llm.weights.prepare import PreparedModel

_CHUNK_TOKENS = 256
_REMEMBERED_PROMPTS = 128


class PromptPlanner:
    """Tokenizer and chat template of one model; remembers the prompts that it encoded last."""

    def __init__(self, prepared: PreparedModel) -> None:
        self.tokenizer = Tokenizer(prepared.tokenizer_json)
        self._chat = ChatTemplate(
            prepared.chat_template,
            bos_token=prepared.bos_token,
            eos_token=prepared.eos_token,
            special_tokens=self.tokenizer.special_tokens,
        )
        self._known: OrderedDict[tuple[tuple[Message, ...], bool], list[int]] = OrderedDict()
        self.stop_ids = frozenset(prepared.config.stop_ids) | self._end_of_turn_ids(prepared.eos_token)
        """Tokens that end a reply."""
        self.preamble = self._common_preamble()
        """Tokens that the template puts before any first user message."""

    def plan(self, messages: Sequence[Message], *, capacity: int, generation: bool) -> tuple[list[int], list[int], int]:
        """Token ids of the prompt, the ends of its chunks, rising, the last one its length, and the persona's end.

        The persona is the system message or what the template puts in its place; 0 where there is neither.
        ArenaFullError where a session of `capacity` tokens has no room for it.
        """
        ids = self.encode(messages, generation=generation)
        room = capacity - (1 if generation else 0)
        if len(ids) > room or not ids:
            raise ArenaFullError(
                f"The prompt has {len(ids)} tokens, the session holds {capacity}",
                wanted=len(ids),
                capacity=capacity,
            )
        edges = [0]
        if messages[0].role == "user" and 0 < len(self.preamble) < len(ids):
            edges += [len(self.preamble)] if ids[: len(self.preamble)] == self.preamble else []
        persona = edges[-1]
        for index, message in enumerate(messages):
            if message.role == "assistant" and index > 0:
                self._add_edge(edges, ids, messages[:index], generation=True)
            if message.role != "user":
                self._add_edge(edges, ids, messages[: index + 1], generation=False)
            if index == 0 and message.role == "system":
                persona = edges[-1] if len(messages) > 1 or generation else len(ids)
        if edges[-1] != len(ids):
            edges.append(len(ids))
        cuts: list[int] = []
        for begin, end in itertools.pairwise(edges):
            cuts += [*range(begin + _CHUNK_TOKENS, end, _CHUNK_TOKENS), end]
        return ids, cuts, persona

    def _add_edge(self, edges: list[int], ids: list[int], part: Sequence[Message], *, generation: bool) -> None:
        """Add the end of `part` where its tokens are the prompt's first ones (not every template is so regular)."""
        try:
            prefix = self.encode(part, generation=generation)
        except GpuError:
            return  # a template may refuse a history that ends here; then there is no edge here, always
        if edges[-1] < len(prefix) < len(ids) and ids[: len(prefix)] == prefix:
            edges.append(len(prefix))

    def encode(self, messages: Sequence[Message], *, generation: bool) -> list[int]:
        """Token ids of the rendered messages, up to where the reply begins with `generation`."""
        key = (tuple(messages), generation)
        found = self._known.get(key)
        if found is None:
            begun = messages[-1].content if generation and messages[-1].role == "assistant" else ""
            asked = messages[:-1] if begun else messages
            found = self.tokenizer.encode(self._chat.render(asked, add_generation_prompt=generation) + begun)
            self._known[key] = found
            if len(self._known) > _REMEMBERED_PROMPTS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found

    def _common_preamble(self) -> list[int]:
        """What the template puts before any first user message (SmolLM2: its default system message)."""
        try:
            prompts = [self.encode([Message("user", text)], generation=False) for text in ("a", "b")]
        except GpuError:
            return []
        return [ours for ours, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*prompts, strict=False))]

    def _end_of_turn_ids(self, eos_token: str) -> frozenset[int]:
        """Ids of the file's end token and of the end-of-turn markers that chat templates in use write."""
        names = (eos_token, "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>")
        special = set(self.tokenizer.special_tokens)
        found = (self.tokenizer.token_id(name) for name in names if name in special)
        return frozenset(token for token in found if token is not None)
