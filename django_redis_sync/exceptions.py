"""The errors. Contention is an answer; loss and outage are errors; never blurred.

SyncError
├── NotAcquired   (also redis.exceptions.LockError)          nothing is held: full, paused, late
├── LeaseLost     (also redis.exceptions.LockNotOwnedError)  it was held, and is no longer
├── Unavailable   (also redis.exceptions.RedisError)         Redis gave no useful answer
├── UpgradeRefused (also RuntimeError)                       a reader asked to be the writer
├── WrongKind     (also TypeError)                           plain name or read/write lock, not both
└── ForeignValue  (also redis.exceptions.ResponseError)      something else lives under our keys

Wrong settings are django.core.exceptions.ImproperlyConfigured; wrong arguments ValueError or
TypeError, raised before anything is sent.
"""

from __future__ import annotations

from redis.exceptions import LockError, LockNotOwnedError, RedisError, ResponseError


class SyncError(Exception):
    """The root of this library's errors."""

    __repr__ = Exception.__repr__  # redis-py's shows no message


class NotAcquired(SyncError, LockError):
    """Nothing is held. `reason`: a word such as full, paused or timeout (protocol.reasons has them
    all), or empty."""

    def __init__(self, message: str, reason: str = "", name: str | None = None) -> None:
        super().__init__(message, name)
        self.args, self.reason = (message,), reason


class LeaseLost(SyncError, LockNotOwnedError):
    """The lease ended under its holder: expired, cleared, or lost with the server's data."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message, name)
        self.args = (message,)


class Unavailable(SyncError, RedisError):
    """Redis gave no useful answer. `maybe_executed`: the command may have taken effect anyway.

    Anything left behind is undone in the background.
    """

    def __init__(self, message: str, *, maybe_executed: bool = False) -> None:
        super().__init__(message)
        self.maybe_executed = maybe_executed


class UpgradeRefused(SyncError, RuntimeError):
    """This thread or task reads, and asked to write: two that did so would wait for each other."""


class WrongKind(SyncError, TypeError):
    """The name is in use as a read/write lock and was asked for as a plain lock, or the reverse."""


class ForeignValue(SyncError, ResponseError):
    """A key of this name holds something that is not ours. It was left alone."""
