"""The exceptions. Each kind of problem, such as a full semaphore or a lost lease, has a class.

SyncError is the base class of these exceptions. Each also has a second base class::

    NotAcquired     redis.exceptions.LockError          no permit was available
    LeaseLost       redis.exceptions.LockNotOwnedError  the lease ended while its holder worked
    Unavailable     redis.exceptions.RedisError         Redis gave no usable reply
    UpgradeRefused  RuntimeError                        a reader asked to write, or the reverse
    WrongKind       TypeError                           a read/write lock used as a plain lock
    ForeignValue    redis.exceptions.ResponseError      another program's value in one of the keys
    CallFailed      RuntimeError                        the call that others waited for has failed

One class has another base class: the warning `TransactionRace`.

Wrong settings raise django.core.exceptions.ImproperlyConfigured. Wrong arguments raise ValueError
or TypeError before anything is sent to Redis.
"""

from __future__ import annotations

from collections.abc import Iterable

from redis.exceptions import LockError, LockNotOwnedError, RedisError, ResponseError


class SyncError(Exception):
    """The base class of this library's exceptions."""

    # The arguments of the exception are all in `args`, because pickle, copy, and Celery make an
    # exception again from its `args`.

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class NotAcquired(SyncError, LockError):
    """A caller got no permit, or there is no lease to release.

    `reason`: one word that says why, such as "full", "paused" or "timeout". It is "" for a failed
    release. `lock_name`: the name of the lock or semaphore. `retry_after`: if `reason` is "rate",
    the seconds until the rate or a cool-down allows the call; else None. `lock_names`: a tuple of
    all names that were in the way of an `acquire_all`; else of `lock_name` only. `retry_after` is
    the longest time of them.
    """

    def __init__(
        self,
        message: str = "",
        reason: str = "",
        name: str | None = None,
        retry_after: float | None = None,
        names: Iterable[str] = (),
    ) -> None:
        super().__init__(message, name)
        self.lock_names = tuple(names) or (() if name is None else (name,))
        self.args = (message, reason, name, retry_after, self.lock_names)
        self.reason, self.retry_after = reason, retry_after

    def _add_names(self, names: Iterable[str], opens_in: Iterable[float]) -> None:
        """Add further names that were in the way, here and in the message. `opens_in`: the seconds
        until the rate and the cool-down of each allow a call."""
        if more := tuple(names):
            self.lock_names += more
            if self.retry_after is not None:
                self.retry_after = max(self.retry_after, *opens_in)
            message, reason, name, _, _ = self.args
            message += f"; also in the way: {', '.join(map(repr, more))}"
            self.args = (message, reason, name, self.retry_after, self.lock_names)


class LeaseLost(SyncError, LockNotOwnedError):
    """The lease ended while its holder worked: the lease expired, an operator cleared it, or Redis
    lost it.

    Since then, another holder may have got the permit. `lock_name`: the name of the lock or
    semaphore.
    """

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message, name)
        self.args = (message, name)


class Unavailable(SyncError, RedisError):
    """Redis gave no usable reply.

    `maybe_executed`: True if Redis may have executed the command. If the command was an acquire,
    the library undoes the acquire in the background.
    """

    def __init__(self, message: str = "", maybe_executed: bool = False) -> None:
        super().__init__(message, maybe_executed)
        self.maybe_executed = maybe_executed


class UpgradeRefused(SyncError, RuntimeError):
    """A thread or task that holds the read side of a lock asked for the write side, or the reverse.

    This is not allowed, because two readers that wait to write would wait for each other.
    """


class WrongKind(SyncError, TypeError):
    """A name that is in use as a read/write lock was used as a plain lock or semaphore, or the
    reverse."""


class ForeignValue(SyncError, ResponseError):
    """A key of the name holds a value of another program. The value was not changed."""


class CallFailed(SyncError, RuntimeError):
    """A call of a `single_flight` function waited for another call, which raised an exception.

    `error_type`, `error_text`: the name of that exception's class, and its text.
    """

    def __init__(self, message: str = "", error_type: str = "", error_text: str = "") -> None:
        super().__init__(message, error_type, error_text)
        self.error_type, self.error_text = error_type, error_text


class TransactionRace(RuntimeWarning):
    """The warning that a permit is released before a COMMIT. Until the COMMIT, the next holder may
    read the old data."""
