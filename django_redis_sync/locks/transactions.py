"""Locks and database transactions: a lock has to be released after the COMMIT."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FrameType
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.signals import connection_created

from ..engine.threads import run_callbacks
from ..exceptions import TransactionRace
from ..logs import logger
from .callers import running_loop, sync_code_waits
from .lease import Lease
from .lease_state import LeaseSettings

_REMEDY = (
    "Use release_on_commit=True, or its atomic(). On a view that ATOMIC_REQUESTS wraps, atomic() "
    "also needs @transaction.non_atomic_requests."
)


@contextmanager
def locked_atomic(semaphore: AbstractContextManager[Lease], using: str | None) -> Iterator[Lease]:
    """Acquire a lease, run the block in `transaction.atomic(using, durable=True)`, then release the
    lease.

    `using`: alias of a database. Raise RuntimeError inside another transaction, before a request is
    sent to Redis. Raise NotAcquired if the semaphore can't be acquired. If the lease was lost
    before the COMMIT, roll back and raise LeaseLost.
    """
    alias = DEFAULT_DB_ALIAS if using is None else using
    check_alias("using", alias)
    if transactions_of(alias):
        raise RuntimeError(
            f"atomic() of {semaphore!r} can't begin its durable transaction on {alias!r}, because "
            "another transaction is open there. If ATOMIC_REQUESTS began it, put "
            "@transaction.non_atomic_requests on the view. Otherwise, acquire the lock before the "
            "transaction, or inside it with release_on_commit=True."
        )
    with semaphore as lease, transaction.atomic(using, durable=True):
        yield lease
        lease.check()


def deferred(lease: Lease, using: str | bool, name: str) -> bool:
    """Arrange that the end of the open transaction releases the lease, and return True. If no
    transaction is open, return False. `using`: the option release_on_commit. If it is False, return
    False, and warn if a transaction is open. `name`: the name in the warning.

    If this function raises an exception, it has released the lease.
    """
    try:
        if using:
            return release_when_over(lease, using)
        warn_if_racing(f"The lease of {name!r}", _REMEDY)
        return False
    except BaseException:
        lease.release_later()
        raise


async def adeferred(lease: Lease, using: str | bool, name: str) -> bool:
    """Async version of `deferred()`. It looks at the transactions of the sync code that has called
    this async code, or, with release_on_commit, that this async code calls."""
    if not using and not sync_code_waits():
        return False
    result: list[bool] = []

    def defer() -> None:
        result.append(deferred(lease, using, name))

    try:
        if using and transactions_of(using):  # with DJANGO_ALLOW_ASYNC_UNSAFE
            defer()
        else:
            await sync_to_async(defer)()
    except BaseException as error:
        if isinstance(error, RuntimeError) and not using:
            return False  # the sync code has continued meanwhile
        if not result and not lease.ended:
            lease.release_later()
        raise
    return result[0]


def release_when_over(lease: Lease, using: str | bool) -> bool:
    """Release a lease when the open transaction ends: after the COMMIT, or when the innermost
    savepoint is rolled back. Return False if no transaction is open.

    `using`: alias of a database. If it is True, release when all open transactions have ended.
    Raise TransactionManagementError if autocommit is off.
    """
    check_autocommit(using)
    # On rollback, and at the end of a TestCase, Django discards the callbacks of on_commit. So a
    # _Releasing that is discarded without a call also releases the lease.
    aliases = transactions_of(using)
    for alias in list(aliases):
        transaction.on_commit(_Releasing(lease, aliases), using=alias)
        _release_after_errors(connections[alias])
        _connected.leases.add(lease)
    return bool(aliases)


def check_alias(what: str, alias: object) -> None:
    """Raise TypeError or ImproperlyConfigured if `alias` is not an alias in DATABASES. `what`: the
    name of the argument."""
    if not isinstance(alias, str):
        raise TypeError(f"{what} must be the alias of a database, not {alias!r}")
    if alias not in connections:
        known = ", ".join(connections)
        raise ImproperlyConfigured(f"{what}={alias!r} is not in DATABASES, which has {known}.")


def check_autocommit(using: str | bool) -> None:
    """Raise TransactionManagementError if autocommit is off in a database to wait for. Then Django
    does not report the COMMIT. `using`: see `release_when_over`."""
    manual = [
        one.alias for one in _connected.all() if _is_manual(one) and using in (True, one.alias)
    ]
    opened = {one.alias for one in _connected.all() if one.connection is not None}
    manual += [
        alias
        for alias, options in connections.settings.items()
        if not options.get("AUTOCOMMIT", True) and alias not in opened and using in (True, alias)
    ]
    if manual:
        raise transaction.TransactionManagementError(
            f"release_on_commit can't work, because autocommit of the database {manual[0]!r} is "
            "off, and Django then does not report a COMMIT. Release the lock after commit(), use "
            "transaction.atomic() with autocommit, or name another database in release_on_commit."
        )


def _is_manual(connection: Any) -> bool:
    """Return True if the project itself ends the transactions of an open connection."""
    if connection.in_atomic_block:
        return not connection.commit_on_exit
    return connection.connection is not None and not connection.autocommit


def check_before(settings: LeaseSettings, using: str | bool, may_wait_for_itself: bool) -> None:
    """Raise an exception if a lease can't be released when the open transaction ends, or if an
    acquire would wait for its own transaction. `using`: see `release_when_over`."""
    if isinstance(using, str):
        check_alias("release_on_commit", using)
    check_autocommit(using)
    if may_wait_for_itself:
        check_not_nested(settings)


acheck_before = sync_to_async(check_before)


def transactions_of(using: str | bool | None) -> list[str]:
    """Return the database aliases with an open transaction in this thread. `using`: an alias, to
    check only this alias; any other value, to check all.

    The transaction that a TestCase wraps around a test does not count.
    """
    return [
        connection.alias
        for connection in _connected.all()
        if connection.in_atomic_block
        and (connection.alias == using or not isinstance(using, str))
        and any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    ]


class _Connected(threading.local):
    """A cached list of this thread's database connections. Each release needs the list, and Django
    takes long to make it. `leases`: the leases that the thread's open transactions will release."""

    _known: list[weakref.ref[Any]] | None = None  # filled at first use, when settings are ready

    def __init__(self) -> None:
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()

    def all(self) -> list[Any]:
        if running_loop() is not None:  # no cache, because each task has its own connections
            return _opened()
        if self._known is None:
            self._known = [*map(weakref.ref, _opened())]
        return self._known and [one for ref in self._known if (one := ref()) is not None]

    def add(self, *, connection: Any, **_: Any) -> None:
        if self._known is not None:
            others = [ref for ref in self._known if ref() not in (None, connection)]
            self._known = [*others, weakref.ref(connection)]


def _opened() -> list[Any]:
    """Return the database connections that this thread or task has used so far."""
    made: Callable[..., Any] = connections.all
    return list(made(initialized_only=True))


_connected = _Connected()
connection_created.connect(_connected.add, weak=False, dispatch_uid=__name__)


def check_not_nested(wanted: LeaseSettings) -> None:
    """Raise RuntimeError if this thread holds a lease of the name that is released only when the
    open transaction ends. An acquire would wait for that lease, and so for its own transaction."""
    if (mine := _pending(wanted)) and not release_if_over(wanted):
        raise RuntimeError(
            f"{mine[0].name!r} is held until the open transaction ends, so waiting for it inside "
            "that transaction would never end. Take it once, or use an RLock."
        )


def release_if_over(wanted: LeaseSettings) -> bool:
    """Release the leases of the name that this thread holds until the end of a transaction, if it
    has no transaction open any more. Return True if there was such a lease.

    This is so in a callback of on_commit that runs before the one that releases the lease. If such
    a callback waits for the lock, it would wait for its own thread.
    """
    mine = _pending(wanted)
    if not mine or transactions_of(True):
        return False
    for lease in mine:
        _release_now(lease)
    return True


def _pending(wanted: LeaseSettings) -> list[Lease]:
    """Return the leases of the name that this thread holds until the end of a transaction."""
    every = list(_connected.leases)
    return [one for one in every if one.held and one._is_of_name(wanted.keys, wanted.alias)]


class _Releasing:
    """A callback of on_commit that releases a lease. If Django discards the callback without a
    call, its garbage collection releases the lease.

    If several transactions are open, each has such an object for the lease. `left`: a list that
    these objects share, with an item for each transaction. Each object removes an item. The object
    that removes the last item releases the lease.
    """

    def __init__(self, lease: Lease, left: list[str]) -> None:
        thread = threading.get_ident()
        self._finalizer = weakref.finalize(self, _release, lease, thread, left)
        self._finalizer.atexit = False

    def __call__(self) -> None:
        self._finalizer()


def _release_after_errors(connection: Any) -> None:
    """Let a connection call its _Releasing objects also if another callback of on_commit raises an
    exception. Django then drops the other callbacks, and the traceback keeps them alive."""
    if hasattr(connection, "_redis_sync_runs_hooks"):
        return
    ref, run = weakref.ref(connection), type(connection).run_and_clear_commit_hooks

    def run_and_clear_commit_hooks() -> None:
        connection = ref()
        hooks = [] if connection is None else [hook[1] for hook in connection.run_on_commit]
        try:
            run(connection)
        except BaseException:
            for hook in hooks:
                if isinstance(hook, _Releasing):
                    hook()
            raise

    connection._redis_sync_runs_hooks = True
    connection.run_and_clear_commit_hooks = run_and_clear_commit_hooks


def _release(lease: Lease, thread: int, left: list[str]) -> None:
    left.pop()
    if left:
        return
    if threading.get_ident() == thread:
        _release_now(lease)
    else:  # called by the garbage collector, which runs on any thread
        run_callbacks(partial(_release_now, lease))


def _release_now(lease: Lease) -> None:
    _connected.leases.discard(lease)
    try:
        if not lease.ended:
            lease._transaction_ended()
    except Exception as error:
        logger.error("releasing %r at the end of a transaction failed: %s", lease.name, error)


#: A warning names a line of the project's code. The search for this line skips the frames of these
#: packages.
_INSIDE = (__name__.split(".")[0], "contextlib")
#: The values of `what` that `warn_if_racing` has logged, at most _MAX_LOGGED values. There may be
#: many others, because names may contain arguments.
_logged: set[str] = set()
_MAX_LOGGED = 20


def warn_if_racing(what: str, remedy: str) -> None:
    """Warn if a permit is about to be released before a COMMIT. For the arguments, see
    `warn_of_race`."""
    if aliases := transactions_of(None):
        warn_of_race(what, remedy, aliases)


def warn_of_race(what: str, remedy: str, aliases: list[str]) -> None:
    """Warn that a permit is about to be released before a COMMIT. `what`: a text that names the
    lock or function. `remedy`: a text that says what to do. `aliases`: the databases with an open
    transaction.

    With DEBUG, the warning names the line that releases the permit. Otherwise log an error, once
    for each `what`.
    """
    if not settings.DEBUG and (what in _logged or len(_logged) >= _MAX_LOGGED):
        return
    text = (
        f"{what} is released before the transaction on {aliases[0]!r} commits: the next holder may "
        f"still read the old data. {remedy}"
    )
    if settings.DEBUG:
        warnings.warn(text, TransactionRace, stacklevel=_level_outside())
    else:
        _logged.add(what)
        logger.error("%s", text)


def _level_outside() -> int:
    """Return the `stacklevel` for a warning that names the innermost caller outside of this
    package."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level
