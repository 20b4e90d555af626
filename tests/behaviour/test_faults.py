"""Lost replies, hangs, outages, and other faults of servers and networks.

In each case a call makes one grant with one fence, or raises a clear error. It ends within its time
limit, and leaves no orphaned permit. The tests use their own server through a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.core.cache import caches

from devtools.servers import HOST, RedisServer, free_port
from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    ReadWriteLock,
    Semaphore,
    SyncError,
    Unavailable,
)
from django_redis_sync.engine import hub, pools, renewal, wire
from django_redis_sync.exceptions import ForeignValue
from tests.support.journal import journalling

from .both import both, eventually, refused, until
from .child import Child
from .proxy import Proxy, proxied
from .watching import Pulse, View

pytestmark = pytest.mark.promise(5, 7, 14)

#: Seconds allowed for one reply here. The time limit of an acquire is twice as long.
ATTEMPT = 0.8
#: Seconds in which a lease of 30 s doesn't expire.
SOONER = 20


class Impatient(Lock):
    _attempt = ATTEMPT


class Bench:
    """A private server, a proxy in front of it, and a journal of all scripts that run there."""

    def __init__(self, server: RedisServer, proxy: Proxy, alias: str, journal: Any) -> None:
        self.server, self.proxy, self.alias, self.journal = server, proxy, alias, journal
        self.client = journal.client

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return Impatient(name, using=self.alias, **options)

    def view(self, name: str = "x") -> View:
        return View(self.client, name)

    async def warm(self, io: Any) -> None:
        """Connect, load the scripts, and subscribe, so that the test's fault hits its request."""
        async with io.entered(self.lock("warm")):
            pass


@pytest.fixture
def bench(private: RedisServer, alias: Any) -> Iterator[Bench]:
    assert private.port is not None
    with proxied(HOST, private.port) as proxy, journalling(private.url) as journal:
        # The project's own timeouts limit how long a connection attempt takes.
        timeouts = {"SOCKET_TIMEOUT": ATTEMPT, "SOCKET_CONNECT_TIMEOUT": ATTEMPT}
        yield Bench(private, proxy, alias(proxy.url, **timeouts), journal)
        if private.pid and journal.drain():
            journal.check()


# Replies and requests that are lost or late


@pytest.mark.parametrize("harm", ["cut", "drop"])
@both
async def test_acquire_is_sent_again_when_its_reply_is_lost(io, bench, harm: str) -> None:
    await bench.warm(io)
    bench.proxy.harm(harm)
    lease = await io.do(bench.lock(), "acquire", False)
    assert [harm] == bench.proxy.done
    assert lease and lease.held and await io.do(lease, "owned")
    assert bench.view().holding == 1
    await io.do(lease, "release")
    assert bench.view().empty


@both
async def test_release_is_sent_again_when_its_reply_is_lost(io, bench) -> None:
    await bench.warm(io)
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("cut", "release")
    await io.do(lease, "release")
    assert bench.proxy.done == ["cut"]
    assert bench.view().empty


@both
async def test_each_call_returns_its_answer_when_a_reply_is_lost(io, bench) -> None:
    await bench.warm(io)
    lock, writers = bench.lock(), ReadWriteLock("rw", using=bench.alias).write
    lease, writer = [await io.do(primitive, "acquire") for primitive in (lock, writers)]
    calls = [
        (lease, "owned", "renew", True),
        (lease, "renew", "renew", None),
        (lease, "extend", "renew", True, 60),
        (lease, "reacquire", "renew", True),
        (lease, "locked", "inspect", True),
        (lock, "owned", "renew", True),
        (lock, "locked", "inspect", True),
        (writer, "downgrade", "release", None),
    ]
    for thing, call, script, answer, *arguments in calls:
        bench.proxy.harm("cut", script)
        assert answer == await io.do(thing, call, *arguments), call
    bench.proxy.harm("cut", "inspect")
    assert 1 == (await io.do(lock, "status")).holding
    bench.proxy.harm("cut", "renew")
    handle = await io.do(lease, "detach")
    bench.proxy.harm("cut", "renew")
    adopted = await io.do(Lease, "from_handle", handle)
    assert len(calls) + 3 == len(bench.proxy.done)
    await io.do(adopted, "release")
    await io.do(writer, "release")
    assert bench.view().empty and bench.view("rw").empty


@both
async def test_waiter_keeps_its_place_and_grant_when_replies_are_lost(io, bench) -> None:
    await bench.warm(io)
    first = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("cut")
    second = io.start(io.do(bench.lock(), "acquire"))
    await until(io, lambda: bench.view().waiting == 1 and bench.proxy.done)
    third = io.start(io.do(bench.lock(), "acquire"))
    await until(io, lambda: bench.view().waiting == 2)
    await io.do(first, "release")
    lease = await io.result(second)
    assert bench.view().waiting == 1
    await io.do(lease, "release")
    await io.do(await io.result(third), "release")
    assert bench.view().empty


@both
async def test_acquire_without_any_reply_raises_unavailable_and_leaves_no_holder(io, bench) -> None:
    await bench.warm(io)
    bench.proxy.harm("drop", times=20)
    start = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        await io.do(bench.lock(), "acquire", False)
    assert time.monotonic() - start < 10 * ATTEMPT
    assert Unavailable is type(caught.value) and caught.value.maybe_executed
    await until(io, lambda: bench.view().empty, SOONER)


@both
async def test_acquire_that_arrives_after_its_undo_takes_no_permit(io, bench) -> None:
    await bench.warm(io)
    bench.proxy.harm("hold", times=20)
    with pytest.raises(Unavailable) as caught:
        await io.do(bench.lock(), "acquire", False)
    assert caught.value.maybe_executed
    # A background thread sends the undo. Then the delayed requests arrive.
    await until(io, lambda: any("undo" in entry.argv for entry in bench.journal))
    before = len(list(bench.journal))
    bench.proxy.let_go()
    await until(io, lambda: len(list(bench.journal)) > before)
    assert ("dead",) in [entry.reply for entry in bench.journal]
    assert bench.view().empty


@both
async def test_acquire_raises_unavailable_when_the_port_is_closed(io, alias) -> None:
    lock = Lock("x", using=alias(f"redis://127.0.0.1:{free_port()}/0"))
    start = time.monotonic()
    for blocking in (False, True):
        with pytest.raises(Unavailable) as caught:
            await io.do(lock, "acquire", blocking)
        assert not caught.value.maybe_executed
    with pytest.raises(Unavailable):
        async with io.entered(lock):
            pytest.fail("got in")
    with pytest.raises(Unavailable):
        await io.do(lock, "locked")
    assert time.monotonic() - start < 5


@both
async def test_waiter_is_granted_after_its_connections_were_killed(io, bench) -> None:
    await bench.warm(io)
    first = await io.do(bench.lock(), "acquire")
    waiting = io.start(io.do(bench.lock(), "acquire"))
    await until(io, lambda: bench.view().waiting == 1)
    for _ in range(3):
        for kind in ("normal", "pubsub"):
            bench.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        await io.sleep(0.1)
    await io.do(first, "release")
    lease = await io.result(waiting)
    assert lease.held
    await io.do(lease, "release")


# Wake-ups


@both
async def test_waiter_is_granted_within_a_heartbeat_when_its_wake_up_is_lost(
    io, private, alias, monkeypatch
) -> None:
    """The waiter sends its request again after a heartbeat."""
    unheard = deafen(monkeypatch)
    name = alias(private.url)
    first = await io.do(Lock("deaf", using=name), "acquire")
    waiting = io.start(io.do(Lock("deaf", using=name), "acquire"))
    with redis.Redis.from_url(private.url) as client:
        view = View(client, "deaf")
        await until(io, lambda: view.waiting == 1)
    await io.do(first, "release")
    start = time.monotonic()
    lease = await io.result(waiting)
    assert time.monotonic() - start < 5
    assert unheard
    assert lease.held and await io.do(lease, "owned")
    await io.do(lease, "release")


def deafen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Drop all wake-ups: BLPOP reads another list, and published messages are discarded.

    Return the list to which each dropped wake-up is appended."""
    unheard: list[Any] = []

    def pack(args: Any) -> bytes:
        assert args[0] == "BLPOP"
        unheard.append(args)
        return wire.pack(("BLPOP", args[1] + "-nothing", args[2]))

    monkeypatch.setattr(pools, "pack", pack)
    monkeypatch.setattr(hub.Hub, "_deliver", lambda self, data: unheard.append(data))
    return unheard


def test_waiters_of_a_killed_subscription_are_granted(bench) -> None:
    async def main() -> None:
        first = await bench.lock().aacquire()
        waiters = [asyncio.create_task(bench.lock().aacquire()) for _ in range(3)]
        while bench.view().waiting < 3:
            await asyncio.sleep(0.01)
        bench.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await first.arelease()
        for _ in waiters:
            done, pending = await asyncio.wait(waiters, timeout=10, return_when="FIRST_COMPLETED")
            assert done
            (lease,) = [task.result() for task in done if task.result().held]
            await lease.arelease()
            waiters = list(pending)

    asyncio.run(main())
    assert bench.view().empty


# Errors of the server


@both
async def test_flushed_scripts_are_loaded_again(io, bench) -> None:
    stop = threading.Event()

    def flush() -> None:
        with redis.Redis.from_url(bench.server.url) as client:
            while not stop.is_set():
                client.script_flush()
                stop.wait(0.0005)

    async def worker() -> None:
        for _ in range(20):
            async with io.entered(bench.lock()) as lease:
                assert lease.held

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        await io.gather(*[worker() for _ in range(5)])
    finally:
        stop.set()
        flusher.join()
    assert bench.view().empty


@both
async def test_cleared_cache_calls_on_lost_and_fences_grow(io, bench, settings) -> None:
    lost: list[Any] = []
    lock = bench.lock(timeout=3, renew=True, on_lost=lost.append)
    lease = await io.do(lock, "acquire")
    bench.journal.note("wiped")
    caches[bench.alias].clear()
    bench.client.flushdb()
    await until(io, lambda: lost and not lease.held)
    with pytest.raises(LeaseLost):
        await io.do(lock, "release")
    again = await io.do(lock, "acquire")
    assert again.fence > lease.fence
    await io.do(lock, "release")


@pytest.mark.parametrize(
    ("denied", "words"),
    [(["-evalsha", "-eval"], "(?i)evalsha.*ACL"), (["-hset"], "ACL")],
    ids=["evalsha", "hset in a script"],
)
@both
async def test_unavailable_names_the_denied_command(
    io, private, alias, denied: list[str], words: str
) -> None:
    user = {"enabled": True, "passwords": ["+secret"], "keys": "*", "channels": "*"}
    with redis.Redis.from_url(private.url) as client:
        client.acl_setuser("app", **user, commands=["+@all", *denied])
    url = private.url.replace("redis://", "redis://app:secret@")
    with pytest.raises(Unavailable, match=words) as caught:
        await io.do(Lock("x", using=alias(url)), "acquire")
    assert "secret" not in str(caught.value)


@both
async def test_unavailable_does_not_contain_the_wrong_password(io, new_server, alias) -> None:
    server = new_server(config={"requirepass": "right"})
    with pytest.raises(Unavailable) as caught:
        await io.do(Lock("x", using=alias(server.url.replace("right", "mistaken"))), "acquire")
    assert "mistaken" not in str(caught.value)
    assert await io.do(Lock("x", using=alias(server.url)), "acquire")


@both
async def test_foreign_value_is_named_in_the_error_and_kept(io, bench) -> None:
    bench.client.set(bench.view().keys.leases, "precious")
    with pytest.raises(ForeignValue) as caught:
        await io.do(bench.lock(), "acquire")
    assert isinstance(caught.value, SyncError)
    assert bench.view().keys.leases in str(caught.value)
    assert bench.client.get(bench.view().keys.leases) == b"precious"
    bench.client.delete(bench.journal.key)  # the script was meant to fail
    bench.journal.drained.clear()


def _is_busy(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            client.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)
    return False


@both
async def test_acquire_raises_unavailable_while_an_endless_script_runs(io, bench) -> None:
    await bench.warm(io)
    bench.client.config_set(
        "lua-time-limit" if _is_old(bench.client) else "busy-reply-threshold", 20
    )

    def spin() -> None:
        with redis.Redis.from_url(bench.server.url) as client, contextlib.suppress(Exception):
            client.eval("while true do end", 0)

    spinning = threading.Thread(target=spin)
    spinning.start()
    await until(io, lambda: _is_busy(bench.server.url))
    try:
        start = time.monotonic()
        with pytest.raises(Unavailable):
            await io.do(bench.lock(), "acquire", False)
        assert time.monotonic() - start < 5
    finally:
        with redis.Redis.from_url(bench.server.url) as client:
            client.script_kill()
        spinning.join()
    assert await io.do(bench.lock(), "acquire", False)


def _is_old(client: redis.Redis) -> bool:
    return int(client.info("server")["redis_version"].split(".")[0]) < 7


# Clocks


@both
async def test_clients_wall_clock_does_not_affect_leases(io, raw, monkeypatch) -> None:
    real = time.time
    lock = Lock("clock", timeout=10, renew=True)
    for hour in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda hour=hour: real() + hour)
        async with io.entered(lock) as lease:
            assert abs(lease.acquired_at.timestamp() - real()) < 60
            assert await io.do(Lock("clock", blocking=False), "acquire") is None
            assert 0 < lease.remaining <= 10
    assert View(raw, "clock").empty


# Holders


def test_permit_of_a_killed_holder_is_free_after_its_lease_duration(raw) -> None:
    view = View(raw, "killed")
    with Child("hold", "killed", 3, "renew") as holder:
        fence = int(holder.line()[1])
        eventually(view.renewals())
        assert Lock("killed", blocking=False).acquire() is None
    assert view.holding == 1
    start = time.monotonic()
    lease = Lock("killed").acquire(blocking_timeout=20)
    assert lease and lease.fence > fence
    assert time.monotonic() - start < 3 + 4
    lease.release()


@both
async def test_on_lost_is_called_before_an_unrenewable_lease_expires(io, bench) -> None:
    left: list[float] = []
    lock = bench.lock(timeout=3, renew=True, on_lost=lambda _: left.append(bench.view().ends_in))
    lease = await io.do(lock, "acquire")
    bench.proxy.harm("refuse", "", times=10_000)
    with Pulse() as pulse:
        await until(io, lambda: left)
    assert not lease.held
    # The lease had not expired on the server yet, apart from the delay with which threads woke.
    assert left[0] > -3 * pulse.most
    await until(io, lambda: bench.view().holding == 0)
    bench.proxy.calm()
    with pytest.raises(LeaseLost):
        await io.do(lease, "release")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_renewal_thread_that_died_is_replaced(raw) -> None:
    first = Lock("first").acquire()
    worker = renewal.renewer("default")._worker
    turn = worker._turn

    def die() -> float:
        worker._turn = turn
        raise SystemExit

    worker._turn = die
    worker.rouse()
    eventually(lambda: not worker.runs)
    second = Lock("second", timeout=3, renew=True).acquire()
    eventually(View(raw, "second").renewals())
    assert first.held and second.held and second.owned()
    first.release()
    second.release()


# Pools


@both
async def test_waiters_do_not_starve_releases_of_connections(io, new_server, alias) -> None:
    pool = {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}
    name = alias(new_server().url, **pool)

    async def worker() -> None:
        for _ in range(3):
            async with io.entered(Semaphore("pool", 2, using=name)) as lease:
                assert lease.held

    await io.gather(*[worker() for _ in range(20)])


@both
async def test_connection_attempt_is_bounded_when_the_pool_has_no_timeouts(
    io, private, alias, monkeypatch
) -> None:
    """Before version 8, redis-py has no timeouts by default, so a pool waits without limit."""
    monkeypatch.setattr(pools, "ATTEMPT", 0.5)
    endless = {"socket_timeout": None, "socket_connect_timeout": None}
    name = alias(private.url, CONNECTION_POOL_KWARGS=endless)
    private.pause()
    try:
        with pytest.raises(Unavailable):
            await io.do(Impatient("x", using=name), "acquire")
    finally:
        private.resume()
    # The project's own connections are unchanged.
    pool = caches[name].client.get_client().connection_pool
    connection = pool.get_connection()
    assert connection.socket_timeout is None
    pool.release(connection)
    async with io.entered(Lock("x", using=name)) as lease:
        assert lease.held


@both
async def test_acquire_raises_unavailable_in_time_when_maxclients_is_reached(
    io, new_server, alias
) -> None:
    server = new_server(config={"maxclients": 4})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(server.url)) for _ in range(4)]
        for client in clients:
            client.ping()
        start = time.monotonic()
        with pytest.raises(Unavailable):
            await io.do(Impatient("x", using=alias(server.url)), "acquire")
        assert time.monotonic() - start < 10


@both
async def test_full_memory_rejects_acquire_and_allows_release(io, private, alias) -> None:
    name = alias(private.url)
    lock = Impatient("x", using=name)
    lease = await io.do(lock, "acquire")
    with redis.Redis.from_url(private.url) as client:
        client.config_set("maxmemory", 1)
        await refused(io, "memory", Impatient("y", using=name), "acquire")
        await io.do(lease, "release")
        assert View(client, "x").empty and View(client, "y").empty
        client.config_set("maxmemory", 0)
    assert await io.do(Impatient("y", using=name), "acquire")


@both
async def test_restart_without_persistence_loses_leases_and_fences_grow(io, private, alias) -> None:
    name = alias(private.url)
    lost: list[Any] = []
    lock = Impatient("x", using=name, timeout=3, renew=True, on_lost=lost.append)
    lease = await io.do(lock, "acquire")
    private.kill()
    with pytest.raises(Unavailable):
        await io.do(Impatient("y", using=name), "acquire")
    private.restart()
    await until(io, lambda: lost)
    again = await io.do(lock, "acquire", blocking_timeout=10)
    assert again.fence > lease.fence and not lease.held
    await io.do(again, "release")
    gc.collect()
    assert math.isfinite(again.fence)


# Connections that are half set up when a signal handler raises an exception


class Limit(BaseException):
    """The exception of a signal handler."""


def unready(connection: Any) -> None:
    """Stop after the connection is open."""


def unselected(connection: Any) -> None:
    """Stop before the database is selected."""
    connection._parser.on_connect(connection)


@pytest.mark.parametrize("done", [unready, unselected])
def test_connection_half_set_up_by_an_interrupted_acquire_is_not_reused(
    private: RedisServer, alias: Any, done: Any
) -> None:
    url = f"{private.url.removesuffix('/0')}/3"
    using = alias(url, CONNECTION_POOL_KWARGS={"redis_connect_func": interrupted_once(done)})
    with pytest.raises(Limit):
        Lock("a", using=using).acquire(False)
    with Lock("a", using=using), redis.Redis.from_url(url) as client:
        assert ["db3"] == list(client.info("keyspace"))


def test_connection_half_set_up_by_other_code_is_not_used(private: RedisServer, alias: Any) -> None:
    using = alias(
        private.url, CONNECTION_POOL_KWARGS={"redis_connect_func": interrupted_once(unready)}
    )
    with pytest.raises(Limit):
        caches[using].get("a")
    with Lock("a", using=using):
        pass


def interrupted_once(done: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a function that sets up connections, but interrupts the first after `done`."""
    left = [True]

    def connected(connection: Any) -> None:
        if left:
            left.clear()
            done(connection)
            raise Limit
        connection.on_connect()

    return connected


@both
async def test_hiredis_gets_no_numbers_to_pack(
    io, clean_redis, view, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hiredis crashes if a signal handler raises while it packs a number: docs/failure-modes.md."""
    hiredis = pytest.importorskip("hiredis")
    pack, packed = hiredis.pack_command, []

    def noted(words: tuple[Any, ...]) -> bytes:
        packed.append(words)
        return pack(words)

    monkeypatch.setattr(hiredis, "pack_command", noted)
    semaphore = Semaphore("packed", 1, timeout=30, renew=True)
    lease = await io.do(semaphore, "acquire")
    waiting = io.start(io.do(semaphore, "acquire", blocking_timeout=30))
    await until(io, lambda: view("packed").waiting)
    await io.do(lease, "renew", 60)
    await io.do(lease, "release")
    await io.do(await io.result(waiting), "release")
    caches["default"].client.get_client().ping()
    numbers = [words for words in packed if {int, float} & {*map(type, words)}]
    assert {words[0] for words in numbers} <= {b"HELLO", b"SELECT"}
    assert packed
