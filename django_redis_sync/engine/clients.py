"""The project's Redis clients, and clients for async code with the same settings.

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
            f"The cache {alias!r} is a {type(backend).__name__}: REDIS_SYNC needs a cache with "
            "the BACKEND django_redis.cache.RedisCache."
        )
    if isinstance(backend.client, ShardClient):
        raise ImproperlyConfigured(
            f"The cache {alias!r} uses ShardClient, which spreads keys over several servers: "
            "REDIS_SYNC needs a cache with one server, with Sentinel, or with Redis Cluster."
        )
    return backend.client


def urls_of(alias: str) -> list[str]:
    """Return the URLs in the LOCATION of a cache alias."""
    backend_of(alias)
    location = settings.CACHES[alias]["LOCATION"]
    return location.split(",") if isinstance(location, str) else list(location)


def forget(alias: str) -> None:
    """Remove this thread's cache object of an alias. Call this if making its client failed.

    Otherwise, django-redis 6 would try to make the client again at the end of the request, in order
    to close it. The same error would then make the request fail.
    """
    with contextlib.suppress(AttributeError):  # raised if this thread has no cache object
        del caches[alias]


#: Options of sync clients that are not passed to async clients. First set: options that async
#: clients lack, or that have another meaning there. Second set: options for pools, which async code
#: doesn't need, because it uses only two connections.
_DROPPED = frozenset(
    {"parser_class", "retry", "retry_on_timeout", "retry_on_error", "url"}
    | {"max_connections", "timeout", "queue_class"}
)
_REFUSED = frozenset({"connection_class", "credential_provider"})


def async_client(alias: str) -> Any:
    """Return a redis.asyncio client for an alias. If REDIS_SYNC["ASYNC_CLIENT"] names a function,
    that function makes the client. Otherwise, the client has the options of the sync client.

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
            f"The cache {alias!r} has its own CONNECTION_FACTORY. For async code, set "
            "REDIS_SYNC['ASYNC_CLIENT'] to the path of a function that returns a redis.asyncio "
            "client for an alias."
        )
    given = {**factory.make_connection_params(urls_of(alias)[0]), **factory.pool_cls_kwargs}
    refused = sorted(_REFUSED & set(given))
    if refused:
        raise ImproperlyConfigured(
            f"CONNECTION_POOL_KWARGS of the cache {alias!r} holds {', '.join(refused)}, which "
            "can't be used in async code: set REDIS_SYNC['ASYNC_CLIENT']."
        )
    kwargs = {key: value for key, value in given.items() if key not in _DROPPED}
    # Turn off redis-py's retries, because the plans retry the steps that may be sent twice.
    kwargs["retry"] = Retry(NoBackoff(), 0)
    return kwargs


def buffered_replies(connection: Any) -> Callable[[], Any]:
    """Return a function. Each call of the function returns the next item that an async connection
    has already read: a reply, a push message (a list), or an exception for an error reply.

    If the connection has read no further item, or if hiredis is not installed, the function returns
    a value that is none of these.

    `_parser` and `_reader` are private names of redis-py. They are used because the public
    `read_response()` takes ten times as long: it runs three coroutines per reply.
    """
    reader = getattr(getattr(connection, "_parser", None), "_reader", None)
    gets: Callable[[], Any] | None = getattr(reader, "gets", None)
    return gets or (lambda: None)


async def handle_push(connection: Any, push: Any) -> None:
    """Let redis-py handle the push message `push`, which the connection has read."""
    await connection._parser.handle_push_response(push)
