"""Byte-level BPE from a tokenizer.json or from GGUF fields, and text that streams out token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu.errors import WeightsError

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF (`gguf.TokenType`) that are matched before BPE; only the first is hidden in text."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

# `tokenizer.ggml.pre` -> pre-tokenizers, as the tokenizer.json files of these models have them.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "default": [_BYTE_LEVEL],
    "gpt-2": [_BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    "llama-bpe": [
        {"type": "Split", "pattern": {"Regex": _LLAMA3_SPLIT}, "behavior": "Isolated", "invert": False},
        {**_BYTE_LEVEL, "use_regex": False},
    ],
}


def tokenizer_json_from_gguf(fields: Mapping[str, Any]) -> str:
    """The tokenizer.json that the GGUF fields describe. WeightsError for kinds that we do not know."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise WeightsError(
            f"GGUF tokenizer of kind {kind!r} is not supported", fix="Give the model's Hugging Face directory instead"
        )
    if pre not in _PRE_TOKENIZERS:
        raise WeightsError(
            f"GGUF pre-tokenizer {pre!r} is not supported (known: {', '.join(_PRE_TOKENIZERS)})",
            fix="Give the model's Hugging Face directory instead",
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind_ == _CONTROL,
        }
        for i, kind_ in enumerate(types)
        if kind_ in (_CONTROL, _USER_DEFINED)
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre == "llama-bpe",
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]],
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": model,
    }
    return json.dumps(document, ensure_ascii=False)


class Tokenizer:
    """Text to ids and back. Never adds a token by itself: the chat template writes the special ones."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer as Backend

        try:
            self._backend = Backend.from_str(tokenizer_json)
        except Exception as error:  # tokenizers raises bare Exception
            raise WeightsError(f"The tokenizer is corrupt ({error})", fix="Fetch the model again") from error
        added = self._backend.get_added_tokens_decoder()
        self.special_tokens: tuple[str, ...] = tuple(token.content for token in added.values() if token.special)
        """Texts that are matched as control tokens wherever they stand."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; control tokens written in it are recognised."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without control tokens; bytes that are no UTF-8 become U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        """Id of one token by its text, None where the vocabulary has none."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def stream(self) -> Detokenizer:
        """A fresh streaming detokenizer."""
        return Detokenizer(self)


class Detokenizer:
    """Text piece by piece: the pieces and the flush concatenate to `decode` of all ids.

    A character whose bytes are spread over several tokens comes out with its last one.
    """

    _MAX_HELD = 8
    """Tokens held back at most. A character has 4 bytes and a token at least one: more is no UTF-8 to wait for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Text that is complete with `token`, or ""."""
        self._held.append(token)
        text = self._new_text()
        if not text.endswith("\ufffd") or len(self._held) >= self._MAX_HELD:
            self._context, self._held = self._held, []
            return text
        return ""

    def flush(self) -> str:
        """What is still held back, incomplete characters as U+FFFD."""
        text = self._new_text() if self._held else ""
        self._context, self._held = [], []
        return text

    def _new_text(self) -> str:
        # Decoded behind the last emitted tokens, because some decoders treat the first token of a text apart.
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._held)[len(before) :]
