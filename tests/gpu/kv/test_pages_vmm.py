"""The VMM backend's dealings with the driver, against a strict fake; and why there is none on a machine without."""

from __future__ import annotations

import gc
import importlib.util
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pages are shown as tensors")

from gpu.kv.backends import open_backend  # noqa: E402
from gpu.kv.pages import OutOfPagesError, PagesError  # noqa: E402
from gpu.kv.pages_vmm import CudaDriver, VmmBackend, open_vmm  # noqa: E402


def test_nothing_is_unmapped_before_a_fence(fake_driver: Any) -> None:
    driver = fake_driver()
    backend = VmmBackend(driver, "cpu")
    first, second = backend.reserve(4), backend.reserve(2)
    first.commit(0, 3)
    second.share(0, first, 0)
    steps = [
        lambda: first.release(2, 3),
        lambda: second.privatise(0),
        lambda: backend.sleep([first, second]),
        lambda: backend.wake([first, second]),
        lambda: second.close(),
        lambda: backend.close(),
    ]
    for step in steps:
        driver.queue_work()
        step()
    assert driver.syncs >= 5
    assert not driver.live
    assert not driver.mapped


def test_mapping_does_not_wait(fake_driver: Any) -> None:
    driver = fake_driver()
    backend = VmmBackend(driver, "cpu")
    made, other = backend.reserve(8), backend.reserve(8)
    driver.queue_work()
    made.commit(0, 8)
    for slot in range(4):
        other.share(slot, made, slot)
    assert driver.syncs == 0
    assert len(driver.mapped) == 12
    assert len(driver.live) == 8
    assert driver.accessible == set(driver.mapped)


def test_no_memory_is_said_and_leaves_nothing_behind(fake_driver: Any) -> None:
    driver = fake_driver(physical_pages=5)
    backend = VmmBackend(driver, "cpu")
    made = backend.reserve(8)
    made.commit(0, 3)
    with pytest.raises(OutOfPagesError) as caught:
        made.commit(3, 8)
    assert not caught.value.is_permanent
    assert len(driver.live) == backend.pages_in_use == 3
    backend.sleep([made])
    hoarded = [driver.create(4096) for _ in range(4)]
    with pytest.raises(OutOfPagesError):
        backend.wake([made])
    assert backend.pages_in_use == 0
    assert backend.check() == []
    for handle in hoarded:
        driver.release(handle)
    assert backend.wake([made]) == 3


def test_a_refused_mapping_leaves_nothing_behind(fake_driver: Any) -> None:
    driver = fake_driver()
    backend = VmmBackend(driver, "cpu")
    made = backend.reserve(8)
    driver.refuse_maps_after = 2
    with pytest.raises(OutOfPagesError):
        made.commit(0, 5)
    assert not driver.mapped
    assert not driver.live
    assert backend.check() == []


def test_pages_go_when_the_last_tensor_and_the_backend_are_forgotten(fake_driver: Any) -> None:
    driver = fake_driver()
    backend = VmmBackend(driver, "cpu")
    made = backend.reserve(4)
    made.commit(0, 2)
    view = made.memory.narrow(0, 0, 10)
    del made, backend
    gc.collect()
    assert len(driver.mapped) == 2  # the view may still be read
    del view
    gc.collect()
    assert not driver.mapped
    assert not driver.live
    assert not driver.reserved


def test_pages_must_be_a_multiple_of_the_granularity(fake_driver: Any) -> None:
    with pytest.raises(PagesError, match="multiple"):
        VmmBackend(fake_driver(), "cpu", page_bytes=5000)
    assert VmmBackend(fake_driver(), "cpu").page_bytes == 4096


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_a_reason_and_plain_pages_instead() -> None:
    backend, reason = open_vmm("cuda:0")
    assert backend is None
    assert "NVIDIA" in reason
    fallback, why = open_backend("auto", "meta", page_bytes=4096)
    assert fallback.name == "plain"
    assert why == reason
    for name in ("auto", "vmm", "plain"):  # none of them later, with torch's words for it
        with pytest.raises(PagesError, match="there is no GPU for cuda:0"):
            open_backend(name, "cuda:0")


def test_without_the_bindings_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    backend, reason = open_vmm("cuda:0")
    assert backend is None
    assert "cuda.bindings" in reason


class _Code(int):
    name = "CUDA_ERROR_SOMETHING"


def _api(**functions: Any) -> Any:
    attribute = types.SimpleNamespace(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102)
    result = types.SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=_Code(2))
    base = {"cuInit": lambda flags: (_Code(0),), "cuDeviceGet": lambda index: (_Code(0), 0)}
    return types.SimpleNamespace(CUdevice_attribute=attribute, CUresult=result, **(base | functions))


def _raise_too_old(*_: Any) -> Any:
    raise RuntimeError("Function cuMemAddressReserve not found\nmore")


@pytest.mark.parametrize(
    ("api", "sentence"),
    [
        (_api(cuDeviceGetAttribute=lambda a, d: (_Code(0), 0)), "no virtual memory management"),
        (_api(cuDeviceGetAttribute=lambda a, d: (_Code(999), None)), "CUDA_ERROR_SOMETHING"),
        (_api(cuDeviceGetAttribute=_raise_too_old), "newer driver"),
        (_api(), "newer NVIDIA driver"),
    ],
)
def test_an_old_driver_is_named(api: Any, sentence: str) -> None:
    with pytest.raises(PagesError, match=sentence):
        CudaDriver(api, 0)


@pytest.mark.parametrize(("name", "device"), [("paged", "cpu"), ("host", "cuda:0")])
def test_backends_that_cannot_be_are_refused(name: Any, device: str) -> None:
    with pytest.raises(PagesError):
        open_backend(name, device)


@pytest.mark.gpu
def test_the_driver_really_gives_memory_back() -> None:
    assert importlib.util.find_spec("cuda.bindings")
    backend, reason = open_backend("vmm", "cuda:0")
    assert reason == ""
    assert backend.page_bytes == 2 << 20
    made, other = backend.reserve(1 << 17), backend.reserve(64)
    slack = 16 << 20  # the driver's own page tables
    free = torch.cuda.mem_get_info()[0]
    made.commit(0, 64)
    after = torch.cuda.mem_get_info()[0]
    assert 0 <= free - after - 64 * backend.page_bytes <= slack
    for slot in range(32):
        other.share(slot, made, slot)
    assert abs(torch.cuda.mem_get_info()[0] - after) <= slack
    made.memory[: 64 * backend.page_bytes].fill_(3)
    assert int(other.memory[31 * backend.page_bytes]) == 3
    made.close()
    torch.cuda.synchronize()
    assert abs(free - torch.cuda.mem_get_info()[0] - 32 * backend.page_bytes) <= slack
    backend.close()
    assert free - torch.cuda.mem_get_info()[0] <= slack


@pytest.mark.gpu
def test_a_graph_captured_before_a_page_came_writes_into_it() -> None:
    backend, _ = open_backend("vmm", "cuda:0")
    made = backend.reserve(16)
    made.commit(0, 1)
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    value = torch.full((1,), 7, dtype=torch.uint8, device="cuda")
    made.memory.index_copy_(0, index, value)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        made.memory.index_copy_(0, index, value)
    made.commit(1, 9)
    index.fill_(8 * backend.page_bytes + 5)
    graph.replay()
    torch.cuda.synchronize()
    assert int(made.memory[8 * backend.page_bytes + 5]) == 7
    backend.sleep([made])
    backend.wake([made])
    value.fill_(9)
    graph.replay()
    torch.cuda.synchronize()
    assert int(made.memory[8 * backend.page_bytes + 5]) == 9
    del graph
    backend.close()
