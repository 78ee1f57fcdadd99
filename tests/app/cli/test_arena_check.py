"""The doctor's line on the arena: whatever is missing, the same API, and one sentence that says what."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from app.cli.checks import arena  # noqa: E402
from app.cli.checks.arena import found_backend  # noqa: E402
from app.config.load import load_config  # noqa: E402
from gpu.kv.backends import open_backend  # noqa: E402


class _Code(int):
    name = "CUDA_ERROR_SOMETHING"


def _driver(has_vmm: int | None) -> Any:
    """`cuda.bindings.driver` of a GPU with or without virtual memory; None: of a driver that lacks the call."""

    def attribute(*_: Any) -> Any:
        if has_vmm is None:
            raise RuntimeError("Function cuDeviceGetAttribute not found")
        return _Code(0), has_vmm

    return types.SimpleNamespace(
        CUdevice_attribute=types.SimpleNamespace(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102),
        CUresult=types.SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=_Code(2)),
        cuInit=lambda _: (_Code(0),),
        cuDeviceGet=lambda _: (_Code(0), 0),
        cuDeviceGetAttribute=attribute,
    )


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as torch is asked, there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(arena, "choose_device", lambda _: ("cuda:0", ""))


@pytest.mark.parametrize(
    ("driver", "sentence"),
    [
        (..., "cuda.bindings is not installed"),
        (_driver(0), "no virtual memory management"),
        (_driver(None), "newer"),
    ],
    ids=["no cuda.bindings", "no virtual memory", "an old driver"],
)
def test_plain_pages_and_why(fake_gpu: None, monkeypatch: pytest.MonkeyPatch, driver: Any, sentence: str) -> None:
    bindings = None if driver is ... else types.SimpleNamespace(driver=driver)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)  # type: ignore[arg-type]
    backend, reason = found_backend("auto")
    assert backend == "plain"
    assert sentence in reason
    assert "\n" not in reason
    line = arena.arena(backend, reason)
    assert line.status == "warning"
    assert sentence in line.found
    assert line.fix
    assert open_backend("auto", "cuda:0")[1] == reason  # what an arena would get


def test_a_gpu_that_torch_does_not_see_leaves_host_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found_backend("auto") == ("host", "torch finds no NVIDIA GPU")


def test_no_gpu_is_one_line_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "has_gpu_files", lambda: False)
    monkeypatch.setattr(arena, "ask_in_child", None)
    (line,) = arena.checks(load_config(file=None, env={}).config)
    assert (line.name, line.status, line.figures) == ("kv arena", "ok", {"backend": "host"})
    assert line.found == "host: pages of RAM, taken as the conversation grows (there is no NVIDIA GPU)"


def test_a_child_that_dies_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "has_gpu_files", lambda: True)
    monkeypatch.setattr(arena, "ask_in_child", lambda *_, **__: None)
    (line,) = arena.checks(load_config(file=None, env={}).config)
    assert line.status == "warning"
    assert line.fix


@pytest.mark.gpu
def test_a_gpu_has_pages_of_its_own() -> None:
    (line,) = arena.checks(load_config(file=None, env={}).config)
    assert line.figures == {"backend": "vmm"}
