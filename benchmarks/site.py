"""The site that benchmarks.serving serves: `wsgi` and `asgi`, each with views of its kind."""

from __future__ import annotations

import importlib.util
import os

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path

from . import project

_middleware = os.environ["BENCHMARKS_MIDDLEWARE"]
project.setup(os.environ["BENCHMARKS_URL"], MIDDLEWARE=[_middleware] if _middleware else [])


async def aplain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"", headers={"Content-Length": "0"})


from django_redis_sync import semaphore_required  # noqa: E402 - once there are settings

for _kind, _view in (("wsgi", project.plain), ("asgi", aplain)):
    _limited = semaphore_required("decorated", limit=100)(_view)
    _views = {"unlimited": _view, "limited": _view, "decorated": _limited}
    if importlib.util.find_spec("django_smart_ratelimit") is not None:
        from django_smart_ratelimit import concurrency_limit

        _views["peer"] = concurrency_limit(key=lambda *_: "peer", max_concurrent=100)(_view)
    project.urlpatterns += [
        path(f"{name}/{_kind}", view, name=name) for name, view in _views.items()
    ]

wsgi, asgi = WSGIHandler(), ASGIHandler()
