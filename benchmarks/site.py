"""The site for the benchmark in serving.py: `wsgi` with sync views, `asgi` with async views."""

from __future__ import annotations

import os

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.urls import path

from . import project

_middleware = os.environ["BENCHMARKS_MIDDLEWARE"]
project.setup(os.environ["BENCHMARKS_URL"], MIDDLEWARE=[_middleware] if _middleware else [])


from django_redis_sync import semaphore_required  # noqa: E402 - once there are settings

for _kind, _view in (("wsgi", project.plain), ("asgi", project.aplain)):
    _limited = semaphore_required("decorated", limit=100)(_view)
    _views = {"unlimited": _view, "limited": _view, "decorated": _limited}
    if _kind == "wsgi":
        _views["floor"] = project.with_two_scripts(_view)
    if _peer := project.limited_by_peer(_view):
        _views["peer"] = _peer
    project.urlpatterns += [
        path(f"{name}/{_kind}", view, name=name) for name, view in _views.items()
    ]

wsgi, asgi = WSGIHandler(), ASGIHandler()
