"""The reference decoder, and no progress bars: their monitor thread would outlive the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_progress_thread() -> None:
    tqdm = pytest.importorskip("tqdm")
    tqdm.tqdm.monitor_interval = 0


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Results are compared bit for bit, and the machine is shared."""
    torch = pytest.importorskip("torch", reason="the decoder is torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reference_llama() -> Callable[[Any], Any]:
    """`reference_llama(prepared)`: transformers' LlamaForCausalLM with the weights of an fp32 PreparedModel."""
    torch = pytest.importorskip("torch", reason="the decoder is torch")
    transformers = pytest.importorskip("transformers", reason="the reference implementation")

    def build(prepared: Any) -> Any:
        c = prepared.config
        config = transformers.LlamaConfig(
            vocab_size=c.vocab,
            hidden_size=c.hidden,
            intermediate_size=c.intermediate,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            head_dim=c.head_dim,
            max_position_embeddings=c.max_positions,
            rms_norm_eps=c.rms_eps,
            tie_word_embeddings=c.tied_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        )
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config)
        state = _hf_state(prepared)
        model.load_state_dict(state, strict=False, assign=True)
        model.tie_weights()
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers were on "meta"
        assert not [name for name, weight in model.named_parameters() if weight.is_meta]
        return model.eval()

    return build


def _hf_state(prepared: Any) -> dict[str, Any]:
    c, state = prepared.config, prepared.state
    split = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
    out = {
        "model.embed_tokens.weight": state["embed"],
        "model.norm.weight": state["final_norm"],
        "lm_head.weight": state.get("head", state["embed"]),
    }
    for n in range(c.layers):
        prefix = f"model.layers.{n}."
        query, key, value = state[f"{n}.qkv"].split(split)
        gate, up = state[f"{n}.gate_up"].chunk(2)
        parts = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": value}
        parts |= {"self_attn.o_proj": state[f"{n}.o"], "mlp.down_proj": state[f"{n}.down"]}
        parts |= {"mlp.gate_proj": gate, "mlp.up_proj": up}
        parts |= {"input_layernorm": state[f"{n}.attn_norm"], "post_attention_layernorm": state[f"{n}.mlp_norm"]}
        out |= {f"{prefix}{name}.weight": weight for name, weight in parts.items()}
    return out
