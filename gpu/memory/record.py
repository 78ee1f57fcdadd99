"""What a run really took, for the record: `cuda_context` is for a short-lived child, the rest for the engine."""

from __future__ import annotations

from collections.abc import Mapping

from gpu.memory.peaks import Peaks
from gpu.memory.preflight import Plan, context_key, stage_key, workspace_key


def cuda_context(device: str) -> int:
    """Bytes of a CUDA context with the kernels that a decoder uses, and without what torch allocates in it.

    Only for a child that ends afterwards. Other programs that allocate in the same second blur it by what they take.
    """
    from gpu.telemetry import read_gpus

    before = {gpu.uuid: gpu.free_bytes for gpu in read_gpus().gpus}
    import torch

    weight = torch.randn(256, 256, dtype=torch.bfloat16, device=device)
    query = torch.nn.functional.linear(weight, weight).view(1, 4, 256, 64)
    mask = torch.zeros(256, 255, dtype=torch.bfloat16, device=device)
    keys = query.narrow(2, 0, 255)
    out = torch.nn.functional.scaled_dot_product_attention(query, keys, keys, mask)
    torch.nn.functional.silu(torch.nn.functional.rms_norm(out, (64,))).sum().item()
    after = {gpu.uuid: gpu.free_bytes for gpu in read_gpus().gpus}
    taken = max(before[uuid] - free for uuid, free in after.items() if uuid in before)
    return taken - int(torch.cuda.memory_reserved(device))


def record_context(peaks: Peaks, plan: Plan, context_bytes: int) -> bool:
    """Keep a measured context for every later plan on this kind of GPU."""
    return peaks.record(context_key(plan.ledgers[0].place, plan.request.version), context_bytes)


def record_workspace(peaks: Peaks, plan: Plan, *, arena_is_torchs: bool = True) -> bool:
    """Keep the workspace that this process has needed on the plan's GPU until now; in the process that computed."""
    import torch

    ledger = plan.ledgers[0]
    held = ledger.row("weights").size_bytes
    held += ledger.row("kv arena").size_bytes if arena_is_torchs else 0
    peak = int(torch.cuda.max_memory_allocated(ledger.place.device)) - held
    return peak > 0 and peaks.record(workspace_key(plan.request, ledger.place), peak)


def record_stages(peaks: Peaks, plan: Plan, grown_bytes: Mapping[str, int]) -> int:
    """Keep by how much RAM grew while each stage of the plan loaded; returns how many were kept."""
    stages = [stage for stage in plan.request.stages if grown_bytes.get(stage.name, 0) > 0]
    return sum(peaks.record(stage_key(stage), grown_bytes[stage.name]) for stage in stages)


def record_host_workspace(peaks: Peaks, plan: Plan, grown_bytes: int) -> bool:
    """Keep by how much RAM grew at most while all stages worked, without the arena: the language model on the CPU.

    What the speech models took in it is counted too: none of their own can be told apart while they work side by side.
    """
    return grown_bytes > 0 and peaks.record(workspace_key(plan.request, plan.ledgers[0].place), grown_bytes)
