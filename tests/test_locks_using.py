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
    with Lock("aliased", **OTHER) as lease:
        assert lease.owned() and Lock("aliased", **OTHER).locked() and not Lock("aliased").locked()


def semaphore_with_key() -> None:
    with Semaphore("aliased", 2, key="7", **OTHER) as lease:
        lease.renew()
        assert 1 == Semaphore("aliased", 2, key="7", **OTHER).status().in_use


def rlock() -> None:
    with RLock("aliased", **OTHER), RLock("aliased", blocking_timeout=1, **OTHER):
        assert RLock("aliased", **OTHER).owned()


def full_lock() -> None:
    with Lock("aliased", **OTHER), pytest.raises(NotAcquired, match=r"\(.*this thread"):
        nonblocking_lock()


def nonblocking_lock() -> None:
    with Lock("aliased", blocking=False, **OTHER):
        pass


def read_and_write() -> None:
    with ReadWriteLock("aliased", **OTHER).read, pytest.raises(UpgradeRefused):
        ReadWriteLock("aliased", **OTHER).write.acquire(blocking=False)


def downgrade() -> None:
    with ReadWriteLock("aliased", **OTHER).write as lease:
        lease.downgrade()
        assert ReadWriteLock("aliased", **OTHER).read.acquire(blocking=False).release() is None  # type: ignore[union-attr]


def all_at_once() -> None:
    with acquire_all(
        [Lock("aliased", **OTHER), Semaphore("aliased", 2, key="7", **OTHER)]
    ) as leases:
        assert [True, True] == [lease.owned() for lease in leases]


def decorator() -> None:
    synchronized("aliased", **OTHER)(lambda: None)()


def detach_and_adopt() -> None:
    lease = Lock("aliased", **OTHER).acquire()
    assert isinstance(lease, Lease)
    adopted = Lease.from_handle(lease.detach())
    assert adopted.owned()
    adopted.release()


def handoff() -> None:
    lease = Lock("aliased", **OTHER).acquire()
    assert isinstance(lease, Lease)
    waiter = threading.Thread(target=lock)
    waiter.start()
    eventually(lambda: Lock("aliased", **OTHER).status().waiting)
    lease.release()
    waiter.join()


def request_limit() -> None:
    @semaphore_required("aliased", limit=2, **OTHER)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(Semaphore("aliased", 2, **OTHER).status().in_use))

    assert b"1" == view(RequestFactory().get("/")).content


async def _async_lock() -> None:
    async with Lock("aliased", **OTHER) as lease:
        assert await lease.aowned() and await Lock("aliased", **OTHER).alocked()
        waiter = asyncio.create_task(_second())
        while not (await Lock("aliased", **OTHER).astatus()).waiting:
            await asyncio.sleep(0.01)
    await waiter
    lease = await Lock("aliased", **OTHER).aacquire()
    assert isinstance(lease, Lease)
    adopted = await Lease.afrom_handle(await lease.adetach())
    await adopted.arelease()


async def _second() -> None:
    async with Lock("aliased", **OTHER):
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
        assert [] == [key for key in raw.scan_iter() if b"aliased" in key], use.__name__
