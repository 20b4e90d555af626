"""The project's Redis clients: found for sync code, made from its configuration for async code.

The only module that imports django_redis and redis.asyncio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from django_redis.client import ShardClient
from django_redis.pool import ConnectionFactory as ConnectionFactory
from django_redis.pool import SentinelConnectionFactory

from .. import conf


def backend_of(alias: str) -> Any:
    """Return the django-redis client of an alias. Raise ImproperlyConfigured if it has none."""
    try:
        backend: Any = caches[alias]
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"CACHES has no alias {alias!r} for REDIS_SYNC.") from error
    kinds = type(backend), type(getattr(backend, "client", None))
    if kinds not in _fit:
        _check_backend(alias, backend)
        _fit.add(kinds)
    return backend.client


#: Classes of backend and client that fit.
_fit: set[tuple[type, type]] = set()


def urls_of(alias: str) -> list[str]:
    """Return the URLs in the LOCATION of a cache alias."""
    backend_of(alias)
    location = settings.CACHES[alias]["LOCATION"]
    return location.split(",") if isinstance(location, str) else list(location)


def _check_backend(alias: str, backend: Any) -> None:
    if not isinstance(backend, RedisCache):
        raise ImproperlyConfigured(
            f"The cache {alias!r} is a {type(backend).__name__}: REDIS_SYNC needs one whose "
            "BACKEND is django_redis.cache.RedisCache."
        )
    if isinstance(backend.client, ShardClient):
        raise ImproperlyConfigured(
            f"The cache {alias!r} is sharded over several servers by ShardClient: REDIS_SYNC needs "
            "an alias with one server, Sentinel or Cluster."
        )


def forget(alias: str) -> None:
    """Let this thread's cache object go, after no client could be made for it.

    django-redis 6 would try to make it again, to close it, and the end of the request would fail.
    """
    with contextlib.suppress(AttributeError):  # it was never made
        del caches[alias]


#: Options of a sync configuration that mean nothing, or something else, to an async client. It
#: needs none of the pool's: one connection sends, one listens.
_DROPPED = frozenset(
    {"parser_class", "retry", "retry_on_timeout", "retry_on_error", "url"}
    | {"max_connections", "timeout", "queue_class"}
)
_REFUSED = frozenset({"connection_class", "credential_provider"})


def async_client(alias: str) -> Any:
    """Return a redis.asyncio client configured like the alias.

    Raise ImproperlyConfigured if the alias can't be used in async code.
    """
    from redis.asyncio.sentinel import Sentinel

    path = conf.current().async_client
    if path:
        return import_string(path)(alias)
    client = backend_of(alias)
    factory, url = client.connection_factory, urls_of(alias)[0]
    if not isinstance(factory, SentinelConnectionFactory):
        return async_redis(alias, url)
    options = factory.options
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        options["SENTINELS"], sentinel_kwargs=options.get("SENTINEL_KWARGS"), **async_options(alias)
    )
    parts = urlparse(url)
    return sentinel.master_for(str(parts.hostname), db=int(parts.path.strip("/") or 0))


def async_redis(alias: str, url: str) -> Any:
    """Return a redis.asyncio client of the server at `url`, configured like the alias."""
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url, **async_options(alias))


def async_options(alias: str) -> dict[str, Any]:
    """Return the alias's connection options for async code. Raise what `async_client` raises."""
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    client = backend_of(alias)
    factory = client.connection_factory
    if not isinstance(factory, ConnectionFactory):
        raise ImproperlyConfigured(
            f"The cache {alias!r} has a CONNECTION_FACTORY of its own: name a function alias -> "
            "redis.asyncio client in REDIS_SYNC['ASYNC_CLIENT']."
        )
    given = {**factory.make_connection_params(urls_of(alias)[0]), **factory.pool_cls_kwargs}
    refused = sorted(_REFUSED & set(given))
    if refused:
        raise ImproperlyConfigured(
            f"CONNECTION_POOL_KWARGS of the cache {alias!r} holds {', '.join(refused)}, which "
            "can't be used in async code: set REDIS_SYNC['ASYNC_CLIENT']."
        )
    kwargs = {key: value for key, value in given.items() if key not in _DROPPED}
    # Retries are the plans' own: they know which steps may be sent twice.
    kwargs["retry"] = Retry(NoBackoff(), 0)
    return kwargs


def buffered_replies(connection: Any) -> Callable[[], Any]:
    """Return a function that takes the next thing that an async connection has read from its socket
    already: a reply, a push, or an exception for an error. It returns anything else at the end.

    `_parser` and `_reader` are the only private names of redis-py in this package. To ask the
    connection for each reply takes three coroutines and ten times as long, and redis-py has no
    public name for what its parser has read. Without hiredis the function finds nothing.
    """
    reader = getattr(getattr(connection, "_parser", None), "_reader", None)
    gets: Callable[[], Any] | None = getattr(reader, "gets", None)
    return gets or _nothing


def _nothing() -> None: ...


async def handle_push(connection: Any, push: Any) -> None:
    """Have redis-py act on a push of `buffered_replies` that this package doesn't use."""
    await connection._parser.handle_push_response(push)
