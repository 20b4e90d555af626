"""Measure the time that the middleware adds to a request, by calling Django's handlers directly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import path

from . import project
from .cycles import FLOOR, alternate, minimal
from .project import MIDDLEWARE
from .report import Table, median


def wsgi(url: str, quick: bool) -> Table:
    table = Table(
        "Sequential requests through the WSGI handler",
        f"added: ≤ 5 µs to unlimited requests; ≤ 60 µs plus {FLOOR} to limited requests",
    )
    with override_settings(MIDDLEWARE=[]):
        bare = _wsgi_handler()
    with override_settings(MIDDLEWARE=[MIDDLEWARE]):
        ours = _wsgi_handler()
    scripts = minimal()
    cycles = {
        "no middleware": lambda: bare("/unlimited"),
        "middleware, unlimited": lambda: ours("/unlimited"),
        "middleware, limited": lambda: ours("/limited"),
        f"no middleware, {FLOOR}": lambda: (bare("/unlimited"), scripts()),
    }
    if peer := project.limited_by_peer(project.plain):
        project.urlpatterns.append(path("peer", peer, name="peer"))
        cycles["django-smart-ratelimit's decorator"] = lambda: bare("/peer")
    seconds = alternate(cycles, rounds=20 if quick else 80, repeat=50)
    base = seconds["no middleware"]
    for name, own in seconds.items():
        more = median([a - b for a, b in zip(own, base, strict=True)])
        table.rows.append({"": name, "µs": median(own) * 1e6, "more µs": more * 1e6})
    return table


def asgi(url: str, quick: bool) -> Table:
    table = Table("An unlimited request through the ASGI handler", "the middleware adds ≤ 5 µs")
    with override_settings(MIDDLEWARE=[]):
        bare = ASGIHandler()
    with override_settings(MIDDLEWARE=[MIDDLEWARE]):
        ours = ASGIHandler()

    async def measure() -> dict[str, list[float]]:
        clock = time.perf_counter
        found: dict[str, list[float]] = {"no middleware": [], "middleware, unlimited": []}
        # Alternate the handlers after each request, so that delays of threads affect both equally.
        for _ in range(500 if quick else 2500):
            for name, handler in zip(found, (bare, ours), strict=True):
                start = clock()
                await _asgi_request(handler, "/aunlimited")
                found[name].append(clock() - start)
        return found

    project.urlpatterns.append(path("aunlimited", project.aplain, name="aunlimited"))
    seconds = asyncio.run(measure())
    base = seconds["no middleware"]
    for name, own in seconds.items():
        more = median([a - b for a, b in zip(own, base, strict=True)])
        table.rows.append({"": name, "µs": median(own) * 1e6, "more µs": more * 1e6})
    return table


async def _asgi_request(handler: Any, where: str) -> None:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": where,
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "server": ("localhost", 80),
    }
    asked: list[bool] = []

    async def receive() -> dict[str, Any]:
        if asked:
            await asyncio.sleep(60)  # simulate a client that stays connected
        asked.append(True)
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        pass

    await handler(scope, receive, send)


def _wsgi_handler() -> Callable[[str], Any]:
    handler = WSGIHandler()

    def request(where: str) -> None:
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": where,
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.input": BytesIO(b""),
            "wsgi.url_scheme": "http",
        }
        handler(environ, lambda status, headers: None).close()

    return request
