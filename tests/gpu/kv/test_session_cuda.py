"""Sessions under a captured CUDA graph, over pages that are mapped while it runs."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="the arena's tensors are torch's")

from gpu.kv.arena import Arena, ArenaSpec  # noqa: E402

pytestmark = pytest.mark.gpu


def test_one_graph_appends_for_the_whole_conversation_while_pages_come() -> None:
    spec = ArenaSpec(layers=4, kv_heads=8, head_dim=128, positions=2048, dtype="bfloat16", device="cuda:0")
    arena = Arena.open(spec, backend="vmm", watermark="thread")
    session = arena.session()
    new = torch.zeros((1, *spec.row_shape), dtype=torch.bfloat16, device="cuda:0")
    buffer, number = session.buffer(), torch.zeros(1, device="cuda:0")

    def step() -> None:
        new.copy_(number.to(torch.bfloat16).expand_as(new))
        buffer.index_copy_(0, session.registers[1:2].long(), new)
        session.registers[:2].add_(1)
        number.add_(1).remainder_(251)

    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    session.extend(1, registers=False)
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    address = session.keys(0).data_ptr()
    for _ in range(1999):
        session.extend(1, registers=False)
        graph.replay()
    torch.cuda.synchronize()
    assert session.keys(0).data_ptr() == address
    wanted = (torch.arange(2000, device="cuda:0") % 251).to(torch.bfloat16)
    assert bool((session.rows() == wanted.view(-1, 1, 1, 1, 1)).all())
    assert arena.stats().pages_in_use >= 2000 * spec.row_bytes // arena.backend.page_bytes
    print(f"outruns {arena.stats().outruns}")
    arena.check()
    del graph
    arena.close()
    assert arena.backend.pages_in_use == 0


def test_no_append_waits_for_the_device() -> None:
    spec = ArenaSpec(layers=4, kv_heads=8, head_dim=128, positions=2048, dtype="bfloat16", device="cuda:0")
    arena = Arena.open(spec, backend="vmm", watermark="thread")
    session = arena.session()
    new = torch.ones(1, 4, 8, 128, dtype=torch.bfloat16, device="cuda:0")
    session.append(new, new)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(1000):
            start = session.extend(1)
            for layer in range(spec.layers):
                session.write(layer, start, new[:, layer], new[:, layer])
            session.append(new, new)
        session.truncate_to(1500)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    assert bool((session.rows() == 1).all())
    arena.check()
    arena.close()
