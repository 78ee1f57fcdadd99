"""What can go wrong in `audio`. One base class; the message always names the fix."""

from __future__ import annotations

_NO_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate", "cannot allocate memory", "out of memory")
"""Of the C++ library, of ONNX Runtime, of the system, of torch."""


class AudioError(Exception):
    """Base of every error that `audio` raises on purpose.

    `is_permanent` says whether the same call can succeed later without the user changing something.
    """

    is_permanent = True

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(f"{message}. {fix}" if fix else message)
        self.message = message
        self.fix = fix


class DeviceError(AudioError):
    """A sound device is missing, refuses every rate, or went away."""

    def __init__(self, message: str, *, device: str, fix: str = "", is_permanent: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.device = device
        self.is_permanent = is_permanent


class AudioFileError(AudioError):
    """A file is missing, empty, or no audio that we read."""


class ModelFileError(AudioError):
    """A speech model file is missing, corrupt, or does not do what it must."""


class NoMemoryError(AudioError):
    """A speech model is sound, but the memory for it is not there."""

    exit_code = 3

    def __init__(self, message: str, *, fix: str = "Close other programs, or raise the limit (ulimit -v)") -> None:
        super().__init__(message, fix=fix)


def is_memory_short(error: BaseException) -> bool:
    """Whether a library failed for want of memory: they say so in words, under classes of their own."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)
