"""Shapes from file headers: of a real GGUF writer, of safetensors, of the model in the store; and damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpu.errors import WeightsError
from gpu.memory.headers import read_shape
from gpu.memory.shapes import ModelShape

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 64, 32, 48, 2, 4, 2


def write_gguf(path: Path, *, family: str = "llama", tied: bool = False) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    writer.add_token_scores([0.0] * VOCAB)
    names = {"token_embd.weight": (VOCAB, HIDDEN)} | ({} if tied else {"output.weight": (VOCAB, HIDDEN)})
    for name, shape in names.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_hf(folder: Path, *, tied: bool = True) -> Path:
    folder.mkdir()
    config = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
              "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "tie_word_embeddings": tied}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    from safetensors.numpy import save_file

    save_file({"model.embed_tokens.weight": np.zeros((VOCAB, HIDDEN), np.float32)}, folder / "model.safetensors")
    return folder


def expected(name: str, *, tied: bool) -> ModelShape:
    return ModelShape(name, "llama", VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HIDDEN // HEADS, tied, 512)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    with pytest.raises(WeightsError, match="no regular file"):
        read_shape(tmp_path / "a.gguf")
    for name in ("config.json", "model.safetensors"):
        folder = write_hf(tmp_path / f"with {name}")
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(WeightsError, match=f"{name} is no regular file"):
            read_shape(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_gguf(tmp_path: Path, tied: bool) -> None:
    assert read_shape(write_gguf(tmp_path / "small.gguf", tied=tied)) == expected("small", tied=tied)


@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face_folder(tmp_path: Path, tied: bool) -> None:
    assert read_shape(write_hf(tmp_path / "small", tied=tied)) == expected("small", tied=tied)


def test_a_file_cut_anywhere_in_its_header_is_one_sentence(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "small.gguf").read_bytes()
    header = whole.index(b"output.weight")
    path = tmp_path / "cut.gguf"
    for size in range(0, header, 37):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError, match=r"truncated|no GGUF"):
            read_shape(path)


def test_a_header_that_lies_about_sizes_takes_no_memory(tmp_path: Path) -> None:
    whole = bytearray(write_gguf(tmp_path / "small.gguf").read_bytes())
    whole[24:32] = b"\xff" * 7 + b"\x7f"  # the length of the first key
    (tmp_path / "lies.gguf").write_bytes(whole)
    with pytest.raises(WeightsError, match="corrupt"):
        read_shape(tmp_path / "lies.gguf")


def test_other_families_are_refused_as_by_the_loader(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="family 'mamba'"):
        read_shape(write_gguf(tmp_path / "other.gguf", family="mamba"))


@pytest.mark.parametrize("damage", ["config", "tensors", "header", "none"])
def test_damaged_folders(tmp_path: Path, damage: str) -> None:
    folder = write_hf(tmp_path / "small")
    if damage == "config":
        (folder / "config.json").write_text("{", encoding="utf-8")
    elif damage == "tensors":
        (folder / "model.safetensors").unlink()
    elif damage == "header":
        (folder / "model.safetensors").write_bytes(b"\xff" * 16)
    else:
        folder = tmp_path / "nowhere"
    with pytest.raises(WeightsError, match=r"header|holds no|There is no model"):
        read_shape(folder)


def test_nothing_heavy_is_imported_to_read_a_header() -> None:
    code = (
        "import sys, gpu.memory.headers, gpu.memory.fixes, gpu.memory.peaks, gpu.memory.pool, gpu.memory.ladder\n"
        "assert not {'torch', 'numpy', 'gguf', 'safetensors', 'psutil'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
