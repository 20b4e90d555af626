"""Locks and database transactions: what a lock protects is only safe once it is committed."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction

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

    NotAcquired when it could not; RuntimeError inside another transaction; LeaseLost, after a
    rollback, when the lease was lost before COMMIT.
    """
    with semaphore as lease, transaction.atomic(using, durable=True):
        yield lease
        lease.check()


def release_when_over(lease: Lease, using: str | None = None) -> None:
    """Release a lease when the open transaction of a database ends: after COMMIT, or with the
    rollback of the innermost savepoint. At once when none is open, as release does."""
    alias = using or DEFAULT_DB_ALIAS
    if not in_transaction(alias):
        lease.release()
        return
    # Django forgets its callbacks on rollback, so what counts is the end of the object. A TestCase
    # drops it with its rollback.
    transaction.on_commit(_Releasing(lease), using=alias)
    _pending.leases.add(lease)


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
    """Releases when it is called, or when it is dropped uncalled."""

    def __init__(self, lease: Lease) -> None:
        thread = threading.get_ident()
        self._finalizer = weakref.finalize(self, _release, lease, thread)
        self._finalizer.atexit = False

    def __call__(self) -> None:
        self._finalizer()


def _release(lease: Lease, thread: int) -> None:
    if threading.get_ident() == thread:
        _release_now(lease)
    else:  # dropped by the garbage collector, who knows where
        tell(partial(_release_now, lease))


def _release_now(lease: Lease) -> None:
    try:
        lease.release()
    except Exception as error:
        logger.error("releasing %r at the end of a transaction: %s", lease.name, error)


def in_transaction(using: str = DEFAULT_DB_ALIAS) -> bool:
    """Whether a transaction is open on this thread's connection."""
    return using in _opened() and connections[using].in_atomic_block


def racing() -> str | None:
    """The alias of a database whose transaction outlives what happens now, or None.

    The transaction that a TestCase wraps around a test does not count.
    """
    for alias in _opened():
        blocks = getattr(connections[alias], "atomic_blocks", ())
        if any(not getattr(block, "_from_testcase", False) for block in blocks):
            return alias
    return None


def warn_if_racing(what: str, remedy: str, stacklevel: int = 2) -> None:
    """With DEBUG, warn when `what` is about to be given back before COMMIT."""
    if not settings.DEBUG:
        return
    alias = racing()
    if alias is not None:
        warnings.warn(
            f"{what} is given back before the transaction on {alias!r} commits: whoever gets it "
            f"next may still see the data as it was before. {remedy}",
            TransactionRace,
            stacklevel=stacklevel + 1,
        )


def _opened() -> list[str]:
    """The databases that this thread has a connection object for; none is made."""
    made: Callable[..., Any] = connections.all
    return [connection.alias for connection in made(initialized_only=True)]
