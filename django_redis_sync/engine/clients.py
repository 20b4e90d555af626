"""The project's own clients: found for sync code, rebuilt from its configuration for async.

The only module that imports django_redis and redis.asyncio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from django_redis.client import ShardClient
from django_redis.pool import ConnectionFactory as ConnectionFactory
from django_redis.pool import SentinelConnectionFactory

from .. import conf


def backend_of(alias: str) -> Any:
    """The django-redis client of a cache alias. ImproperlyConfigured, with the remedy, if none."""
    try:
        backend: Any = caches[alias]
    except InvalidCacheBackendError as error:
        raise ImproperlyConfigured(f"CACHES has no alias {alias!r} for REDIS_SYNC.") from error
    kinds = type(backend), type(getattr(backend, "client", None))
    if kinds not in _fit:
        _check_backend(alias, backend)
        _fit.add(kinds)
    return backend.client


#: Classes of backend and client that were found to fit.
_fit: set[tuple[type, type]] = set()


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


#: Options of a sync configuration that mean nothing, or something else, to an async client.
#: Of the pool's own there is no need: one connection sends, one listens.
_DROPPED = frozenset(
    {"parser_class", "retry", "retry_on_timeout", "retry_on_error", "url"}
    | {"max_connections", "timeout", "queue_class"}
)
_REFUSED = frozenset({"connection_class", "credential_provider"})


def async_client(alias: str) -> Any:
    """A redis.asyncio client configured as the alias is. ImproperlyConfigured if that can't be."""
    from redis.asyncio.sentinel import Sentinel

    path = conf.current().async_client
    if path:
        return import_string(path)(alias)
    client = backend_of(alias)
    factory, url = client.connection_factory, client._server[0]
    if not isinstance(factory, SentinelConnectionFactory):
        return async_redis(alias, url)
    options = factory.options
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        options["SENTINELS"], sentinel_kwargs=options.get("SENTINEL_KWARGS"), **async_options(alias)
    )
    parts = urlparse(url)
    return sentinel.master_for(parts.hostname, db=int(parts.path.strip("/") or 0))


def async_redis(alias: str, url: str) -> Any:
    """A redis.asyncio client of the server at `url`, configured as the alias is."""
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url, **async_options(alias))


def async_options(alias: str) -> dict[str, Any]:
    """The alias's options of connections, for async code. Raises as async_client."""
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    client = backend_of(alias)
    factory = client.connection_factory
    if not isinstance(factory, ConnectionFactory):
        raise ImproperlyConfigured(
            f"The cache {alias!r} has a CONNECTION_FACTORY of its own: name a function alias -> "
            "redis.asyncio client in REDIS_SYNC['ASYNC_CLIENT']."
        )
    given = {**factory.make_connection_params(client._server[0]), **factory.pool_cls_kwargs}
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


def arrived(connection: Any) -> Callable[[], Any]:
    """Takes the next of what an async connection has read from its socket along with another reply:
    a reply, a push, an exception for an error; anything else when there is no more.

    To ask the connection for each makes three coroutines, and takes ten times as long. redis-py has
    no public word for what its parser has read; without hiredis there is nothing to take.
    """
    reader = getattr(getattr(connection, "_parser", None), "_reader", None)
    gets: Callable[[], Any] | None = getattr(reader, "gets", None)
    return gets or _nothing


def _nothing() -> None: ...


async def heed(connection: Any, push: Any) -> None:
    """Have redis-py act on a push of `arrived` that is none of ours."""
    await connection._parser.handle_push_response(push)


def cut(client: Any) -> None:
    """Close the connections of an async client after its loop was closed, from outside of it."""
    pool = getattr(client, "connection_pool", None)
    # redis-py has no public word for either, nor for the stream of a connection.
    idle = getattr(pool, "_available_connections", ())
    for connection in [*idle, *getattr(pool, "_in_use_connections", ())]:
        writer = getattr(connection, "_writer", None)
        if writer is not None:
            connection._writer = connection._reader = None
            _cut(writer.transport)


def _cut(transport: Any) -> None:
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(Exception):
        transport.abort()  # gets as far as asking the loop, which is closed, to do the rest
    with contextlib.suppress(Exception):
        transport._call_connection_lost(None)
    with contextlib.suppress(Exception):
        getattr(sock, "_sock", sock).close()
