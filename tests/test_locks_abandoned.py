"""Leases of tasks that no longer exist: not renewed, even with the garbage collector off."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_redis_sync import Lease, Lock
from django_redis_sync.locks import callers

from .behaviour.both import eventually
from .behaviour.watching import View


@pytest.fixture
def leases_made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Lease]]]:
    """References to all leases that the test makes, while the garbage collector is off."""
    leases: list[weakref.ref[Lease]] = []
    begin = Lease.__init__

    def recorded(self: Lease, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        leases.append(weakref.ref(self))

    monkeypatch.setattr(Lease, "__init__", recorded)
    monkeypatch.setattr(callers, "COLLECT_INTERVAL", 0.1)
    gc.collect()
    gc.disable()
    yield leases
    gc.enable()


def alive(leases_made: list[weakref.ref[Lease]]) -> int:
    return sum(ref() is not None for ref in leases_made)


async def hold(name: str) -> None:
    lease = await Lock(name, timeout=1.5, renew=True).aacquire()
    await asyncio.sleep(1000)
    assert lease is None


async def hold_in_a_block(name: str) -> None:
    async with Lock(name, timeout=1.5, renew=True):
        await asyncio.sleep(1000)


@pytest.mark.parametrize("held", [hold, hold_in_a_block])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_leases_of_the_tasks_of_a_closed_loop_are_not_renewed(
    raw: redis.Redis, leases_made: list[weakref.ref[Lease]], held: Callable[..., Any]
) -> None:
    loop = asyncio.new_event_loop()

    async def main() -> None:
        for n in range(5):
            asyncio.get_running_loop().create_task(held(f"x{n}"))
        while len(leases_made) < 5:
            await asyncio.sleep(0.01)

    loop.run_until_complete(main())
    loop.close()
    del loop
    eventually(lambda: alive(leases_made) == 0)
    eventually(lambda: all(View(raw, f"x{n}").empty for n in range(5)))
    # The next loop drops the resources of a closed loop, and asyncio warns about their sockets.
    asyncio.run(Lock("x").alocked())
    gc.collect()


def test_referenced_lease_is_renewed_after_its_loop_has_ended(
    raw: redis.Redis, leases_made: list[weakref.ref[Lease]]
) -> None:
    lease = asyncio.run(Lock("x", timeout=4, renew=True).aacquire())
    assert lease is not None
    eventually(View(raw, "x").renewals())
    assert lease.held and lease.owned()
    lease.release()
