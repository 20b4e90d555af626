"""Ours: Lock, Semaphore, a quorum, and the limit of requests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import django
import django_redis.client.default  # noqa: F401 - that the workers have it before they are forked
import redis.asyncio  # noqa: F401
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from ..adapter import Adapter, Lost, Place


def setup(place: Place) -> None:
    """Django, with a cache for each server."""
    if settings.configured:
        return
    backend = "django_redis.cache.RedisCache"
    urls = dict(zip(("default", "second", "third"), place.urls, strict=False))
    settings.configure(
        SECRET_KEY="only for the exam",
        USE_TZ=True,
        CACHES={name: {"BACKEND": backend, "LOCATION": url} for name, url in urls.items()},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_redis_sync"],
        REDIS_SYNC={
            "KEY_PREFIX": "exam",
            "TIMEOUT": place.lease,
            "REQUESTS": {"max_waiters": 10_000, "on_outage": "closed"},
        },
    )
    django.setup()


class Ours(Adapter):
    """A semaphore of this project: its lease is renewed while its process goes on."""

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place)
        setup(place)
        from django_redis_sync import Semaphore

        self._semaphore = Semaphore(
            place.name, place.limit, timeout=place.lease, renew=True, **options
        )

    def acquire(self, wait: float) -> Any:
        return self._semaphore.acquire(blocking_timeout=wait)

    def release(self, grant: Any) -> None:
        from django_redis_sync import LeaseLost, NotAcquired

        try:
            grant.release()
        except (LeaseLost, NotAcquired) as error:
            raise Lost(str(error)) from error

    def held(self, grant: Any) -> bool:
        return bool(grant.held)

    def fence(self, grant: Any) -> float | None:
        return float(grant.fence)

    async def aacquire(self, wait: float) -> Any:
        return await self._semaphore.aacquire(blocking_timeout=wait)


class OursQuorum(Ours):
    """Three independent servers, of which two have to agree."""

    def __init__(self, place: Place) -> None:
        Adapter.__init__(self, place)
        setup(place)
        from django_redis_sync import Lock

        names = ["default", "second", "third"]
        self._semaphore = Lock(place.name, timeout=place.lease, renew=True, using=names)


class OursAsync(Ours):
    """The same on an event loop, which has a thread of its own here."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loop = Loop()

    def acquire(self, wait: float) -> Any:
        return self._loop.run(self._semaphore.aacquire(blocking_timeout=wait))

    def release(self, grant: Any) -> None:
        from django_redis_sync import LeaseLost, NotAcquired

        try:
            self._loop.run(grant.arelease())
        except (LeaseLost, NotAcquired) as error:
            raise Lost(str(error)) from error


class Loop:
    """An event loop on a thread, started by the first who needs it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, body: Any) -> Any:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True).start()
            self._loop = loop
        future = asyncio.run_coroutine_threadsafe(body, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was thrown out
            raise


class Request(Adapter):
    """A view under a limit: to hold is to be inside of the view."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        setup(place)
        self._factory = RequestFactory()

    def limited(self, view: Any, wait: float) -> Any:
        from django_redis_sync import semaphore_required

        name, limit = self.place.name, self.place.limit
        return semaphore_required(name, limit=limit, blocking_timeout=wait)(view)

    def acquire(self, wait: float) -> Any:
        entered, leave = threading.Event(), threading.Event()
        answered: list[Any] = []

        def view(request: HttpRequest) -> HttpResponse:
            entered.set()
            leave.wait(120)
            return HttpResponse()

        def visit() -> None:
            request: WSGIRequest = self._factory.get("/")
            try:
                answered.append(self.limited(view, wait)(request))
            except Exception as error:
                answered.append(error)
            entered.set()

        thread = threading.Thread(target=visit, daemon=True)
        try:
            thread.start()
            entered.wait()
        except BaseException:
            leave.set()  # the caller was thrown out
            raise
        if not answered:
            return leave, thread, answered
        return self.refused(answered[0])

    def refused(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        if answer.status_code not in (429, 503):
            raise RuntimeError(f"status {answer.status_code}")

    def release(self, grant: Any) -> None:
        leave, thread, answered = grant
        leave.set()
        thread.join(30)
        if answered and isinstance(answered[0], Exception):
            raise answered[0]
