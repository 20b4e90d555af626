"""Lost replies, hangs, outages, and other faults of servers and networks.

In each case, an acquire gets one grant with one fence, or raises a clear error. The call ends
within its time limit, and leaves no permit without a holder. Most tests have a server of their own
behind a proxy.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis
from django.core.cache import caches

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    ReadWriteLock,
    Semaphore,
    SyncError,
    Unavailable,
)
from django_redis_sync.exceptions import ForeignValue
from tests.support.backends import pool_of

from .both import answered, both, eventually, queued, until, within
from .child import Child
from .conftest import ATTEMPT, Bench, Impatient
from .watching import Losses, View

pytestmark = pytest.mark.promise(5, 7, 13, 14)

#: Time limit in seconds for a cleanup. Without the cleanup, the lease would expire after 30 s.
SOONER = 20
#: Seconds after which a call has clearly exceeded its time limit of 2 * ATTEMPT.
TOO_LATE = 5 * ATTEMPT


# Replies and requests that are lost or late


@pytest.mark.parametrize("fault", ["cut", "drop"])
@both
async def test_acquire_is_sent_again_when_its_reply_is_lost(io, bench, journal, figure, fault):
    """The repeated acquire gets the first grant again, with the same fence."""
    bench.proxy.cause(fault)
    watch = within()
    lease = await io.do(bench.lock(), "acquire", False)
    figure(recover=watch.seconds, lost=0)
    assert lease and lease.held and await io.do(lease, "owned")
    assert ([fault], 1) == (bench.proxy.done, bench.view().holding)

    def replies() -> list[Any]:
        asked = [one for one in journal if one.verb == "acquire" and lease.token in one.argv]
        return [one.reply[:2] for one in asked]

    # On a busy machine, the proxy may forward the first request after the second.
    await until(io, lambda: len(replies()) == 2)
    assert [("ok", str(lease.fence))] * 2 == replies()
    await io.do(lease, "release")
    assert bench.view().empty


@both
async def test_each_method_returns_the_correct_result_when_a_reply_is_lost(io, bench) -> None:
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
        (writer, "release", "release", None),
    ]
    for thing, call, script, answer, *arguments in calls:
        bench.proxy.cause("cut", script)
        assert answer == await io.do(thing, call, *arguments), call
    bench.proxy.cause("cut", "inspect")
    assert 1 == (await io.do(lock, "status")).holding
    bench.proxy.cause("cut", "renew")
    handle = await io.do(lease, "detach")
    bench.proxy.cause("cut", "renew")
    adopted = await io.do(Lease, "from_handle", handle)
    bench.proxy.cause("cut", "release")
    await io.do(adopted, "release")
    assert ["cut"] * (len(calls) + 4) == bench.proxy.done
    assert bench.view().empty and bench.view("rw").empty


@both
async def test_acquire_request_that_arrives_after_the_caller_gave_up_gets_no_permit(
    io, bench, journal
) -> None:
    def undone() -> int:
        return sum("undo" in entry.argv for entry in journal)

    before = undone()
    bench.proxy.cause("hold", times=20)
    with pytest.raises(Unavailable) as caught:
        await io.do(bench.lock(), "acquire", False)
    assert caught.value.maybe_executed
    # The undo, sent by a background thread, must arrive before the delayed acquire requests.
    await until(io, lambda: undone() > before)
    bench.proxy.let_go()
    await until(io, lambda: ("dead",) in [entry.reply for entry in journal])
    assert bench.view().empty


# Waiters


def kill(*kinds: str) -> Callable[[Bench], Any]:
    def happen(bench: Bench) -> None:
        for kind in kinds:
            bench.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            time.sleep(0.05)

    return happen


def flush_scripts(bench: Bench) -> None:
    """Start a thread that flushes the server's script cache every 0.5 ms, until the server
    stops."""

    def flush() -> None:
        with (
            contextlib.suppress(redis.RedisError),
            redis.Redis.from_url(bench.server.url) as client,
        ):
            while True:
                client.script_flush()
                time.sleep(0.0005)

    threading.Thread(target=flush, daemon=True).start()


#: For each mishap: the moment when it happens, and the function that causes it. The moments:
#: "at first": before the first holder acquires the lock.
#: "before": while the first holder has the lock, and before other callers ask for it.
#: "after": while other callers wait.
MISHAPS: dict[str, tuple[str, Callable[[Bench], Any]]] = {
    "no wake-up": ("at first", lambda bench: setattr(bench.proxy, "deaf", True)),
    "reply lost": ("before", lambda bench: bench.proxy.cause("cut")),
    "scripts flushed": ("before", flush_scripts),
    "subscription killed": ("after", kill("pubsub")),
    "connections killed": ("after", kill(*["normal", "pubsub"] * 3)),
    "longer than a timeout": ("after", lambda bench: time.sleep(1.5 * ATTEMPT)),
    "memory full": ("after", lambda bench: bench.client.config_set("maxmemory", 1)),
}


@pytest.mark.parametrize("mishap", MISHAPS)
@both
async def test_waiters_are_granted_in_order_despite_a_fault(io, bench, figure, mishap: str) -> None:
    """A waiter that gets no wake-up sends its request again after a heartbeat interval."""

    def happens(now: str) -> None:
        when, happen = MISHAPS[mishap]
        if when == now:
            happen(bench)

    happens("at first")
    first = await io.do(bench.lock(), "acquire")
    happens("before")
    waiters = [await queued(io, bench.lock(), bench.view(), place) for place in range(1, 6)]
    happens("after")
    watch = within()
    for waiter in waiters:
        await io.do(first, "release")
        with within(5):
            lease = await io.result(waiter)
        assert lease.held and lease.fence > first.fence and await io.do(lease, "owned")
        first = lease
    figure(recover=watch.seconds, lost=0, said=f"{len(waiters)} waiters served in order")
    await io.do(first, "release")
    expected = {"no wake-up": {"deaf"}, "reply lost": {"cut"}}.get(mishap, set())
    assert expected == {*bench.proxy.done} and bench.view().empty


# Servers and networks that don't answer, or reject requests


class Fault(NamedTuple):
    """A fault that `begin` causes and `end` removes.

    `words`: a pattern that the messages of the errors match. `fails`: the methods that raise
    Unavailable during the fault. `timeout`: both socket timeouts of the cache alias in seconds, or
    None for no timeout. `connected`: True if the client has leases, and so a connection, when the
    fault begins."""

    begin: Callable[[Bench], Any]
    end: Callable[[Bench], Any]
    words: str = "Timeout|no reply in time"
    fails: str = "acquire renew owned release"
    timeout: float | None = 30
    connected: bool = True


def pauses(**options: Any) -> Fault:
    return Fault(lambda bench: bench.server.pause(), lambda bench: bench.server.resume(), **options)


def loses(fault: str) -> Fault:
    every = lambda bench: bench.proxy.cause(fault, "", times=100_000)  # noqa: E731
    return Fault(every, lambda bench: bench.proxy.calm())


def configures(name: str, value: Any, usual: Any, words: str, **options: Any) -> Fault:
    begin, end = (lambda bench, to=to: bench.client.config_set(name, to) for to in (value, usual))
    return Fault(begin, end, words, **options)


def spin(bench: Bench) -> None:
    """Let the server run an endless script, so that it answers other commands with BUSY."""

    def run() -> None:
        with redis.Redis.from_url(bench.server.url) as client, contextlib.suppress(Exception):
            client.eval("while true do end", 0)

    old = int(bench.client.info("server")["redis_version"].split(".")[0]) < 7
    bench.client.config_set("lua-time-limit" if old else "busy-reply-threshold", 20)
    threading.Thread(target=run, daemon=True).start()
    eventually(lambda: is_busy(bench.client))


def stop_spinning(bench: Bench) -> None:
    bench.client.script_kill()
    eventually(lambda: not is_busy(bench.client))


def is_busy(client: redis.Redis) -> bool:
    try:
        return not client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)


FAULTS = {
    "hangs": pauses(),
    "hangs, cold": pauses(connected=False),
    "hangs, cold, without timeouts": pauses(connected=False, timeout=None),
    "hangs, short timeouts": pauses(timeout=0.3),
    "swallows requests": loses("swallow"),
    "loses replies": loses("drop"),
    "endless script": Fault(spin, stop_spinning, "BUSY"),
    "full memory": configures("maxmemory", 1, 0, "memory", fails="acquire"),
    "no replicas": configures(
        *("min-replicas-to-write", 1, 0, "(?i)noreplicas|not enough good replicas"),
        fails="acquire renew release",
    ),
    "no free connection": configures(
        "maxclients", 1, 10_000, "clients|Connection lost", connected=False
    ),
}


@pytest.mark.parametrize("holders", [1, 2])
@both
async def test_questions_write_nothing_when_redis_denies_writes(io, bench, holders):
    """A name with two holders is stored differently from a name with one holder."""
    semaphore = Semaphore("x", 2, using=bench.alias)
    leases = [await io.do(semaphore, "acquire") for _ in range(holders)]
    bench.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError, match=r"(?i)noreplicas|not enough good replicas"):
            bench.client.set("y", 1)
        for lease in leases:
            assert await io.do(lease, "owned")
            assert await io.do(lease, "locked")
        assert await io.do(semaphore, "owned")
        assert await io.do(semaphore, "locked")
        assert holders == len((await io.do(semaphore, "status")).holders)
    finally:
        bench.client.config_set("min-replicas-to-write", 0)
    for lease in leases:
        await io.do(lease, "release")
    assert not await io.do(leases[0], "owned")


@both
async def test_waiter_keeps_waiting_while_redis_denies_writes(io, bench):
    """Redis denies writes, for example, while it can't save its data (MISCONF)."""
    held = await io.do(Lock("x", using=bench.alias), "acquire")
    lock = Lock("x", using=bench.alias, blocking_timeout=60)
    waiting = await queued(io, lock, bench.view())
    bench.client.config_set("min-replicas-to-write", 1)
    try:
        await io.sleep(2.5)  # the waiter asks at least once in this time
        with pytest.raises(Unavailable):
            await io.do(Lock("y", using=bench.alias, blocking_timeout=60), "acquire")
    finally:
        bench.client.config_set("min-replicas-to-write", 0)
    await io.do(held, "release")
    assert (await io.result(waiting)).held


@pytest.mark.parametrize("name", FAULTS)
@both
async def test_calls_during_a_fault_fail_soon_and_leave_no_lease(
    io, bench, alias, figure, name
) -> None:
    """If a release or an undo can't be sent during the fault, the library sends it after the
    fault."""
    fault = FAULTS[name]
    timeouts = {"socket_timeout": fault.timeout, "socket_connect_timeout": fault.timeout}
    # Aliases with equal URLs share one pool of django-redis. This alias needs a pool with its own
    # timeouts, so its URL omits the "/0".
    using = alias(bench.proxy.url.removesuffix("/0"), CONNECTION_POOL_KWARGS=timeouts)
    lock, slowest = Impatient("x", using=using), []

    async def call(thing: Any, method: str, *args: Any, **options: Any) -> None:
        watch = within(TOO_LATE)
        if method in fault.fails.split():
            with watch, pytest.raises(Unavailable) as caught:
                await io.do(thing, method, *args, **options)
            slowest.append(watch.seconds)
            # The last attempt of a call has little time left. On a busy machine, it may read the
            # reply too late, and report a timeout instead of the error in the reply. The same
            # applies to a new connection.
            slow = re.search("Timeout|no reply in time", str(caught.value))  # sync, async
            late = slow and (caught.value.maybe_executed or not fault.connected)
            assert late or re.search(fault.words, str(caught.value)), caught.value
            assert Unavailable is type(caught.value)
        else:
            await io.do(thing, method, *args, **options)

    leases = {}
    for method in ("renew", "owned", "release") if fault.connected else ():
        leases[method] = await io.do(Impatient(method, using=using), "acquire")
    fault.begin(bench)
    try:
        await io.gather(
            call(lock, "acquire"),
            call(lock, "acquire", blocking=False),
            call(Lock("x", using=using), "acquire", blocking_timeout=0.5),
            *(call(lease, method) for method, lease in leases.items()),
        )
    finally:
        fault.end(bench)
    with within(SOONER) as watch:
        await until(io, lambda: bench.view("x").empty and bench.view("release").empty)
        assert await answered(io, lock, "acquire")
    figure(recover=watch.seconds, lost=0, said=f"Unavailable after at most {max(slowest):.1f} s")
    # The library has not changed the project's own connections.
    pool = pool_of(using)

    def connected() -> Any:
        with contextlib.suppress(redis.TimeoutError):  # on a busy machine, connecting may time out
            return pool.get_connection()

    connection = await until(io, connected)
    assert fault.timeout == connection.socket_timeout
    pool.release(connection)


@both
async def test_unavailable_error_shows_the_denied_command_but_not_the_password(
    io, new_server, alias
) -> None:
    server = new_server(config={"requirepass": "right"})
    user = {"enabled": True, "passwords": ["+secret"], "keys": "*", "channels": "*"}
    with redis.Redis.from_url(server.url) as client:
        for denied, words in (("-evalsha -eval", "(?i)evalsha.*ACL"), ("-hset", "ACL")):
            client.acl_setuser("app", **user, commands=["+@all", *denied.split()])
            url = server.url.replace(":right@", "app:secret@")
            with pytest.raises(Unavailable, match=words) as caught:
                await io.do(Lock("x", using=alias(url)), "acquire")
            assert "secret" not in str(caught.value)
    with pytest.raises(Unavailable) as caught:
        await io.do(Lock("x", using=alias(server.url.replace("right", "mistaken"))), "acquire")
    assert "mistaken" not in str(caught.value)
    assert await io.do(Lock("x", using=alias(server.url)), "acquire")


@both
async def test_acquire_raises_foreign_value_and_does_not_overwrite_the_value(
    io, private, alias
) -> None:
    with redis.Redis.from_url(private.url) as client:
        key = View(client, "x").keys.leases
        client.set(key, "precious")
        with pytest.raises(ForeignValue) as caught:
            await io.do(Lock("x", using=alias(private.url)), "acquire")
        assert b"precious" == client.get(key)
    assert isinstance(caught.value, SyncError) and key in str(caught.value)


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


def test_permit_of_a_killed_holder_is_free_after_its_lease_duration(raw, figure) -> None:
    view = View(raw, "killed")
    with Child("hold", "killed", 3, "renew") as holder:
        fence = int(holder.line()[1])
        eventually(view.renewals())
        assert Lock("killed", blocking=False).acquire() is None
    assert view.holding == 1
    killed, end = within(), view.end
    lease = Lock("killed").acquire(blocking_timeout=20)
    assert lease and lease.fence > fence
    # By the server's clock, the new grant was at most 4 s after the killed holder's lease ended.
    assert 0 <= lease.fence / 1000 - end < 4000
    figure(recover=killed.seconds, lost=0, said="with a lease of 3 s")
    lease.release()
    assert view.empty


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_renewal_thread_that_died_is_replaced(bench) -> None:
    first = bench.lock("first", timeout=6, renew=True).acquire()
    name = f"redis-sync-renewer-{bench.alias}"

    def workers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == name]

    eventually(lambda: len(workers()) == 1)  # if two threads start at once, one ends at once
    (worker,) = workers()

    def is_dead() -> bool:
        # Raise SystemExit in the thread, repeatedly until the thread ends. It survives a SystemExit
        # that is raised while it handles a lease.
        exception = ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), exception)
        worker.join(0.2)
        return not worker.is_alive()

    eventually(is_dead)
    second = bench.lock("second", timeout=3, renew=True).acquire()
    eventually(bench.view("second").renewals())
    assert first.held and second.held and second.owned()
    first.release()
    second.release()


@both
async def test_holder_can_release_while_many_callers_wait_for_a_connection(
    io, new_server, alias
) -> None:
    pool = {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}
    name = alias(new_server().url, **pool)

    async def worker() -> None:
        for _ in range(3):
            async with io.entered(Semaphore("pool", 2, using=name)) as lease:
                assert lease.held

    await io.gather(*[worker() for _ in range(20)])


@pytest.mark.parametrize("how", ["restart", "clear"])
@both
async def test_on_lost_is_called_after_redis_lost_its_data(io, private, alias, figure, how) -> None:
    """The data is lost because a server without persistence restarts, or because the Django cache
    is cleared."""
    name, count = alias(private.url), 10

    def lock(number: int, **options: Any) -> Lock:
        return Impatient(f"x-{number}", using=name, timeout=3, renew=True, **options)

    with Losses() as losses:
        old = [await io.do(lock(n, on_lost=losses), "acquire") for n in range(count)]
        if how == "restart":
            private.kill()
            with pytest.raises(Unavailable):
                await io.do(lock(0), "acquire")
            private.restart()
        else:
            caches[name].clear()
            with redis.Redis.from_url(private.url) as client:
                client.flushdb()  # clear() may leave keys that lack the cache's prefix
        watch = within()
        new = [await answered(io, lock(n, blocking_timeout=10), "acquire") for n in range(count)]
        again = watch.seconds
        await until(io, lambda: all(losses.of(lease) for lease in old))
    figure(recover=again, lost=count, said=f"all notified after {watch.seconds:.1f} s")
    for before, after in zip(old, new, strict=True):
        assert after.fence > before.fence and not before.held
        with pytest.raises(LeaseLost):
            await io.do(before, "release")
        await io.do(after, "release")


# Signal handlers that raise an exception


class Limit(BaseException):
    """An exception that a signal handler raises in a call."""


@pytest.mark.parametrize("user, selects", [("lock", False), ("lock", True), ("cache", False)])
def test_incomplete_connection_of_an_interrupted_call_is_not_used(private, alias, user, selects):
    """A call of `user` (a lock or the Django cache) is interrupted before its new connection has
    selected the database. `selects`: True if the connection can already send commands."""
    interrupted: list[Any] = []

    def connected(connection: Any) -> None:
        if not interrupted:
            interrupted.append(connection)
            if selects:
                connection._parser.on_connect(connection)
            raise Limit
        connection.on_connect()

    url = f"{private.url.removesuffix('/0')}/3"
    using = alias(url, CONNECTION_POOL_KWARGS={"redis_connect_func": connected})
    with pytest.raises(Limit):
        Lock("a", using=using).acquire(False) if user == "lock" else caches[using].get("a")
    with Lock("a", using=using), redis.Redis.from_url(url) as client:
        assert ["db3"] == list(client.info("keyspace"))


@both
async def test_library_passes_no_numbers_to_hiredis(io, clean_redis, view, monkeypatch) -> None:
    """hiredis crashes if a signal handler raises an exception while hiredis packs a number. See
    docs/failure-modes.md."""
    hiredis = pytest.importorskip("hiredis")
    pack, packed = hiredis.pack_command, []
    monkeypatch.setattr(hiredis, "pack_command", lambda words: packed.append(words) or pack(words))
    semaphore = Semaphore("packed", 1, timeout=30, renew=True)
    lease = await io.do(semaphore, "acquire")
    waiting = await queued(io, semaphore, view("packed"), blocking_timeout=30)
    await io.do(lease, "renew", 60)
    await io.do(lease, "release")
    await io.do(await io.result(waiting), "release")
    redis.Redis(connection_pool=pool_of("default")).ping()
    numbers = [words for words in packed if {int, float} & {*map(type, words)}]
    assert packed and {words[0] for words in numbers} <= {b"HELLO", b"SELECT"}
