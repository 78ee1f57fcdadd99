"""A decoder of the Llama family that keeps its keys and values in an arena session. Plain torch, any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu.errors import GpuError
from gpu.kv.rebase import rebase
from gpu.kv.session import Session
from gpu.kv.window import WindowSession
from gpu.llm.config import LlamaConfig
from gpu.llm.linear import DenseLinear, Int8Linear, Linear, rotate_columns

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class _Layer:
    attn_norm: torch.Tensor | None
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor | None
    gate_up: Linear
    down: Linear


class Decoder:
    """Weights and rotary tables; the conversation's state is the session that each call is given."""

    def __init__(
        self, config: LlamaConfig, state: Mapping[str, torch.Tensor], *, positions: int, device: str = "cpu"
    ) -> None:
        """`state` as `gpu.llm.weights.prepare` makes it; `positions` is the longest session to be served."""
        import torch

        self.config = config
        self.device = torch.device(device)
        if self.device.type != "cpu" and "embed.scale" in state:
            raise GpuError("int8 weights run on the CPU only", fix="Use precision bf16 on a GPU")
        moved = {name: tensor.to(self.device) for name, tensor in state.items()}
        self.dtype = moved["final_norm"].dtype
        rotation = moved.get("rotation")
        self._unrotate = None if rotation is None else rotation.t().contiguous()
        self._embed = _linear(moved, "embed", rotation)
        self._head = _linear(moved, "head", rotation) if "head" in moved else self._embed
        self._final_norm = moved["final_norm"]
        self._layers = [
            _Layer(
                attn_norm=moved.get(f"{n}.attn_norm"),
                qkv=_linear(moved, f"{n}.qkv"),
                o=_linear(moved, f"{n}.o"),
                mlp_norm=moved.get(f"{n}.mlp_norm"),
                gate_up=_linear(moved, f"{n}.gate_up"),
                down=_linear(moved, f"{n}.down", rotation),
            )
            for n in range(config.layers)
        ]
        frequencies = _rope_frequencies(config)
        self._frequencies: list[float] = frequencies.tolist()
        self.positions = positions
        self._cos, self._sin = _rope_tables(frequencies, positions, self.device, self.dtype)

    def forward(self, ids: Sequence[int], session: Session) -> torch.Tensor:
        """Append `ids` to the session and return their last hidden states, [tokens, hidden], before the final norm.

        Raises ArenaFullError, with the session unchanged, where they do not fit; and the session is put back
        where anything else fails half-way.
        """
        import torch

        if isinstance(session, WindowSession):
            rebase(session, self._frequencies, limit=self._cos.shape[0], room=len(ids))
        mark = session.mark()
        start = session.extend(len(ids))
        turn = session.rope_position - len(ids)
        try:
            with torch.inference_mode():
                x = self._embed.rows(torch.tensor(ids, dtype=torch.long, device=self.device)).to(self.dtype)
                cos = self._cos.narrow(0, turn, len(ids))
                sin = self._sin.narrow(0, turn, len(ids))
                mask = self._causal_mask(session, len(ids))
                for index, layer in enumerate(self._layers):
                    x = x + self._attention(index, layer, x, session, start, cos, sin, mask)
                    x = x + self._mlp(layer, x)
        except BaseException:
            session.rollback(mark)
            raise
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 scores [tokens, vocab] of the hidden states [tokens, hidden] that `forward` returned."""
        import torch

        with torch.inference_mode():
            if self._unrotate is not None:
                hidden = rotate_columns(hidden, self._unrotate)
            return self._head(self._norm(hidden, self._final_norm)).to(torch.float32)

    def memory_bytes(self) -> int:
        """Bytes of weights and tables."""
        matrices = [self._embed] + ([] if self._head is self._embed else [self._head])
        for layer in self._layers:
            matrices += [layer.qkv, layer.o, layer.gate_up, layer.down]
        norms = self._final_norm.numel() * (2 * self.config.layers + 1)
        tables = self._cos.numel() + self._sin.numel()
        return sum(matrix.memory_bytes() for matrix in matrices) + (norms + tables) * self._cos.element_size()

    def _attention(
        self,
        index: int,
        layer: _Layer,
        x: torch.Tensor,
        session: Session,
        start: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        import torch

        c = self.config
        tokens, half = x.shape[0], c.head_dim // 2
        heads = layer.qkv(self._norm(x, layer.attn_norm)).view(tokens, c.heads + 2 * c.kv_heads, c.head_dim)
        rotary = heads.narrow(1, 0, c.heads + c.kv_heads)
        # `sin` is negative in its first half, so a roll by half a head is all of Hugging Face's rotate_half.
        rotary = torch.addcmul(rotary * cos, rotary.roll(half, -1), sin)
        session.write(
            index,
            start,
            rotary.narrow(1, c.heads, c.kv_heads),
            heads.narrow(1, c.heads + c.kv_heads, c.kv_heads),
            heads.narrow(1, c.heads, c.kv_heads) if session.spec.unrotated_keys else None,
        )
        # The queries that share a KV head become rows of one problem: no head of K or V is ever repeated.
        group = c.heads // c.kv_heads
        query = rotary.narrow(1, 0, c.heads).view(tokens, c.kv_heads, group, c.head_dim).permute(1, 2, 0, 3)
        out = torch.nn.functional.scaled_dot_product_attention(
            query.reshape(1, c.kv_heads, group * tokens, c.head_dim), session.keys(index), session.values(index), mask
        )
        out = out.view(c.kv_heads, group, tokens, c.head_dim).permute(2, 0, 1, 3).reshape(tokens, -1)
        return layer.o(out)

    def _mlp(self, layer: _Layer, x: torch.Tensor) -> torch.Tensor:
        import torch

        c = self.config
        both = layer.gate_up(self._norm(x, layer.mlp_norm))
        gate, up = both.narrow(1, 0, c.intermediate), both.narrow(1, c.intermediate, c.intermediate)
        return layer.down(torch.nn.functional.silu(gate).mul_(up))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """RMSNorm (Zhang and Sennrich 2019) of each row; no weight where it is folded into the next matrix."""
        import torch

        return torch.nn.functional.rms_norm(x, (self.config.hidden,), weight, self.config.rms_eps)

    def _causal_mask(self, session: Session, tokens: int) -> torch.Tensor | None:
        """Additive mask [group * tokens, session.length], None for one token, which sees everything."""
        import torch

        if tokens == 1:
            return None
        mask = torch.full((tokens, session.length), float("-inf"), dtype=self.dtype, device=self.device)
        mask.triu_(session.length - tokens + 1)
        if isinstance(session, WindowSession):
            for query, first in enumerate(session.first_seen(tokens)):
                mask[query, session.shape.sinks : first] = float("-inf")
        return mask.repeat(self.config.heads // self.config.kv_heads, 1)


def _linear(state: Mapping[str, torch.Tensor], name: str, rotation: torch.Tensor | None = None) -> Linear:
    scale = state.get(f"{name}.scale")
    return DenseLinear(state[name]) if scale is None else Int8Linear(state[name], scale, rotation)


def _rope_frequencies(config: LlamaConfig) -> torch.Tensor:
    """float32 radians a position, [head_dim / 2]."""
    import torch

    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_factors is not None:
        frequencies = frequencies / torch.tensor(config.rope_factors)
    return frequencies


def _rope_tables(
    frequencies: torch.Tensor, positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines, each [positions, 1, head_dim], of Su et al. 2021 in the half-split layout."""
    import torch

    angles = torch.outer(torch.arange(positions).float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    tables = torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)
    return tables[0].unsqueeze(1).to(device, dtype), tables[1].unsqueeze(1).to(device, dtype)
