"""Sells by each way to lock and prints, as JSON, how many tickets each sold.

Arguments: the URL of Redis, the host (a folder) and the port of PostgreSQL.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import django
from django.conf import settings

BUYERS, TICKETS = 15, 8


def configure(redis_url: str, host: str, port: str) -> None:
    settings.configure(
        SECRET_KEY="only here",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "postgres",
                "USER": "exam",
                "HOST": host,
                "PORT": port,
                "ATOMIC_REQUESTS": True,
            }
        },
        CACHES={
            "default": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": redis_url,
                "KEY_PREFIX": "tickets",
            }
        },
        INSTALLED_APPS=["django.contrib.contenttypes", "django_redis_sync"],
        REDIS_SYNC={"BLOCKING_TIMEOUT": 60},
    )
    django.setup()


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


#: One for each buyer that counted what was sold.
COUNTED: list[None] = []


def until_another_counts() -> None:
    """The rest of a request that gave its lock back: another buyer is in before its COMMIT."""
    mine, end = len(COUNTED), time.monotonic() + 1
    while len(COUNTED) == mine and time.monotonic() < end:
        time.sleep(0.001)


def sell() -> None:
    """Sell one more when there is one, slowly enough for others to come between."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ticket")
        (sold,) = cursor.fetchone()
        COUNTED.append(None)
        time.sleep(0.02)
        if sold < TICKETS:
            cursor.execute("INSERT INTO ticket DEFAULT VALUES")


def views() -> dict[str, Callable[..., Any]]:
    from django.db import transaction
    from django.http import HttpResponse

    from django_redis_sync import Lock, synchronized

    def shortly() -> None:
        time.sleep(0.02)

    def view(
        block: Callable[[], AbstractContextManager[Any]], rest: Callable[[], None] = shortly
    ) -> Callable[..., Any]:
        """`rest`: what is left of the request, before its COMMIT."""

        def buy(request: Any) -> HttpResponse:
            with block():
                sell()
            rest()
            return HttpResponse()

        return buy

    def decorated(rest: Callable[[], None] = shortly, **options: Any) -> Callable[..., Any]:
        @synchronized("decorated", **options)
        def buy(request: Any) -> HttpResponse:
            sell()
            time.sleep(0.02)
            return HttpResponse()

        def outer(request: Any) -> HttpResponse:
            response = buy(request)
            rest()
            return response

        return outer

    return {
        "with": view(lambda: Lock("with"), until_another_counts),
        "synchronized": decorated(until_another_counts),
        "atomic": view(lambda: Lock("atomic").atomic()),
        "with-release-on-commit": view(lambda: Lock("later", release_on_commit=True)),
        "synchronized-release-on-commit": decorated(release_on_commit=True),
        "not-atomic-requests-and-atomic": transaction.non_atomic_requests(
            view(lambda: Lock("apart").atomic())
        ),
        "savepoint-release-on-commit": view(
            lambda: _Nested(Lock("nested", release_on_commit=True))
        ),
    }


class _Nested:
    """A lock in a transaction of the view's own, which is a savepoint there."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> None:
        from django.db import transaction

        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.lock.__exit__(*error)
        self.atomic.__exit__(*error)


def buy_all(name: str) -> dict[str, Any]:
    from django.db import connection
    from django.test import Client

    told, errors = Told(), []
    log = logging.getLogger("django_redis_sync")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS ticket")
        cursor.execute("CREATE TABLE ticket (id serial PRIMARY KEY)")

    def buyer(start: threading.Barrier) -> None:
        start.wait(30)
        try:
            Client().get(f"/{name}/")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    log.addHandler(told)
    start = threading.Barrier(BUYERS)
    threads = [threading.Thread(target=buyer, args=(start,)) for _ in range(BUYERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    log.removeHandler(told)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ticket")
        (sold,) = cursor.fetchone()
    return {"sold": sold, "errors": errors, "told": told.said}


if __name__ == "__main__":
    configure(*sys.argv[1:])
    from django.urls import path

    ways = views()
    urlpatterns = [path(f"{name}/", view) for name, view in ways.items()]
    print(json.dumps({name: buy_all(name) for name in ways}))
