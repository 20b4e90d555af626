"""Faults of servers: crashes with and without persistence, replicas, full memory, many waiters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches

from devtools.servers import RedisServer, find_server
from django_redis_sync import Lease, LeaseLost, Lock, Semaphore, Unavailable
from django_redis_sync.operators import doctor
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.keys import keys_of
from tests.behaviour.both import Sync, eventually, refused
from tests.behaviour.watching import View, counted
from tests.support.workload import call, words

from .conftest import Figure, Watch, retried

Alias = Callable[..., str]


class Impatient(Lock):
    _attempt = 0.5  # seconds for one reply; the time limit of a call is twice as long


class Patient(Lock):
    _attempt = 0.6


def names_of(count: int) -> list[str]:
    return [f"name-{number}" for number in range(count)]


# Kills


def test_row_05_kill_without_persistence_loses_leases_and_fences_grow(
    private: RedisServer, alias: Alias, figure: Figure
) -> None:
    using, count = alias(private.url), 20
    notified: list[str] = []
    options: dict[str, Any] = {"using": using, "timeout": 2, "renew": True}
    old = [
        Lock(name, on_lost=lambda lease: notified.append(lease.name), **options).acquire()
        for name in names_of(count)
    ]
    private.kill()
    private.restart()
    watch = Watch()
    new = [retried(Lock(name, using=using, blocking=False).acquire) for name in names_of(count)]
    again = watch.seconds
    for before, after in zip(old, new, strict=True):
        assert before and after and after.fence > before.fence
    eventually(lambda: len(notified) == count)
    assert not any(lease.held for lease in old if lease)
    figure(
        recover=again, lost=count, said=f"the last holder was notified after {watch.seconds:.1f} s"
    )
    for lease in new:
        lease.release()


def test_row_06_kill_with_an_append_only_file_loses_no_lease(
    new_server: Any, alias: Alias, figure: Figure
) -> None:
    server: RedisServer = new_server(config={"appendonly": True, "appendfsync": "everysec"})
    using, count = alias(server.url), 20
    old = [Lock(name, using=using, timeout=60).acquire() for name in names_of(count)]
    rest = Semaphore("three", 3, using=using, timeout=60).acquire(permits=2)
    assert rest
    server.kill()
    watch = Watch()
    server.restart()
    kept = [retried(lease.owned) for lease in old if lease]
    again = watch.seconds
    assert [True] * count == kept
    assert retried(Lock(names_of(1)[0], using=using, blocking=False).acquire) is None
    assert Semaphore("three", 3, using=using).acquire(blocking=False, permits=2) is None
    # Each lease can be released and acquired again, with a larger fence.
    for lease in old:
        assert lease
        lease.release()
        after = Lock(lease.name, using=using, blocking=False).acquire()
        assert after and after.fence > lease.fence
        after.release()
    rest.release()
    figure(recover=again, lost=0)


@pytest.mark.parametrize("part", [0.02, 0.5, 1.0], ids=["some bytes", "half", "all"])
def test_row_07_fences_grow_when_the_end_of_the_append_only_file_is_lost(
    new_server: Any, alias: Alias, figure: Figure, part: float
) -> None:
    server: RedisServer = new_server(config={"appendonly": True, "appendfsync": "everysec"})
    using, count = alias(server.url), 20
    # The leases that were released before also leave fences in the file.
    for name in names_of(count):
        with Lock(name, using=using, timeout=3):
            pass
    old = [Lock(name, using=using, timeout=60).acquire() for name in names_of(count)]
    assert all(old)
    server.kill()
    path = log_of(server)
    size = path.stat().st_size
    os.truncate(path, size - int(size * part))
    watch = Watch()
    server.restart()
    kept = [retried(lease.owned) for lease in old if lease]
    again = watch.seconds
    lost = kept.count(False)
    assert 0 < lost
    assert (lost == count) == (part == 1.0) or part == 0.5
    for lease, is_kept in zip(old, kept, strict=True):
        assert lease
        if is_kept:
            lease.release()
        else:
            with pytest.raises(LeaseLost):
                lease.release()
        # If the cut also removed an earlier release, that older lease must expire first.
        after = Lock(lease.name, using=using).acquire(blocking_timeout=20)
        assert after and after.fence > lease.fence
        after.release()
    figure(recover=again, lost=lost)


def log_of(server: RedisServer) -> Path:
    """Return the append-only file that the server writes to."""
    assert server.directory is not None
    found = [*server.directory.glob("appendonlydir/*.incr.aof"), *server.directory.glob("*.aof")]
    assert found, "there is no append-only file"
    return max(found, key=lambda path: path.stat().st_size)


# Loading


def test_row_21_acquire_raises_unavailable_in_time_while_the_server_loads(
    new_server: Any, alias: Alias, figure: Figure
) -> None:
    # While it loads, the server replies after each 1,000 commands. A negative delay is one sleep of
    # some 60 µs for so many commands, so there are many replies per attempt.
    commands, delay = 800_000, -4
    server: RedisServer = new_server(config={"appendonly": True, "auto-aof-rewrite-percentage": 0})
    using = alias(server.url)
    held = Lock("held", using=using, timeout=60).acquire()
    assert held
    with redis.Redis.from_url(server.url) as client:
        client.incr("b")
        if not client.config_get("key-load-delay"):
            pytest.skip("this server has no key-load-delay to make loading last")
    server.kill()
    with log_of(server).open("ab") as file:
        file.write(b"*2\r\n$4\r\nINCR\r\n$1\r\nb\r\n" * commands)
    server.config["key-load-delay"] = delay
    binary = find_server()
    assert binary is not None
    server._launch(binary)  # without waiting until the server is ready
    watch = Watch()
    eventually(lambda: "LOADING" in answer_of(server))
    errors: list[Unavailable] = []
    # The last of several attempts may have too little time left for a reply.
    while not errors or errors[-1].maybe_executed:
        call_watch = Watch()
        # A new alias has no connection from before the crash, on which the request may have run.
        with pytest.raises(Unavailable) as error:
            Patient("x", using=alias(server.url), blocking=False).acquire()
        spent = call_watch.seconds
        assert spent < 5
        errors.append(error.value)
    assert "loading" in str(errors[-1])
    lease = retried(Lock("x", using=using, blocking=False).acquire)
    again = watch.seconds
    assert lease and retried(held.owned)
    lease.release()
    held.release()
    figure(recover=again, lost=0, said=f"Unavailable after {spent:.1f} s")


def answer_of(server: RedisServer) -> str:
    """Return the reply to PING, or the error."""
    try:
        with redis.Redis.from_url(server.url, socket_timeout=1) as client:
            return str(client.execute_command("PING"))
    except redis.exceptions.BusyLoadingError:
        return "LOADING"
    except (redis.RedisError, OSError) as error:
        return str(error)


# Waiters, memory, and configuration


def refused_at_once(words: str, lock: Lock, blocking: bool) -> None:
    Sync().run(refused(Sync(), words, lock, "acquire", blocking))


def test_row_15_release_wakes_one_of_500_waiters_per_freed_permit(
    private: RedisServer, admin: redis.Redis, figure: Figure, settings: Any
) -> None:
    """Each wake-up is one RPUSH in the server's statistics."""
    keys, limit, crowd = keys_of(settings.PREFIX, "herd"), 5, 500

    def acquire(client: Any, number: int, **options: Any) -> Any:
        request = call("acquire", keys, f"{number:032x}", lease=60_000, limit=limit, **options)
        return request.run_on(client)

    fence = words(acquire(admin, 0, permits=limit, how="try"))[1]
    # One pipeline, because a waiter that doesn't ask again is skipped after some seconds.
    with admin.pipeline(transaction=False) as pipeline:
        for number in range(1, crowd + 1):
            acquire(pipeline, number, how="wait")
        assert {b"wait"} == {words(reply)[0] for reply in pipeline.execute()}
    release = call("release", keys, f"{0:032x}", fence=fence, how="release")
    with counted(admin) as seen:
        assert b"ok" == release.run_on(admin)
    assert limit == seen["rpush"]
    assert limit == admin.zcard(keys.leases) and crowd - limit == admin.zcard(keys.queue)
    figure(said=f"{seen['rpush']} of {crowd} woken for {limit} permits")


def test_row_22_full_memory_rejects_acquire_and_allows_release(
    private: RedisServer, admin: redis.Redis, alias: Alias, look: Any, figure: Figure
) -> None:
    using = alias(private.url)
    held = Semaphore("held", 3, using=using).acquire(permits=2)
    assert held
    admin.config_set("maxmemory", 1)
    refused_at_once("memory", Impatient("x", using=using), False)
    held.release()
    assert look("held").empty and look("x").empty
    admin.config_set("maxmemory", 0)
    watch = Watch()
    with Lock("x", using=using):
        figure(recover=watch.seconds, lost=0)


def test_row_44_full_memory_keeps_leases_and_allows_handoff(
    private: RedisServer, admin: redis.Redis, alias: Alias, look: Any, figure: Figure
) -> None:
    using, lost, got = alias(private.url), [], []
    options: dict[str, Any] = {"using": using, "timeout": 4, "renew": True}

    def wait(name: str) -> None:
        lease = Lock(name, **options).acquire()
        got.append((name, time.monotonic(), lease))

    async def wait_too() -> None:
        lease = await Lock("async", **options).aacquire()
        got.append(("async", time.monotonic(), lease))
        await asyncio.sleep(5)  # longer than the lease duration
        assert lease and await lease.aowned()
        await lease.arelease()

    names = ("sync", "async", "kept", "timed")
    held = {
        name: Lock(name, on_lost=lambda lease: lost.append(lease.name), **options).acquire()
        for name in names
    }
    threads = [
        threading.Thread(target=wait, args=["sync"]),
        threading.Thread(target=lambda: asyncio.run(wait_too())),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: all(look(name).waiting == 1 for name in ("sync", "async")))
    admin.config_set("maxmemory", 1)
    time.sleep(5)  # each lease is renewed twice, and each waiter asks again
    assert [] == lost and all(lease and lease.owned() for lease in held.values())
    for name in ("x", "sync"):
        refused_at_once("memory", Impatient(name, using=using), name == "sync")
    watch = Watch()
    for name in ("sync", "async", "timed"):
        held[name].release()  # type: ignore[union-attr]
    eventually(lambda: len(got) == 2)
    figure(recover=watch.seconds, lost=0)
    threads[1].join(30)
    ((_, _, lease),) = [entry for entry in got if entry[0] == "sync"]
    lease.extend(30)
    handle = held["kept"].detach(timeout=50)  # type: ignore[union-attr]
    adopted = Lease.from_handle(handle)
    adopted.renew(90)
    adopted.release()
    lease.release()
    threads[0].join(30)
    assert all(look(name).empty for name in (*names, "x"))


CROWD = """
import asyncio, sys, django
django.setup()
from django_redis_sync import Lock
async def wait():
    async with Lock("x"):
        pass
async def main():
    tasks = []
    for number in range(int(sys.argv[1])):
        tasks.append(asyncio.ensure_future(wait()))
        if number % 50 == 0:
            await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


@contextlib.contextmanager
def crowd(url: str, many: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process in which `many` tasks wait for the lock x."""
    here = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DJANGO_REDIS_SYNC_TEST_URL": url}
    words = [sys.executable, "-W", "ignore", "-c", CROWD, str(many)]
    with subprocess.Popen(words, cwd=Path(__file__).parents[2], env=os.environ | here) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("many", "promised"), [(1_000, 3), (10_000, 6)], ids=str)
def test_row_45_waiters_of_a_killed_process_are_skipped_together(
    private: RedisServer,
    admin: redis.Redis,
    alias: Alias,
    look: Any,
    figure: Figure,
    many: int,
    promised: int,
) -> None:
    using = alias(private.url)
    held = Lock("x", using=using).acquire()
    got: list[float] = []

    def live() -> None:
        with Lock("x", using=using):
            got.append(time.monotonic())

    with crowd(private.url, many) as child:
        # Each task asks again every few seconds. A slow machine loses some waiters meanwhile.
        since_start = Watch()
        eventually(lambda: look("x").waiting >= (many if since_start.seconds < 60 else 1_000), 240)
        thread = threading.Thread(target=live)
        thread.start()
        eventually(lambda: any("b" in client["flags"] for client in admin.client_list()))
        time.sleep(1)
        there = look("x").waiting
        child.kill()
        killed = time.monotonic()
    assert held
    held.release()
    eventually(lambda: bool(got), 60)
    thread.join(30)
    took = got[0] - killed
    figure(recover=took, said=f"{there:,} waiters")
    assert took < 2 * promised
    eventually(lambda: look("x").empty)  # some waiters may have queued again behind the live one


def test_row_45_waiters_of_a_live_process_keep_their_places(
    private: RedisServer, admin: redis.Redis, alias: Alias, look: Any
) -> None:
    """Most waiters rarely ask again. One heartbeat keeps the places of all waiters of a process."""
    held = Lock("x", using=alias(private.url)).acquire()
    with crowd(private.url, 500):
        eventually(lambda: look("x").waiting == 500, 60)
        queue = look("x").keys.queue
        places = admin.zrange(queue, 0, -1, withscores=True)
        for _ in range(8):
            time.sleep(1)
            assert places == admin.zrange(queue, 0, -1, withscores=True)
        assert held
        held.release()
        eventually(lambda: look("x").empty, 60)


def test_row_23_evicting_server_loses_leases_and_is_a_doctor_error(
    private: RedisServer, admin: redis.Redis, alias: Alias, look: Any, figure: Figure
) -> None:
    using = alias(private.url)
    admin.config_set("maxmemory-policy", "allkeys-random")
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"]) + 3_000_000)
    (finding,) = [f for f in doctor.examine(using=using) if f.id == "eviction"]
    assert "error" == finding.level and "noeviction" in finding.remedy
    # The server evicts leases without any error.
    leases = [Lock(name, using=using, timeout=60).acquire() for name in names_of(20)]
    assert all(leases)
    for number in range(2000):
        admin.set(f"ballast:{number}", "x" * 100_000)
        if sum(look(name).holding for name in names_of(20)) <= 10:
            break
    taken = [Lock(name, using=using, blocking=False).acquire() for name in names_of(20)]
    lost = sum(lease is not None for lease in taken)
    assert 0 < lost
    figure(lost=lost, said="the doctor reports an error")
    for old, new in zip(leases, taken, strict=True):
        assert new is None or (old and new.fence > old.fence)


def test_row_26_missing_replicas_reject_acquire_and_delay_the_release(
    private: RedisServer, admin: redis.Redis, alias: Alias, look: Any, figure: Figure
) -> None:
    using = alias(private.url)
    held = Lock("held", using=using).acquire()
    assert held
    admin.config_set("min-replicas-to-write", 1)
    watch = Watch()
    with pytest.raises(Unavailable, match=r"(?i)noreplicas|not enough good replicas"):
        Lock("x", using=using).acquire(False)
    with pytest.raises(Unavailable):
        held.release()
    assert watch.seconds < 10
    assert not held.held and 1 == look("held").holding  # the release is pending
    admin.config_set("min-replicas-to-write", 0)
    watch = Watch()
    eventually(lambda: look("held").empty, 20)  # before the lease expires after 30 s
    figure(recover=watch.seconds, lost=0)
    with Lock("x", using=using):
        assert look("x").holding == 1


# Servers that hang or lose their data


def test_row_03_calls_end_within_their_time_limit_while_the_server_hangs(
    private: RedisServer, alias: Alias, figure: Figure
) -> None:
    using = alias(private.url, SOCKET_TIMEOUT=0.5, SOCKET_CONNECT_TIMEOUT=0.5)
    held = Impatient("held", using=using, timeout=60).acquire()
    assert held
    calls: list[Callable[[], Any]] = [
        lambda: Impatient("x", using=using).acquire(False),
        lambda: Impatient("x", using=using).acquire(blocking_timeout=1),
        lambda: status_of("x", using=using),
        held.renew,
        held.owned,
        held.release,
    ]
    slowest = 0.0
    private.pause()
    try:
        for run in calls:
            watch = Watch()
            with pytest.raises(Unavailable):
                run()
            slowest = max(slowest, watch.seconds)
    finally:
        private.resume()
    assert slowest < 5
    # The server now runs the requests that it got. A background thread undoes them.
    watch = Watch()
    lease = retried(Lock("x", using=using, blocking_timeout=20).acquire, 20)
    again = watch.seconds
    assert lease
    lease.release()
    figure(recover=again, lost=0, said=f"Unavailable after at most {slowest:.1f} s")


def test_row_24_cleared_cache_calls_on_lost_and_fences_grow(
    private: RedisServer, admin: redis.Redis, alias: Alias, figure: Figure
) -> None:
    using, count = alias(private.url), 10
    notified: list[float] = []
    watch = Watch()
    old = [
        Lock(
            name,
            using=using,
            timeout=2,
            renew=True,
            on_lost=lambda _: notified.append(watch.seconds),
        ).acquire()
        for name in names_of(count)
    ]
    watch.start = time.monotonic()
    caches[using].clear()
    admin.flushdb()  # clear() may delete only the keys with the prefix of the cache
    for lease in old:
        after = Lock(lease.name, using=using, blocking=False).acquire() if lease else None
        assert lease and after and after.fence > lease.fence
        after.release()
    eventually(lambda: len(notified) == count)
    assert not any(lease.held for lease in old if lease)
    figure(recover=max(notified), lost=count)


def test_view_shows_the_lease_of_a_lock(private: RedisServer, alias: Alias, look: Any) -> None:
    view: View = look("seen")
    with Lock("seen", using=alias(private.url), timeout=60):
        assert 1 == view.holding and 50 < view.ends_in <= 60
    assert view.empty
