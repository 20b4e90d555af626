"""Adapters of this project's locks, and of other locks that need Django or PostgreSQL.

This is the only module of the exam that imports parts of this repository outside of the exam.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import django
import django_redis.client.default  # noqa: F401 - loaded before the workers are forked
import redis.asyncio  # noqa: F401
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from ..adapter import ALL, Adapter, Lost, Place, lost_if, poll
from ..checker import Promises
from .peers import OnLoop


def setup(place: Place) -> None:
    """Configure Django, with a cache for each Redis server."""
    if settings.configured:
        return
    backend = "django_redis.cache.RedisCache"
    urls = dict(zip(("default", "second", "third"), place.urls, strict=False))
    settings.configure(
        SECRET_KEY="only for the exam",
        USE_TZ=True,
        CACHES={name: {"BACKEND": backend, "LOCATION": url} for name, url in urls.items()},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_redis_sync"],
        RATELIMIT_BACKEND="redis",
        RATELIMIT_REDIS={"url": place.url},
        REDIS_SYNC={
            "KEY_PREFIX": "exam",
            "TIMEOUT": place.lease,
            "REQUESTS": {"max_waiters": 10_000, "on_outage": "closed"},
        },
    )
    django.setup()


class _OnDjango(Adapter):
    module, package = "django_redis_sync", "django-redis-sync"
    source = "docs/guarantees.md"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        setup(place)


class OurSemaphore(_OnDjango):
    """This project's `Semaphore`, or its `Lock` if the limit is 1."""

    promises = replace(ALL, max_wait=3)
    options: dict[str, Any] = {}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        options = {"timeout": place.lease, "renew": True, **self.options}
        lock, semaphore, name = self.library.Lock, self.library.Semaphore, place.name
        alone = place.limit == 1
        self.lock = lock(name, **options) if alone else semaphore(name, place.limit, **options)

    def acquire(self, wait: float) -> Any:
        return self.lock.acquire(blocking_timeout=wait)

    def release(self, grant: Any) -> None:
        with lost_if(self.library.LeaseLost, self.library.NotAcquired):
            grant.release()

    def held(self, grant: Any) -> bool:
        return bool(grant.held)

    def fence(self, grant: Any) -> float | None:
        return float(grant.fence)


class OurQuorum(OurSemaphore):
    """This project's quorum lock: two of three independent servers have to grant it."""

    promises = replace(OurSemaphore.promises, fair=False, fenced=False)
    options = {"using": ["default", "second", "third"]}


class OurAsyncSemaphore(OnLoop, OurSemaphore):
    """This project's semaphore, acquired and released in async code."""

    async def aacquire(self, wait: float) -> Any:
        return await self.lock.aacquire(blocking_timeout=wait)

    def release(self, grant: Any) -> None:
        with lost_if(self.library.LeaseLost, self.library.NotAcquired):
            self.run(grant.arelease())


class OurRequests(_OnDjango):
    """A view that this project limits. A request holds a permit while the view runs."""

    promises = replace(OurSemaphore.promises, reports_loss=False, fenced=False)

    def limited(self, view: Any, wait: float) -> Any:
        limit = {"limit": self.place.limit, "blocking_timeout": wait}
        return self.library.semaphore_required(self.place.name, **limit)(view)

    def acquire(self, wait: float) -> Any:
        entered, leave = threading.Event(), threading.Event()
        answer: Future[int] = Future()
        answer.add_done_callback(lambda _: entered.set())

        def view(request: HttpRequest) -> HttpResponse:
            entered.set()
            leave.wait(120)
            return HttpResponse()

        def send() -> None:
            try:
                answer.set_result(self.limited(view, wait)(RequestFactory().get("/")).status_code)
            except Exception as error:
                answer.set_exception(error)

        thread = threading.Thread(target=send, daemon=True)
        try:
            thread.start()
            entered.wait()
        except BaseException:
            leave.set()  # end the view, which waits for this event
            raise
        if not answer.done():
            return leave, thread, answer
        if answer.result() not in (429, 503):
            raise RuntimeError(f"status {answer.result()}")
        return None

    def release(self, grant: Any) -> None:
        leave, thread, answer = grant
        leave.set()
        thread.join(30)
        if answer.done():
            answer.result()


class DjangoSmartRatelimit(OurRequests):
    """A view that django-smart-ratelimit limits. That library rejects requests instead of letting
    them wait. The adapter repeats a rejected request."""

    promises = Promises()

    def limited(self, view: Any, wait: float) -> Any:
        limit = {"max_concurrent": self.place.limit, "ttl": int(self.place.lease)}
        return self.library.concurrency_limit(key=lambda *_: self.place.name, **limit)(view)

    def acquire(self, wait: float) -> Any:
        return poll(lambda: super(DjangoSmartRatelimit, self).acquire(0), wait, 0.05)


class CacheAdd(_OnDjango):
    """A lock that consists of Django's `cache.add` and `cache.delete`, as in recipes for Celery."""

    def acquire(self, wait: float) -> Any:
        name, lease = self.place.name, self.place.lease
        return poll(lambda: cache.add(name, "taken", lease) or None, wait, 0.05)

    def release(self, grant: Any) -> None:
        cache.delete(self.place.name)


class PostgresAdvisory(Adapter):
    """An advisory lock of PostgreSQL. PostgreSQL also frees the lock when the connection ends."""

    promises = Promises(lease=0, punctual=True)
    connection: Any = None

    @classmethod
    def missing(cls) -> str:
        from devtools import postgres

        return super().missing() or postgres.reason()

    @classmethod
    @contextlib.contextmanager
    def service(cls, folder: str) -> Iterator[str]:
        from devtools.postgres import Postgres

        with Postgres() as server:
            yield server.dsn

    def run(self, *words: Any) -> Any:
        if self.connection is None:
            self.connection = self.library.connect(self.place.service, autocommit=True)
        return self.connection.execute(*words)

    def acquire(self, wait: float) -> Any:
        try:
            self.run(f"SET lock_timeout = {max(1, int(wait * 1000))}")
            self.run("SELECT pg_advisory_lock(hashtext(%s))", [self.place.name])
        except self.library.errors.LockNotAvailable:
            return None
        except BaseException:
            if self.connection is not None:
                self.connection.close()
            self.connection = None
            raise
        return True

    def release(self, grant: Any) -> None:
        done = self.run("SELECT pg_advisory_unlock(hashtext(%s))", [self.place.name])
        if done.fetchone() != (True,):
            raise Lost("it is not held")
