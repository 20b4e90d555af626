"""Clients for async code, with the settings of the project's caches.

No other module imports redis.asyncio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from .. import conf
from .backends import backend_of, client_errors
from .wire import IMITATION, REDIS_ERRORS, is_fake

#: Options of sync clients that are not passed to async clients. First set: options that async
#: clients lack, or that have another meaning there. Second set: options for pools, which async code
#: doesn't need, because it uses only two connections, and no cache of replies.
_DROPPED = frozenset(
    {"parser_class", "retry", "retry_on_timeout", "retry_on_error", "url"}
    | {"max_connections", "timeout", "queue_class", "cache_config"}
)
_REFUSED = frozenset({"connection_class"})


def async_client(alias: str) -> Any:
    """Return a redis.asyncio client for an alias. If REDIS_SYNC["ASYNC_CLIENT"] names a function,
    that function makes the client. Otherwise, the client has the options of the sync client.

    Raise ImproperlyConfigured if the alias can't be used in async code.
    """
    from redis.asyncio.sentinel import Sentinel

    path = conf.current().async_client
    if path:
        return import_string(path)(alias)
    backend = backend_of(alias)
    url = backend.urls[0]
    if backend.sentinels is None:
        return async_redis(alias, url)
    addresses, kwargs = backend.sentinels
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        addresses, sentinel_kwargs=kwargs, **async_options(alias)
    )
    parts = urlparse(url)
    return sentinel.master_for(str(parts.hostname), db=int(parts.path.strip("/") or 0))


def async_redis(alias: str, url: str) -> Any:
    """Return a redis.asyncio client of the server at `url`, with the options of an alias."""
    import redis.asyncio

    options = async_options(alias)
    with client_errors(alias):
        return redis.asyncio.Redis.from_url(url, **options)


def async_options(alias: str) -> dict[str, Any]:
    """Return the connection options of an alias for async code. Raise ImproperlyConfigured if the
    alias can't be used in async code."""
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    given = backend_of(alias).options()
    if is_fake(given.get("connection_class")):
        raise ImproperlyConfigured(IMITATION)
    refused = sorted(_REFUSED & set(given))
    if refused:
        raise ImproperlyConfigured(
            f"The options of the cache {alias!r} include {', '.join(refused)}, which can't be used "
            "in async code: set REDIS_SYNC['ASYNC_CLIENT']."
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


async def drop_idle(pool: Any) -> None:
    """Close the idle connections of a pool, after the project's code failed in the setup of a
    connection. The pool keeps this connection, on which, for example, no database is selected."""
    with contextlib.suppress(*REDIS_ERRORS):
        await pool.disconnect(inuse_connections=False)


async def handle_push(connection: Any, push: Any) -> None:
    """Let redis-py handle the push message `push`, which the connection has read."""
    await connection._parser.handle_push_response(push)
