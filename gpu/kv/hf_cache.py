"""A transformers `Cache` over one session: any Hugging Face causal model generates on the arena, one text at a time.

For inference: what is stored carries no gradients. Written against transformers 5.24, whose cache interface moves from
release to release. It is imported at the top, because its classes are subclassed here: no other module may import this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gpu.errors import GpuError
from gpu.kv.session import Session
from gpu.kv.spec import ArenaSpec, torch_dtype
from gpu.kv.window import WindowSession

try:
    from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
    from transformers.configuration_utils import PreTrainedConfig, get_head_shapes
except ImportError as error:
    raise ImportError("gpu.kv.hf_cache needs transformers 5.24: install the extra 'hf'") from error

if TYPE_CHECKING:
    import torch


def spec_for(
    config: PreTrainedConfig,
    positions: int,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> ArenaSpec:
    """The shape of an arena for sessions of `positions` tokens of the model with that configuration.

    Raises GpuError for a model whose layers do not all keep keys and values of the same heads.
    """
    windows = _layer_windows(config)
    kv_heads, head_dim = get_head_shapes(config.get_text_config(decoder=True))
    if not isinstance(kv_heads, int) or not isinstance(head_dim, int):
        raise GpuError(
            f"HF cache: the layers of {config.model_type} have {kv_heads} heads of {head_dim}, a row of the arena "
            "holds the same for all",
            fix="Use a model with uniform layers",
        )
    name = str(dtype).removeprefix("torch.")
    return ArenaSpec(len(windows), kv_heads, head_dim, positions, dtype=name, device=str(device))


class ArenaCache(Cache):
    """`model.generate(ids, cache=ArenaCache(session, model.config))`, or `model(ids, cache=...)` pass by pass.

    Attention gets views of the session's rows: nothing is copied when it grows. The session stays the caller's, to
    park, to snapshot, to close; between two passes it may be truncated directly too.
    """

    def __init__(
        self,
        session: Session,
        config: PreTrainedConfig | None = None,
        *,
        windows: Sequence[int | None] | None = None,
    ) -> None:
        """With the model's `config`, sliding layers read no more than their window; without, all under a mask.

        `windows` is for who knows what `config` would say: how many tokens each layer sees, None for all.
        Raises GpuError where the session's rows are not those of such a model.
        """
        spec = session.spec
        if windows is None:
            windows = [None] * spec.layers if config is None else _layer_windows(config)
        if len(windows) != spec.layers:
            raise GpuError(
                f"HF cache: the model has {len(windows)} layers, the arena {spec.layers}",
                fix="Open the arena with spec_for(model.config, ...)",
            )
        if spec.unrotated_keys:
            raise GpuError("HF cache: transformers hands out rotated keys only", fix="Open it without unrotated_keys")
        self.session = session
        self._windows = windows
        self._passes = _Passes(session)
        super().__init__(layers=[ArenaLayer(self._passes, layer, window) for layer, window in enumerate(windows)])

    @property
    def position(self) -> int:
        """Tokens that came so far."""
        return self.session.position

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new keys and values, [1, kv_heads, tokens, head_dim]; returns views of all it attends to.

        Raises GpuError for another batch, shape, dtype or device than the arena's, ArenaFullError or QuotaError
        where the tokens do not fit.
        """
        if layer_idx >= len(self.layers):
            raise GpuError(
                f"HF cache: the model has a layer {layer_idx}, the arena {len(self.layers)} layers",
                fix="Open the arena with spec_for(model.config, ...)",
            )
        return super().update(key_states, value_states, layer_idx)

    def truncate_to(self, position: int) -> None:
        """Keep the first `position` tokens, as `Session.truncate_to`."""
        self.session.truncate_to(position)

    def crop(self, tokens_to_remove: int) -> None:
        """transformers' way to say it: minus the number of tokens to forget."""
        if tokens_to_remove > 0:
            raise GpuError(
                f"HF cache: crop({tokens_to_remove}) means a length no more since transformers 5",
                fix=f"Call truncate_to({tokens_to_remove}), or crop with a negative number of tokens",
            )
        if tokens_to_remove:
            self.truncate_to(self.position + tokens_to_remove)

    def reset(self) -> None:
        """Forget every token."""
        self.truncate_to(0)

    def fork(self, position: int | None = None) -> ArenaCache:
        """Another one that goes on from here, or from an earlier `position`, over a fork of the session."""
        self._passes.require_whole()
        return ArenaCache(self.session.fork(position), windows=self._windows)

    def __deepcopy__(self, memo: dict[int, Any]) -> ArenaCache:
        """transformers' recipe for a prompt that many texts begin with: here a fork."""
        return self.fork()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refused, like all that needs several texts side by side."""
        _refuse_batch()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused."""
        _refuse_batch()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused."""
        _refuse_batch()


class ArenaLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' __init_subclass__
    """What transformers asks one layer. `window`: the last tokens that a query sees, itself included; None: all."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, passes: _Passes, layer: int, window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window = window
        self.is_sliding = window is not None
        self.is_initialized = True
        self._passes = passes
        self._layer = layer

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the session is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `ArenaCache.update`."""
        session, tokens = self._passes.session, key_states.shape[2]
        past = self._passes.write(self._layer, key_states, value_states)
        count, _ = self._span(past, tokens)
        keys, values = session.keys(self._layer), session.values(self._layer)
        if count == session.length:
            return keys, values
        row = session.length - count
        return keys.narrow(2, row, count), values.narrow(2, row, count)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(rows that `update` will return for so many new tokens, position of the first)."""
        return self._span(self.get_seq_length(), query_length)

    def get_seq_length(self) -> int:
        """Tokens that this layer has seen."""
        return self._passes.past(self._layer)

    def get_max_length(self) -> int:
        """Tokens that fit; -1 for an endless session."""
        session = self._passes.session
        return -1 if isinstance(session, WindowSession) else session.capacity

    def _span(self, past: int, tokens: int) -> tuple[int, int]:
        """(rows seen, position of the first) by `tokens` queries behind `past` tokens.

        Rows that an eviction left count as the last ones before the queries: all of them may be seen.
        """
        session = self._passes.session
        first = session.position - session.length
        if isinstance(session, WindowSession):
            first = max(first, session.shape.hidden(past + 1))
        if self.window is not None:
            if first:
                raise GpuError(
                    "HF cache: a model with sliding layers needs every row, the session evicted some",
                    fix="Give such a model a session without window and policy",
                )
            first = max(0, past - self.window + 1)
        return past + tokens - first, first


class _Passes:
    """One forward pass after the other: rows made live once, by the first layer that comes, then written by each."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._dtype = torch_dtype(session.spec.dtype)
        self._start = 0
        self._end = 0
        self._missing: set[int] = set()  # layers that have not written rows [start, end) yet

    def past(self, layer: int) -> int:
        """Tokens that this layer has written."""
        return self._start if self._is_missing(layer) else self.session.position

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> int:
        """Store one layer's [1, kv_heads, tokens, head_dim] of this pass; returns the first token's position."""
        tokens = keys.shape[2]
        self._require_fit(layer, keys, values)
        if not self._is_missing(layer):
            self.require_whole()
            self._start = self.session.extend(tokens)
            self._end = self.session.position
            self._missing = set(range(self.session.spec.layers))
        if self._start + tokens != self._end:
            raise GpuError(
                f"HF cache: layer {layer} brings {tokens} tokens, the first one of this pass {self._end - self._start}",
                fix="Use a model all of whose layers see every token",
            )
        rows = (part.detach()[0].transpose(0, 1) for part in (keys, values))
        self.session.write(layer, self._start, *rows)
        self._missing.discard(layer)
        return self._start

    def require_whole(self) -> None:
        """GpuError where the last pass ended before every layer had written."""
        missing = [layer for layer in sorted(self._missing) if self._is_missing(layer)]
        if missing:
            raise GpuError(
                f"HF cache: the last forward pass ended before layer {missing[0]} had written its rows",
                fix=f"Call truncate_to({self._start}); a model that skips layers cannot run on the arena",
            )

    def _is_missing(self, layer: int) -> bool:
        """Whether this pass waits for the layer; truncated to where it began, a session has no open pass."""
        return layer in self._missing and self.session.position > self._start

    def _require_fit(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        spec = self.session.spec
        if keys.shape[0] != 1:
            _refuse_batch()
        if any((part.shape[1], part.shape[3]) != (spec.kv_heads, spec.head_dim) for part in (keys, values)):
            raise GpuError(
                f"HF cache: layer {layer} brings keys of {keys.shape[1]} heads x {keys.shape[3]} and values of "
                f"{values.shape[1]} x {values.shape[3]}, a row of the arena holds {spec.kv_heads} x {spec.head_dim}",
                fix="Open the arena with spec_for(model.config, ...); all layers must have the same heads",
            )
        dtype, device = self._dtype, self.session.registers.device
        if keys.dtype != dtype or values.dtype != dtype or keys.device != device:
            raise GpuError(
                f"HF cache: the model computes in {keys.dtype} on {keys.device}, the arena holds {dtype} on {device}",
                fix="Open the arena with spec_for(model.config, positions, model.dtype, model.device)",
            )


def _layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """How many tokens each layer sees (None: all), as transformers' own cache has it."""
    if config.is_encoder_decoder:
        raise GpuError(f"HF cache: {config.model_type} has an encoder", fix="Use a causal (decoder-only) model")
    windows: list[int | None] = []
    for number, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise GpuError(
                f"HF cache: layer {number} of {config.model_type} keeps its state in a {type(layer).__name__}",
                fix="Use a model each of whose layers has keys and values of its own",
            )
        windows.append(layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None)
    return windows


def _refuse_batch() -> NoReturn:
    raise GpuError(
        "HF cache: a session holds one text, not a batch",
        fix="Generate with one prompt, num_beams=1 and num_return_sequences=1, or fork() one cache for each",
    )
