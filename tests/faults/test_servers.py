"""Slow tests with faults of servers: crashes, loading, full memory, and many waiters."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer
from django_redis_sync import Lease, LeaseLost, Lock, Unavailable
from tests.behaviour.both import Sync, answered, eventually, within
from tests.behaviour.child import Child
from tests.behaviour.conftest import Impatient
from tests.behaviour.watching import View

from .conftest import doctor

NAMES = [f"name-{number}" for number in range(20)]


def retried(thing: Any, method: str) -> Any:
    return Sync().run(answered(Sync(), thing, method))


def log_of(server: RedisServer) -> Path:
    """Return the append-only file that the server writes to."""
    assert server.directory is not None
    found = [*server.directory.glob("appendonlydir/*.incr.aof"), *server.directory.glob("*.aof")]
    return max(found, key=lambda path: path.stat().st_size)


# Crashes


@pytest.mark.parametrize("cut", [0, 0.02, 0.5, 1.0], ids=["nothing", "some bytes", "half", "all"])
def test_row_07_fences_grow_when_the_end_of_the_append_only_file_is_lost(
    new_server: Any, alias: Any, figure: Any, cut: float
) -> None:
    """`cut`: the part of the file that is lost at its end, from 0 (nothing) to 1 (all). The run
    with 0, in which no lease is lost, proves row 6 of the table in RESULTS.md."""
    server: RedisServer = new_server(config={"appendonly": True, "appendfsync": "everysec"})
    using = alias(server.url)
    # These leases are released before the crash. The append-only file also has their fences.
    for name in NAMES:
        with Lock(name, using=using, timeout=3):
            pass
    old = [Lock(name, using=using, timeout=60).acquire() for name in NAMES]
    server.kill()
    path = log_of(server)
    size = path.stat().st_size
    os.truncate(path, size - int(size * cut))
    watch = within()
    server.restart()
    kept = [retried(lease, "owned") for lease in old]
    lost = kept.count(False)
    figure(recover=watch.seconds, lost=lost)
    assert (lost > 0) == (cut > 0) and ((lost == len(old)) == (cut == 1.0) or cut == 0.5)
    for lease, is_kept in zip(old, kept, strict=True):
        if is_kept:
            assert retried(Lock(lease.name, using=using, blocking=False), "acquire") is None
            lease.release()
        else:
            with pytest.raises(LeaseLost):
                lease.release()
        # If the file lost the release of a name's earlier lease, that lease has to expire first.
        after = Lock(lease.name, using=using).acquire(blocking_timeout=20)
        assert after and after.fence > lease.fence
        after.release()


def test_row_21_acquire_raises_unavailable_soon_while_the_server_loads(
    new_server: Any, alias: Any, figure: Any
) -> None:
    # A loading server answers clients once per 1,000 commands that it has loaded. A
    # `key-load-delay` of -4 means that it sleeps for about 60 µs after every 4 commands. Then
    # loading takes long, but the server answers many times during one attempt of a call.
    commands, delay = 800_000, -4
    server: RedisServer = new_server(config={"appendonly": True, "auto-aof-rewrite-percentage": 0})
    using = alias(server.url)
    held = Lock("held", using=using, timeout=60).acquire()
    with redis.Redis.from_url(server.url) as client:
        client.incr("b")
        if not client.config_get("key-load-delay"):
            pytest.skip("this server has no key-load-delay to make loading last")
    server.kill()
    with log_of(server).open("ab") as file:
        file.write(b"*2\r\n$4\r\nINCR\r\n$1\r\nb\r\n" * commands)
    server.config["key-load-delay"] = delay
    server.restart(wait=False)
    watch, errors = within(), list[Unavailable]()
    # The last attempt of a call may end before the reply "loading" arrives. If so, repeat the call.
    while not errors or errors[-1].maybe_executed or "loading" not in str(errors[-1]):
        # With a new alias, the call can't use a connection from before the crash. On such a
        # connection, the client couldn't know whether the server executed the request.
        with within(5) as spent, pytest.raises(Unavailable) as error:
            Impatient("x", using=alias(server.url), blocking=False).acquire()
        errors.append(error.value)
        said = f"Unavailable after {spent.seconds:.1f} s"
    lease = retried(Lock("x", using=using, blocking=False), "acquire")
    figure(recover=watch.seconds, lost=0, said=said)
    assert lease and retried(held, "owned")


# Memory


def test_row_23_evicting_server_loses_leases_and_doctor_reports_an_error(new_bench, figure) -> None:
    bench = new_bench()
    bench.client.config_set("maxmemory-policy", "allkeys-random")
    limit = int(bench.client.info("memory")["used_memory"]) + 3_000_000
    bench.client.config_set("maxmemory", limit)
    assert re.search(r"error: .*\[eviction\](?s:.)*noeviction", doctor(bench.alias))
    # When its memory is full, the server evicts some of these leases. No call raises an error.
    old = [Lock(name, using=bench.alias, timeout=60).acquire() for name in NAMES]
    for number in range(2000):
        bench.client.set(f"ballast:{number}", "x" * 100_000)
        if sum(bench.view(name).holding for name in NAMES) <= 10:
            break
    taken = [Lock(name, using=bench.alias, blocking=False).acquire() for name in NAMES]
    lost = sum(lease is not None for lease in taken)
    assert 0 < lost
    figure(lost=lost, said="the doctor reports an error")
    for before, new in zip(old, taken, strict=True):
        assert new is None or new.fence > before.fence


# Many waiters


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("many", "promised"), [(1_000, 3), (10_000, 6)], ids=str)
def test_row_45_live_waiter_does_not_wait_for_each_waiter_of_a_killed_process(
    private: RedisServer, alias: Any, figure: Any, many: int, promised: int
) -> None:
    lock = Lock("x", using=alias(private.url))
    held, got = lock.acquire(), list[Lease]()
    with redis.Redis.from_url(private.url) as client:
        view = View(client, "x")
        with Child("crowd", "x", many, DJANGO_REDIS_SYNC_TEST_URL=private.url) as waiters:
            # Each waiter has to send a heartbeat every few seconds. On a slow machine, late waiters
            # are removed from the queue. So after 60 s, 1,000 waiters are enough.
            starting = within()
            eventually(lambda: view.waiting >= (many if starting.seconds < 60 else 1_000), 240)
            thread = threading.Thread(target=lambda: got.append(lock.acquire()))
            thread.start()
            eventually(lambda: any("b" in each["flags"] for each in client.client_list()))
            time.sleep(1)
            there = view.waiting
            waiters.process.kill()
            killed = view.now()
        held.release()
        thread.join(60)
        took = got[0].fence / 1e6 - killed / 1000
        figure(recover=took, said=f"{there:,} waiters")
        assert took < 2 * promised
        got[0].release()
        eventually(lambda: view.empty)  # killed waiters behind the live one leave the queue later


def test_row_45_waiters_of_a_live_process_keep_their_positions(private, alias) -> None:
    """One heartbeat of an event loop keeps the queue positions of all tasks that wait in it."""
    held = Lock("x", using=alias(private.url)).acquire()
    with (
        redis.Redis.from_url(private.url) as client,
        Child("crowd", "x", 500, DJANGO_REDIS_SYNC_TEST_URL=private.url),
    ):
        view = View(client, "x")
        eventually(lambda: view.waiting == 500, 60)
        places = client.zrange(view.keys.queue, 0, -1, withscores=True)
        for _ in range(8):
            time.sleep(1)
            assert places == client.zrange(view.keys.queue, 0, -1, withscores=True)
        held.release()
        eventually(lambda: view.empty, 60)
