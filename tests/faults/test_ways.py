"""Lost replies, lost wake-ups, and dead processes, measured.

The tests of each case in sync and async code are in tests/behaviour."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import django_redis_sync
from devtools.servers import HOST, RedisServer
from django_redis_sync import Lease, Lock
from tests.behaviour.both import eventually
from tests.behaviour.child import Child
from tests.behaviour.proxy import Proxy, proxied
from tests.behaviour.test_faults import deafen
from tests.behaviour.watching import View
from tests.support.journal import journalling

from .conftest import Figure, Watch

ATTEMPT = 1.5


class Impatient(Lock):
    _attempt = ATTEMPT


@pytest.fixture
def proxy(private: RedisServer) -> Iterator[Proxy]:
    with proxied(HOST, private.port or 0) as proxy:
        yield proxy


@pytest.fixture
def using(proxy: Proxy, alias: Callable[..., str]) -> str:
    name = alias(proxy.url, SOCKET_TIMEOUT=ATTEMPT, SOCKET_CONNECT_TIMEOUT=ATTEMPT)
    with Lock("warm", using=name):  # connect, and load the scripts
        return name


@pytest.mark.parametrize("harm", ["cut", "drop"])
def test_row_01_lost_reply_causes_a_retry_and_no_second_grant(
    private: RedisServer, proxy: Proxy, using: str, look: Any, figure: Figure, harm: str
) -> None:
    with journalling(private.url) as journal:
        with Impatient("ready", using=using):  # load the scripts that write the journal
            pass
        proxy.harm(harm)
        watch = Watch()
        lease = Impatient("x", using=using).acquire(False)
        took = watch.seconds
        assert lease and [harm] == proxy.done
        assert 1 == look("x").holding
        lease.release()
        grants = [e for e in journal if e.verb == "acquire" and lease.token in e.argv]
        assert {("ok", str(lease.fence))} == {entry.reply[:2] for entry in grants}
        assert 2 == len(grants)
        journal.check()
    figure(recover=took, lost=0)


def test_row_13_lost_wake_up_delays_the_waiter_by_a_heartbeat(
    private: RedisServer, using: str, look: Any, figure: Figure, monkeypatch: Any
) -> None:
    unheard = deafen(monkeypatch)
    first, got = Lock("x", using=using).acquire(), list[Lease | None]()
    assert first
    thread = threading.Thread(target=lambda: got.append(Lock("x", using=using).acquire()))
    thread.start()
    eventually(lambda: look("x").waiting == 1)
    first.release()
    watch = Watch()
    thread.join(20)
    took = watch.seconds
    assert unheard and got[0] and got[0].held and took < 10
    got[0].release()
    figure(recover=took, lost=0)


def test_row_14_waiters_of_a_killed_subscription_are_granted(
    private: RedisServer, admin: redis.Redis, alias: Any, look: Any, figure: Figure
) -> None:
    name, crowd = alias(private.url), 5

    async def main() -> float:
        first = await Lock("x", using=name).aacquire()
        assert first
        waiters = [asyncio.create_task(Lock("x", using=name).aacquire()) for _ in range(crowd)]
        while look("x").waiting < crowd:
            await asyncio.sleep(0.01)
        admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        watch = Watch()
        await first.arelease()
        for _ in range(crowd):
            done, pending = await asyncio.wait(waiters, timeout=15, return_when="FIRST_COMPLETED")
            (task,) = done
            await task.result().arelease()  # type: ignore[union-attr]
            waiters = list(pending)
        return watch.seconds

    took = asyncio.run(main())
    assert took < 15 and look("x").empty
    figure(recover=took, lost=0, said=f"{crowd} waiters served in turn")


def test_row_19_flushed_scripts_cost_one_more_round_trip(
    private: RedisServer, admin: redis.Redis, using: str, figure: Figure
) -> None:
    slowest = 0.0
    for _ in range(20):
        admin.script_flush()
        watch = Watch()
        with Lock("x", using=using):
            slowest = max(slowest, watch.seconds)
    figure(recover=slowest, lost=0)


def test_row_31_permit_of_a_killed_holder_is_free_after_its_lease(
    raw: redis.Redis, figure: Figure
) -> None:
    lease_seconds = 3
    with Child("hold", "killed-31", lease_seconds, "renew") as holder:
        fence = int(holder.line()[1])
        assert Lock("killed-31", blocking=False).acquire() is None
    watch = Watch()
    lease = Lock("killed-31").acquire(blocking_timeout=20)
    took = watch.seconds
    assert lease and lease.fence > fence
    assert took < lease_seconds + 5
    lease.release()
    assert View(raw, "killed-31").empty
    figure(recover=took, lost=0, said=f"with a lease of {lease_seconds} s")


def test_row_33_unrenewable_lease_is_lost_before_the_server_ends_it(
    private: RedisServer, proxy: Proxy, using: str, look: Any, figure: Figure
) -> None:
    ends: list[float] = []
    lease = Lock(
        "x", using=using, timeout=3, renew=True, on_lost=lambda _: ends.append(look("x").ends_in)
    ).acquire()
    assert lease
    proxy.harm("refuse", "", times=10_000)
    watch = Watch()
    eventually(lambda: ends)
    took = watch.seconds
    assert not lease.held
    proxy.calm()
    figure(recover=took, lost=1, said=f"notified {max(0.0, ends[0]) * 1000:.0f} ms before")


FORKED = """
import os, sys, threading, django
django.setup()
from django_redis_sync import Lock
from django_redis_sync.engine.server import server_of
with Lock("before"):
    pass
pool, locked, go = server_of("default").pool(), threading.Event(), threading.Event()
def hold():
    with pool._lock:  # as the renewal thread does for a moment at each renewal
        locked.set()
        go.wait(90)
threading.Thread(target=hold, daemon=True).start()
locked.wait(30)
pid = os.fork()
if pid == 0:
    with Lock("in the child"):
        os._exit(0)
go.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_row_32_child_forked_while_a_thread_uses_the_pool_does_not_hang(raw: redis.Redis) -> None:
    """The child copies the pool's lock in its locked state, without the thread that holds it."""
    settings = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    words = [sys.executable, "-W", "ignore", "-c", FORKED]
    root = Path(django_redis_sync.__file__).parents[1]
    # A new process group, so that a child that hangs is killed too.
    with subprocess.Popen(words, cwd=root, env=settings, start_new_session=True) as parent:
        try:
            code = parent.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(parent.pid, signal.SIGKILL)
            raise
    assert 0 == code
