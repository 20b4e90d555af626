"""What this package asks of a cache that has its locks. Each supported cache backend has a class.

No other module imports django_redis, or knows a backend. To support a further one, write a class
and add it to BACKENDS.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache as DjangosRedisCache
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from django_redis.client import ShardClient
from django_redis.pool import ConnectionFactory as ConnectionFactory
from django_redis.pool import SentinelConnectionFactory
from redis import exceptions as errors
from redis.sentinel import SentinelConnectionPool

from .. import conf

#: What Django, django-redis, and redis-py raise for settings that can't be used. Other exceptions
#: may come from a signal handler, such as Celery's SoftTimeLimitExceeded.
_UNUSABLE = (
    ImproperlyConfigured,
    ImportError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    errors.RedisError,
)
#: Errors of redis-py that come from a server, which a project's own factory may have asked.
_OF_SERVER = (errors.ConnectionError, errors.TimeoutError, errors.ResponseError)


class Backend:
    """A cache of an alias.

    - `kind`: the class of the cache. A cache of a subclass has the same Backend.
    - `path`: the path that the messages recommend.
    - `urls`: the URLs in LOCATION, first that of the primary server.
    - `topology`: an object with the attributes `sync_server` and `async_server` (see
      `engine/cluster`), if the cache has several nodes. Otherwise any object.
    - `sentinels`: the options SENTINELS and SENTINEL_KWARGS, or None without Sentinel.
    """

    kind: ClassVar[type]
    path: ClassVar[str]
    #: A regular expression for what separates the URLs of a LOCATION that is a str.
    separators = ","

    def __init__(self, alias: str, cache: Any) -> None:
        """Raise ImproperlyConfigured if the cache can't have locks."""
        self.alias = alias
        location: Any = settings.CACHES[alias].get("LOCATION", "")
        is_text = isinstance(location, str)
        self.urls = re.split(self.separators, location) if is_text else [*location]
        self._given: Any = settings.CACHES[alias].get("OPTIONS", {})

    topology: Any = None
    sentinels: tuple[Any, Any] | None = None

    def pool(self) -> Any:
        """Return the connection pool of the primary server for sync code."""
        raise NotImplementedError

    @property
    def pool_options(self) -> Mapping[str, Any]:
        """The options in CACHES that the pool passes to its connections, and the pool's own."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return all options of a connection. Raise ImproperlyConfigured if they are not known."""
        raise NotImplementedError


class DjangoRedis(Backend):
    """A cache of django-redis."""

    kind, path = RedisCache, "django_redis.cache.RedisCache"

    def __init__(self, alias: str, cache: Any) -> None:
        super().__init__(alias, cache)
        with client_errors(alias):
            self._client = cache.client
        if isinstance(self._client, ShardClient):
            raise ImproperlyConfigured(
                f"The cache {alias!r} uses ShardClient, which spreads keys over several servers: "
                "REDIS_SYNC needs a cache with one server, with Sentinel, or with Redis Cluster."
            )
        self.topology = factory = self._client.connection_factory
        if isinstance(factory, SentinelConnectionFactory):
            given = factory.options
            self.sentinels = given["SENTINELS"], given.get("SENTINEL_KWARGS")

    def pool(self) -> Any:
        return self._client.get_client(write=True).connection_pool

    @property
    def pool_options(self) -> Mapping[str, Any]:
        given: Mapping[str, Any] = getattr(self.topology, "pool_cls_kwargs", {})
        return given

    def options(self) -> dict[str, Any]:
        if not isinstance(self.topology, ConnectionFactory):
            raise ImproperlyConfigured(
                f"The cache {self.alias!r} has its own CONNECTION_FACTORY. For async code, set "
                "REDIS_SYNC['ASYNC_CLIENT'] to the path of a function that returns a redis.asyncio "
                "client for an alias."
            )
        return {**self.topology.make_connection_params(self.urls[0]), **self.pool_options}


class Django(Backend):
    """A cache of Django's own backend for Redis. The first URL in LOCATION is the primary server.

    Django makes a client with a pool of its own for each thread. All threads use the pool of the
    first client, because connections are cached per pool, and leases outlive threads.
    """

    kind, path = DjangosRedisCache, "django.core.cache.backends.redis.RedisCache"
    separators = "[;,]"
    _clients: ClassVar[dict[str, Any]] = {}

    def __init__(self, alias: str, cache: Any) -> None:
        super().__init__(alias, cache)
        self._cache = cache

    def pool(self) -> Any:
        client = self._clients.get(self.alias)
        if client is None:
            client = self._clients.setdefault(self.alias, self._cache._cache)
        return client.get_client(None, write=True).connection_pool

    @property
    def pool_options(self) -> Mapping[str, Any]:
        return {name: value for name, value in self._given.items() if name not in _OF_CLIENT}

    def options(self) -> dict[str, Any]:
        given = self._given.get("pool_class")
        kind = import_string(given) if isinstance(given, str) else given
        if kind is not None and issubclass(kind, SentinelConnectionPool):
            raise ImproperlyConfigured(
                f"The cache {self.alias!r} has a pool_class for Sentinel. For async code, set "
                "REDIS_SYNC['ASYNC_CLIENT']."
            )
        return dict(self.pool_options)


#: The options of Django's backend that are not for connections.
_OF_CLIENT = frozenset({"serializer", "pool_class", "parser_class"})

#: The supported backends. The messages recommend the first.
BACKENDS: tuple[type[Backend], ...] = (DjangoRedis, Django)


class UnknownBackend(ImproperlyConfigured):
    """The cache of an alias has no supported backend."""


def backend_of(alias: str) -> Backend:
    """Return the Backend of an alias. Raise ImproperlyConfigured if it can't have locks."""
    if alias not in caches.settings:
        raise ImproperlyConfigured(f"CACHES has no alias {alias!r} for REDIS_SYNC.")
    with client_errors(alias):
        cache: Any = caches[alias]
    for backend in BACKENDS:
        if isinstance(cache, backend.kind):
            return backend(alias, cache)
    raise UnknownBackend(
        f"The cache {alias!r} is a {type(cache).__name__}: REDIS_SYNC needs a cache with the "
        f"BACKEND {' or '.join(backend.path for backend in BACKENDS)}."
    )


@contextlib.contextmanager
def client_errors(alias: str) -> Iterator[None]:
    """Run the block, which makes a client or a connection of an alias without asking the server. If
    this fails because of the settings, raise ImproperlyConfigured from the error."""
    try:
        yield
    except _OF_SERVER:
        raise
    except _UNUSABLE as error:
        forget(alias)
        # Other messages may contain a part of the LOCATION, and so of the password.
        is_safe = isinstance(
            error, (ImproperlyConfigured, ImportError, TypeError, errors.RedisError)
        )
        raise ImproperlyConfigured(
            f"The cache {alias!r} can't be used ({error if is_safe else type(error).__name__}): "
            "correct its LOCATION or OPTIONS in CACHES. A LOCATION is a URL such as "
            "redis://127.0.0.1:6379/1, with % codes for special characters in the password."
        ) from error


def check_connection(alias: str) -> None:
    """Make a connection of an alias, but don't connect. Raise ImproperlyConfigured if its settings
    can't be used."""
    backend = backend_of(alias)
    if hasattr(backend.topology, "sync_server"):
        return  # the nodes tell which connections there are
    with client_errors(alias):
        pool = backend.pool()
        pool.connection_class(**pool.connection_kwargs)


def forget(alias: str) -> None:
    """Remove this thread's cache object of an alias, because making its client failed.

    Otherwise, django-redis 6 would try to make the client again at the end of the request, in order
    to close it. The same error would then make the request fail.
    """
    with contextlib.suppress(AttributeError):  # raised if this thread has no cache object
        del caches[alias]


conf.on_change(Django._clients.clear)
