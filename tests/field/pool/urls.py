"""Views of a site with a pool of four database connections."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection
from django.http import HttpResponse
from django.urls import path

from django_redis_sync import Semaphore
from tests.field.proofs import Site
from tests.field.row import Row

#: Set while the first request may stay in its view.
leave = threading.Event()
WAITERS = 5


def wait(request: Any) -> HttpResponse:
    leave.wait(60)
    return HttpResponse(get_user_model().objects.get(pk=request.user.pk).username)


async def wait_async(request: Any) -> HttpResponse:
    while not leave.is_set():
        await asyncio.sleep(0.01)
    user = await get_user_model().objects.aget(pk=(await request.auser()).pk)
    return HttpResponse(user.username)


def other(request: Any) -> HttpResponse:
    """A view without a limit, with one query."""
    return HttpResponse(str(get_user_model().objects.count()))


urlpatterns = [
    path("wait/", wait, name="wait"),
    path("await/", wait_async, name="await"),
    path("other/", other),
]


def _waiting(site: Site, row: Row, check: Any) -> list[int]:
    """Call `check` while one request is in the view and the others want to enter it. Return the
    statuses of all."""
    headers, key = site.login("ann"), str(site.user("ann").pk)
    connection.close()
    leave.clear()
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(site.ask(row.path, headers=headers).status)

    threads = [threading.Thread(target=ask) for _ in range(WAITERS + 1)]
    try:
        for thread in threads:
            thread.start()
        check(lambda: Semaphore("till", 1, key=key).status())
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    return statuses


def _until(reached: Any) -> None:
    until = time.monotonic() + 60
    while not reached() and time.monotonic() < until:
        time.sleep(0.01)
    assert reached()


def waiters_leave_the_pool_to_others(site: Site, row: Row) -> None:
    """A pool of 4 connections, and 5 waiting requests: another view can query the database."""

    def check(status: Any) -> None:
        _until(lambda: status().waiting == WAITERS)
        assert 200 == site.ask("other/").status

    statuses = _waiting(site, row, check)
    assert [200] * (WAITERS + 1) == statuses, statuses


def waiters_occupy_the_pool(site: Site, row: Row) -> None:
    """Without the option, the same requests occupy the pool: another view finds no connection."""

    def check(status: Any) -> None:
        _until(lambda: status().waiting >= 3)  # one connection is the holder's
        try:
            assert 500 == site.ask("other/").status
        finally:
            leave.set()

    _waiting(site, row, check)
