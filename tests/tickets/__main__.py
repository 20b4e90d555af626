"""Sell tickets with each view of WAYS. Print the sold tickets, errors, and log messages as JSON.

Arguments: the URL of Redis, the folder of PostgreSQL's socket, and the port of PostgreSQL.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
from django.conf import settings

BUYERS, TICKETS = 15, 8

if __name__ == "__main__":
    redis_url, host, port = sys.argv[1:]
    database = {"NAME": "postgres", "USER": "tests", "HOST": host, "PORT": port}
    engine = {"ENGINE": "django.db.backends.postgresql", "ATOMIC_REQUESTS": True}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "KEY_PREFIX": "tickets"}
    settings.configure(
        SECRET_KEY="only here",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        DATABASES={"default": {**database, **engine}},
        CACHES={"default": {**cache, "LOCATION": redis_url}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django_redis_sync"],
        REDIS_SYNC={"BLOCKING_TIMEOUT": 60},
    )
    django.setup()

from django.db import connection, transaction  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

from django_redis_sync import Lock  # noqa: E402

#: An item for each buyer that has counted the sold tickets.
COUNTED: list[None] = []


def until_another_counts() -> None:
    """Wait until another buyer has counted the sold tickets, but at most a second.

    The view calls this function after the release of its lock and before its COMMIT. So the other
    buyer doesn't see the ticket that this view has sold."""
    mine, end = len(COUNTED), time.monotonic() + 1
    while len(COUNTED) == mine and time.monotonic() < end:
        time.sleep(0.001)


def pause() -> None:
    time.sleep(0.02)


def sell() -> None:
    """Count the sold tickets, pause, and sell a ticket if one was left. During the pause, another
    buyer could sell the last ticket."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ticket")
        (sold,) = cursor.fetchone()
        COUNTED.append(None)
        pause()
        if sold < TICKETS:
            cursor.execute("INSERT INTO ticket DEFAULT VALUES")


def view(block: Callable[[], Any], rest: Callable[[], None] = pause) -> Any:
    """Return a view that sells a ticket.

    `block`: a function that returns the context manager for the sale, such as a Lock. `rest`: a
    function to call after the block and before the COMMIT of the request."""

    def respond(request: Any) -> HttpResponse:
        with block():
            sell()
        rest()
        return HttpResponse()

    return respond


WAYS = {
    "with": view(lambda: Lock("with"), until_another_counts),
    "with-release-on-commit": view(lambda: Lock("later", release_on_commit=True)),
    "not-atomic-requests-and-atomic": transaction.non_atomic_requests(
        view(lambda: Lock("apart").atomic())
    ),
}
urlpatterns = [path(f"{name}/", way) for name, way in WAYS.items()]


def buy_all(name: str) -> dict[str, Any]:
    told, start = list[str](), threading.Barrier(BUYERS, timeout=30)
    handler, log = logging.Handler(logging.WARNING), logging.getLogger("django_redis_sync")
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]

    def buy(_: int) -> str:
        start.wait()
        try:
            Client().get(f"/{name}/")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return ""

    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS ticket")
        cursor.execute("CREATE TABLE ticket (id serial PRIMARY KEY)")
        log.addHandler(handler)
        with ThreadPoolExecutor(BUYERS) as buyers:
            errors = [*filter(None, buyers.map(buy, range(BUYERS)))]
        log.removeHandler(handler)
        cursor.execute("SELECT count(*) FROM ticket")
        (sold,) = cursor.fetchone()
    return {"sold": sold, "errors": errors, "told": told}


if __name__ == "__main__":
    print(json.dumps({name: buy_all(name) for name in WAYS}))
