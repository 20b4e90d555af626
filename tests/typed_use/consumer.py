"""Code as in a project that uses the library. mypy checks its types, and no test runs it."""

from __future__ import annotations

import math
from collections.abc import Callable

from django.views import View
from typing_extensions import assert_type

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    SemaphoreRequiredMixin,
    SyncError,
    Unavailable,
    acquire_all,
)
from django_redis_sync.middleware import ConcurrencyLimitMiddleware
from django_redis_sync.operators.facts import Status
from django_redis_sync.signals import lease_lost
from django_redis_sync.testing import filled, limits_disabled, without_redis


def report(lease: Lease, reason: str = "", **kwargs: object) -> None:
    print(lease.name, lease.fence, lease.remaining, reason)


lease_lost.connect(report)


def in_sync_code() -> str:
    with Lock("nightly", timeout=10, blocking_timeout=5, on_lost=report) as lease:
        assert_type(lease, Lease)
        assert_type(lease.fence, int)
        lease.check()
    if got := Semaphore("exports", 3).acquire(blocking=False, permits=2):
        assert_type(got, Lease)
        got.extend(5)
        handle = got.detach(timeout=600)
        assert_type(handle, str)
        with Lease.from_handle(handle) as adopted:
            assert_type(adopted, Lease)
    lock = RLock("tree", timeout=math.inf)
    assert_type(lock.acquire(), "Lease | None")
    lock.release()
    with Lock("account:1").atomic() as held:
        assert_type(held, Lease)
    prices = ReadWriteLock("prices")
    with prices.read, acquire_all([Lock("a"), (Semaphore("b", 2), 2)]) as leases:
        assert_type(leases, tuple[Lease, ...])
    status = Semaphore("exports", 3).status()
    assert_type(status, Status)
    return status.name


async def in_async_code() -> None:
    async with Lock("nightly") as lease:
        assert_type(lease, Lease)
    got = await Semaphore("exports", 3).aacquire(blocking_timeout=1)
    assert_type(got, "Lease | None")
    if got is not None:
        await got.arelease()


def errors() -> str:
    try:
        return in_sync_code()
    except NotAcquired as error:
        return error.reason
    except Unavailable as error:
        return str(error.maybe_executed)
    except (LeaseLost, SyncError) as error:
        return str(error)


class Feed(SemaphoreRequiredMixin, View):
    semaphore_name, semaphore_limit = "feed", 2


as_view: Callable[..., object] = Feed.as_view()
print(as_view, ConcurrencyLimitMiddleware)


@without_redis()
def in_tests() -> None:
    with filled("exports", 3) as lease, limits_disabled():
        assert_type(lease, Lease)
