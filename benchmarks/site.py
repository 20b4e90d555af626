"""The site for the benchmark in serving.py."""

from __future__ import annotations

import os

from django.core.handlers.wsgi import WSGIHandler
from django.urls import path

from . import project

_middleware = os.environ["BENCHMARKS_MIDDLEWARE"]
project.setup(os.environ["BENCHMARKS_URL"], MIDDLEWARE=[_middleware] if _middleware else [])


from django_redis_sync import semaphore_required  # noqa: E402 - once there are settings

_views = {
    "decorated": semaphore_required("decorated", limit=100)(project.plain),
    "floor": project.with_two_scripts(project.plain),
}
if _peer := project.limited_by_peer(project.plain):
    _views["peer"] = _peer
project.urlpatterns += [path(name, view, name=name) for name, view in _views.items()]

wsgi = WSGIHandler()
