"""The price list: two files that must be of the same edition. Without the read/write lock, a reader
could get one new file and one old file."""

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from django_redis_sync import NotAcquired, ReadWriteLock
from example_project.shop.asked import seconds_of

MAX_WAIT = 30.0  # max seconds that readers and writers wait
HALF_SECONDS = 1.5  # default seconds between the accesses to the two files

Prices = tuple[int, int]


def price_lock() -> ReadWriteLock:
    """Return the lock of the prices, which admits many readers or one writer."""
    return ReadWriteLock("prices", blocking_timeout=MAX_WAIT)


def _if_locked(side: Any) -> Any:
    """Return `side`, which is `lock.read` or `lock.write`. If locks are disabled, return a null
    context instead."""
    return nullcontext() if settings.WITHOUT_LOCKS else side


def read_one(currency: str) -> int:
    """Return the edition in the file of a currency, or 1 if the file doesn't exist yet."""
    try:
        return int(_file(currency).read_text() or 1)
    except FileNotFoundError:
        return 1


def write_one(currency: str, edition: int) -> None:
    """Write an edition into the file of a currency."""
    _file(currency).parent.mkdir(parents=True, exist_ok=True)
    _file(currency).write_text(str(edition))


def _file(currency: str) -> Path:
    return Path(settings.DEMO_DIR) / "prices" / currency


@require_http_methods(["GET", "POST"])
def prices(request: HttpRequest) -> HttpResponse:
    """GET shows readers and writers. POST reads the prices, changes them, or does both: the field
    `action` is "read", "change", or "downgrade"."""
    if request.method == "GET":
        return _page(request)
    lock, half = price_lock(), seconds_of(request.POST, HALF_SECONDS)
    try:
        if request.POST.get("action") == "read":
            with _if_locked(lock.read):
                return _read(request, _look(half))
        with _if_locked(lock.write):
            _change(half)
            if request.POST.get("action") != "downgrade":
                return _changed(request)
            if not settings.WITHOUT_LOCKS:
                lock.downgrade()
            return _read(request, _look(half))
    except NotAcquired:
        return _busy(request)


@require_http_methods(["GET", "POST"])
async def async_prices(request: HttpRequest) -> HttpResponse:
    """Async version of `prices()`."""
    if request.method == "GET":
        return await sync_to_async(_page)(request)
    lock, half = price_lock(), seconds_of(request.POST, HALF_SECONDS)
    try:
        if request.POST.get("action") == "read":
            async with _if_locked(lock.read):
                return await sync_to_async(_read)(request, await _alook(half))
        async with _if_locked(lock.write):
            await _achange(half)
            if request.POST.get("action") != "downgrade":
                return await sync_to_async(_changed)(request)
            if not settings.WITHOUT_LOCKS:
                await lock.adowngrade()
            return await sync_to_async(_read)(request, await _alook(half))
    except NotAcquired:
        return await sync_to_async(_busy)(request)


def _look(half: float) -> Prices:
    dollar = read_one("dollar")
    time.sleep(half)
    return read_one("euro"), dollar


async def _alook(half: float) -> Prices:
    dollar = read_one("dollar")
    await asyncio.sleep(half)
    return read_one("euro"), dollar


def _change(half: float) -> None:
    edition = read_one("euro") + 1
    write_one("euro", edition)
    time.sleep(half)
    write_one("dollar", edition)


async def _achange(half: float) -> None:
    edition = read_one("euro") + 1
    write_one("euro", edition)
    await asyncio.sleep(half)
    write_one("dollar", edition)


def _read(request: HttpRequest, seen: Prices) -> HttpResponse:
    euro, dollar = seen
    if euro == dollar:
        return _page(request, f"You read edition {euro} of both files: euros and dollars.")
    text = f"BROKEN: you read edition {euro} in euros, but edition {dollar} in dollars."
    return _page(request, text, status=500)


def _changed(request: HttpRequest) -> HttpResponse:
    return _page(request, f"Edition {read_one('dollar')} is out.")


def _busy(request: HttpRequest) -> HttpResponse:
    """Return the 503 for a request that has waited too long."""
    response = _page(request, "Too many others are waiting. Please try again.", status=503)
    response["Retry-After"] = "5"
    return response


def _page(request: HttpRequest, answer: str = "", status: int = 200) -> HttpResponse:
    now = price_lock().read.status()
    context = {"answer": answer, "now": now, "seconds": HALF_SECONDS, "patience": MAX_WAIT}
    return render(request, "shop/prices.html", context, status=status)
