"""What can go wrong in `app`. One base class; the message always names the fix."""

from __future__ import annotations


class AgentError(Exception):
    """Base of every error that `app` raises on purpose.

    `is_permanent` says whether the same call can succeed later without the user changing something;
    `exit_code` is what the command line leaves with.
    """

    is_permanent = True
    exit_code = 2

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(f"{message}. {fix}" if fix else message)
        self.message = message
        self.fix = fix


class NoMemoryError(AgentError):
    """The memory does not suffice: nothing of ours is broken."""

    exit_code = 3


class ConfigError(AgentError):
    """A configuration key is unknown, or its value is not allowed."""

    def __init__(self, message: str, *, key: str, origin: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.key = key
        self.origin = origin


class ModelStoreError(AgentError):
    """A model is missing, damaged, or could not be fetched. The store stays valid."""

    def __init__(self, message: str, *, model: str = "", fix: str = "", is_permanent: bool = True) -> None:
        super().__init__(message, fix=fix)
        self.model = model
        self.is_permanent = is_permanent
