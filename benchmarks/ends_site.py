"""The site for the benchmark in ends.py. Each view stores the time at which its code ended."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import path

from . import project
from .contenders import client
from .ends import ENDED


def failing(get_response: Any) -> Any:
    """Return middleware that raises an exception if the response is from the view `outer`."""

    def call(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = get_response(request)
        if request.path == "/outer":
            raise RuntimeError("an outer middleware fails")
        return response

    return call


project.setup(
    os.environ["BENCHMARKS_URL"], MIDDLEWARE=[f"{__name__}.failing"], ROOT_URLCONF=__name__
)

from django_redis_sync import semaphore_required  # noqa: E402 - once there are settings

limited = semaphore_required("ends", limit=1)
redis = client(os.environ["BENCHMARKS_URL"])


@limited
def broken(request: HttpRequest) -> HttpResponseBase:
    redis.set(ENDED, time.monotonic())
    return TemplateResponse(request, "no/such/template.html")


@limited
def outer(request: HttpRequest) -> HttpResponseBase:
    redis.set(ENDED, time.monotonic())
    return StreamingHttpResponse(iter([b"part"]))


@limited
def slow(request: HttpRequest) -> HttpResponseBase:
    """Sleep so long that the client disconnects before the view ends. Then call `broken`."""
    time.sleep(0.6)
    return broken.__wrapped__(request)  # type: ignore[attr-defined, no-any-return]


urlpatterns = [path("broken", broken), path("outer", outer), path("slow", slow)]
wsgi, asgi = WSGIHandler(), ASGIHandler()
gc.disable()
