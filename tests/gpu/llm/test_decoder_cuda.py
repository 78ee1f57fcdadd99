"""The same decoder on a GPU: logits of the CPU's, in fp32 and bf16, and a conversation that goes on on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the decoder is torch")
transformers = pytest.importorskip("transformers", reason="makes the model")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402
from gpu.kv.session import Session  # noqa: E402
from gpu.llm.decoder import Decoder  # noqa: E402
from gpu.llm.weights.prepare import prepare  # noqa: E402
from gpu.llm.weights.safetensors import open_hf_directory  # noqa: E402

pytestmark = pytest.mark.gpu
POSITIONS = 160
PROMPT = [(7 * i * i + 3 * i + 5) % 211 for i in range(50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=211,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=2,
        initializer_range=0.3,
    )
    transformers.LlamaForCausalLM(config).eval().save_pretrained(path)
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    return path


def _decoder(folder: Path, precision: Any, device: str) -> tuple[Decoder, Session]:
    prepared = prepare(open_hf_directory(folder), precision)
    decoder = Decoder(prepared.config, prepared.state, positions=POSITIONS, device=device)
    c = decoder.config
    dtype = str(decoder.dtype).removeprefix("torch.")
    return decoder, Arena.open(ArenaSpec(c.layers, c.kv_heads, c.head_dim, POSITIONS, dtype, device)).session()


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-4), ("bf16", 5e-2)])
def test_logits_are_the_cpus(folder: Path, precision: Any, limit: float) -> None:
    decoder, session = _decoder(folder, "fp32", "cpu")
    reference = decoder.logits(decoder.forward(PROMPT, session))
    on_gpu, session = _decoder(folder, precision, "cuda:0")
    parts = [on_gpu.logits(on_gpu.forward(part, session)).float().cpu() for part in (PROMPT[:20], PROMPT[20:])]
    ours = torch.cat(parts)
    difference = float((ours - reference).norm() / reference.norm())
    print(f"{precision} on {torch.cuda.get_device_name()}: relative difference {difference:.2e}")
    assert difference <= limit
