"""On a running event loop, sync calls that wait for Redis raise an error, except releases."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
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
from tests.behaviour.watching import View
from tests.support.commands import run
from tests.support.worker_processes import ROOT


@pytest.fixture(autouse=True)
def nothing_is_left(raw: redis.Redis) -> Any:
    yield
    assert View(raw, "x").empty


@synchronized("x")
def pay() -> None: ...


@semaphore_required("x", limit=1)
def export(request: Any) -> None: ...


def enter(manager: Any) -> None:
    with manager:
        pass


#: Sync calls that wait for Redis, and the alternative that their error message suggests.
REJECTED: list[tuple[str, Callable[[], Any]]] = [
    (r"`async with Lock\('x'\)` or `await ….aacquire\(\)`", lambda: enter(Lock("x"))),
    (r"`await ….aacquire\(\)`", lambda: Lock("x").acquire(blocking=False)),
    ("aacquire", lambda: Semaphore("x", 3).acquire()),
    ("aacquire", lambda: RLock("x").acquire()),
    ("aacquire", lambda: ReadWriteLock("x").read.acquire()),
    ("async with", lambda: enter(ReadWriteLock("x").write)),
    ("async with", lambda: enter(Lock("x").atomic())),
    ("async with", lambda: acquire_all([Lock("x"), Lock("y")]).acquire()),
    ("sync_to_async", pay),
    ("astatus", lambda: Lock("x").status()),
    ("alocked", lambda: Lock("x").locked()),
    ("afrom_handle", lambda: Lease.from_handle("abc")),
    ("async with", lambda: export(RequestFactory().get("/"))),
]


@pytest.mark.parametrize(("instead", "call"), REJECTED)
def test_sync_call_on_an_event_loop_raises_an_error_that_shows_the_async_call(
    instead: str, call: Callable[[], Any]
) -> None:
    async def main() -> None:
        with pytest.raises(SynchronousOnlyOperation, match=instead):
            call()

    asyncio.run(main())


@pytest.mark.parametrize("method", ["renew", "extend", "reacquire", "owned", "locked", "downgrade"])
def test_sync_method_of_a_lease_raises_on_a_running_event_loop(method: str) -> None:
    async def main() -> None:
        async with ReadWriteLock("x").write as lease:
            with pytest.raises(SynchronousOnlyOperation, match=f"`await ….a{method}"):
                getattr(lease, method)(*[5] * (method == "extend"))
            assert (True, 0) == (await lease.aowned(), lease.permits)

    asyncio.run(main())


def test_sync_release_does_not_raise_on_a_running_event_loop() -> None:
    def generator() -> Any:
        with Lock("x"), Semaphore("x:2", 3), RLock("x:3"):
            yield

    async def main() -> None:
        block.close()
        lock = Lock("x", blocking=False)
        for end in (Lease.release, lambda _: lock.release(), enter):
            lease: Any = await lock.aacquire()
            end(lease)
            assert lease.ended
        lease = await lock.aacquire()
        adopted = await Lease.afrom_handle(lease.detach())
        adopted.release()
        async with RLock("x") as first:
            with RLock("x") as again:
                assert again is first

    block = generator()
    next(block)
    asyncio.run(main())


def test_django_allow_async_unsafe_allows_sync_calls_on_an_event_loop(monkeypatch: Any) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

    def callback(done: asyncio.Future[str]) -> None:
        with pytest.raises(NotAcquired) as caught, Lock("x"):
            enter(Lock("x", blocking=False))
        done.set_result(str(caught.value))

    async def main() -> str:
        with Lock("x") as lease:
            lease.renew()
        pay()
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(callback, done)
        return await asyncio.wait_for(done, 30)

    assert "this thread holds the lock" in asyncio.run(main()), (
        "a callback of the loop does not count as its thread"
    )


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys, gevent, django
from django.conf import settings
settings.CACHES["default"]["LOCATION"] = sys.argv[1]
django.setup()
from django_redis_sync import Lock
inside = []
def work(number):
    with Lock("greenlets", blocking_timeout=20) as lease:
        inside.append(number)
        gevent.sleep(0.01)
        assert inside[-1] == number and lease.held and lease.owned()
gevent.joinall([gevent.spawn(work, n) for n in range(20)], raise_error=True, timeout=50)
lock = Lock("greenlets")
assert len(inside) == 20 and lock.acquire()
other = gevent.spawn(lock.release)  # another greenlet holds nothing to release
other.join()
assert "NotAcquired" == type(other.exception).__name__, other.exception
lock.release()
"""


def test_greenlets_exclude_each_other_like_threads(redis_url: str) -> None:
    pytest.importorskip("gevent", reason="no gevent: pip install gevent")
    run(sys.executable, "-W", "default", "-c", GREENLETS, redis_url, cwd=ROOT)
