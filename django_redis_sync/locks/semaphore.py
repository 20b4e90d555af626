"""The class Semaphore. Each method that needs Redis has an async version, with prefix `a`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from django.conf import settings
from django.db import transaction

from ..exceptions import NotAcquired
from ..protocol.reasons import FULL, TIMEOUT, Rejection
from . import transactions
from .arguments import (
    attributes_of,
    check_call,
    check_shares,
    checked,
    checked_quorum,
    wrong_call,
)
from .callers import Caller, Holdings, by_caller
from .lease import Lease
from .loss import raise_or_log
from .nesting import own_hold
from .state_of_name import StateOfName

if TYPE_CHECKING:
    from ..defaults import Share


class Semaphore(StateOfName):
    """A name with `limit` permits, which all processes share.

    Use it in `with` or `async with`, or with `acquire()` and `release()`. If a block gets no
    permit, it raises NotAcquired. If the lease is lost before the block ends, the end of the block
    raises LeaseLost, unless the block itself raises another exception::

        exports = Semaphore("exports", 3)

        with exports:
            export()

        if lease := exports.acquire(blocking_timeout=5):
            ...

    Arguments, with defaults from `REDIS_SYNC["SEMAPHORES"]`:

    - `name`: the name. Objects with equal names share its permits.
    - `limit`: max permits in use at the same time.
    - `timeout`: lease duration in seconds. None (default): `REDIS_SYNC["TIMEOUT"]`, and the lease
      is renewed in the background while its holder's process runs. `math.inf`: permanent.
    - `renew`: True to renew the lease even if a `timeout` is given; False to never renew it.
    - `max_hold`: seconds after the grant at which a renewed lease ends.
    - `min_hold`: seconds during which the permits stay taken, even if they are released earlier.
    - `blocking`: False to never wait for a permit.
    - `blocking_timeout`: seconds to wait, 0 or more. None (default):
      `REDIS_SYNC["BLOCKING_TIMEOUT"]`. `math.inf`: no limit.
    - `fair`: True (default) to serve waiters in order of arrival.
    - `using`: alias of the cache with the Redis server. For a `Lock`, it can also be a list of
      aliases, a quorum. A majority of these servers has to grant the lock, and waiters have no
      order.
    - `label`: text that operators see.
    - `on_lost`: a callable that is called with the lease if it is lost, on another thread.
    - `release_on_commit`: True to delay `release()`, and the release at the end of a block, until
      the open database transactions end; a database alias to wait for that database only.
    - `thread_local`: False to let `release()` release leases that other threads or tasks acquired.
    - `raise_on_release_error`: what the end of a block does if the lease was lost. True (default):
      raise LeaseLost. False: log a warning.
    - `key`: the key, if `name` is the name of a keyed policy.
    - `share`: the group of callers to which this caller belongs, such as a tenant. It is a str,
      int, UUID, date, or Enum, and is identified by its text. Shares of a name take turns. The
      waiters of a share are served in order of arrival. All callers without a share form one share.
    - `share_limit`: max permits in use by the caller's share. None: as many as `limit`.
    - `rate`: max permits granted in any period, such as "500/m" (in any 60 s), "10/30s" or "100/d".
      With a rate, `limit` may be left out. Then any number of permits may be in use.
    - `sleep`: accepted for compatibility with redis-py, and ignored.

    Settings are read at each acquire. Raise TypeError or ValueError if an argument is wrong, and
    ImproperlyConfigured if a setting is wrong or no limit is set.
    """

    _held: Holdings

    def __init__(
        self,
        name: str,
        limit: int | None = None,
        *more: NoReturn,
        timeout: float | None = None,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool | None = None,
        fair: bool = True,
        max_hold: float | None = None,
        min_hold: float | None = None,
        using: str | Sequence[str] | None = None,
        label: str | None = None,
        on_lost: Callable[[Lease], Any] | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        release_on_commit: bool | str = False,
        sleep: float | None = None,
        key: str | None = None,
        share: Share = None,
        share_limit: int | None = None,
        rate: str | None = None,
        **wrong: NoReturn,
    ) -> None:
        if more or wrong:
            raise wrong_call(self, "", more, wrong)
        alias = using if isinstance(using, str) else None
        kind: Any = type(self)
        given = (
            *(kind, alias, name, key, label, limit, timeout, blocking, blocking_timeout, renew),
            *(fair, max_hold, min_hold, thread_local, raise_on_release_error, release_on_commit),
            *(share_limit, sleep, rate),
        )
        try:
            attributes = attributes_of(*given)
        except TypeError:  # an argument is wrong, or not hashable
            attributes = attributes_of.__wrapped__(*given)
        self.__dict__.update(attributes, _held=Holdings(not thread_local))
        if on_lost is not None:
            self.on_lost = on_lost
        if using is not alias:
            self.using = checked_quorum(name, self.limit, self.timeout, using)
        if share is not None or share_limit is not None:
            self.__dict__["share"] = checked("share", share)
            check_shares(name, self.fair, self._kind, self.using)
        if (limit is None or rate is not None) and settings.configured:
            self._check_permits(1)

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", {self.limit}"
        return f"{type(self).__name__}({self.name!r}{limit})"

    @property
    def held(self) -> bool:
        """True if this thread or task certainly holds a lease. `owned()` asks Redis instead."""
        return (lease := self._mine()) is not None and lease.held

    # Acquire and release

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        sleep: float | None = None,
        **wrong: NoReturn,
    ) -> Lease | None:
        """Return a lease, or None if no permit was granted.

        - `blocking`: False to not wait. None: use the option of the object.
        - `blocking_timeout`: seconds to wait, 0 or more. None: use the option of the object.
        - `permits`: number of permits to acquire.

        Raise Unavailable if Redis can't be reached, WrongKind if the name is in use as a
        read/write lock, and ValueError if `permits` is above the limit.
        """
        if wrong or sleep is not None:
            check_call(self, "acquire", sleep, wrong)
        got = None
        try:
            got = self._take(blocking, blocking_timeout, permits)
            return self._keep(got)
        except BaseException:
            self._undo_interrupted(got)
            raise

    @by_caller
    async def aacquire(
        self,
        caller: Caller,
        /,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        permits: int = 1,
        *,
        sleep: float | None = None,
        **wrong: NoReturn,
    ) -> Lease | None:
        """Async version of `acquire()`. If it is cancelled, it releases what it has acquired."""
        if wrong or sleep is not None:
            check_call(self, "aacquire", sleep, wrong)
        got = None
        try:
            got = await self._atake(blocking, blocking_timeout, permits, caller=caller)
            return self._keep(got)
        except BaseException:
            self._undo_interrupted(got)
            raise

    def release(self) -> None:
        """Release the newest lease that this thread or task took through this object.

        Raise NotAcquired if there is none, and LeaseLost if the lease was lost. If Redis can't be
        reached, raise Unavailable, and retry the release in the background.
        """
        lease = self._newest()
        if self._last(lease) and not self._deferred(lease):
            lease.release()

    @by_caller
    async def arelease(self, caller: Caller) -> None:
        """Async version of `release()`. A cancellation takes effect after the release."""
        lease = self._newest(caller)
        if self._last(lease) and not await self._adeferred(lease):
            await lease.arelease()

    def __enter__(self) -> Lease:
        got = None
        try:
            got = self._take()
            return self._enter(got)
        except BaseException:
            self._undo_interrupted(got)
            raise

    @by_caller
    async def __aenter__(self, caller: Caller) -> Lease:
        got = None
        try:
            got = await self._atake(caller=caller)
            return self._enter(got, caller)
        except BaseException:
            self._undo_interrupted(got)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if (lease := self._held.leave()) is not None:
            self._leave(lease, kind, error, trace)

    @by_caller
    async def __aexit__(
        self, caller: Caller, kind: type[BaseException] | None, error: Any, trace: Any
    ) -> None:
        if (lease := self._held.leave(caller)) is not None:
            await self._aleave(lease, kind, error, trace)

    def atomic(self, using: str | None = None) -> AbstractContextManager[Lease]:
        """Return a context manager that acquires a lease, runs its block in a database transaction,
        and then releases the lease.

        The transaction is `transaction.atomic(using, durable=True)`. `using`: alias of a database.
        Raise what a `with` block of the semaphore raises. Raise RuntimeError inside another
        transaction on that database. If the lease was lost before the COMMIT, roll back and raise
        LeaseLost.
        """
        return transactions.locked_atomic(self, using)

    # Methods of redis-py's Lock, for the newest lease of this thread or task

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Call `extend()` of the lease that `release()` would release. Raise NotAcquired if there
        is none."""
        return self._newest(keep=True).extend(additional_time, replace_ttl)

    @by_caller
    async def aextend(
        self, caller: Caller, additional_time: float, replace_ttl: bool = False
    ) -> bool:
        """Async version of `extend()`."""
        return await self._newest(caller, keep=True).aextend(additional_time, replace_ttl)

    def reacquire(self) -> bool:
        """Call `reacquire()` of the lease that `release()` would release. Raise NotAcquired if
        there is none."""
        return self._newest(keep=True).reacquire()

    @by_caller
    async def areacquire(self, caller: Caller) -> bool:
        """Async version of `reacquire()`."""
        return await self._newest(caller, keep=True).areacquire()

    def owned(self) -> bool:
        """Return True if Redis confirms that the newest lease of this thread or task is held. Raise
        Unavailable if Redis can't be reached."""
        lease = self._mine()
        return lease is not None and lease.owned()

    @by_caller
    async def aowned(self, caller: Caller) -> bool:
        """Async version of `owned()`."""
        lease = self._mine(caller)
        return lease is not None and await lease.aowned()

    # Inside

    def _keep(self, got: Lease | Rejection) -> Lease | None:
        """Register a lease for `release()` and return it. Return None for a Rejection."""
        if isinstance(got, Rejection):
            return None
        self._held.add(got)
        return got

    def _enter(self, got: Lease | Rejection, caller: Caller | None = None) -> Lease:
        """Begin a block with the lease `got`, and return the lease. Raise NotAcquired if `got` is a
        Rejection."""
        if isinstance(got, Rejection):
            raise self._error_of(got, caller)
        self._held.enter(got)
        return got

    def _error_of(self, rejection: Rejection, caller: Caller | None = None) -> NotAcquired:
        shown = self._keys().display
        message = f"{shown!r}: {rejection}"
        if rejection.reason in (FULL, TIMEOUT) and self.limit == 1:
            own = own_hold(self._keys(), self.alias(), caller)
            message += f" ({own[1]})" if own else ""
        return NotAcquired(message, rejection.reason, self.name, rejection.retry_after, (shown,))

    def _undo_interrupted(self, got: Lease | Rejection | None) -> None:
        """Release, in the background, the lease of an acquire that was interrupted.

        For example, a signal handler may have raised an exception. Without this, the lease would be
        renewed as long as this object exists.
        """
        if isinstance(got, Lease) and self._last(got):
            self._held.undo(got)
            if not got.ended:
                got.release_later()

    # In these methods, the argument `caller` is a thread or task; None for the current one.

    def _mine(self, caller: Caller | None = None) -> Lease | None:
        return self._held.newest(caller)  # type: ignore[no-any-return]

    def _newest(self, caller: Caller | None = None, keep: bool = False) -> Lease:
        """Return the lease that `release()` would release. Unless `keep` is true, also remove the
        lease from this object. Raise NotAcquired if there is none."""
        lease = self._mine(caller) if keep else self._held.take_newest(caller)
        if lease is None:
            raise NotAcquired(
                f"{self.name!r}: this thread or task holds nothing through this object. If another "
                "one acquired it, keep the lease that acquire() returned, and release the lease. "
                "With thread_local=False, release() also finds the leases of others",
                name=self.name,
            )
        return lease

    def _last(self, lease: Lease) -> bool:
        """Count a release of a lease. Return True if the lease needs no further release. Only a
        lease of an RLock may need several releases."""
        return True

    def _leave(self, lease: Lease, kind: Any, *_: Any, undo: bool = False) -> None:
        """Release a lease at the end of its block. `kind`: the type of the block's exception, or
        None. `undo`: True if an `acquire_all` failed or was interrupted."""
        if self._last(lease):
            try:
                deferred = not undo and lease.held and self._deferred(lease)
            except transaction.TransactionManagementError as error:
                raise_or_log(lease, error, kind, lenient=False)
                return
            if not deferred:
                lease._leave(kind, lenient=not self.raise_on_release_error)

    async def _aleave(self, lease: Lease, kind: Any, *_: Any, undo: bool = False) -> None:
        """Async version of `_leave()`."""
        if self._last(lease):
            try:
                deferred = not undo and lease.held and await self._adeferred(lease)
            except transaction.TransactionManagementError as error:
                raise_or_log(lease, error, kind, lenient=False)
                return
            if not deferred:
                await lease._aleave(kind, lenient=not self.raise_on_release_error)

    def _deferred(self, lease: Lease) -> bool:
        """Return True if the end of the open transaction will release the lease, see
        `transactions.deferred`."""
        return transactions.deferred(lease, self.release_on_commit, self.name)

    async def _adeferred(self, lease: Lease) -> bool:
        """Async version of `_deferred()`."""
        return await transactions.adeferred(lease, self.release_on_commit, self.name)
