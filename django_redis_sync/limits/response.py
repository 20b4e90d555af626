"""Hold the permits of a request until the request ends.

If a view returns a complete response, its permits are released at once. For a stream, or a response
that Django still has to render, they are released when its last byte was sent or it was rendered.
Such a response may be discarded before: a template or a middleware raises, or the client leaves. So
the permits are released at the end of the request if that is earlier.

Django reports the end of a request in two ways. It calls `request.close()` when it closes the
response that it sent, which may be another one than the view's. Under ASGI, if the client left
before there was a response, it only sends `request_finished`, in the thread of the request's sync
code and therefore after that code. If a server cancels the request, Django 6.1 does neither. Then
the request ends with the task that sends the response, and with the context in which Django handles
the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.handlers.asgi import ASGIRequest
from django.core.signals import request_finished
from django.dispatch import receiver
from django.http import HttpRequest

from ..engine.threads import run_callbacks
from ..exceptions import LeaseLost, Unavailable
from ..locks.lease import Lease
from ..logs import logger
from ..protocol.steps import Run
from .breaker import Breaker
from .local import local_limiter
from .policy import SemaphoreKey

#: The attribute of a request with the semaphores that it holds.
_NOTE = "_redis_sync_held"
#: The attribute of a request with the policies that the middleware has applied.
PASSED = "_redis_sync_passed"

#: A stream is ended LEAD seconds before its lease expires, so that it has stopped when the next
#: request is admitted. MAX_PART: the largest part of max_hold for that.
LEAD, MAX_PART = 0.5, 0.1


class RequestLease(Lease):
    """The lease of a request to `path`. It ends the request's stream, and logs the path."""

    # Class attributes: most leases don't change more than `path`.
    path = ""
    #: The hold whose stream ends with this lease, and the time to end the stream.
    _hold: weakref.ref[Hold] | None = None
    _hang_up_at = math.inf

    @property
    def rejected(self) -> str:
        """The reason why the request would have been rejected without shadow mode, else ""."""
        return self._state.grant.rejected

    def ends_stream(self, hold: Hold) -> None:
        """Schedule the end of the stream of `hold`, shortly before max_hold has passed."""
        state = self._state
        most = state.terms.max_hold
        self._hold = weakref.ref(hold)
        self._hang_up_at = state.grant.began + most - min(LEAD, MAX_PART * most)
        self._renewer.moved(self, self.token)

    @property
    def _due(self) -> float:
        return min(self._hang_up_at, self._state.due)

    def _next_renewal(self, now: float) -> Run | None:
        if now >= self._hang_up_at:
            self._hang_up()
        return super()._next_renewal(now) if now >= self._state.due else None

    def _hang_up(self) -> None:
        self._hang_up_at = math.inf
        hold = None if self._hold is None else self._hold()
        if hold is not None and hold.hang_up():
            message = "the stream of %s was ended: it held its permit of %r for max_hold"
            logger.warning(message, self.path, self.name)

    def _log_lost(self, reason: str) -> None:
        message = "a request to %s continues although it lost its permit of %r: %s"
        logger.error(message, self.path, self.name, reason)


class Permit(NamedTuple):
    """The permit of a semaphore that a request took. `lease` is None if Redis was down."""

    place: SemaphoreKey
    lease: RequestLease | None
    redis: Breaker

    def release(self) -> None:
        """Release the lease. Raise nothing: the lease renewer retries a failed release."""
        if self.lease is not None:
            generation = self.redis.generation
            try:
                self.lease.release()
            except Exception as error:
                self._failed(self.lease, generation, error)

    async def arelease(self) -> None:
        """Async version of `release()`. A cancellation takes effect after the release."""
        if self.lease is not None:
            generation = self.redis.generation
            try:
                await self.lease.arelease()
            except Exception as error:
                self._failed(self.lease, generation, error)

    def release_later(self) -> None:
        """Release the lease in the background. Never wait."""
        if self.lease is not None:
            try:
                self.lease.release_later()
            except Exception as error:
                self._failed(self.lease, self.redis.generation, error)

    def _failed(self, lease: Lease, generation: int, error: Exception) -> None:
        if isinstance(error, LeaseLost):
            logger.debug("nothing to release: %s", error)  # the loss was logged before
        elif isinstance(error, Unavailable):
            self.redis.failed(generation, error)  # logs it once per outage
            message = "%r will be released when Redis is available: %s"
            logger.debug(message, lease.name, error)
        else:
            logger.error("releasing %r failed", lease.name, exc_info=error)


class Hold:
    """The permits that a decorator, the mixin, or the middleware took for a request."""

    # Invariant: each permit is released by the one thread that pops it. list.pop is atomic.
    __slots__ = ("__weakref__", "_ended", "_hang_up", "_permits", "_request", "note")

    def __init__(self, request: HttpRequest) -> None:
        self._permits: list[Permit] = []
        self.note = note_of(request)
        # A weak reference, because the middleware's request has a reference to its hold.
        self._request = weakref.ref(request)
        self._ended = False
        self._hang_up: Callable[[], bool] | None = None

    def __bool__(self) -> bool:
        return bool(self._permits)

    def add(self, permit: Permit) -> Permit:
        """Add a permit, to be released with the others, and return it."""
        self._permits.append(permit)
        self.note.add(permit.place)
        return permit

    def has(self, lease: RequestLease) -> bool:
        """Return True if `lease` is among the permits."""
        return any(permit.lease is lease for permit in list(self._permits))

    def release(self) -> None:
        """Release all permits. Raise nothing, and don't wait for a server that is down."""
        while self._permits and (permit := self._leave()) is not None:
            permit.release()

    async def arelease(self) -> None:
        """Async version of `release()`. A cancellation takes effect after the release."""
        while self._permits and (permit := self._leave()) is not None:
            await permit.arelease()

    def release_later(self) -> None:
        """Release all permits on another thread. Never wait: a destructor may call this."""
        if self._permits:
            run_callbacks(self.release)

    def goes_with(self, response: Any) -> bool:
        """If `response` is not complete, release the permits at its end, and return True.

        Return False if the caller has to release them now, because the response is complete or the
        request has ended.
        """
        streaming = getattr(response, "streaming", False)
        if not self or not (streaming or not getattr(response, "is_rendered", True)):
            return False
        request = self._request()
        if request is None or not _release_at_end(request, self):
            return False
        if streaming:
            response._resource_closers.append(self.release)
            self._watch(response, request)
            for permit in list(self._permits):
                if permit.lease is not None:
                    permit.lease.ends_stream(self)
        else:
            response.add_post_render_callback(lambda _: self.release())
        return True

    def hang_up(self) -> bool:
        """End the stream of this hold as if its client had left. Return False if there is none.

        Any thread may call this. It never waits, because the lease expires soon.
        """
        self._ended, hang_up = True, self._hang_up
        return hang_up is not None and hang_up()

    def _watch(self, response: Any, request: HttpRequest) -> None:
        """Wrap the iterator of a stream.

        If it raises, the permits are released: under ASGI, Django doesn't close such a response.
        `hang_up` can end it: otherwise a client that reads slowly could make it last forever.
        """
        # Not through streaming_content: that makes a reference cycle of response and iterator,
        # which only the garbage collector frees.
        if response.is_async:
            response._iterator = self._awatched(response._iterator)
            return
        asgi = isinstance(request, ASGIRequest)
        connection = request.META.get("gunicorn.socket")
        # The server may send a file without iterating over the response.
        if connection is not None or asgi or not hasattr(response, "file_to_stream"):
            self._hang_up = partial(_shut, connection)
        response._iterator = self._watched(response._iterator, asgi)

    def _watched(self, parts: Iterable[Any], asgi: bool) -> Iterator[Any]:
        try:
            for part in parts:
                if self._ended:
                    # For this error, servers close the connection, most of them without a log line.
                    raise ConnectionResetError(errno.ECONNRESET, "max_hold has passed")
                yield part
        except Exception:
            self.release()
            raise
        finally:
            if asgi:  # Django reads all parts before it sends the first one
                self._hang_up = None

    async def _awatched(self, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        task = asyncio.current_task()
        self._hang_up = partial(_cancel, asyncio.get_running_loop(), task)
        if task is not None:
            # If the task is cancelled while it sends, Django 6.1 doesn't close the response.
            task.add_done_callback(lambda _: self.release_later())
        try:
            async for part in parts:
                yield part
        except Exception:
            await self.arelease()
            raise
        finally:
            self._hang_up = None

    def _leave(self) -> Permit | None:
        """Return the next permit to release now, or None. No other caller gets it. If Redis is
        down, release permits in the background instead."""
        self._hang_up = None  # the connection may already serve another request
        while self._permits:
            try:
                permit = self._permits.pop()
            except IndexError:
                break  # another thread popped the last one
            place = permit.place
            self.note.discard(place)
            local_limiter.left(place, self)
            if not permit.redis.down:
                return permit
            permit.release_later()
        return None


def _shut(connection: socket.socket | None) -> bool:
    """Shut the connection down, which frees a thread that is stuck in writing to a slow client.
    Only gunicorn gives access to the connection. With other servers, the stream ends at its next
    part."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    return True


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> bool:
    """Cancel the task, as Django does when the client leaves."""
    if task is None:
        return False
    with contextlib.suppress(RuntimeError):  # the loop is closed, so the stream has ended
        loop.call_soon_threadsafe(task.cancel)
    return True


def note_of(request: HttpRequest) -> set[SemaphoreKey]:
    """Return the semaphores of which a request holds permits, from any decorator, mixin, or
    middleware."""
    note: set[SemaphoreKey] = request.__dict__.setdefault(_NOTE, set())
    return note


# The end of a request

#: The holds to release when an ASGI request ends, by the context in which Django handles it.
_at_end: weakref.WeakKeyDictionary[ThreadSensitiveContext, list[Hold]]
_at_end = weakref.WeakKeyDictionary()


def _release_at_end(request: HttpRequest, hold: Hold) -> bool:
    """Release `hold` when the request ends. Return False if it has ended already."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None:
        if context.token is None:  # Django has left it
            return False
        holds = _at_end.get(context)
        if holds is None:
            holds = _at_end[context] = []
            # If the server cancels the request, Django 6.1 reports its end in neither way. The
            # context exists as long as threads run code of the request.
            weakref.finalize(context, _release_rest, holds).atexit = False
        holds.append(hold)
    closing = request.__dict__.get("close")
    if not isinstance(closing, _Close):
        closing = request.__dict__["close"] = _Close(request)
    closing.holds.append(hold)
    return True


class _Close:
    """Replacement of `request.close()` that also releases `holds`."""

    def __init__(self, request: HttpRequest) -> None:
        self._request, self.holds = weakref.ref(request), list[Hold]()

    def __call__(self) -> None:
        request = self._request()
        if request is not None:
            type(request).close(request)
        for hold in self.holds:
            hold.release()


# Connected at import: Django may cache the receivers before the view returns.
@receiver(request_finished)
def _finished(**_: Any) -> None:
    context = SyncToAsync.thread_sensitive_context.get(None)
    for hold in () if context is None else _at_end.pop(context, ()):
        hold.release()


def _release_rest(holds: list[Hold]) -> None:
    for hold in holds:
        hold.release_later()
