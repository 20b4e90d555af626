"""The plan of a call of a single_flight function (see `engine/calls.py`).

The call that runs the function holds the write side of a read/write lock. A call that waits is
a reader. All readers wake up together when the writer releases. If they then find no result,
because the writer died or was cancelled, each asks for the write side. Its queue has room for one
caller, and the others wait behind that caller, as readers. Per process, one call does all this, and
equal calls follow it (see `followers`).
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import weakref
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from .. import conf
from ..engine.calls import CallPlan, Either
from ..engine.wire import clock
from ..exceptions import LeaseLost, SyncError, Unavailable
from ..logs import logger
from ..protocol.reasons import CLEARED, FULL, TIMEOUT, Rejection
from .callers import check_may_wait
from .followers import Leader, leader_of, on_thread
from .lease import Lease
from .lease_state import Lost
from .locks import Readers, Writers
from .results import Found, Outcome, Results, Value, failed, patiently

#: Min seconds between two log lines about one cache or one server that is down.
_QUIET = 60.0


class Computing(Writers):
    """The right to run the function. At most one call waits for it in the queue."""

    _max_waiters, _once = 1, "skip"


class _Signal(Lease):
    """The lease of a reader. It only says that a computation has ended, so its loss is harmless."""

    __slots__ = ()

    def _lose(self, lost: Lost) -> None:
        if self._state.lose(lost.reason):
            self._renewer.forget(self.token)


class Reading(Readers):
    """A wait for the end of a computation. The caller releases the lease at once."""

    _lease = _Signal

    #: The lease duration in seconds. Up to CLAIM (see protocol/times.py), a lease needs no renewal
    #: after a handoff.
    SECONDS = 2.0

    def patience(self) -> float:
        """Return how many seconds a call waits with the current settings."""
        config = conf.current()
        waits, seconds = self._waiting(config, self._options(config), None, None)
        return seconds if waits else 0.0


#: The result of a plan if the call has to run the function without a lock.
_ALONE = object()


class _Run:
    """A run of the function. `key`: identifies the name. `ended`: True after the run."""

    __slots__ = ("__weakref__", "ended", "key")

    def __init__(self, key: Any) -> None:
        self.key, self.ended = key, False


#: The runs in which the current code is called, also in other tasks or threads than the run's own.
#: The references are weak, because an exception of a signal handler can end a run halfway.
_runs: contextvars.ContextVar[tuple[weakref.ref[_Run], ...]]
_runs = contextvars.ContextVar("runs", default=())


class Flight:
    """A call of a single_flight function.

    - `sides`: returns the two sides of the read/write lock of a name.
    - `run`: the step that runs the function.
    - `runs_on_outage`: True to run the function without a lock if Redis is unavailable.
    """

    __slots__ = (
        *("_computing", "_deadline", "_name", "_reading", "_results", "_run", "_runs_on_outage"),
        "_sides",
    )
    _computing: Computing
    _reading: Reading

    def __init__(
        self,
        name: str,
        sides: Callable[[str], tuple[Computing, Reading]],
        results: Results,
        run: Either,
        runs_on_outage: bool,
    ) -> None:
        self._name, self._sides, self._results, self._run = name, sides, results, run
        self._runs_on_outage, self._deadline = runs_on_outage, math.inf

    def plan(self) -> CallPlan:
        """Return the result of the call."""
        runs = (run for ref in _runs.get() if (run := ref()) is not None)
        if any(run.key == self._results.identity and not run.ended for run in runs):
            return (yield self._run)  # a recursive call would wait for itself
        first = yield self._look()
        if first is None:
            return (yield self._run)
        if first.fresh:
            return first.value.value
        result = yield from self._shared(first)
        return (yield self._run) if result is _ALONE else result

    # The next methods return the result, or _ALONE if the call has to run the function without a
    # lock, and without storing the result. `first`: what the cache had when the call began.

    def _shared(self, first: Found) -> CallPlan:
        """Lead the equal calls of this process, or follow one of them."""
        self._computing, self._reading = self._sides(self._name)
        patience, leader = self._reading.patience(), None
        self._deadline = clock() + patience
        while True:
            leader, is_own = leader_of(self._results.identity, leader)
            if is_own:
                try:
                    return (yield from self._lead(first, leader))
                finally:
                    leader.end()
            if (yield self._follow(leader)):
                try:
                    if leader.outage is not None:
                        raise Unavailable(*leader.outage.args)
                    found = yield self._look()
                finally:
                    leader.wake_next()
                if found is None or (news := found.news(first)):
                    return self._answer(found and news)
            if self._left() == 0:
                return (yield from self._in_vain(Rejection(TIMEOUT if patience else FULL)))

    def _lead(self, first: Found, leader: Leader) -> CallPlan:
        """Call `_fly()`. If Redis is unavailable, run the function without a lock, or raise
        Unavailable."""
        try:
            return (yield from self._fly(first, leader))
        except _Outage as outage:
            error = outage.error
        if not self._runs_on_outage:
            leader.outage = error
            raise error
        alias = self._results.identity[0]
        text = "Redis of the cache %r is unavailable: single_flight functions run without locks: %s"
        _log_seldom(("redis", alias), text, alias, error)
        return (yield from self._computed(first.generation))

    def _fly(self, first: Found, leader: Leader) -> CallPlan:
        """Run the function, or wait for a call of another process that runs it. Raise _Outage if
        Redis is unavailable."""
        # If the lease is lost, the followers must not wait for the end of the run.
        self._computing.on_lost = lambda lease: leader.end()
        got, waits = (yield self._acquire(self._computing, False)), False
        while not isinstance(got, Lease):
            if waits and self._left() == 0:
                return (yield from self._in_vain(Rejection(TIMEOUT)))
            waits, got = True, (yield self._acquire(self._reading))
            if isinstance(got, Rejection):
                return (yield from self._in_vain(got))
            yield self._release(got)  # the grant only says that the computation has ended
            found = yield self._look()
            if found is None or (news := found.news(first)):
                return self._answer(found and news)
            got = yield self._acquire(self._computing)
            if isinstance(got, Rejection) and got.reason == CLEARED:
                return (yield from self._in_vain(got))
        try:
            result = yield from self._computed_once(got, first)
        except GeneratorExit:  # a closed plan can't yield more steps
            got.release_later()
            raise
        except BaseException:
            yield self._release(got)
            raise
        yield self._release(got)
        return result

    def _computed_once(self, lease: Lease, first: Found) -> CallPlan:
        """Run the function, unless another call has run it since this call began."""
        found = yield self._look()
        if found is None or (news := found.news(first)):
            return self._answer(found and news)
        return (yield from self._computed(found.generation, lease))

    def _computed(self, generation: str | None, lease: Lease | None = None) -> CallPlan:
        """Run the function and store its result. `generation`: that of the name, or None if there
        is none yet. `lease`: None to run without a lock."""
        generation = generation or (yield self._cached(self._results.begin))
        if generation is None:
            return _ALONE
        run = _Run(self._results.identity)
        others = [ref for ref in _runs.get() if ref() is not None]
        before = _runs.set((*others, weakref.ref(run)))
        try:
            value = yield self._run
        except Exception as error:
            if lease is None or lease.held:
                yield self._cached(self._results.store_outcome, generation, error)
            raise
        finally:
            run.ended = True
            with contextlib.suppress(ValueError):  # raised if the garbage collector ends the plan
                _runs.reset(before)
        # After the lease is lost, another call may have run the function, and its value is newer.
        if lease is None or lease.held:
            yield self._of_cache(lambda: self._store(generation, value))
        return value

    def _store(self, generation: str, value: Any) -> None:
        """Store a value. If the cache can't store it, log an error, and tell those who wait."""
        try:
            patiently(self._results.store, generation, value)
        except Exception as error:
            logger.error(
                "the result of %r can't be stored in the cache %r, so each call that waits for it "
                "runs the function: %s: %s",
                *(self._name, self._results.alias, type(error).__name__, error),
            )
            self._quietly(self._results.store_outcome, generation, None)

    def _answer(self, news: Value | Outcome | None) -> Any:
        """Return or raise what this call gets from the computation of another call. `news`: None if
        the cache is down."""
        if isinstance(news, Value):
            return news.value
        if news is not None and news.kind:
            raise failed(self._name, news)
        return _ALONE

    def _in_vain(self, rejection: Rejection) -> CallPlan:
        """Return the former value, if `stale` allows it. Otherwise raise NotAcquired."""
        found = None if rejection.reason == CLEARED else (yield self._look())
        if found is not None and found.former:
            return found.value.value
        raise self._reading._error_of(rejection)

    # Steps

    def _left(self) -> float:
        """Return how many seconds this call may still wait."""
        return max(0.0, self._deadline - clock())

    def _acquire(self, side: Any, blocking: bool | None = None) -> Either:
        left = self._left()
        arguments = blocking, None if left == math.inf or blocking is False else left

        def take() -> Lease | Rejection:
            try:
                return side._take(*arguments)  # type: ignore[no-any-return]
            except Unavailable as error:
                raise _Outage(error) from error

        async def atake() -> Lease | Rejection:
            try:
                return await side._atake(*arguments)  # type: ignore[no-any-return]
            except Unavailable as error:
                raise _Outage(error) from error

        return Either(take, atake)

    def _follow(self, leader: Leader) -> Either:
        def follow() -> bool:
            check_may_wait(self._reading, "acquire")
            return leader.follow(self._left())

        return Either(follow, lambda: leader.afollow(self._left()))

    def _release(self, lease: Lease) -> Either:
        """Release a lease. A failure does not matter: a release is retried in the background, the
        loss of a lease is logged elsewhere, and a result that was computed is not wrong."""

        def release() -> None:
            try:
                lease.release()
            except SyncError as error:
                self._check_release(error)

        async def arelease() -> None:
            try:
                await lease.arelease()
            except SyncError as error:
                self._check_release(error)

        return Either(release, arelease)

    @staticmethod
    def _check_release(error: SyncError) -> None:
        if not isinstance(error, (LeaseLost, Unavailable)):
            raise error

    def _look(self) -> Either:
        return self._cached(self._results.look)

    def _cached(self, ask: Callable[..., Any], *arguments: Any) -> Either:
        """A step that calls a method of the results. Its result is None if the cache fails."""
        return self._of_cache(lambda: self._quietly(ask, *arguments))

    def _quietly(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return patiently(ask, *arguments)
        except ImproperlyConfigured:
            raise
        except Exception as error:
            alias = self._results.alias
            text = "the cache %r failed (%s: %s): single_flight functions run without it"
            _log_seldom(("cache", alias), text, alias, type(error).__name__, error)
            return None

    @staticmethod
    def _of_cache(ask: Callable[[], Any]) -> Either:
        return Either(ask, lambda: on_thread(ask))


class _Outage(Exception):
    """Redis is unavailable. `error`: the exception."""

    def __init__(self, error: Unavailable) -> None:
        super().__init__(error)
        self.error = error


_logged: dict[Any, float] = {}


def _log_seldom(about: Any, text: str, *arguments: Any) -> None:
    """Log an error, unless this process has logged an error about the same within _QUIET."""
    now = clock()
    if now >= _logged.get(about, -math.inf) + _QUIET:
        _logged[about] = now
        logger.error(text, *arguments)
