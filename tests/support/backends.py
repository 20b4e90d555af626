"""Cache aliases with the backend of this test run."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.cache import caches

from django_redis_sync.engine.backends import backend_of

DJANGO_REDIS = "django_redis.cache.RedisCache"


def cache_of(url: Any, **options: Any) -> dict[str, Any]:
    """Return an entry of CACHES with the OPTIONS of django-redis. If the test run uses Django's own
    backend, translate them. An option that only django-redis has needs django-redis."""
    if settings.BACKEND == DJANGO_REDIS or not _WORDS.keys() >= options.keys():
        return {"BACKEND": DJANGO_REDIS, "LOCATION": url, "OPTIONS": options}
    own = {**options.pop("CONNECTION_POOL_KWARGS", {})}
    own.update({_WORDS[option]: value for option, value in options.items()})
    return {"BACKEND": settings.BACKEND, "LOCATION": url, "OPTIONS": own}


def pool_of(alias: str) -> Any:
    """Return the project's connection pool of an alias."""
    client = getattr(caches[alias], "client", None)
    return backend_of(alias).pool() if client is None else client.get_client().connection_pool


#: The names of django-redis's options in Django's own backend.
_WORDS = {
    "CONNECTION_POOL_CLASS": "pool_class",
    "CONNECTION_POOL_KWARGS": "",
    "PASSWORD": "password",
    "SOCKET_CONNECT_TIMEOUT": "socket_connect_timeout",
    "SOCKET_TIMEOUT": "socket_timeout",
}
