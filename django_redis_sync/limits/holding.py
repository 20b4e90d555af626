"""What a request holds: given back exactly once, by whoever comes first, from any thread."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest

from ..exceptions import LeaseLost, Unavailable
from ..locks.lease import Lease
from ..logs import logger
from .outage import Breaker
from .policy import Place

#: The attribute of a request that says which semaphores it holds, and the one that says which
#: policies it has passed already.
_NOTE, PASSED = "_redis_sync_held", "_redis_sync_passed"


class Permit(NamedTuple):
    """What was taken of one semaphore for the request at `where` (its path).

    `lease`: held at Redis, if it is; `leave` gives back the place in this process. `refused`: why
    it would have been refused, were the policy enforced; empty when it would not.
    """

    place: Place
    lease: Lease | None
    leave: Callable[[], None]
    redis: Breaker
    where: str
    refused: str = ""

    def release(self) -> None:
        """Give the lease back. Raises nothing: what fails is tried again by the keeper."""
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
            logger.error("a request to %s went on after its lease was lost: %s", self.where, error)
        elif isinstance(error, Unavailable):
            self.redis.failed(era, error)  # which says so, once per outage
            logger.debug("%r will be released when Redis is back: %s", lease.name, error)
        else:
            logger.error("releasing %r failed", lease.name, exc_info=error)


class Hold:
    """The permits that one decorator, mixin or middleware took for one request."""

    # Invariant: whoever pops a permit gives it back; list.pop is atomic, so nobody else does.
    __slots__ = ("__weakref__", "_asgi", "_backstop", "_note", "_permits")

    def __init__(self, request: HttpRequest) -> None:
        self._permits: list[Permit] = []
        self._note = note_of(request)
        self._asgi = isinstance(request, ASGIRequest)
        self._backstop: weakref.finalize[..., Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._permits)

    def add(self, permit: Permit) -> None:
        self._permits.append(permit)
        self._note.add(permit.place)

    def release(self) -> None:
        """Give back what is left. Raises nothing, and waits for no server that is down."""
        for permit in self._leaving():
            permit.release()

    async def arelease(self) -> None:
        """As release. A cancellation waits until all is given back."""
        for permit in self._leaving():
            await permit.arelease()

    def release_later(self) -> None:
        """Give back what is left, on another thread. Never blocks: it runs when memory is freed."""
        _reaper().give(self)

    def goes_with(self, response: Any) -> bool:
        """Whether the response is not over yet, and releases this hold from now on when it is.

        What is dropped without an end (the client left, another response replaced it) counts too.
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
        else:
            response.add_post_render_callback(self._rendered)
        return True

    def _watch(self, response: Any) -> None:
        """Release when iterating fails: under ASGI, Django does not close such a response."""
        # Not by way of streaming_content: a response that its own iterator refers to would stay
        # until the garbage collector comes.
        if response.is_async:
            response._iterator = self._awatched(response._iterator)
        elif self._asgi:
            response._iterator = self._watched(response._iterator)

    def _watched(self, parts: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from parts
        except Exception:
            self.release()
            raise

    async def _awatched(self, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        try:
            async for part in parts:
                yield part
        except Exception:
            await self.arelease()
            raise

    def _rendered(self, response: Any) -> None:
        self.release()

    def _leaving(self) -> Iterator[Permit]:
        """The permits whose leases have to be released now, each once."""
        if self._backstop is not None:
            self._backstop.detach()
        while True:
            try:
                permit = self._permits.pop()
            except IndexError:
                return
            self._note.discard(permit.place)
            permit.leave()
            if permit.redis.down:
                permit.release_later()
            else:
                yield permit


def note_of(request: HttpRequest) -> set[Place]:
    """The semaphores that a request holds already, whoever took them."""
    note: set[Place] | None = getattr(request, _NOTE, None)
    if note is None:
        note = set()
        setattr(request, _NOTE, note)
    return note


class _Reaper:
    """Releases what was dropped without being closed, off the request.

    Its thread is there before it is needed: the garbage collector can start none.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._dropped: queue.SimpleQueue[Hold] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._run, name="redis-sync-reaper", daemon=True
                    )
                    thread.start()
                    self._thread = thread

    def give(self, dropped: Hold) -> None:
        self._dropped.put(dropped)

    def _run(self) -> None:
        while True:
            self._dropped.get().release()


_reapers: dict[int, _Reaper] = {}


def _reaper() -> _Reaper:
    """This process's own: a fork starts with none."""
    pid = os.getpid()
    found = _reapers.get(pid)
    return found if found is not None else _reapers.setdefault(pid, _Reaper())
