"""Locks and database transactions: rows that a lock protects are safe only after COMMIT."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FrameType
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.signals import connection_created

from ..engine.courier import tell
from .lease import Lease
from .lease_state import Terms

logger = logging.getLogger("django_redis_sync")


class TransactionRace(RuntimeWarning):
    """A permit is given back inside a transaction: others may see the data as it was before."""


@contextmanager
def locked_atomic(
    semaphore: AbstractContextManager[Lease], using: str | None = None
) -> Iterator[Lease]:
    """Acquire, then `transaction.atomic(using, durable=True)`: given back after COMMIT or rollback.

    `using`: the alias of a database. NotAcquired when it could not; RuntimeError inside another
    transaction, before Redis is asked; LeaseLost, after a rollback, when the lease was lost before
    COMMIT.
    """
    alias = using or DEFAULT_DB_ALIAS
    if in_transaction(alias):
        raise RuntimeError(
            f"atomic() of {semaphore!r} begins a transaction on {alias!r}, to give the lock back "
            "after its COMMIT, but one is open there already: a durable one can't be nested. "
            "Where ATOMIC_REQUESTS began it, put @transaction.non_atomic_requests on the view; "
            "else take the lock before the transaction, or with release_on_commit=True inside."
        )
    with semaphore as lease, transaction.atomic(using, durable=True):
        yield lease
        lease.check()


def release_when_over(lease: Lease, using: str | bool | None = None) -> None:
    """Release a lease when an open transaction ends: after COMMIT, or with the rollback of the
    innermost savepoint. At once when none is open, as release does.

    `using`: the alias of a database; None or True: all with an open one, when the last is over.
    """
    aliases = transactions_of(using)
    if not aliases:
        lease.release()
        return
    # Django forgets its callbacks on rollback, so what counts is the end of the object. A TestCase
    # drops it with its rollback.
    left = list(aliases)
    for alias in aliases:
        transaction.on_commit(_Releasing(lease, left), using=alias)
    _pending.leases.add(lease)


def transactions_of(using: str | bool | None) -> list[str]:
    """Of a database, or of all (True, None), those in which this thread has a transaction."""
    if not _connected.may_have_a_transaction():
        return []
    return [
        alias
        for alias in _opened()
        if (alias == using or not isinstance(using, str)) and in_transaction(alias)
    ]


class _Connected(threading.local):
    """The database connections of this thread: Django takes long to list them, and every release
    asks. All that it had when it first asked, and those that were opened since."""

    _known: list[weakref.ref[Any]] | None = None  # not before there are settings

    def add(self, connection: Any) -> None:
        known = [ref for ref in self._all() if ref() not in (None, connection)]
        self._known = [*known, weakref.ref(connection)]

    def _all(self) -> list[weakref.ref[Any]]:
        if self._known is None:
            made: Callable[..., Any] = connections.all
            self._known = [weakref.ref(one) for one in made(initialized_only=True)]
        return self._known

    def may_have_a_transaction(self) -> bool:
        """False when none is open. On an event loop, whose tasks have connections of their own,
        Django has to be asked."""
        for ref in self._all():
            if getattr(ref(), "in_atomic_block", False):
                return True
        return asyncio._get_running_loop() is not None


_connected = _Connected()


def _note(*, connection: Any, **_: Any) -> None:
    _connected.add(connection)


connection_created.connect(_note, dispatch_uid="django_redis_sync.locks.transactions")


class _Pending(threading.local):
    """The leases that this thread's open transactions give back."""

    def __init__(self) -> None:
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()


_pending = _Pending()


def refuse_twice(terms: Terms) -> None:
    """RuntimeError where the open transaction holds the only permit: it would wait for itself."""
    for lease in list(_pending.leases):
        if lease.held and lease.is_of(terms.keys, terms.alias):
            raise RuntimeError(
                f"{lease.name!r} is held until the open transaction ends, so it can't be waited "
                "for in there: take it once, or use an RLock, which can be taken again."
            )


class _Releasing:
    """Releases when it is called, or when it is dropped uncalled: the last of those in `left`."""

    def __init__(self, lease: Lease, left: list[str]) -> None:
        thread = threading.get_ident()
        self._finalizer = weakref.finalize(self, _release, lease, thread, left)
        self._finalizer.atexit = False

    def __call__(self) -> None:
        self._finalizer()


def _release(lease: Lease, thread: int, left: list[str]) -> None:
    left.pop()
    if left:
        return
    if threading.get_ident() == thread:
        _release_now(lease)
    else:  # dropped by the garbage collector, on whichever thread
        tell(partial(_release_now, lease))


def _release_now(lease: Lease) -> None:
    try:
        lease.release()
    except Exception as error:
        logger.error("releasing %r at the end of a transaction: %s", lease.name, error)


def in_transaction(using: str = DEFAULT_DB_ALIAS) -> bool:
    """Whether a transaction is open on this thread's connection.

    That which a TestCase wraps around a test does not count: the tested code did not open it.
    """
    if using not in _opened() or not connections[using].in_atomic_block:
        return False
    blocks = getattr(connections[using], "atomic_blocks", ())
    return any(not getattr(block, "_from_testcase", False) for block in blocks)


def racing() -> str | None:
    """The alias of a database with a transaction that outlives the release, or None."""
    return next(iter(transactions_of(None)), None)


#: What stands between a line of the project's and a warning: contextlib leaves our blocks.
_INSIDE = (__name__.split(".")[0], "contextlib")
#: Warnings given outside of DEBUG, once each; so many at most: names may be made of arguments.
_said: set[str] = set()
_MOST_SAID = 20


def warn_if_racing(what: str, remedy: str) -> None:
    """Say when `what` is about to be given back before COMMIT.

    With DEBUG it is a warning at the line that gives it back, else an error in the log, once for
    each `what`.
    """
    alias = racing()
    if alias is None or (not settings.DEBUG and (what in _said or len(_said) >= _MOST_SAID)):
        return
    text = (
        f"{what} is given back before the transaction on {alias!r} commits: the next to get it "
        f"may still see the data as it was before. {remedy}"
    )
    if settings.DEBUG:
        warnings.warn(text, TransactionRace, stacklevel=_level_outside())
    else:
        _said.add(what)
        logger.error("%s", text)


def _level_outside() -> int:
    """Of the caller's callers the first that is no code of this package, as `stacklevel` counts."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level


def _opened() -> list[str]:
    """The databases that this thread has a connection object for; none is made."""
    made: Callable[..., Any] = connections.all
    return [connection.alias for connection in made(initialized_only=True)]
