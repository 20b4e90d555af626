"""Each call ends within its time limit if the server, the pool, or the network hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache import caches
from redis import BlockingConnectionPool, ConnectionPool
from redis import exceptions as errors

from devtools.servers import HOST, RedisServer
from django_redis_sync import Lease, Lock, Unavailable
from django_redis_sync.engine import threads
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import count_keys, count_names, is_listed

from .both import both, eventually, until
from .proxy import proxied
from .watching import View

pytestmark = pytest.mark.promise(13)

#: Seconds for one reply here. The time limit of a call is twice as long.
ATTEMPT = 0.7
TOO_LATE = 5 * ATTEMPT
#: Seconds; a call that waits for a pool would take 20 s.
SOON = 9


class Impatient(Lock):
    _attempt = ATTEMPT


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.2f} s"


class Slow(ConnectionPool):
    """A project's own pool class, which takes 20 s to return a connection."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        time.sleep(20)
        return super().get_connection(*args, **options)


# A server that hangs


async def fails_in_time(thing: Any, method: str, io: Any, *args: Any, **options: Any) -> None:
    """Check that the call raises Unavailable within its time limit."""
    with within(TOO_LATE), pytest.raises(Unavailable):
        await io.do(thing, method, *args, **options)


@pytest.mark.parametrize(
    "timeout, connected",
    [(30, False), (30, True), (None, False), (0.3, True)],
    ids=["long-cold", "long-connected", "none-cold", "short-connected"],
)
@both
async def test_call_ends_within_its_time_limit_when_the_server_hangs(
    io, private, alias, timeout: float | None, connected: bool
) -> None:
    """The project's timeouts don't matter. Pending cleanup is done when the server runs again."""
    timeouts = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    name, leases = alias(private.url, CONNECTION_POOL_KWARGS=timeouts), {}
    for method in ("renew", "release") if connected else ():
        leases[method] = await io.do(Impatient(method, using=name), "acquire")
    lock = Impatient("x", using=name)
    calls = [
        fails_in_time(lock, "acquire", io),
        fails_in_time(lock, "acquire", io, blocking=False),
        fails_in_time(Lock("x", using=name), "acquire", io, blocking_timeout=0.5),
        *(fails_in_time(lease, method, io) for method, lease in leases.items()),
    ]
    private.pause()
    try:
        await io.gather(*calls)
    finally:
        private.resume()
    with redis.Redis.from_url(private.url) as client:
        await until(io, lambda: View(client, "x").empty and View(client, "release").empty, 20)


@both
async def test_waiter_ends_soon_after_its_timeout_when_the_server_hangs(io, private, alias) -> None:
    name = alias(private.url)
    held = await io.do(Lock("x", using=name), "acquire")
    waiting = io.start(io.do(Lock("x", using=name), "acquire", blocking_timeout=2))
    with redis.Redis.from_url(private.url) as client:
        await until(io, lambda: View(client, "x").waiting == 1)
    began = time.monotonic()
    private.pause()
    try:
        with pytest.raises(Unavailable):
            await io.result(waiting)
        # At most the rest of its timeout, and two seconds for leaving the queue.
        assert time.monotonic() - began < 6
    finally:
        private.resume()
    await io.do(held, "release")


@both
async def test_waiter_waits_for_its_blocking_timeout(io, private, alias) -> None:
    name = alias(private.url)
    held = await io.do(Lock("x", using=name), "acquire")
    for seconds in (0.05, 0.5, 1.2):
        began = time.monotonic()
        assert await io.do(Lock("x", using=name), "acquire", blocking_timeout=seconds) is None
        took = time.monotonic() - began
        assert seconds <= took < seconds + 2
    began = time.monotonic()
    assert await io.do(Lock("x", using=name), "acquire", False) is None
    assert time.monotonic() - began < 2
    await io.do(held, "release")


@both
async def test_call_ends_within_its_time_limit_when_the_network_drops_all(
    io, private, alias
) -> None:
    assert private.port is not None
    with proxied(HOST, private.port) as proxy:
        name = alias(proxy.url, SOCKET_TIMEOUT=5, SOCKET_CONNECT_TIMEOUT=5)
        lease = await io.do(Impatient("held", using=name), "acquire")
        proxy.harm("swallow", "", times=100_000)
        asking = fails_in_time(Impatient("x", using=name), "acquire", io, False)
        await io.gather(asking, fails_in_time(lease, "release", io))


@both
async def test_call_ends_within_its_time_limit_when_all_replies_are_lost(
    io, private, alias
) -> None:
    """The server accepts connections and runs requests, so only the time limit ends the call."""
    assert private.port is not None
    with proxied(HOST, private.port) as proxy:
        name = alias(proxy.url)
        lease = await io.do(Impatient("held", using=name), "acquire")
        for verb in ("acquire", "renew", "release"):
            proxy.harm("drop", verb, times=100)
            with within(TOO_LATE), pytest.raises(Unavailable):
                if verb == "acquire":
                    await io.do(Impatient("x", using=name), "acquire", False)
                else:
                    await io.do(lease, verb)
            assert len(proxy.done) >= 2  # the request was sent again
            proxy.done.clear()
            proxy.calm()


# Pools


@pytest.mark.parametrize("kind", [BlockingConnectionPool, Slow])
@both
async def test_calls_do_not_wait_for_an_exhausted_blocking_pool(
    io, private, alias, kind: Any
) -> None:
    name = alias(
        private.url,
        CONNECTION_POOL_CLASS=f"{kind.__module__}.{kind.__qualname__}",
        CONNECTION_POOL_KWARGS={"max_connections": 2},
    )
    with exhausted(name):
        with within(SOON):
            lease = await io.do(Lock("x", using=name), "acquire", False)
        with within(SOON):
            assert await io.do(Lock("x", using=name), "acquire", False) is None
        with within(SOON):
            assert await io.do(Lock("x", using=name), "acquire", blocking_timeout=1) is None
        with within(SOON):
            await io.do(lease, "renew")
            await io.do(lease, "release")
        with within(SOON):
            assert not await io.do(Lock("x", using=name), "locked")
            assert (await io.do(Lock("x", using=name), "status")).holding == 0


@pytest.mark.parametrize("kind", [BlockingConnectionPool, Slow])
def test_operator_reads_do_not_wait_for_an_exhausted_blocking_pool(
    private, alias, kind: Any
) -> None:
    name = alias(
        private.url,
        CONNECTION_POOL_CLASS=f"{kind.__module__}.{kind.__qualname__}",
        CONNECTION_POOL_KWARGS={"max_connections": 2},
    )
    lease = Lock("x", using=name).acquire(False)
    assert lease
    eventually(lambda: count_names(using=name) == 1)
    with exhausted(name), within(SOON):
        assert [True, False] == is_listed([("x", None), ("y", None)], using=name)
        assert {"x": 0} == count_keys(["x"], using=name)
        (found,) = histories([("x", None)], using=name)
        assert found.ever != histories([("y", None)], using=name)[0].ever
    lease.release()


def test_operator_reads_end_within_their_time_limit_when_the_server_hangs(private, alias) -> None:
    timeouts = {"socket_timeout": 30, "socket_connect_timeout": 30}
    name = alias(private.url, CONNECTION_POOL_KWARGS=timeouts)
    assert [False] == is_listed([("x", None)], using=name)
    private.pause()
    with within(SOON), pytest.raises(Unavailable):
        is_listed([("x", None)], using=name)


@contextlib.contextmanager
def exhausted(name: str) -> Iterator[None]:
    """Check out all connections of the project's pool during the block."""
    pool = caches[name].client.get_client().connection_pool
    taken = []
    if not isinstance(pool, Slow):
        taken = [pool.get_connection() for _ in range(pool.max_connections)]
    try:
        yield
    finally:
        for connection in taken:
            pool.release(connection)


@both
async def test_calls_do_not_wait_for_an_exhausted_plain_pool(io, private, alias) -> None:
    name = alias(private.url, CONNECTION_POOL_KWARGS={"max_connections": 2})
    with exhausted(name), within(SOON):
        lease = await io.do(Lock("x", using=name), "acquire", False)
        assert await io.do(Lock("x", using=name), "acquire", blocking_timeout=0.3) is None
        await io.do(lease, "release")


def test_older_exhausted_pool_is_recognized_by_its_message(private, alias, monkeypatch) -> None:
    def none(self: Any) -> Any:
        raise errors.ConnectionError("Too many connections")

    monkeypatch.setattr(ConnectionPool, "get_connection", none)
    assert Lock("x", using=alias(private.url)).acquire(False)


def test_async_call_ends_within_its_time_limit_when_its_pool_blocks(
    private: RedisServer, alias: Any, settings: Any
) -> None:
    """If the release fails, a background thread sends it through another connection."""
    name = alias(private.url)
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ASYNC_CLIENT": f"{__name__}.blocking_client"}
    _clients.clear()

    async def main() -> Lease:
        lease = await Impatient("x", using=name).aacquire()
        assert lease
        pool, taken = _clients[name].connection_pool, []
        pool.timeout = 0.1
        with contextlib.suppress(errors.ConnectionError):
            while True:
                taken.append(await pool.get_connection())
        pool.timeout = 20
        assert taken
        with within(TOO_LATE), pytest.raises(Unavailable):
            await Impatient("y", using=name).aacquire(blocking=False)
        with within(TOO_LATE), pytest.raises(Unavailable):
            await lease.arelease()
        for connection in taken:
            await pool.release(connection)
        return lease

    asyncio.run(main())
    with redis.Redis.from_url(private.url) as client:
        eventually(lambda: View(client, "x").empty, 20)  # before the lease expires after 30 s


_clients: dict[str, Any] = {}


def blocking_client(alias: str) -> Any:
    url = caches[alias].client._server[0]
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=2, timeout=20)
    _clients[alias] = redis.asyncio.Redis(connection_pool=pool)
    return _clients[alias]


@both
async def test_call_ends_within_its_time_limit_when_no_thread_can_start(
    io, private, alias, monkeypatch
) -> None:
    name = alias(private.url)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.threading.Thread, "start", fail)
    with within(SOON):
        lease = await io.do(Lock("x", using=name), "acquire")
        await io.do(lease, "release")


# Waiters


@pytest.mark.parametrize("seconds", [0.3, 20])
@both
async def test_waiter_waits_longer_than_a_short_socket_timeout(
    io, private, alias, seconds: float
) -> None:
    name = alias(private.url, SOCKET_TIMEOUT=0.4)
    held = await io.do(Lock("x", using=name), "acquire")
    waiting = io.start(io.do(Lock("x", using=name), "acquire", blocking_timeout=seconds))
    await io.sleep(1)
    await io.do(held, "release")
    got = await io.result(waiting)
    assert bool(got) == (seconds > 1)
    if got:
        await until(io, lambda: got.held)
        await io.do(got, "release")
