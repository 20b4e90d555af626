"""Sync calls on a running event loop: they raise if they would wait, but a release never does."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.test import RequestFactory

from django_redis_sync import (
    Lease,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
    semaphore_required,
    synchronized,
)

from .behaviour.watching import View

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def empty(raw: redis.Redis) -> Callable[[], bool]:
    return lambda: View(raw, "x").empty


@synchronized("x")
def pay() -> None: ...


@semaphore_required("x", limit=1)
def export(request: Any) -> None: ...


def enter(manager: Any) -> None:
    with manager:
        pass


#: Sync calls that wait for Redis, and the alternative that their error message suggests.
REJECTED: dict[str, tuple[Callable[[], Any], str]] = {
    "with": (lambda: enter(Lock("x")), r"async with Lock\('x'\)"),
    "acquire": (lambda: Lock("x").acquire(), r"await ….aacquire\(\)"),
    "acquire at once": (lambda: Lock("x").acquire(blocking=False), "aacquire"),
    "semaphore": (lambda: Semaphore("x", 3).acquire(), "aacquire"),
    "rlock": (lambda: RLock("x").acquire(), "aacquire"),
    "read": (lambda: ReadWriteLock("x").read.acquire(), "aacquire"),
    "write": (lambda: enter(ReadWriteLock("x").write), "async with"),
    "atomic": (lambda: enter(Lock("x").atomic()), "async with"),
    "acquire_all": (lambda: acquire_all([Lock("x"), Lock("y")]).acquire(), "async with"),
    "synchronized": (pay, "sync_to_async"),
    "status": (lambda: Lock("x").status(), "astatus"),
    "locked": (lambda: Lock("x").locked(), "alocked"),
    "from_handle": (lambda: Lease.from_handle("abc"), "afrom_handle"),
    "a view": (lambda: export(RequestFactory().get("/")), "async with"),
}
#: Methods of a lease that wait for Redis.
LEASE_CALLS = {
    "renew": lambda lease: lease.renew(),
    "extend": lambda lease: lease.extend(5),
    "reacquire": lambda lease: lease.reacquire(),
    "owned": lambda lease: lease.owned(),
    "locked": lambda lease: lease.locked(),
}


@pytest.mark.parametrize("kind", REJECTED)
def test_sync_call_on_a_running_loop_raises_and_names_the_async_one(kind: str, empty: Any) -> None:
    call, instead = REJECTED[kind]

    async def main() -> None:
        with pytest.raises(SynchronousOnlyOperation, match=instead):
            call()

    asyncio.run(main())
    assert empty()


@pytest.mark.parametrize("method", LEASE_CALLS)
def test_sync_call_of_a_lease_on_a_running_loop_raises(method: str, empty: Any) -> None:
    async def main() -> None:
        async with Lock("x") as lease:
            with pytest.raises(SynchronousOnlyOperation, match=f"a{method}"):
                LEASE_CALLS[method](lease)
            assert lease.held and await lease.aowned()

    asyncio.run(main())
    assert empty()


def test_sync_downgrade_on_a_running_loop_raises(raw: redis.Redis) -> None:
    async def main() -> None:
        lock = ReadWriteLock("x")
        async with lock.write as lease:
            with pytest.raises(SynchronousOnlyOperation, match="adowngrade"):
                lock.downgrade()
            assert 0 == lease.permits

    asyncio.run(main())


def test_sync_release_works_on_a_running_loop(empty: Any) -> None:
    async def main() -> None:
        lease = await Lock("x").aacquire()
        assert lease is not None
        lease.release()
        lock = Lock("x")
        assert await lock.aacquire()
        lock.release()
        lease = await Lock("x").aacquire()
        assert lease is not None
        with lease:  # releases at its end
            pass
        lease = await Lock("x").aacquire()
        assert lease is not None
        adopted = await Lease.afrom_handle(lease.detach())
        adopted.release()

    asyncio.run(main())
    assert empty()


def test_block_entered_before_the_loop_runs_can_end_on_it(empty: Any) -> None:
    def generator() -> Any:
        with Lock("x"), Semaphore("x:2", 3), RLock("x:3"):
            yield

    block = generator()
    next(block)

    async def main() -> None:
        block.close()

    asyncio.run(main())
    assert empty()


def test_held_rlock_can_be_acquired_again_on_a_running_loop(empty: Any) -> None:
    lock = RLock("x")

    async def main() -> None:
        async with lock as lease:
            with lock as again:
                assert again is lease

    asyncio.run(main())
    assert empty()


def test_django_allow_async_unsafe_permits_sync_calls_on_a_loop(
    empty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

    async def main() -> None:
        with Lock("x") as lease:
            lease.renew()
        pay()

    asyncio.run(main())
    assert empty()


def test_loop_callback_acquires_as_its_thread(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    caught: list[Any] = []

    def callback() -> None:
        with Lock("x"), pytest.raises(NotAcquired, match="this thread holds it") as error:
            enter(Lock("x", blocking=False))
        caught.append(error)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert caught and empty()


def test_sync_calls_work_on_threads_of_sync_to_async(empty: Any) -> None:
    def work() -> bool:
        with Lock("x") as lease:
            lease.renew()
            return lease.owned()

    async def main() -> None:
        assert await sync_to_async(work)()
        assert await asyncio.to_thread(work)

    asyncio.run(main())

    @async_to_sync
    async def outer() -> bool:
        return await sync_to_async(work)()  # runs on the main thread

    assert outer()
    assert empty()


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import os, sys
import gevent
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
from django.conf import settings
settings.CACHES["default"]["LOCATION"] = sys.argv[1]
import django
django.setup()
from django_redis_sync import Lock

inside, maximum, done = 0, 0, 0

def work():
    global inside, maximum, done
    with Lock("greenlets", blocking_timeout=20) as lease:
        inside += 1
        maximum = max(maximum, inside)
        gevent.sleep(0.01)
        assert lease.held and lease.owned()
        inside -= 1
        done += 1

gevent.joinall([gevent.spawn(work) for _ in range(20)], raise_error=True, timeout=50)
assert (1, 20) == (maximum, done), (maximum, done)
lock = Lock("greenlets")
assert lock.acquire()
other = gevent.spawn(lock.release)  # another greenlet holds nothing to release
other.join()
assert "NotAcquired" == type(other.exception).__name__, other.exception
lock.release()
print("fine")
"""


def test_greenlets_exclude_each_other_like_threads(redis_url: str, raw: redis.Redis) -> None:
    if importlib.util.find_spec("gevent") is None:
        pytest.skip("no gevent: pip install gevent")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-c", GREENLETS, redis_url]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, cwd=ROOT)
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr
