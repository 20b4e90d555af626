"""Every public class with a cache on another server and its own key prefix: all keys are written
to that server and begin with that prefix."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
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
from django_redis_sync.exceptions import UpgradeRefused
from tests.behaviour.both import eventually
from tests.support.caches import OTHER

pytestmark = pytest.mark.usefixtures("second")


def lock() -> None:
    with Lock("used", **OTHER) as lease:
        assert lease.owned() and Lock("used", **OTHER).locked() and not Lock("used").locked()


def semaphore_with_key() -> None:
    with Semaphore("used", 2, key="7", **OTHER) as lease:
        lease.renew()
        assert 1 == Semaphore("used", 2, key="7", **OTHER).status().in_use


def rlock() -> None:
    with RLock("used", **OTHER), RLock("used", blocking_timeout=1, **OTHER):
        assert RLock("used", **OTHER).owned()


def full_lock() -> None:
    with Lock("used", **OTHER), pytest.raises(NotAcquired, match=r"\(.*this thread"):
        nonblocking_lock()


def nonblocking_lock() -> None:
    with Lock("used", blocking=False, **OTHER):
        pass


def read_and_write() -> None:
    with ReadWriteLock("used", **OTHER).read, pytest.raises(UpgradeRefused):
        ReadWriteLock("used", **OTHER).write.acquire(blocking=False)


def downgrade() -> None:
    with ReadWriteLock("used", **OTHER).write as lease:
        lease.downgrade()
        assert ReadWriteLock("used", **OTHER).read.acquire(blocking=False).release() is None  # type: ignore[union-attr]


def all_at_once() -> None:
    with acquire_all([Lock("used", **OTHER), Semaphore("used", 2, key="7", **OTHER)]) as leases:
        assert [True, True] == [lease.owned() for lease in leases]


def decorator() -> None:
    synchronized("used", **OTHER)(lambda: None)()


def detach_and_adopt() -> None:
    lease = Lock("used", **OTHER).acquire()
    assert isinstance(lease, Lease)
    adopted = Lease.from_handle(lease.detach())
    assert adopted.owned()
    adopted.release()


def handoff() -> None:
    lease = Lock("used", **OTHER).acquire()
    assert isinstance(lease, Lease)
    waiter = threading.Thread(target=lock)
    waiter.start()
    eventually(lambda: Lock("used", **OTHER).status().waiting)
    lease.release()
    waiter.join()


def request_limit() -> None:
    @semaphore_required("used", limit=2, **OTHER)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(Semaphore("used", 2, **OTHER).status().in_use))

    assert b"1" == view(RequestFactory().get("/")).content


async def _async_lock() -> None:
    async with Lock("used", **OTHER) as lease:
        assert await lease.aowned() and await Lock("used", **OTHER).alocked()
        waiter = asyncio.create_task(_second())
        while not (await Lock("used", **OTHER).astatus()).waiting:
            await asyncio.sleep(0.01)
    await waiter
    lease = await Lock("used", **OTHER).aacquire()
    assert isinstance(lease, Lease)
    adopted = await Lease.afrom_handle(await lease.adetach())
    await adopted.arelease()


async def _second() -> None:
    async with Lock("used", **OTHER):
        pass


def async_lock() -> None:
    asyncio.run(_async_lock())


USES = (
    lock, semaphore_with_key, full_lock, rlock, read_and_write, downgrade, all_at_once, decorator,
    detach_and_adopt, handoff, request_limit, async_lock,
)  # fmt: skip


def test_every_public_class_writes_only_under_the_prefix_of_its_alias(raw: redis.Redis) -> None:
    other: Any = caches["other"]
    client = other.client.get_client()
    for use in USES:
        client.flushdb()
        use()
        found = {key.decode() for key in client.scan_iter()}
        assert found and all(key.startswith("second:sync:") for key in found), use.__name__
        assert [] == [key for key in raw.scan_iter() if b"used" in key], use.__name__
