"""Adapters of this project, and of locks that need Django or a PostgreSQL server.

No other module of the exam imports from this repository.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import django
import django_redis.client.default  # noqa: F401 - loaded before the workers are forked
import redis.asyncio  # noqa: F401
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from ..adapter import ALL, LEASE, Adapter, Lost, Place, lost_if, poll
from ..checker import Claims
from .peers import Loop


def setup(place: Place) -> None:
    """Set up Django, with a cache for each server."""
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


class _OnDjango(Adapter):
    module, package = "django_redis_sync", "django-redis-sync"
    source = "docs/guarantees.md"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        setup(place)


class OurSemaphore(_OnDjango):
    title = "Semaphore"
    limit = 2
    claims = replace(ALL, within=3)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._semaphore = self.semaphore(timeout=place.lease, renew=True)

    def semaphore(self, **options: Any) -> Any:
        return self.library.Semaphore(self.place.name, self.place.limit, **options)

    def acquire(self, wait: float) -> Any:
        return self._semaphore.acquire(blocking_timeout=wait)

    def release(self, grant: Any) -> None:
        with lost_if(self.library.LeaseLost, self.library.NotAcquired):
            grant.release()

    def held(self, grant: Any) -> bool:
        return bool(grant.held)

    def fence(self, grant: Any) -> float | None:
        return float(grant.fence)


class OurLock(OurSemaphore):
    title = "Lock"
    limit = 1

    def semaphore(self, **options: Any) -> Any:
        return self.library.Lock(self.place.name, **options)


class OurQuorum(OurLock):
    """Three independent servers, of which two have to agree."""

    title = "… by a quorum"
    needs = "quorum"
    claims = replace(OurSemaphore.claims, fair=False, fenced=False)

    def semaphore(self, **options: Any) -> Any:
        return super().semaphore(using=["default", "second", "third"], **options)


class OurAsyncSemaphore(OurSemaphore):
    """The semaphore in async code, on an event loop in a thread."""

    title = "… in async code"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loop = Loop()

    async def aacquire(self, wait: float) -> Any:
        return await self._semaphore.aacquire(blocking_timeout=wait)

    def acquire(self, wait: float) -> Any:
        return self._loop.run(self.aacquire(wait))

    def release(self, grant: Any) -> None:
        with lost_if(self.library.LeaseLost, self.library.NotAcquired):
            self._loop.run(grant.arelease())


class OurRequests(_OnDjango):
    """A limited view. A request holds the permit while it is inside the view."""

    title = "… of requests"
    limit = 2
    claims = replace(OurSemaphore.claims, told=False, fenced=False)
    cannot = {
        "crowd-killed": "a process lets some of its requests wait, and rejects others",
        "second-release": "a request ends once",
    }

    def limited(self, view: Any, wait: float) -> Any:
        limit = {"limit": self.place.limit, "blocking_timeout": wait}
        return self.library.semaphore_required(self.place.name, **limit)(view)

    def acquire(self, wait: float) -> Any:
        entered, leave = threading.Event(), threading.Event()
        answered: list[Any] = []

        def view(request: HttpRequest) -> HttpResponse:
            entered.set()
            leave.wait(120)
            return HttpResponse()

        def visit() -> None:
            try:
                answered.append(self.limited(view, wait)(RequestFactory().get("/")))
            except Exception as error:
                answered.append(error)
            entered.set()

        thread = threading.Thread(target=visit, daemon=True)
        try:
            thread.start()
            entered.wait()
        except BaseException:
            leave.set()  # the caller was interrupted
            raise
        if not answered:
            return leave, thread, answered
        if isinstance(answered[0], Exception):
            raise answered[0]
        if answered[0].status_code not in (429, 503):
            raise RuntimeError(f"status {answered[0].status_code}")
        return None

    def release(self, grant: Any) -> None:
        leave, thread, answered = grant
        leave.set()
        thread.join(30)
        if answered and isinstance(answered[0], Exception):
            raise answered[0]


class DjangoSmartRatelimit(OurRequests):
    """A decorator that never waits, so a rejected client sends the request again."""

    title = "django-smart-ratelimit"
    module, package = "django_smart_ratelimit", "django-smart-ratelimit"
    source = "docstring of concurrency_limit, django-smart-ratelimit 4.12.1"
    claims = Claims(lease=LEASE)
    quotes = {
        "lease": "ttl: Seconds after which a held slot is assumed leaked and reclaimed",
    }
    cannot = {"second-release": "a request ends once"}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        settings.RATELIMIT_BACKEND = "redis"
        settings.RATELIMIT_REDIS = {"url": place.url}

    def limited(self, view: Any, wait: float) -> Any:
        limit = {"max_concurrent": self.place.limit, "ttl": int(self.place.lease)}
        return self.library.concurrency_limit(key=lambda *_: self.place.name, **limit)(view)

    def acquire(self, wait: float) -> Any:
        return poll(lambda: super(DjangoSmartRatelimit, self).acquire(0), wait, 0.05)


class CacheAdd(_OnDjango):
    """Django's cache.add and cache.delete, as in recipes for tasks."""

    title = "cache.add"
    module = package = "django"
    source = "https://docs.djangoproject.com/en/5.2/topics/cache/#basic-usage"
    claims = Claims(lease=LEASE)
    quotes = {
        "lease": "The timeout argument […] is the number of seconds the value should be stored in "
        "the cache.",
    }

    def acquire(self, wait: float) -> Any:
        name, lease = self.place.name, self.place.lease
        return poll(lambda: cache.add(name, "taken", lease) or None, wait, 0.05)

    def release(self, grant: Any) -> None:
        cache.delete(self.place.name)


class PostgresAdvisory(Adapter):
    """An advisory lock of a session. It is held until the connection ends."""

    title = "PostgreSQL advisory lock"
    needs = ""
    module = "psycopg"
    source = "https://www.postgresql.org/docs/15/explicit-locking.html#ADVISORY-LOCKS"
    claims = Claims(lease=0, punctual=True)
    quotes = {
        "lease": "Once acquired at session level, an advisory lock is held until explicitly "
        "released or the session ends.",
        "punctual": "lock_timeout: Abort any statement that waits longer than the specified amount "
        "of time while attempting to acquire a lock",
    }
    cannot = {"crowd-killed": "a thousand waiters are a thousand processes"}

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

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._connection: Any = None

    def _run(self, *words: Any) -> Any:
        if self._connection is None:
            self._connection = self.library.connect(self.place.service, autocommit=True)
        return self._connection.execute(*words)

    def acquire(self, wait: float) -> Any:
        try:
            self._run(f"SET lock_timeout = {max(1, int(wait * 1000))}")
            self._run("SELECT pg_advisory_lock(hashtext(%s))", [self.place.name])
        except self.library.errors.LockNotAvailable:
            return None
        except BaseException:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            raise
        return True

    def release(self, grant: Any) -> None:
        done = self._run("SELECT pg_advisory_unlock(hashtext(%s))", [self.place.name])
        if done.fetchone() != (True,):
            raise Lost("it is not held")
