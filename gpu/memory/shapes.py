"""The shape of a language model, on which all its memory depends: from a file, or from a table of known ones."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.llm.config import FAMILIES


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements, positions in tokens; names as in `gpu.llm.config.LlamaConfig`."""

    name: str
    family: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied_embeddings: bool
    max_positions: int
    qkv_bias: bool = False

    @property
    def is_runnable(self) -> bool:
        """Whether our decoder computes this family."""
        return self.family in {row.name for row in FAMILIES}

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def row_elements(self) -> int:
        """Numbers that one token leaves in the KV arena."""
        return self.layers * 2 * self.kv_heads * self.head_dim

    def matrices(self) -> list[tuple[int, int]]:
        """(rows, columns) of every matrix as the loader fuses them, in the order in which it makes them."""
        whole = [(self.vocab, self.hidden)] * (1 if self.tied_embeddings else 2)
        layer = [
            (self.qkv_rows, self.hidden),
            (self.hidden, self.heads * self.head_dim),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        ]
        return whole + layer * self.layers

    def vectors(self) -> list[int]:
        """Elements of every norm and bias."""
        return [self.hidden] * (2 * self.layers + 1) + [self.qkv_rows] * (self.layers if self.qkv_bias else 0)

    @property
    def parameters(self) -> int:
        """Numbers in the model."""
        return sum(rows * columns for rows, columns in self.matrices()) + sum(self.vectors())


def _row(name: str, family: str, sizes: str, *, tied: bool, positions: int, bias: bool = False) -> ModelShape:
    vocab, hidden, intermediate, layers, heads, kv_heads, head_dim = (int(size) for size in sizes.split())
    return ModelShape(
        name, family, vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, tied, positions, bias
    )


KNOWN_SHAPES: tuple[ModelShape, ...] = (
    # From the publishers' config.json; so a plan needs no download.
    #                              vocab hidden intermediate layers heads kv_heads head_dim
    _row("smollm2-135m", "llama", "49152 576 1536 30 9 3 64", tied=True, positions=8192),
    _row("smollm2-360m", "llama", "49152 960 2560 32 15 5 64", tied=True, positions=8192),
    _row("smollm2-1.7b", "llama", "49152 2048 8192 24 32 32 64", tied=True, positions=8192),
    _row("llama-3.2-1b", "llama", "128256 2048 8192 16 32 8 64", tied=True, positions=131072),
    _row("llama-3.2-3b", "llama", "128256 3072 8192 28 24 8 128", tied=True, positions=131072),
    _row("llama-3.1-8b", "llama", "128256 4096 14336 32 32 8 128", tied=False, positions=131072),
    _row("qwen2.5-0.5b", "qwen2", "151936 896 4864 24 14 2 64", tied=True, positions=32768, bias=True),
    _row("qwen2.5-7b", "qwen2", "152064 3584 18944 28 28 4 128", tied=False, positions=32768, bias=True),
)


def known_shape(name: str) -> ModelShape | None:
    """The shape of that name, None where the table has none."""
    return next((shape for shape in KNOWN_SHAPES if shape.name == name.lower()), None)
