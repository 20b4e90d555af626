"""The setting REDIS_SYNC is read at each acquire, and clients use the options of the cache."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache.backends.redis import RedisCache as DjangosRedisCache
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django_redis.cache import RedisCache

from django_redis_sync import Lock, Unavailable

from .both import both
from .watching import View, living

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(30)]

Setting = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def sync(settings: Any) -> Setting:
    """Return a function that changes keys of REDIS_SYNC during a block."""
    return lambda **values: override_settings(REDIS_SYNC={**settings.REDIS_SYNC, **values})


@both
async def test_settings_are_read_at_each_acquire(io, sync) -> None:
    lock = Lock("read")
    for seconds in (50, 20):
        with sync(TIMEOUT=seconds):
            lease = await io.do(lock, "acquire")
            assert seconds - 5 < lease.remaining <= seconds
            await io.do(lock, "release")
    async with io.entered(lock):
        with sync(BLOCKING_TIMEOUT=0.05):
            assert await io.do(Lock("read"), "acquire") is None
    with sync(MAX_HOLD=7):
        async with io.entered(lock) as lease:
            assert 5 < lease.remaining <= 7
    with sync(CACHE=None), pytest.raises(ImproperlyConfigured, match="CACHE"):
        await io.do(lock, "acquire")


@both
async def test_cache_and_prefix_come_from_the_arguments_or_the_settings(
    io, raw, private, settings, sync
) -> None:
    bare = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": private.url}
    settings.CACHES = {**settings.CACHES, "bare": bare}
    given, own = settings.REDIS_SYNC["KEY_PREFIX"], settings.CACHES["default"]["KEY_PREFIX"]
    with redis.Redis.from_url(private.url) as client:
        for values, using, server, prefix in (
            ({}, None, raw, given),
            ({}, "bare", client, given),
            ({"KEY_PREFIX": None}, None, raw, f"{own}:sync"),
            ({"KEY_PREFIX": None}, "bare", client, "sync"),
            ({"KEY_PREFIX": None, "CACHE": "bare"}, None, client, "sync"),
        ):
            with sync(**values):
                async with io.entered(Lock("x", using=using)):
                    assert View(server, "x", prefix).holding == 1


@both
async def test_lease_can_be_released_after_the_caches_setting_has_changed(io, settings) -> None:
    lock, leases, was = Lock("moved"), [], settings.CACHES
    alias = settings.REDIS_SYNC.get("CACHE", "default")
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": None}
    for prefix in (settings.PREFIX, f"{settings.PREFIX}:second"):
        settings.CACHES = {**was, alias: {**was[alias], "KEY_PREFIX": prefix}}
        leases.append(await io.do(lock, "acquire", blocking=False))
    for lease in leases:
        await io.do(lease, "release")


def test_acquire_of_a_thread_during_a_change_of_caches_keeps_no_old_server(
    private, settings, monkeypatch
):
    def acquire() -> None:
        with contextlib.suppress(Unavailable):
            Lock("other", using="moved").acquire(blocking=False)

    def acquire_in_a_thread() -> None:
        """Run in place of the first step of the receiver with which Django resets its caches."""
        thread = threading.Thread(target=acquire)
        thread.start()
        thread.join()

    up = {**settings.CACHES["default"], "LOCATION": private.url}
    down = {**up, "LOCATION": "redis://127.0.0.1:1"}  # nothing listens here
    settings.CACHES = was = {**settings.CACHES, "moved": up}
    with monkeypatch.context() as patch:
        patch.setattr("django.core.cache.close_caches", acquire_in_a_thread)
        with override_settings(CACHES={**was, "moved": down}), pytest.raises(Unavailable):
            Lock("x", using="moved").acquire()  # the old server would grant this lock


class Subclassed(RedisCache):
    """A subclass of django-redis's backend. For example, django-prometheus has such a class."""


class SubclassedOfDjango(DjangosRedisCache):
    """A subclass of Django's own backend."""


SHARDS = {"CLIENT_CLASS": "django_redis.client.ShardClient"}


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("", {}, "'other'"),
        ("django.core.cache.backends.locmem.LocMemCache", {}, "django_redis"),
        ("django.core.cache.backends.redis.RedisCache", {}, ""),
        ("django_redis.cache.RedisCache", SHARDS, "ShardClient"),
        (f"{__name__}.Subclassed", {}, ""),
        (f"{__name__}.SubclassedOfDjango", {}, ""),
    ],
)
@both
async def test_only_a_configured_redis_cache_is_accepted(
    io, settings, backend: str, options: Any, words: str
) -> None:
    place = settings.CACHES["default"]["LOCATION"]
    place = [place] * 2 if options else place
    other = {"BACKEND": backend, "LOCATION": place, "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, **({"other": other} if backend else {})}
    if words:
        with pytest.raises(ImproperlyConfigured, match=words):
            await io.do(Lock("x", using="other"), "acquire")
    else:
        async with io.entered(Lock("x", using="other")) as lease:
            assert lease.held


@pytest.mark.parametrize("how", ["unixsocket", "password", "decode", "timeouts", "blocking pool"])
@both
async def test_connections_have_the_options_of_their_cache_alias(
    io, new_server, alias, how: str
) -> None:
    server = new_server(
        unixsocket=how == "unixsocket",
        config={"requirepass": "p@ss: word"} if how == "password" else None,
    )
    options: dict[str, dict[str, Any]] = {
        "decode": {"CONNECTION_POOL_KWARGS": {"decode_responses": True, "client_name": "shop"}},
        "timeouts": {"SOCKET_TIMEOUT": 3, "SOCKET_CONNECT_TIMEOUT": 4},
        "blocking pool": {
            "CONNECTION_POOL_CLASS": "redis.connection.BlockingConnectionPool",
            "CONNECTION_POOL_KWARGS": {"max_connections": 2, "timeout": 5},
        },
    }
    name = alias(server.url, **options.get(how, {}))

    async def worker() -> None:
        async with io.entered(Lock("x", using=name)) as lease:
            assert lease.held and await io.do(lease, "owned")
            if how == "decode":
                with redis.Redis.from_url(server.url) as client:
                    assert "shop" in {each["name"] for each in client.client_list()}
            if how == "timeouts" and repr(io) == "async":
                kinds = living(redis.asyncio.Connection)
                mine = [o for o in kinds if o.is_connected and o.port == server.port]
                assert {(3, 4)} == {(o.socket_timeout, o.socket_connect_timeout) for o in mine}

    await io.gather(*[worker() for _ in range(5)])
    assert not await io.do(Lock("x", using=name), "locked")


class OwnFactory:
    """A project's own CONNECTION_FACTORY, which is not a subclass of django-redis's factory."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def connect(self, url: str) -> Any:
        OwnFactory.url = url
        return redis.Redis.from_url(url)


def own_client(alias: str) -> Any:
    return redis.asyncio.Redis.from_url(OwnFactory.url)


def test_async_client_setting_is_required_with_a_custom_connection_factory(private, alias, sync):
    lock = Lock("x", using=alias(private.url, CONNECTION_FACTORY=f"{__name__}.OwnFactory"))
    with lock, pytest.raises(ImproperlyConfigured, match="ASYNC_CLIENT"):
        asyncio.run(lock.aacquire())
    with sync(ASYNC_CLIENT=f"{__name__}.own_client"):
        assert asyncio.run(lock.aacquire())
