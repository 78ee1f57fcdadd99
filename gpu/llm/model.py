"""A local chat model: rendered messages in, text pieces out, the conversation's prefix kept in an arena session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpu.errors import GpuError, WeightsError
from gpu.kv.census import Census, census
from gpu.kv.codes import coded_row_bytes, coded_rows
from gpu.kv.pages import PagesError
from gpu.kv.quantised import QuantisedSession
from gpu.kv.snapshot import restore
from gpu.kv.spec import ArenaSpec, KvDtype, body_for
from gpu.llm.kept import Kept, identity_of, stamp_of
from gpu.llm.prompts import PromptPlanner
from gpu.llm.protocol import Message, SamplingParams
from gpu.llm.sessions import open_session, quantise, session_bytes

if TYPE_CHECKING:
    import torch

    from gpu.kv.prefix import Prefix
    from gpu.llm.weights.prepare import PreparedModel


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

    With a quantised conversation the guarantee holds as far as a prompt goes back no further behind what was there
    before than `BodySpec.slack` tokens: further back more is quantised than a fresh run would have quantised yet.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        *,
        device: str = "cpu",
        context_tokens: int = 2048,
        kv_dtype: KvDtype = "auto",
        stamp: str = "",
    ) -> None:
        """Build from prepared weights. `context_tokens` is cut to what the model was trained for.

        `stamp`: of the files that the weights come from (`gpu.llm.kept.stamp_of`).
        """
        from gpu.llm.decoder import Decoder

        config = prepared.config
        positions = min(context_tokens, config.max_positions)
        self._prompts = PromptPlanner(prepared)
        self._decoder = Decoder(config, prepared.state, positions=positions, device=device)
        spec = ArenaSpec(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            positions=positions,
            dtype=str(self._decoder.dtype).removeprefix("torch."),
            device=device,
            body=body_for(kv_dtype),
        )
        self._arena, self._session = open_session(spec)
        self._window_tokens = positions
        self._held: list[int] = []
        self._held_cuts: list[int] = []
        self._call = 0
        self.device = device
        self.backend = f"torch-{self._decoder.device.type}-{prepared.precision}"
        self._identity = identity_of(prepared, device, stamp)
        self.prompt_tokens = 0
        """Of the last prompt, what no shorter history leaves out: the persona and, behind the last answer, the rest."""

    @property
    def context_tokens(self) -> int:
        """Positions that the session can hold."""
        return self._window_tokens

    def memory_bytes(self) -> int:
        """Bytes of weights, tables and arena (what it may grow to; pages are committed as they are written)."""
        spec, size = self._arena.spec, self._arena.backend.page_bytes
        closed = session_bytes(spec, spec.positions, size) - session_bytes(spec, self._window_tokens, size)
        return self._decoder.memory_bytes() + self._arena.memory_bytes() - closed

    def weights_bytes(self) -> int:
        """Bytes of weights and tables alone."""
        return self._decoder.memory_bytes()

    def census(self) -> Census:
        """Who holds the arena's pages now; the conversation is its first session. From any thread."""
        return census(self._arena, self._session)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Length of the rendered prompt in tokens."""
        return len(self._prompts.encode(messages, generation=True))

    def warm(self, messages: Sequence[Message]) -> int:
        """Compute the keys of `messages` ahead of time; returns how many tokens were computed.

        For the system message at load (no messages: what the template itself puts first), and for the history
        after each reply. Raises ArenaFullError as `generate`.
        """
        self._call += 1
        preamble = self._prompts.preamble
        if not messages and not preamble:
            return 0
        if messages:
            ids, cuts, persona = self._plan(messages, generation=False)
        else:
            ids, persona = preamble, len(preamble)
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
        sampler, text, reply = Sampler(sampling), self._prompts.tokenizer.stream(), list[int]()
        scores: torch.Tensor | None = None
        ids, cuts, persona = self._plan(messages, generation=True)
        self._keep_common(ids, cuts, limit=len(cuts) - 1)
        for hidden in self._prefill(ids, cuts, persona, cancelled):
            scores = self._decoder.logits(hidden[-1:])[0] if self._session.length == len(ids) else None
        while scores is not None and len(reply) < max_tokens and not cancelled():
            token = sampler.next(scores, reply)
            if token in self._prompts.stop_ids:
                break
            reply.append(token)
            yield text.push(token)
            if self._call != call or self._session.length >= self._window_tokens:
                break
            if len(reply) < max_tokens and not cancelled():
                scores = self._decoder.logits(self._decoder.forward([token], self._session))[0]
            else:
                break
        rest = text.flush()
        if rest and self._call == call and not cancelled():
            yield rest

    # -- giving memory back, and taking it again ---------------------------------------------------------------

    def page_bytes(self) -> int:
        """Bytes of the pages that the arena has from the system or the driver now; 0 where they lie in torch's pool."""
        backend = self._arena.backend
        return backend.pages_in_use * backend.page_bytes if backend.frees_ranges else 0

    def spare_bytes(self) -> int:
        """Bytes of pages behind the session's last row."""
        if not self._arena.backend.frees_ranges:
            return 0
        pager, size = self._session.pager, self._arena.backend.page_bytes
        return max(0, pager.committed_bytes - max(size, -(-self._session.written_bytes() // size) * size))

    def give_spare_back(self) -> None:
        """Free what `spare_bytes` counts."""
        self._session.trim()

    def window_bytes(self, context_tokens: int) -> int:
        """What of `page_bytes` would be held in a window of that length."""
        kept = self._fitting(context_tokens)
        tokens = kept[-1] if kept else 0
        if len(kept) == len(self._held_cuts) or not self._arena.backend.frees_ranges:
            return self.page_bytes()
        spec, session, size = self._arena.spec, self._session, self._arena.backend.page_bytes
        if isinstance(session, QuantisedSession):  # of its own rows some may come back from the codes
            pager, needed = session.body.pager, coded_rows(spec, tokens) * coded_row_bytes(spec)
        else:
            pager, needed = session.pager, tokens * spec.row_bytes
        return self.page_bytes() - max(0, pager.committed - max(1, -(-needed // size))) * size

    def resize_window(self, context_tokens: int) -> None:
        """Hold `context_tokens` positions from now on, at most as many as at the start; whole chunks that fit are kept.

        Nothing moves and nothing is copied: the pages behind what is kept are given back. A reply that is being read
        ends.
        """
        self._call += 1
        self._window_tokens = min(context_tokens, self._arena.spec.positions)
        cuts = self._fitting(context_tokens)
        if cuts == self._held_cuts:
            return
        self._held, self._held_cuts = self._held[: cuts[-1] if cuts else 0], cuts
        self._session.truncate_to(len(self._held))
        self._session.trim()

    @property
    def kv_dtype(self) -> KvDtype:
        """How the conversation is held now."""
        return "auto" if self._arena.spec.body is None else self._arena.spec.body.code

    def int8_frees_bytes(self) -> int:
        """What of `page_bytes` would come free were the conversation held in int8, less the workspace that takes."""
        taken = self.int8_takes_bytes()
        return max(0, self.page_bytes() - taken) if taken else 0

    def int8_takes_bytes(self) -> int:
        """What `hold_as` takes before it gives the other pages back; 0 where the conversation is held in codes now."""
        spec, body, size = self._arena.spec, body_for("int8"), self._arena.backend.page_bytes
        if spec.body is not None or body is None:
            return 0
        spec, length = replace(spec, body=body), self._session.length
        own = 1 + -(-body.exact_rows(length) * spec.row_bytes // size)  # one each is committed ahead
        codes = 1 + -(-coded_rows(spec, body.coded(length)) * coded_row_bytes(spec) // size)
        return (own + codes) * size + spec.positions * spec.row_bytes // spec.layers

    def hold_as(self, kv_dtype: KvDtype) -> None:
        """Hold the conversation's keys and values so from now on.

        What is computed is kept where it is quantised now, and not where it was: that is read again. A reply that is
        being read ends. The new session stands beside the old one until it is whole. Raises GpuError where there is no
        memory for that: the conversation is then held as before.
        """
        body = body_for(kv_dtype)
        if self._arena.spec.body == body:
            return
        self._call += 1
        is_kept = self._arena.spec.body is None
        arena, session = open_session(replace(self._arena.spec, body=body))
        try:
            if is_kept:
                self._session.truncate_to(len(self._held))
                quantise(self._session, session)
        except GpuError:
            arena.close()
            raise
        before, self._arena, self._session = self._arena, arena, session
        if not is_kept:
            self._held, self._held_cuts = [], []
        before.close()

    def enter_thread(self) -> None:
        """A second thread will work on the arena's pages, while nobody else does."""
        self._arena.enter_thread()

    def close(self) -> None:
        """Give the arena back; the weights go with the last reference to this object."""
        self._call += 1
        self._arena.close()

    # -- outliving the process ---------------------------------------------------------------------------------

    @property
    def held_ids(self) -> tuple[int, ...]:
        """The tokens whose keys are kept for the next prompt."""
        return tuple(self._held)

    def keep(self) -> Kept:
        """What is computed so far, for a snapshot. Raises PagesError where the fork has no room for its last page."""
        fork = self._session.fork(len(self._held))
        return Kept(fork, tuple(self._held), tuple(self._held_cuts), self._identity)

    def resume(self, path: Path) -> int:
        """Go on from a snapshot that this very model wrote (`Kept.save`); how many tokens need not be computed.

        Raises SnapshotError, with everything as it was, for a file that is missing, damaged or another model's.
        """
        found = restore(self._arena, path, model=self._identity)
        self._call += 1
        self._session.close()
        self._session, self._held, self._held_cuts = found.session, list(found.ids), list(found.cuts)
        return len(self._held)

    # -- prompts and chunks --------------------------------------------------------------------------------------

    def _fitting(self, context_tokens: int) -> list[int]:
        """The chunks that a window of that length keeps, with a token of room behind them."""
        return [cut for cut in self._held_cuts if cut < context_tokens]

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
        ids, cuts, persona = self._prompts.plan(messages, capacity=self._window_tokens, generation=generation)
        asked = len(ids) - max(persona, self._answered_tokens(messages)) if generation else 0
        self.prompt_tokens = persona + asked
        return ids, cuts, persona

    def _answered_tokens(self, messages: Sequence[Message]) -> int:
        """Where the last answer ends behind which somebody asks something; 0 where there is none."""
        answers = [index for index, message in enumerate(messages[:-1]) if message.role == "assistant"]
        if not answers:
            return 0
        try:
            return len(self._prompts.encode(messages[: answers[-1] + 1], generation=False))
        except GpuError:
            return 0  # a template may refuse a history that ends here


def default_threads() -> int:
    """Torch threads that suit this machine: 1 with up to 2 cores (spinning threads starve the audio), else half."""
    return max(1, (os.cpu_count() or 1) // 2)


def open_language_model(
    path: Path | str,
    *,
    device: str = "cpu",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    context_tokens: int = 2048,
    kv_dtype: KvDtype = "auto",
    cache_dir: Path | None = None,
    threads: int | None = None,
) -> LocalLanguageModel:
    """Load a chat model from a GGUF file or a Hugging Face directory.

    `precision` "auto" is int8 on the CPU and bf16 elsewhere. `kv_dtype` int8 or fp8 quantises the conversation but for
    its first and last tokens. `cache_dir` keeps converted GGUF weights. `threads` sets torch's thread count for the
    whole process (None: `default_threads`). Raises WeightsError with the fix.
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
    return LocalLanguageModel(
        prepared, device=device, context_tokens=context_tokens, kv_dtype=kv_dtype, stamp=stamp_of(path)
    )
