"""Which device torch computes on, found out by trying: a driver that is listed is not yet one that works."""

from __future__ import annotations


def choose_device(wanted: str) -> tuple[str, str]:
    """(torch device, why it is not the wanted one or "").

    `wanted` is `auto` (a GPU where one works; a machine without any is no problem), `cpu`, or `cuda`, `cuda:1`, ...
    Never raises: whatever is wrong with CUDA, the CPU is there.
    """
    if wanted == "cpu":
        return "cpu", ""
    import torch

    if not torch.cuda.is_available():
        return "cpu", "" if wanted == "auto" else "torch finds no NVIDIA GPU (vivavoce doctor says why)"
    device = "cuda:0" if wanted in ("auto", "cuda") else wanted
    try:
        probe = torch.ones(8, device=device)
        works = float(probe.sum()) == 8.0
    except RuntimeError as error:
        return "cpu", f"{device} does not start: {str(error).splitlines()[0]}"
    return (device, "") if works else ("cpu", f"{device} computes wrong results")
