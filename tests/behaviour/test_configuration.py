"""The setting REDIS_SYNC is read at each acquire, and clients use the options of the cache."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django_redis.cache import RedisCache

from django_redis_sync import Lock, Semaphore, conf
from django_redis_sync.engine import loops
from django_redis_sync.engine.server import async_server_of
from django_redis_sync.operators.names import names_in_use

from .both import both, eventually
from .watching import View

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(30)]


def sync(settings: Any, **values: Any) -> dict[str, Any]:
    return {**settings.REDIS_SYNC, **values}


# Read at each use


@both
async def test_settings_are_read_at_each_acquire(io, settings) -> None:
    lock = Lock("read")
    for seconds in (50, 20):
        with override_settings(REDIS_SYNC=sync(settings, TIMEOUT=seconds)):
            lease = await io.do(lock, "acquire")
            assert seconds - 5 < lease.remaining <= seconds
            await io.do(lock, "release")


@both
async def test_blocking_timeout_and_max_hold_come_from_the_settings(io, settings) -> None:
    async with io.entered(Lock("waits")):
        with override_settings(REDIS_SYNC=sync(settings, BLOCKING_TIMEOUT=0.05)):
            assert await io.do(Lock("waits"), "acquire") is None
    with override_settings(REDIS_SYNC=sync(settings, MAX_HOLD=7)):
        async with io.entered(Lock("capped")) as lease:
            assert 5 < lease.remaining <= 7


@both
async def test_configured_semaphore_takes_its_options_from_the_settings(io, settings) -> None:
    named = {"exports": {"limit": 2, "blocking_timeout": 0.05, "timeout": 12}}
    with override_settings(REDIS_SYNC=sync(settings, SEMAPHORES=named)):
        sem = Semaphore("exports")
        lease = await io.do(sem, "acquire")
        assert 10 < lease.remaining <= 12
        assert await io.do(sem, "acquire")
        assert await io.do(sem, "acquire") is None
        assert await io.do(Semaphore("exports", 3, timeout=40), "acquire")
    with pytest.raises(ImproperlyConfigured, match="no limit"):
        await io.do(sem, "acquire")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"TIMEOUTS": 3}, "TIMEOUTS"),
        ({"TIMEOUT": "3"}, "TIMEOUT"),
        ({"TIMEOUT": 0}, "TIMEOUT"),
        ({"BLOCKING_TIMEOUT": -1}, "BLOCKING_TIMEOUT"),
        ({"MAX_HOLD": "an hour"}, "MAX_HOLD"),
        ({"REQUESTS": {"limits": 3}}, "limits"),
        ({"ENABLED": "no"}, "ENABLED"),
        ({"CACHE": None}, "CACHE"),
        ({"KEY_PREFIX": 1}, "KEY_PREFIX"),
        ({"SEMAPHORES": ["exports"]}, "SEMAPHORES"),
        ({"ENDPOINTS": "exports"}, "ENDPOINTS"),
        ({"REQUESTS": None}, "REQUESTS"),
        ({"STATS_HOURS": "24"}, "STATS_HOURS"),
        ({"ASYNC_CLIENT": len}, "ASYNC_CLIENT"),
    ],
    ids=str,
)
@both
async def test_invalid_setting_raises_improperly_configured(
    io, settings, values: Any, words: str
) -> None:
    wrong = override_settings(REDIS_SYNC=sync(settings, **values))
    with wrong, pytest.raises(ImproperlyConfigured, match=words):
        await io.do(Lock("x"), "acquire")


@pytest.mark.parametrize("limit", [0, -1, "3", 2.5, True], ids=ascii)
@both
async def test_invalid_limit_of_a_configured_semaphore_raises_an_error(
    io, settings, limit: Any
) -> None:
    wrong = override_settings(REDIS_SYNC=sync(settings, SEMAPHORES={"x": {"limit": limit}}))
    with wrong, pytest.raises(ImproperlyConfigured, match="limit"):
        await io.do(Semaphore("x"), "acquire")


@pytest.mark.parametrize("option", ["timeout", "blocking_timeout", "max_hold", "min_hold"])
@pytest.mark.parametrize("seconds", ["5", -1, float("nan")], ids=ascii)
@both
async def test_invalid_duration_of_a_configured_semaphore_raises_an_error(
    io, settings, option, seconds
) -> None:
    named = {"x": {"limit": 1, option: seconds}}
    wrong = override_settings(REDIS_SYNC=sync(settings, SEMAPHORES=named))
    with wrong, pytest.raises(ImproperlyConfigured, match=option):
        await io.do(Semaphore("x"), "acquire")


def test_setting_that_is_not_a_dict_raises_an_error() -> None:
    with override_settings(REDIS_SYNC=["TIMEOUT"]), pytest.raises(ImproperlyConfigured):
        Lock("x").acquire()


# Keys


@both
async def test_keys_start_with_key_prefix_or_else_the_prefix_of_the_alias(
    io, raw, settings
) -> None:
    given = settings.REDIS_SYNC["KEY_PREFIX"]
    cases = [(given, given), (None, f"{settings.CACHES['default']['KEY_PREFIX']}:sync")]
    for prefix, expected in cases:
        with override_settings(REDIS_SYNC=sync(settings, KEY_PREFIX=prefix)):
            async with io.entered(Lock("prefixed")):
                assert View(raw, "prefixed", expected).holding == 1


@both
async def test_keys_start_with_sync_when_no_prefix_is_configured(io, private, settings) -> None:
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": private.url}
    caches, setting = {**settings.CACHES, "bare": cache}, sync(settings, KEY_PREFIX=None)
    with override_settings(CACHES=caches, REDIS_SYNC=setting):
        async with io.entered(Lock("bare", using="bare")):
            with redis.Redis.from_url(private.url) as client:
                assert View(client, "bare", "sync").holding == 1


@both
async def test_cache_is_chosen_by_using_or_by_the_setting(io, private, alias, settings) -> None:
    name = alias(private.url)
    with redis.Redis.from_url(private.url) as client:
        async with io.entered(Lock("here", using=name)):
            assert View(client, "here").holding == 1
            assert await io.do(Lock("here", blocking=False), "acquire")
        with override_settings(REDIS_SYNC=sync(settings, CACHE=name)):
            async with io.entered(Lock("there")):
                assert View(client, "there").holding == 1


# Aliases that can't be used


@both
async def test_unknown_alias_raises_improperly_configured(io) -> None:
    with pytest.raises(ImproperlyConfigured, match="'nowhere'"):
        await io.do(Lock("x", using="nowhere"), "acquire")


@pytest.mark.parametrize(
    "backend",
    [
        "django.core.cache.backends.locmem.LocMemCache",
        "django.core.cache.backends.redis.RedisCache",
    ],
)
@both
async def test_cache_of_another_backend_raises_improperly_configured(
    io, settings, redis_url, backend: str
) -> None:
    caches = {**settings.CACHES, "other": {"BACKEND": backend, "LOCATION": redis_url}}
    with (
        override_settings(CACHES=caches),
        pytest.raises(ImproperlyConfigured, match="django_redis"),
    ):
        await io.do(Lock("x", using="other"), "acquire")


@both
async def test_shard_client_raises_improperly_configured(io, settings, redis_url) -> None:
    sharded = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": [redis_url, redis_url],
        "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
    }
    caches = override_settings(CACHES={**settings.CACHES, "shards": sharded})
    with caches, pytest.raises(ImproperlyConfigured, match="ShardClient"):
        await io.do(Lock("x", using="shards"), "acquire")


class Subclassed(RedisCache):
    """A subclass as in django-prometheus."""


@both
async def test_subclass_of_the_backend_is_accepted(io, settings, redis_url) -> None:
    cache = {**settings.CACHES["default"], "BACKEND": f"{__name__}.Subclassed"}
    with override_settings(CACHES={**settings.CACHES, "mine": cache}):
        async with io.entered(Lock("x", using="mine")) as lease:
            assert lease.held


# Clients


@pytest.mark.parametrize("how", ["unixsocket", "password", "decode", "timeouts", "blocking pool"])
@both
async def test_connections_use_the_options_of_the_alias(io, new_server, alias, how: str) -> None:
    server = new_server(
        unixsocket=how == "unixsocket",
        config={"requirepass": "p@ss: word"} if how == "password" else None,
    )
    options: dict[str, dict[str, Any]] = {
        "decode": {"CONNECTION_POOL_KWARGS": {"decode_responses": True}},
        "timeouts": {"SOCKET_TIMEOUT": 2, "SOCKET_CONNECT_TIMEOUT": 2},
        "blocking pool": {
            "CONNECTION_POOL_CLASS": "redis.connection.BlockingConnectionPool",
            "CONNECTION_POOL_KWARGS": {"max_connections": 2, "timeout": 5},
        },
    }
    name = alias(server.url, **options.get(how, {}))

    async def worker() -> None:
        async with io.entered(Lock("x", using=name)) as lease:
            assert lease.held and await io.do(lease, "owned")

    await io.gather(*[worker() for _ in range(5)])
    assert not await io.do(Lock("x", using=name), "locked")


def test_async_client_uses_the_options_of_the_sync_client(new_server, alias) -> None:
    server = new_server(config={"requirepass": "secret"})
    name = alias(
        server.url,
        SOCKET_TIMEOUT=3,
        SOCKET_CONNECT_TIMEOUT=4,
        CONNECTION_POOL_KWARGS={"decode_responses": True, "client_name": "shop"},
    )

    async def main() -> dict[str, Any]:
        async with Lock("x", using=name):
            mine = async_server_of(name)
            return dict(mine.client.connection_pool.connection_kwargs)

    kwargs = asyncio.run(main())
    expected = {"password": "secret", "socket_timeout": 3, "socket_connect_timeout": 4}
    expected |= {"decode_responses": True, "client_name": "shop"}
    assert expected == {key: kwargs.get(key) for key in expected}


def test_async_client_setting_replaces_a_client_that_cannot_be_rebuilt(
    private, alias, settings
) -> None:
    name = alias(private.url, CONNECTION_FACTORY=f"{__name__}.OwnFactory")
    lock = Lock("x", using=name)
    assert lock.acquire()
    lock.release()
    with pytest.raises(ImproperlyConfigured, match="ASYNC_CLIENT"):
        asyncio.run(lock.aacquire())
    OwnFactory.url = private.url
    setting = sync(settings, ASYNC_CLIENT=f"{__name__}.own_client")
    with override_settings(REDIS_SYNC=setting):

        async def main() -> None:
            async with lock as lease:
                assert lease.held

        asyncio.run(main())


class OwnFactory:
    """A CONNECTION_FACTORY that doesn't derive from django-redis's."""

    url = ""

    def __init__(self, options: Any) -> None:
        self.options = options

    def connect(self, url: str) -> Any:
        return redis.Redis(connection_pool=redis.ConnectionPool.from_url(url))

    def disconnect(self, connection: Any) -> None:
        connection.connection_pool.disconnect()


def own_client(alias: str) -> Any:
    return redis.asyncio.Redis.from_url(OwnFactory.url)


def test_ended_event_loops_leave_no_resources_and_no_warnings(raw) -> None:
    async def main() -> None:
        async with Lock("tidy", blocking_timeout=5):
            await asyncio.gather(*[Lock("tidy").aacquire(blocking_timeout=0.02) for _ in range(5)])

    # The loop of sync quorum calls may exist. Resources of closed loops are freed at the next use.
    before = [entry for entry in loops.resources_of_all_loops() if not entry[0].is_closed()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            asyncio.run(main())
        gc.collect()
    assert before == loops.resources_of_all_loops()
    assert [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)] == []


def test_event_loop_that_ends_closes_its_connections(raw) -> None:
    def connected() -> int:
        return len(raw.client_list())

    async def main() -> None:
        async with Lock("closing", blocking_timeout=5):
            assert connected() > before

    with Lock("closing"):  # opens the connection of sync code, which stays open
        # A background thread may also open a connection, to register the name.
        eventually(lambda: ("closing", None) in names_in_use())
    before = connected()
    asyncio.run(main())
    eventually(lambda: connected() <= before)


@both
async def test_lock_uses_the_changed_caches_and_former_leases_can_be_released(
    io: Any, settings: Any
) -> None:
    settings.REDIS_SYNC = sync(settings, KEY_PREFIX=None)
    alias = conf.current().cache
    first, second = (
        {**settings.CACHES, alias: {**settings.CACHES[alias], "KEY_PREFIX": prefix}}
        for prefix in (settings.PREFIX, f"{settings.PREFIX}:second")
    )
    lock = Lock("moved")
    settings.CACHES = first
    held = await io.do(lock, "acquire", blocking=False)
    settings.CACHES = second
    other = await io.do(lock, "acquire", blocking=False)
    assert held and other
    for lease in (held, other):
        await io.do(lease, "release")
