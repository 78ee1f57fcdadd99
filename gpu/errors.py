"""What can go wrong in `gpu`. One base class; the message always names the fix."""

from __future__ import annotations


class GpuError(Exception):
    """Base of every error that `gpu` raises on purpose.

    `is_permanent` says whether the same call can succeed later without the user changing something.
    """

    is_permanent = True

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(f"{message}. {fix}" if fix else message)
        self.message = message
        self.fix = fix


class WeightsError(GpuError):
    """A weights file is missing, corrupt, or of a family that we do not run."""


class KernelError(GpuError):
    """A CUDA kernel cannot be found, compiled, loaded or launched here: its torch twin does the work."""


class ArenaFullError(GpuError):
    """A session asked for more positions than its arena holds."""

    def __init__(self, message: str, *, wanted: int, capacity: int) -> None:
        super().__init__(message, fix="Shorten the history or open the arena with more positions")
        self.wanted = wanted
        self.capacity = capacity
