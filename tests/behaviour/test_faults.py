"""Lost replies, hangs, outages, and what else a server or a network does to its clients.

Everywhere: one grant with one fence or a clear error, no more time than was given, and no holder
left that nobody knows of. Permits are taken on a server of the test's own, through a proxy.
"""

from __future__ import annotations

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

#: Seconds that one answer may take here; the budget of an acquisition is twice that.
ATTEMPT = 0.8
#: Seconds after which no lease of half a minute is over by itself.
SOONER = 20


class Impatient(Lock):
    _attempt = ATTEMPT


class Bench:
    """A private server, the way to it through a proxy, and a journal of all that was run there."""

    def __init__(self, server: RedisServer, proxy: Proxy, alias: str, journal: Any) -> None:
        self.server, self.proxy, self.alias, self.journal = server, proxy, alias, journal
        self.client = journal.client

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return Impatient(name, using=self.alias, **options)

    def view(self, name: str = "x") -> View:
        return View(self.client, name)

    async def warm(self, io: Any) -> None:
        """Connected, scripts loaded, subscribed: what goes wrong then is what the test does."""
        async with io.entered(self.lock("warm")):
            pass


@pytest.fixture
def bench(private: RedisServer, alias: Any) -> Iterator[Bench]:
    assert private.port is not None
    with proxied(HOST, private.port) as proxy, journalling(private.url) as journal:
        # Making a connection takes as long as the project's own timeouts say.
        timeouts = {"SOCKET_TIMEOUT": ATTEMPT, "SOCKET_CONNECT_TIMEOUT": ATTEMPT}
        yield Bench(private, proxy, alias(proxy.url, **timeouts), journal)
        if private.pid and journal.drain():
            journal.check()


# Replies and requests that are lost or late


@pytest.mark.parametrize("harm", ["cut", "drop"])
@both
async def test_a_lost_reply_of_acquire_is_asked_for_again(io, bench, harm: str) -> None:
    await bench.warm(io)
    bench.proxy.harm(harm)
    lease = await io.do(bench.lock(), "acquire", False)
    assert [harm] == bench.proxy.done
    assert lease and lease.held and await io.do(lease, "owned")
    assert bench.view().holding == 1
    await io.do(lease, "release")
    assert bench.view().empty


@both
async def test_a_lost_reply_of_release_is_asked_for_again(io, bench) -> None:
    await bench.warm(io)
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("cut", "release")
    await io.do(lease, "release")
    assert bench.proxy.done == ["cut"]
    assert bench.view().empty


@both
async def test_a_lost_reply_costs_no_other_call_its_answer(io, bench) -> None:
    await bench.warm(io)
    lock, writers = bench.lock(), ReadWriteLock("rw", using=bench.alias).write
    lease, writer = [await io.do(one, "acquire") for one in (lock, writers)]
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
    for thing, call, verb, answer, *said in calls:
        bench.proxy.harm("cut", verb)
        assert answer == await io.do(thing, call, *said), call
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
async def test_a_waiters_lost_replies_cost_it_neither_place_nor_grant(io, bench) -> None:
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
async def test_no_reply_at_all_is_unavailable_and_leaves_no_ghost(io, bench) -> None:
    await bench.warm(io)
    bench.proxy.harm("drop", times=20)
    start = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        await io.do(bench.lock(), "acquire", False)
    assert time.monotonic() - start < 10 * ATTEMPT
    assert Unavailable is type(caught.value) and caught.value.maybe_executed
    await until(io, lambda: bench.view().empty, SOONER)


@both
async def test_a_request_that_arrives_after_its_undo_takes_nothing(io, bench) -> None:
    await bench.warm(io)
    bench.proxy.harm("hold", times=20)
    with pytest.raises(Unavailable) as caught:
        await io.do(bench.lock(), "acquire", False)
    assert caught.value.maybe_executed
    # The undo is done by the keeper; then the late ones come through.
    await until(io, lambda: any("undo" in entry.argv for entry in bench.journal))
    before = len(list(bench.journal))
    bench.proxy.let_go()
    await until(io, lambda: len(list(bench.journal)) > before)
    assert ("dead",) in [entry.reply for entry in bench.journal]
    assert bench.view().empty


@both
async def test_nothing_listens(io, alias) -> None:
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
async def test_a_waiter_rides_out_a_restart_of_its_connections(io, bench) -> None:
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
async def test_a_lost_wake_up_costs_a_heartbeat(io, private, alias, monkeypatch) -> None:
    """A waiter that hears nothing finds out by asking again."""
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
    """No wake-up arrives any more: a BLPOP listens to a list that nobody writes to, and what is
    published is dropped. Returns what was not heard, as it comes."""
    unheard: list[Any] = []

    def pack(args: Any) -> bytes:
        assert args[0] == "BLPOP"
        unheard.append(args)
        return wire.pack(("BLPOP", args[1] + "-nothing", args[2]))

    monkeypatch.setattr(pools, "pack", pack)
    monkeypatch.setattr(hub.Hub, "_deliver", lambda self, data: unheard.append(data))
    return unheard


def test_a_killed_subscription_is_made_again_and_its_waiters_ask(bench) -> None:
    import asyncio

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


# What servers say


@both
async def test_scripts_that_were_flushed_are_loaded_again(io, bench) -> None:
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
async def test_a_cleared_cache_is_learnt_of_and_fences_go_on(io, bench, settings) -> None:
    from django.core.cache import caches

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


@both
async def test_a_refused_command_is_named(io, private, alias) -> None:
    with redis.Redis.from_url(private.url) as client:
        client.acl_setuser(
            "app",
            enabled=True,
            passwords=["+secret"],
            keys="*",
            channels="*",
            commands=["+@all", "-evalsha", "-eval"],
        )
    url = private.url.replace("redis://", "redis://app:secret@")
    with pytest.raises(Unavailable, match=r"(?i)evalsha.*ACL") as caught:
        await io.do(Lock("x", using=alias(url)), "acquire")
    assert "secret" not in str(caught.value)


@both
async def test_a_refused_command_in_a_script_is_named(io, private, alias) -> None:
    with redis.Redis.from_url(private.url) as client:
        client.acl_setuser(
            "app",
            enabled=True,
            passwords=["+secret"],
            keys="*",
            channels="*",
            commands=["+@all", "-hset"],
        )
    url = private.url.replace("redis://", "redis://app:secret@")
    with pytest.raises(Unavailable, match="ACL"):
        await io.do(Lock("x", using=alias(url)), "acquire")


@both
async def test_a_wrong_password_is_no_secret_told(io, new_server, alias) -> None:
    server = new_server(config={"requirepass": "right"})
    with pytest.raises(Unavailable) as caught:
        await io.do(Lock("x", using=alias(server.url.replace("right", "mistaken"))), "acquire")
    assert "mistaken" not in str(caught.value)
    assert await io.do(Lock("x", using=alias(server.url)), "acquire")


@both
async def test_another_programs_value_is_named_and_left_alone(io, bench) -> None:
    bench.client.set(bench.view().keys.leases, "precious")
    with pytest.raises(ForeignValue) as caught:
        await io.do(bench.lock(), "acquire")
    assert isinstance(caught.value, SyncError)
    assert bench.view().keys.leases in str(caught.value)
    assert bench.client.get(bench.view().keys.leases) == b"precious"
    bench.client.delete(bench.journal.key)  # a script that failed is what was meant
    bench.journal._drained.clear()


def _is_busy(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            client.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)
    return False


@both
async def test_an_endless_script_makes_it_unavailable_for_as_long(io, bench) -> None:
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
async def test_the_clients_wall_clock_has_no_say(io, raw, monkeypatch) -> None:
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


def test_a_killed_holders_permit_is_back_within_its_lease(raw) -> None:
    view = View(raw, "killed")
    with Child("hold", "killed", 3, "renew") as holder:
        fence = int(holder.line()[1])
        eventually(view.renewals())  # it is alive
        assert Lock("killed", blocking=False).acquire() is None
    assert view.holding == 1
    start = time.monotonic()
    lease = Lock("killed").acquire(blocking_timeout=20)
    assert lease and lease.fence > fence
    assert time.monotonic() - start < 3 + 4
    lease.release()


@both
async def test_a_keeper_that_cannot_renew_says_so_before_the_server_gives_it_away(
    io, bench
) -> None:
    left: list[float] = []
    lock = bench.lock(timeout=3, renew=True, on_lost=lambda _: left.append(bench.view().ends_in))
    lease = await io.do(lock, "acquire")
    bench.proxy.harm("refuse", "", times=10_000)
    with Pulse() as pulse:
        await until(io, lambda: left)
    assert not lease.held
    # The server had it still, but for what threads woke too late.
    assert left[0] > -3 * pulse.most
    await until(io, lambda: bench.view().holding == 0)
    bench.proxy.calm()
    with pytest.raises(LeaseLost):
        await io.do(lease, "release")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_keeper_that_died_is_replaced(raw) -> None:
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
async def test_waiters_never_starve_the_releaser_of_connections(io, new_server, alias) -> None:
    pool = {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}
    name = alias(new_server().url, **pool)

    async def worker() -> None:
        for _ in range(3):
            async with io.entered(Semaphore("pool", 2, using=name)) as lease:
                assert lease.held

    await io.gather(*[worker() for _ in range(20)])


@both
async def test_a_connection_is_not_waited_for_without_end(io, private, alias, monkeypatch) -> None:
    """Without timeouts, redis-py's default before 8, the pool waits for it without end."""
    monkeypatch.setattr(pools, "ATTEMPT", 0.5)
    endless = {"socket_timeout": None, "socket_connect_timeout": None}
    name = alias(private.url, CONNECTION_POOL_KWARGS=endless)
    private.pause()
    try:
        with pytest.raises(Unavailable):
            await io.do(Impatient("x", using=name), "acquire")
    finally:
        private.resume()
    # The project's own connections are as it wants them.
    pool = caches[name].client.get_client().connection_pool
    theirs = pool.get_connection()
    assert theirs.socket_timeout is None
    pool.release(theirs)
    async with io.entered(Lock("x", using=name)) as lease:
        assert lease.held


@both
async def test_a_full_server_says_so_in_time(io, new_server, alias) -> None:
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
async def test_a_full_memory_refuses_to_take_and_still_releases(io, private, alias) -> None:
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
async def test_a_killed_server_loses_leases_and_fences_grow(io, private, alias) -> None:
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


# Connections that a signal leaves half set up


class Limit(BaseException):
    """As a signal's handler raises it."""


def unready(connection: Any) -> None:
    """Nothing was done but connecting."""


def unselected(connection: Any) -> None:
    """It can speak, and to the wrong database."""
    connection._parser.on_connect(connection)


@pytest.mark.parametrize("done", [unready, unselected])
def test_a_connection_that_a_signal_left_half_set_up_is_not_used(
    private: RedisServer, alias: Any, done: Any
) -> None:
    url = f"{private.url.removesuffix('/0')}/3"
    using = alias(url, CONNECTION_POOL_KWARGS={"redis_connect_func": interrupted_once(done)})
    with pytest.raises(Limit):
        Lock("a", using=using).acquire(False)
    with Lock("a", using=using), redis.Redis.from_url(url) as client:
        assert ["db3"] == list(client.info("keyspace"))


def test_one_that_was_left_by_other_code_is_not_used_either(
    private: RedisServer, alias: Any
) -> None:
    using = alias(
        private.url, CONNECTION_POOL_KWARGS={"redis_connect_func": interrupted_once(unready)}
    )
    with pytest.raises(Limit):
        caches[using].get("a")
    with Lock("a", using=using):
        pass


def interrupted_once(done: Callable[[Any], None]) -> Callable[[Any], None]:
    """Sets connections up, and the first of them by `done` alone."""
    left = [True]

    def connected(connection: Any) -> None:
        if left:
            left.clear()
            done(connection)
            raise Limit
        connection.on_connect()

    return connected


@both
async def test_hiredis_packs_no_number_of_ours(
    io, clean_redis, view, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hiredis crashes if a signal handler raises meanwhile: see docs/failure-modes.md."""
    hiredis = pytest.importorskip("hiredis")
    pack, packed = hiredis.pack_command, []

    def noted(words: tuple[Any, ...]) -> bytes:
        packed.append(words)
        return pack(words)

    monkeypatch.setattr(hiredis, "pack_command", noted)
    one = Semaphore("packed", 1, timeout=30, renew=True)
    lease = await io.do(one, "acquire")
    waiting = io.start(io.do(one, "acquire", blocking_timeout=30))
    await until(io, lambda: view("packed").waiting)
    await io.do(lease, "renew", 60)
    await io.do(lease, "release")
    await io.do(await io.result(waiting), "release")
    caches["default"].client.get_client().ping()
    numbers = [words for words in packed if {int, float} & {*map(type, words)}]
    assert {words[0] for words in numbers} <= {b"HELLO", b"SELECT"}
    assert packed
