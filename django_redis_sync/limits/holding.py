"""The permits of a request: given back exactly once, by the first to try, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from ..engine.threads import Worker
from ..exceptions import LeaseLost, Unavailable
from ..locks.lease import Lease
from ..logs import logger
from ..protocol.plans import Run
from .outage import Breaker
from .policy import Place
from .rooms import rooms

#: The attribute of a request that says which semaphores it holds, and the one that says which
#: policies it has passed already.
_NOTE, PASSED = "_redis_sync_held", "_redis_sync_passed"


#: Seconds before its lease is over that a stream is ended, so that no other gets in meanwhile; and
#: the part of max_hold that this may be at the most.
LEAD, PART = 0.5, 0.1


class RequestLease(Lease):
    """A lease of the request at `path`. A stream ends with it, and its log line says the path."""

    # No slots: most have no more than these.
    path = ""
    #: The hold of a stream that ends with it, and when that is.
    _hold: weakref.ref[Hold] | None = None
    _hang_up_at = math.inf

    @property
    def refused(self) -> str:
        """Why it would have been refused, were the policy enforced."""
        return self._state.grant.refused

    def ends_stream(self, hold: Hold) -> None:
        """Have the stream that goes with `hold` hung up when this is over."""
        state = self._state
        most = state.terms.max_hold
        self._hold = weakref.ref(hold)
        self._hang_up_at = state.grant.began + most - min(LEAD, PART * most)
        self.keeper.moved(self, self.token)

    @property
    def due(self) -> float:
        return min(self._hang_up_at, self._state.due)

    def tend(self, now: float) -> Run | None:
        if now >= self._hang_up_at:
            self._hang_up()
        return super().tend(now) if now >= self._state.due else None

    def _hang_up(self) -> None:
        self._hang_up_at = math.inf
        hold = None if self._hold is None else self._hold()
        if hold is not None and hold.hang_up():
            said = "the stream of %s is ended: it held its permit of %r for all of max_hold"
            logger.warning(said, self.path, self.name)

    def say_lost(self, reason: str) -> None:
        said = "a request to %s goes on, and its permit of %r is lost: %s"
        logger.error(said, self.path, self.name, reason)


class Permit(NamedTuple):
    """The permit taken of a semaphore for a request.

    `lease`: held at Redis, if it is. `refused`: why it would have been refused, were the policy
    enforced; empty when it would not.
    """

    place: Place
    lease: RequestLease | None
    redis: Breaker
    refused: str = ""

    def release(self) -> None:
        """Give the lease back. Raises nothing: the keeper retries a failure."""
        if self.lease is not None:
            era = self.redis.era
            try:
                self.lease.release()
            except Exception as error:
                self._failed(self.lease, era, error)

    async def arelease(self) -> None:
        """As release. A cancellation waits until it is given back."""
        if self.lease is not None:
            era = self.redis.era
            try:
                await self.lease.arelease()
            except Exception as error:
                self._failed(self.lease, era, error)

    def release_later(self) -> None:
        """As release, by the keeper when Redis is back. Waits for nothing."""
        if self.lease is not None:
            try:
                self.lease.release_later()
            except Exception as error:
                self._failed(self.lease, self.redis.era, error)

    def _failed(self, lease: Lease, era: int, error: Exception) -> None:
        if isinstance(error, LeaseLost):
            logger.debug("nothing to release: %s", error)  # which was said when it was lost
        elif isinstance(error, Unavailable):
            self.redis.failed(era, error)  # which says so, once per outage
            logger.debug("%r will be released when Redis is back: %s", lease.name, error)
        else:
            logger.error("releasing %r failed", lease.name, exc_info=error)


class Hold:
    """The permits that a decorator, mixin or middleware took for a request."""

    # Invariant: the thread that pops a permit gives it back, alone: list.pop is atomic.
    __slots__ = (
        "__weakref__",
        "_backstop",
        "_hang_up",
        "_of",
        "_over",
        "_permits",
        "note",
    )

    def __init__(self, request: HttpRequest) -> None:
        self._permits: list[Permit] = []
        self.note: set[Place] = request.__dict__.setdefault(_NOTE, set())
        # Not the request: it refers to this, and the circle would wait for the garbage collector.
        self._of = type(request), request.META
        self._over = False
        self._hang_up: Callable[[], bool] | None = None
        self._backstop: weakref.finalize[..., Any] | None = None

    @property
    def _asgi(self) -> bool:
        return issubclass(self._of[0], ASGIRequest)

    def __bool__(self) -> bool:
        return bool(self._permits)

    def add(self, permit: Permit) -> Permit:
        """Have it given back with the rest."""
        self._permits.append(permit)
        self.note.add(permit.place)
        return permit

    def let_in(self, permit: Permit) -> None:
        """As add, of the only permit of a request that Redis has let in."""
        place = permit.place
        rooms().came(place, self)
        self._permits.append(permit)
        self.note.add(place)

    def has(self, lease: RequestLease) -> bool:
        """Whether the lease is given back with the rest."""
        return any(permit.lease is lease for permit in list(self._permits))

    def release(self) -> None:
        """Give back the rest. Raises nothing, and waits for no server that is down."""
        while self._permits and (permit := self._leave()) is not None:
            permit.release()

    async def arelease(self) -> None:
        """As release. A cancellation waits until all is given back."""
        while self._permits and (permit := self._leave()) is not None:
            await permit.arelease()

    def release_later(self) -> None:
        """Give back the rest, on another thread. Never blocks: it runs when memory is freed."""
        _reaper().give(self)

    def goes_with(self, response: Any) -> bool:
        """Whether the response is not over yet, and releases this hold from now on when it is.

        A response dropped unfinished (the client left, another response replaced it) counts too.
        """
        streaming = getattr(response, "streaming", False)
        if not self or not (streaming or not getattr(response, "is_rendered", True)):
            return False
        _reaper().start()
        self._backstop = weakref.finalize(response, self.release_later)
        self._backstop.atexit = False
        if streaming:
            response._resource_closers.append(self.release)
            self._watch(response)
            for permit in list(self._permits):
                if permit.lease is not None:
                    permit.lease.ends_stream(self)
        else:
            response.add_post_render_callback(self._rendered)
        return True

    def hang_up(self) -> bool:
        """End the stream that goes with this hold, as if its client had left; whether there is one.

        From any thread, and waits for nothing: its lease is nearly over, and a waiter gets in then.
        """
        self._over, hang_up = True, self._hang_up
        return hang_up is not None and hang_up()

    def _watch(self, response: Any) -> None:
        """Release when iterating fails: under ASGI, Django does not close such a response. End it
        when the lease is over: a client that reads slowly may make it last for ever."""
        # Not by way of streaming_content: a response that its own iterator refers to would stay
        # until the garbage collector comes.
        if response.is_async:
            response._iterator = self._awatched(response._iterator)
        else:
            connection = self._of[1].get("gunicorn.socket")
            if connection is not None or self._asgi or not hasattr(response, "file_to_stream"):
                self._hang_up = partial(_shut, connection)
            response._iterator = self._watched(response._iterator)

    def _watched(self, parts: Iterable[Any]) -> Iterator[Any]:
        try:
            for part in parts:
                if self._over:
                    # Servers close the connection, and most make no noise about it.
                    raise ConnectionResetError(errno.ECONNRESET, "max_hold of this stream is over")
                yield part
        except Exception:
            self.release()
            raise
        finally:
            if self._asgi:  # it was read whole, and is still to be sent
                self._hang_up = None

    async def _awatched(self, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._hang_up = partial(_cancel, asyncio.get_running_loop(), asyncio.current_task())
        try:
            async for part in parts:
                yield part
        except Exception:
            await self.arelease()
            raise
        finally:
            self._hang_up = None

    def _rendered(self, response: Any) -> None:
        self.release()

    def _leave(self) -> Permit | None:
        """The next permit to release now, each once."""
        if self._backstop is not None:
            self._hang_up = None  # the connection may serve another request by now
            self._backstop.detach()
        while self._permits:
            try:
                permit = self._permits.pop()
            except IndexError:
                break  # by another thread
            place = permit.place
            self.note.discard(place)
            rooms().went(place, self)
            if not permit.redis.down:
                return permit
            permit.release_later()
        return None


def _shut(connection: socket.socket | None) -> bool:
    """A thread that is stuck writing to a slow client can be freed in no other way. Only gunicorn
    says which socket it is; elsewhere the stream ends with its next part."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    return True


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> bool:
    """As Django does when the client leaves."""
    if task is None:
        return False
    with contextlib.suppress(RuntimeError):  # the loop is over, and so is the stream
        loop.call_soon_threadsafe(task.cancel)
    return True


def note_of(request: HttpRequest) -> set[Place]:
    """The semaphores that a request holds already, from any decorator, mixin or middleware."""
    note: set[Place] = request.__dict__.setdefault(_NOTE, set())
    return note


class _Reaper:
    """Releases the permits of dropped, never closed responses, off the request."""

    def __init__(self) -> None:
        self._dropped: deque[Hold] = deque()
        self._worker = Worker("redis-sync-reaper", self._turn, self._earliest)

    def start(self) -> None:
        """Have the thread there before it is needed: at the garbage collector's time there may be
        no starting it. Permits dropped without a thread are released by the next."""
        if not self._worker.runs:
            self._worker.rouse()

    def give(self, dropped: Hold) -> None:
        self._dropped.append(dropped)
        self._worker.rouse()

    def _earliest(self) -> float:
        return -math.inf if self._dropped else math.inf

    def _turn(self) -> float:
        while self._dropped:
            try:
                self._dropped.popleft().release()
            except Exception:
                logger.exception("releasing what was dropped without an end failed")
        return math.inf


_reapers: dict[int, _Reaper] = {}


def _reaper() -> _Reaper:
    """This process's own: a fork starts with none."""
    pid = os.getpid()
    found = _reapers.get(pid)
    return found if found is not None else _reapers.setdefault(pid, _Reaper())
