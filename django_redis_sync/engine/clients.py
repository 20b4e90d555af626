"""The project's Redis clients. Clients for async code are made from the project's settings.

No other module imports django_redis or redis.asyncio.
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
    """Return the django-redis client of an alias. Raise ImproperlyConfigured if the alias has no
    client that this package can use."""
    try:
        backend: Any = caches[alias]
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"CACHES has no alias {alias!r} for REDIS_SYNC.") from error
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
    return backend.client


def urls_of(alias: str) -> list[str]:
    """Return the URLs that LOCATION of a cache alias lists."""
    backend_of(alias)
    location = settings.CACHES[alias]["LOCATION"]
    return location.split(",") if isinstance(location, str) else list(location)


def forget(alias: str) -> None:
    """Remove this thread's cache object of an alias, because no client could be made for it.

    If the object stayed, django-redis 6 would try to make the client again at the end of the
    request, in order to close it. The same error would then make the request fail.
    """
    with contextlib.suppress(AttributeError):  # this thread has no cache object of the alias
        del caches[alias]


#: Options of sync clients that are not passed to async clients. Async clients lack these options,
#: or give them another meaning. The options in the second line are for pools. Async code uses only
#: two connections, one that sends and one that listens, so it needs no options for pools.
_DROPPED = frozenset(
    {"parser_class", "retry", "retry_on_timeout", "retry_on_error", "url"}
    | {"max_connections", "timeout", "queue_class"}
)
_REFUSED = frozenset({"connection_class", "credential_provider"})


def async_client(alias: str) -> Any:
    """Return a redis.asyncio client configured like the sync client of an alias.

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
    """Return a redis.asyncio client of the server at `url`, with the options of an alias."""
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url, **async_options(alias))


def async_options(alias: str) -> dict[str, Any]:
    """Return the connection options of an alias for async code. Raise ImproperlyConfigured if the
    alias can't be used in async code."""
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
    # No retries by redis-py, because the plans retry the steps that may be sent twice.
    kwargs["retry"] = Retry(NoBackoff(), 0)
    return kwargs


def buffered_replies(connection: Any) -> Callable[[], Any]:
    """Return a function that takes items that an async connection has already read.

    Each call returns the next item: a reply, a push (a list), or an exception for an error reply.
    If the connection has read no further item, or if hiredis is not installed, the call returns
    some other value.

    `_parser` and `_reader` are the only private names of redis-py in this package. redis-py's
    public `read_response()` runs three coroutines per reply, and takes ten times as long.
    """
    reader = getattr(getattr(connection, "_parser", None), "_reader", None)
    gets: Callable[[], Any] | None = getattr(reader, "gets", None)
    return gets or (lambda: None)


async def handle_push(connection: Any, push: Any) -> None:
    """Let redis-py handle a push. `push`: an item from `buffered_replies`."""
    await connection._parser.handle_push_response(push)
