"""Every face on a cache of another server, whose keys have a prefix of their own: all that is
written is there and begins with it."""

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


def held() -> None:
    with Lock("face", **OTHER) as lease:
        assert lease.owned() and Lock("face", **OTHER).locked() and not Lock("face").locked()


def of_a_key() -> None:
    with Semaphore("face", 2, key="7", **OTHER) as lease:
        lease.renew()
        assert 1 == Semaphore("face", 2, key="7", **OTHER).status().in_use


def taken_again() -> None:
    with RLock("face", **OTHER), RLock("face", blocking_timeout=1, **OTHER):
        assert RLock("face", **OTHER).owned()


def refused() -> None:
    with Lock("face", **OTHER), pytest.raises(NotAcquired, match=r"\(.*this thread"):
        held_at_once()


def held_at_once() -> None:
    with Lock("face", blocking=False, **OTHER):
        pass


def shared() -> None:
    with ReadWriteLock("face", **OTHER).read, pytest.raises(UpgradeRefused):
        ReadWriteLock("face", **OTHER).write.acquire(blocking=False)


def downgraded() -> None:
    with ReadWriteLock("face", **OTHER).write as lease:
        lease.downgrade()
        assert ReadWriteLock("face", **OTHER).read.acquire(blocking=False).release() is None  # type: ignore[union-attr]


def all_or_none() -> None:
    with acquire_all([Lock("face", **OTHER), Semaphore("face", 2, key="7", **OTHER)]) as leases:
        assert [True, True] == [lease.owned() for lease in leases]


def decorated() -> None:
    synchronized("face", **OTHER)(lambda: None)()


def handed_to_another() -> None:
    lease = Lock("face", **OTHER).acquire()
    assert isinstance(lease, Lease)
    adopted = Lease.from_handle(lease.detach())
    assert adopted.owned()
    adopted.release()


def waited_for() -> None:
    lease = Lock("face", **OTHER).acquire()
    assert isinstance(lease, Lease)
    waiter = threading.Thread(target=held)
    waiter.start()
    eventually(lambda: Lock("face", **OTHER).status().waiting)
    lease.release()
    waiter.join()


def requested() -> None:
    @semaphore_required("face", limit=2, **OTHER)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(Semaphore("face", 2, **OTHER).status().in_use))

    assert b"1" == view(RequestFactory().get("/")).content


async def _awaited() -> None:
    async with Lock("face", **OTHER) as lease:
        assert await lease.aowned() and await Lock("face", **OTHER).alocked()
        waiter = asyncio.create_task(_second())
        while not (await Lock("face", **OTHER).astatus()).waiting:
            await asyncio.sleep(0.01)
    await waiter
    lease = await Lock("face", **OTHER).aacquire()
    assert isinstance(lease, Lease)
    adopted = await Lease.afrom_handle(await lease.adetach())
    await adopted.arelease()


async def _second() -> None:
    async with Lock("face", **OTHER):
        pass


def awaited() -> None:
    asyncio.run(_awaited())


FACES = (
    held, of_a_key, refused, taken_again, shared, downgraded, all_or_none, decorated,
    handed_to_another, waited_for, requested, awaited,
)  # fmt: skip


def test_each_face_writes_there_and_under_its_prefix_alone(raw: redis.Redis) -> None:
    there: Any = caches["other"]
    client = there.client.get_client()
    for face in FACES:
        client.flushdb()
        face()
        found = {key.decode() for key in client.scan_iter()}
        assert found and all(key.startswith("second:sync:") for key in found), face.__name__
        assert [] == [key for key in raw.scan_iter() if b"face" in key], face.__name__
