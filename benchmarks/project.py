"""A minimal Django project with this app, for the processes of a benchmark."""

from __future__ import annotations

import importlib.util
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

LIMITED = {"limited": {"limit": 100}}
MIDDLEWARE = "django_redis_sync.middleware.ConcurrencyLimitMiddleware"


def setup(url: str, **given: Any) -> None:
    """Configure Django if it is not configured yet. `url`: the Redis server of the default cache.
    `given`: additional settings."""
    import django
    from django.conf import settings

    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="only for benchmarks",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=given.pop("ROOT_URLCONF", __name__),
        USE_TZ=True,
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_redis_sync"],
        REDIS_SYNC={"KEY_PREFIX": "bench", "ENDPOINTS": LIMITED},
        RATELIMIT_BACKEND="redis",
        RATELIMIT_REDIS={"url": url},
        **given,
    )
    django.setup()


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"", headers={"Content-Length": "0"})


def with_two_scripts(view: Any) -> Any:
    """Return a view that runs two empty scripts and then calls `view`. This is the minimum for a
    limit in Redis, which needs a script to acquire and a script to release."""
    from .cycles import minimal

    scripts = minimal()

    def sync(request: HttpRequest) -> Any:
        scripts()
        return view(request)

    return sync


def limited_by_peer(view: Any) -> Any:
    """Return the view, limited by django-smart-ratelimit, or None if this is not installed."""
    if importlib.util.find_spec("django_smart_ratelimit") is None:
        return None
    from django_smart_ratelimit import concurrency_limit

    return concurrency_limit(key=lambda *_: "peer", max_concurrent=100)(view)


urlpatterns = [path("unlimited", plain, name="unlimited"), path("limited", plain, name="limited")]
