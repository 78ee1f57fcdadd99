"""What can go wrong in `audio`. One base class; the message always names the fix."""

from __future__ import annotations


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
