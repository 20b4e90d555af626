"""Hold the permits of a request until the request ends.

The view's response decides when the permits are released:

- A complete response: at once.
- A streaming response: after its last byte.
- A response that Django still has to render: after the rendering.

If a transaction is open when the limited function returns, the COMMIT is still to come. Then the
permits stay with the middleware until it ends, and the response that it returns decides as above.

Django may discard the last two kinds of response earlier, because a template or a middleware raises
an exception, or because the client leaves. So the end of the request also releases the permits. The
request has ended when one of these things happens:

- Django closes the response that it sent, even if this is not the response of the view. The close
  also calls `request.close()`.
- Django sends the signal `request_finished`. Under ASGI, if the client leaves before there is a
  response, Django does not call `request.close()`. Django sends the signal in the thread that runs
  the request's sync code, after that code.
- The context in which Django handles the request is deleted. The context exists as long as a task
  or a thread runs code of the request. If a server cancels the request, Django 6.1 neither calls
  `request.close()` nor sends the signal.
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

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.core.signals import request_finished
from django.dispatch import receiver
from django.http import HttpRequest

from ..engine.threads import run_callbacks
from ..exceptions import LeaseLost, NotAcquired, Unavailable
from ..locks.lease import Lease
from ..locks.transactions import transactions_of, warn_of_race
from ..logs import logger
from ..protocol.steps import Run
from .breaker import Breaker
from .local import local_limiter
from .policy import SemaphoreId
from .state import runs_sync_code, state_of

_REMEDY = "Add ConcurrencyLimitMiddleware to MIDDLEWARE: it holds the permit until the COMMIT."

#: Time from the end of a stream to the end of max_hold: LEAD seconds, or the fraction MAX_PART of
#: max_hold if that is shorter. So the stream has stopped when the next request is admitted.
LEAD, MAX_PART = 0.5, 0.1


class RequestLease(Lease):
    """The lease of a request. If the response is a stream, the lease ends the stream shortly before
    `max_hold` has passed. `path`: the URL path of the request, for log lines."""

    # Defaults as class attributes, because most leases set only `path`.
    path = ""
    #: _hold: the Hold of the stream. _hang_up_at: the time at which this lease ends the stream.
    _hold: weakref.ref[Hold] | None = None
    _hang_up_at = math.inf

    @property
    def rejected(self) -> str:
        """The reason why the request would have been rejected without shadow mode, else ""."""
        return self._state.grant.rejected

    def ends_stream(self, hold: Hold) -> None:
        """Schedule the end of the stream of `hold`, shortly before max_hold has passed."""
        state = self._state
        most = state.settings.max_hold
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
    """A permit that a request took. `lease` is None if the request was admitted without Redis."""

    semaphore: SemaphoreId
    lease: Any
    redis: Breaker

    def failed(self, generation: int, error: Exception) -> None:
        """Log an error that a release raised. If Redis could not be reached, also report the error
        to the breaker. `generation`: the breaker's generation before the release."""
        name = self.semaphore.name
        if isinstance(error, LeaseLost):
            logger.debug("nothing to release: %s", error)  # the loss of the lease is already logged
        elif isinstance(error, Unavailable):
            self.redis.failed(generation, error)  # logs one error per outage
            logger.debug("%r will be released when Redis is available: %s", name, error)
        else:
            logger.error("releasing %r failed", name, exc_info=error)


async def racing_of_request() -> list[str]:
    """Return the databases with an open transaction in the thread of the request's sync code."""
    return await sync_to_async(transactions_of)(None) if runs_sync_code() else []


class Hold:
    """The permits that a decorator, the mixin, or the middleware took for a request."""

    # Invariant: the thread that removes a permit from `_permits` releases it. list.pop is atomic.
    __slots__ = ("__weakref__", "_ended", "_hang_up", "_permits", "held")

    def __init__(self, held: set[SemaphoreId]) -> None:
        """`held`: the semaphores from which the request has a permit, in this Hold or in
        another."""
        self._permits: list[Permit] = []
        self.held, self._ended = held, False
        self._hang_up: Callable[[], bool] | None = None

    def __bool__(self) -> bool:
        return bool(self._permits)

    def add(self, permit: Permit) -> None:
        """Add a permit, to be released with the others."""
        self._permits.append(permit)
        self.held.add(permit.semaphore)

    def release(self) -> None:
        """Release all permits. Raise nothing, and don't wait for a server that is down."""
        while self._permits and (permit := self._leave()) is not None:
            generation = permit.redis.generation
            try:
                permit.lease.release()
            except Exception as error:  # the lease renewer retries the release
                permit.failed(generation, error)

    async def arelease(self) -> None:
        """Async version of `release()`. A cancellation takes effect after the release."""
        while self._permits and (permit := self._leave()) is not None:
            generation = permit.redis.generation
            try:
                await permit.lease.arelease()
            except Exception as error:
                permit.failed(generation, error)

    def release_later(self) -> None:
        """Release all permits on another thread. Never wait: a destructor may call this."""
        if self._permits:
            run_callbacks(self.release)

    def ends_with(
        self, request: HttpRequest, response: Any = None, racing: list[str] | None = None
    ) -> bool:
        """Decide when the permits are released, now that the limited function has ended. Return
        True if the caller has to release them at once.

        If a transaction is open, the middleware releases them, after the COMMIT. Without the
        middleware, warn. `racing`: the databases with an open transaction. None: those of this
        thread.
        """
        if not self._permits:
            return False
        if racing is None:
            racing = transactions_of(None)
        if racing:
            state_of(request).racing = True
        if (racing and self.keep(request)) or self.goes_with(request, response):
            return False
        if racing:
            self._warn(racing)
        return True

    async def aends_with(self, request: HttpRequest, response: Any) -> bool:
        """Async version of `ends_with()`."""
        return bool(self) and self.ends_with(request, response, await racing_of_request())

    def keep(self, request: HttpRequest) -> bool:
        """Let the middleware release the permits when it ends. Return False if no middleware serves
        the request."""
        holds = state_of(request).holds
        if holds is None:
            return False
        holds.append(self)
        return True

    def _warn(self, racing: list[str]) -> None:
        """Warn that the permits are released before a COMMIT. `racing`: the databases."""
        for permit in self._permits[:1]:
            try:
                warn_of_race(f"The permit of {permit.semaphore.name!r}", _REMEDY, racing)
            except BaseException:  # such as the warning itself, if the project makes it an error
                self.release_later()
                raise

    def goes_with(self, request: HttpRequest, response: Any) -> bool:
        """If `response` is a stream or not rendered yet, arrange that the permits are released at
        the end of the response, and return True.

        Return False if the response is complete or the request has ended. Then the caller has to
        release the permits.
        """
        streaming = getattr(response, "streaming", False)
        if not self or not (streaming or not getattr(response, "is_rendered", True)):
            return False
        if not _release_at_end(request, self):
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
        """End the stream of this hold as if the client had left. Return False if there is no stream
        that can be ended.

        Any thread can call this method. It never waits, because the lease is about to expire.
        """
        self._ended, hang_up = True, self._hang_up
        return hang_up is not None and hang_up()

    def _watch(self, response: Any, request: HttpRequest) -> None:
        """Wrap the iterator of a stream, so that `hang_up` can end the stream. Otherwise a client
        that reads slowly could make the stream last forever.

        If the iterator raises an exception, the wrapper releases the permits. Under ASGI, Django
        doesn't close the response after such an exception.
        """
        # Don't set streaming_content: the response and the iterator would form a reference cycle,
        # which only the garbage collector frees.
        if response.is_async:
            response._iterator = self._awatched(response._iterator)
            return
        asgi = isinstance(request, ASGIRequest)
        connection = request.META.get("gunicorn.socket")
        # Some WSGI servers send a file without the iterator of the response. Then `hang_up` can end
        # the stream only through the connection.
        if connection is not None or asgi or not hasattr(response, "file_to_stream"):
            self._hang_up = partial(_shut, connection)
        response._iterator = self._watched(response._iterator, asgi)

    def _watched(self, parts: Iterable[Any], asgi: bool) -> Iterator[Any]:
        try:
            for part in parts:
                if self._ended:
                    # After this error, servers close the connection, most of them without logging.
                    raise ConnectionResetError(errno.ECONNRESET, "max_hold has passed")
                yield part
        except Exception:
            self.release()
            raise
        finally:
            # Under ASGI, Django reads a sync iterator to its end before it sends the first part. So
            # when the iterator has ended, `hang_up` can't end the stream any more.
            if asgi:
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

    def _leave(self) -> Permit | None:
        """Remove permits one by one, and return the first that the caller has to release. Return
        None if there is none.

        A permit without a lease needs no release. If Redis is down, a lease is released later, in
        the background, without the caller.
        """
        # Disable `hang_up`, because the connection may serve another request from now on.
        self._hang_up = None
        while self._permits:
            try:
                permit = self._permits.pop()
            except IndexError:
                break  # another thread removed the last permit
            self.held.discard(permit.semaphore)
            local_limiter.left(permit.semaphore, self)
            if permit.lease is not None and not permit.redis.down:
                return permit
            if permit.lease is not None:
                with contextlib.suppress(NotAcquired):  # the lease was released before
                    permit.lease.release_later()
        return None


def _shut(connection: socket.socket | None) -> bool:
    """Shut the connection down, so that a thread no longer blocks while it writes to a slow client.

    Only gunicorn gives access to the connection. With other servers, `connection` is None. Then the
    stream ends when the server asks for its next part."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    return True


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> bool:
    """Cancel the task that sends the stream, as Django does when the client leaves. Return False if
    there is no task."""
    if task is None:
        return False
    with contextlib.suppress(RuntimeError):  # the event loop is closed: the stream has ended
        loop.call_soon_threadsafe(task.cancel)
    return True


# The end of a request

#: The holds to release at the end of an ASGI request. The key is the context in which Django
#: handles the request.
_at_end = weakref.WeakKeyDictionary[ThreadSensitiveContext, list[Hold]]()


def _release_at_end(request: HttpRequest, hold: Hold) -> bool:
    """Release `hold` when the request ends. Return False if the request has already ended."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None:
        if context.token is None:  # Django has left the context: the request has ended
            return False
        weakref.finalize(context, hold.release_later).atexit = False
        _at_end.setdefault(context, []).append(hold)
    known = request.__dict__.get("close")
    request.__dict__["close"] = partial(_close, weakref.ref(request), known, hold)
    return True


def _close(
    reference: weakref.ref[HttpRequest], known: Callable[[], None] | None, hold: Hold
) -> None:
    """Do what `request.close()` did before, and also release the permits. `known`: an earlier
    replacement of `request.close`, or None."""
    request = reference()
    if known is not None:
        known()
    elif request is not None:
        type(request).close(request)
    hold.release()


# Connect at import, not in a view: Django may look up the receivers before the view ends.
@receiver(request_finished)
def _finished(**_: Any) -> None:
    context = SyncToAsync.thread_sensitive_context.get(None)
    for hold in () if context is None else _at_end.pop(context, ()):
        hold.release()
