"""A local chat model: rendered messages in, text pieces out, the conversation's prefix kept in an arena session."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpu.errors import ArenaFullError, GpuError, WeightsError
from gpu.kv.arena import Arena
from gpu.kv.pages import PagesError
from gpu.kv.spec import ArenaSpec
from gpu.llm.chat import ChatTemplate
from gpu.llm.protocol import Message, SamplingParams
from gpu.llm.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from gpu.kv.prefix import Prefix
    from gpu.llm.weights.prepare import PreparedModel

_CHUNK_TOKENS = 256
_REMEMBERED_PROMPTS = 128


class LocalLanguageModel:
    """Implements `gpu.llm.protocol.LanguageModel` on our decoder. One caller at a time.

    Guarantee: a reply depends on the messages, the sampling parameters and `max_tokens` alone, bit for bit on one
    machine with one thread count; not on earlier calls, nor on where they were cancelled. A prompt is cut into chunks
    by a rule that looks at the messages only (after the system message or the template's own, before and after each
    assistant message, then every 256 tokens); each chunk is one forward pass; a later call re-uses whole chunks of
    its own cut and nothing else, from the session or, for a persona that spoke before, from the arena's prefixes,
    whose pages the session then shares. So keys computed one by one while a reply was generated are never re-used:
    the same sums in another order differ in the last bits. Call `warm` with the new history after a reply, and the
    next turn pays for the user's words only.
    """

    def __init__(self, prepared: PreparedModel, *, device: str = "cpu", context_tokens: int = 2048) -> None:
        """Build from prepared weights. `context_tokens` is cut to what the model was trained for."""
        from gpu.llm.decoder import Decoder

        config = prepared.config
        positions = min(context_tokens, config.max_positions)
        self._tokenizer = Tokenizer(prepared.tokenizer_json)
        self._chat = ChatTemplate(
            prepared.chat_template,
            bos_token=prepared.bos_token,
            eos_token=prepared.eos_token,
            special_tokens=self._tokenizer.special_tokens,
        )
        self._stops = frozenset(config.stop_ids) | self._end_of_turn_ids(prepared.eos_token)
        self._decoder = Decoder(config, prepared.state, positions=positions, device=device)
        self._arena = Arena.open(
            ArenaSpec(
                layers=config.layers,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                positions=positions,
                dtype=str(self._decoder.dtype).removeprefix("torch."),
                device=device,
            )
        )
        self._session = self._arena.session()
        self._held: list[int] = []
        self._held_cuts: list[int] = []
        self._prompts: OrderedDict[tuple[tuple[Message, ...], bool], list[int]] = OrderedDict()
        self._call = 0
        self._preamble = self._common_preamble()
        self.backend = f"torch-{self._decoder.device.type}-{prepared.precision}"

    @property
    def context_tokens(self) -> int:
        """Positions that the session can hold."""
        return self._session.capacity

    def memory_bytes(self) -> int:
        """Bytes of weights, tables and arena (reserved; the system commits arena pages as they are written)."""
        return self._decoder.memory_bytes() + self._arena.memory_bytes()

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Length of the rendered prompt in tokens."""
        return len(self._encode(messages, generation=True))

    def warm(self, messages: Sequence[Message]) -> int:
        """Compute the keys of `messages` ahead of time; returns how many tokens were computed.

        For the system message at load (no messages: what the template itself puts first), and for the history
        after each reply. Raises ArenaFullError as `generate`.
        """
        self._call += 1
        if not messages and not self._preamble:
            return 0
        if messages:
            ids, cuts, persona = self._plan(messages, generation=False)
        else:
            ids, persona = self._preamble, len(self._preamble)
            cuts = [persona]
        before = self._keep_common(ids, cuts, limit=len(cuts))
        for _ in self._prefill(ids, cuts, persona):
            pass
        return len(ids) - before

    def generate(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cancelled: Callable[[], bool],
    ) -> Iterator[str]:
        """Stream the reply to `messages`: one piece a token ("" while a character is incomplete).

        A last message of the assistant's is continued.

        Ends at the model's stop token, at `max_tokens`, or where the session is full. `cancelled` is asked before
        every chunk of the prompt and every token. A newer call ends an older one that is still being read.
        Raises ArenaFullError where the prompt leaves no room for a reply.
        """
        from gpu.llm.sampler import Sampler

        self._call += 1
        call = self._call
        sampler, text, reply = Sampler(sampling), self._tokenizer.stream(), list[int]()
        scores: torch.Tensor | None = None
        ids, cuts, persona = self._plan(messages, generation=True)
        self._keep_common(ids, cuts, limit=len(cuts) - 1)
        for hidden in self._prefill(ids, cuts, persona, cancelled):
            scores = self._decoder.logits(hidden[-1:])[0] if self._session.length == len(ids) else None
        while scores is not None and len(reply) < max_tokens and not cancelled():
            token = sampler.next(scores, reply)
            if token in self._stops:
                break
            reply.append(token)
            yield text.push(token)
            if self._call != call or self._session.length == self._session.capacity:
                break
            if len(reply) < max_tokens and not cancelled():
                scores = self._decoder.logits(self._decoder.forward([token], self._session))[0]
            else:
                break
        rest = text.flush()
        if rest and self._call == call and not cancelled():
            yield rest

    def _keep_common(self, ids: list[int], cuts: list[int], *, limit: int) -> int:
        """Let the session hold the chunks that it, or a known prefix, shares with the plan, `limit` at most.

        Returns its length.
        """
        kept = 0
        for ours, held in zip(cuts[:limit], self._held_cuts, strict=False):
            begin = self._held_cuts[kept - 1] if kept else 0
            if ours != held or ids[begin:ours] != self._held[begin:ours]:
                break
            kept += 1
        self._held_cuts = self._held_cuts[:kept]
        position = self._held_cuts[-1] if kept else 0
        self._held = ids[:position]
        known = self._arena.prefixes.exact(ids)
        if known is not None and len(known.ids) > position and list(known.cuts) == cuts[:limit][: len(known.cuts)]:
            self._begin_with(known)
        self._session.truncate_to(len(self._held))
        return len(self._held)

    def _begin_with(self, known: Prefix) -> None:
        try:
            session = self._arena.session(prefix=known)
        except PagesError:
            return  # no room for a second session beside the old one: what is known is computed again
        self._session.close()
        self._session, self._held, self._held_cuts = session, list(known.ids), list(known.cuts)

    def _prefill(
        self, ids: list[int], cuts: list[int], persona: int, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[torch.Tensor]:
        """Compute the chunks that are missing, yielding each one's hidden states [tokens, hidden].

        The first `persona` tokens become a prefix that later sessions share.
        """
        for cut in cuts[len(self._held_cuts) :]:
            if cancelled():
                return
            begin = self._session.length
            hidden = self._decoder.forward(ids[begin:cut], self._session)
            self._held += ids[begin:cut]
            self._held_cuts.append(cut)
            if cut == persona:
                self._keep_persona()
            yield hidden

    def _keep_persona(self) -> None:
        try:
            self._arena.prefixes.add(self._held, self._session, cuts=self._held_cuts)
        except PagesError:
            return  # no room for the copied tail: it will be computed again, nothing worse

    def _plan(self, messages: Sequence[Message], *, generation: bool) -> tuple[list[int], list[int], int]:
        """Token ids of the prompt, the ends of its chunks, rising, the last one its length, and the persona's end.

        The persona is the system message or what the template puts in its place; 0 where there is neither.
        """
        ids = self._encode(messages, generation=generation)
        room = self._session.capacity - (1 if generation else 0)
        if len(ids) > room or not ids:
            raise ArenaFullError(
                f"The prompt has {len(ids)} tokens, the session holds {self._session.capacity}",
                wanted=len(ids),
                capacity=self._session.capacity,
            )
        edges = [0]
        if messages[0].role == "user" and 0 < len(self._preamble) < len(ids):
            edges += [len(self._preamble)] if ids[: len(self._preamble)] == self._preamble else []
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
            prefix = self._encode(part, generation=generation)
        except GpuError:
            return  # a template may refuse a history that ends here; then there is no edge here, always
        if edges[-1] < len(prefix) < len(ids) and ids[: len(prefix)] == prefix:
            edges.append(len(prefix))

    def _encode(self, messages: Sequence[Message], *, generation: bool) -> list[int]:
        key = (tuple(messages), generation)
        found = self._prompts.get(key)
        if found is None:
            begun = messages[-1].content if generation and messages[-1].role == "assistant" else ""
            asked = messages[:-1] if begun else messages
            found = self._tokenizer.encode(self._chat.render(asked, add_generation_prompt=generation) + begun)
            self._prompts[key] = found
            if len(self._prompts) > _REMEMBERED_PROMPTS:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(key)
        return found

    def _common_preamble(self) -> list[int]:
        """What the template puts before any first user message (SmolLM2: its default system message)."""
        try:
            prompts = [self._encode([Message("user", text)], generation=False) for text in ("a", "b")]
        except GpuError:
            return []
        return [ours for ours, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*prompts, strict=False))]

    def _end_of_turn_ids(self, eos_token: str) -> frozenset[int]:
        """Ids of the file's end token and of the end-of-turn markers that chat templates in use write."""
        names = (eos_token, "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>")
        special = set(self._tokenizer.special_tokens)
        found = (self._tokenizer.token_id(name) for name in names if name in special)
        return frozenset(token for token in found if token is not None)


def default_threads() -> int:
    """Torch threads that suit this machine: 1 with up to 2 cores (spinning threads starve the audio), else half."""
    return max(1, (os.cpu_count() or 1) // 2)


def open_language_model(
    path: Path | str,
    *,
    device: str = "cpu",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    context_tokens: int = 2048,
    cache_dir: Path | None = None,
    threads: int | None = None,
) -> LocalLanguageModel:
    """Load a chat model from a GGUF file or a Hugging Face directory.

    `precision` "auto" is int8 on the CPU and bf16 elsewhere. `cache_dir` keeps converted GGUF weights. `threads`
    sets torch's thread count for the whole process (None: `default_threads`). Raises WeightsError with the fix.
    """
    import torch

    from gpu.llm.weights.prepare import prepare, prepare_gguf
    from gpu.llm.weights.safetensors import open_hf_directory

    torch.set_num_threads(default_threads() if threads is None else threads)
    if precision == "auto":
        precision = "int8" if torch.device(device).type == "cpu" else "bf16"
    path = Path(path)
    if path.is_dir():
        prepared = prepare(open_hf_directory(path), precision)
    elif path.is_file():
        prepared = prepare_gguf(path, precision, cache_dir)
    else:
        raise WeightsError(f"There is no model at {path}", fix="Give a GGUF file or a Hugging Face model directory")
    return LocalLanguageModel(prepared, device=device, context_tokens=context_tokens)
