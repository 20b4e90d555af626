"""`lost` counts leases that expired or were cleared while their holder was alive. `rejected` counts
rejected calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_sync import LeaseLost, Lock, Semaphore
from django_redis_sync.operators.history import histories

from .both import both, until
from .test_cancellation import Stepped, as_it_completes, soon
from .test_faults import Impatient, bench  # noqa: F401

#: Seconds in which a pending count or a repeated command would arrive.
LATE = 0.3


def count_of(name: str, what: str, using: str = "default") -> int:
    return int(getattr(histories([(name, None)], using=using)[0].ever, what))


@both
async def test_lost_counts_each_lease_once_however_often_the_holder_asks(io, view) -> None:
    lease = await io.do(Lock("taken"), "acquire")
    view("taken").clear()
    for _ in range(2):
        assert not await io.do(lease, "owned")
    for method in ("renew", "extend", "reacquire", "downgrade"):
        with pytest.raises((LeaseLost, TypeError)):
            await io.do(lease, method, *([5] if method == "extend" else []))
    with pytest.raises(LeaseLost):
        await io.do(lease, "release")
    await until(io, lambda: count_of("taken", "lost"))
    time.sleep(LATE)
    assert 1 == count_of("taken", "lost"), "a lost lease is counted exactly once"


@both
async def test_lost_counts_a_lease_that_expires_in_a_block(io, raw) -> None:
    with pytest.raises(LeaseLost):
        async with io.entered(Lock("slow", timeout=0.1)):
            await io.sleep(0.3)
    await until(io, lambda: count_of("slow", "lost"))
    time.sleep(LATE)
    assert 1 == count_of("slow", "lost"), "a lease that expires under its holder is counted once"


@pytest.mark.parametrize("harm", ["cut", "drop"])
@both
async def test_lost_ignores_a_release_whose_reply_is_lost(io, bench, harm: str) -> None:  # noqa: F811
    await bench.warm(io)
    lock = Impatient("x", using=bench.alias, timeout=1, renew=True)
    lease = await io.do(lock, "acquire")
    await io.sleep(1.2)  # past the end of the first lease duration: it was renewed
    bench.proxy.harm(harm, "release")
    await io.do(lease, "release")
    assert [harm] == bench.proxy.done
    time.sleep(LATE)
    assert 0 == count_of("x", "lost", bench.alias), "a release whose reply is lost loses nothing"
    assert 1 == count_of("x", "released", bench.alias)


@both
async def test_lost_ignores_a_renewal_that_arrives_after_the_release(io, bench) -> None:  # noqa: F811
    await bench.warm(io)
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("hold", "renew")
    renewal = io.start(io.do(lease, "renew"))
    await until(io, lambda: bench.proxy.done)
    await io.do(lease, "release")
    bench.proxy.let_go()
    with pytest.raises(LeaseLost):
        await io.result(renewal)
    time.sleep(LATE)
    assert 0 == count_of("x", "lost", bench.alias), "a late renewal is not a loss"


@pytest.mark.parametrize("how", [soon, as_it_completes], ids=lambda how: how.__name__)
def test_lost_ignores_cancelled_blocks(raw, how: Callable[..., Any]) -> None:
    async def block() -> None:
        async with Semaphore("cancelled", 100):
            await asyncio.sleep(0)

    async def main() -> None:
        for k in range(1, 12):
            task = asyncio.ensure_future(awaited(Stepped(block(), k, how, 1)))
            await asyncio.wait([task])

    asyncio.run(main())
    time.sleep(LATE)
    assert 0 == count_of("cancelled", "lost"), "a cancelled block loses nothing"


async def awaited(thing: Any) -> Any:
    return await thing


@both
async def test_lost_counts_once_if_the_reply_of_the_count_is_cut(io, bench) -> None:  # noqa: F811
    await bench.warm(io)
    lease = await io.do(bench.lock(timeout=3, renew=True), "acquire")
    bench.view().clear()
    bench.proxy.harm("cut", "release", 2)
    assert not await io.do(lease, "owned")
    await until(io, lambda: bench.proxy.done == ["cut", "cut"])
    assert 1 == count_of("x", "lost", bench.alias), "a lost lease is counted exactly once"


@pytest.mark.promise(22)
@pytest.mark.parametrize("harm", ["cut", "drop"])
@both
async def test_rejected_counts_a_call_once_if_its_reply_is_cut(io, bench, harm) -> None:  # noqa: F811
    await bench.warm(io)
    async with io.entered(bench.lock()):
        bench.proxy.harm(harm)
        assert not await io.do(bench.lock(), "acquire", False)
        assert [harm] == bench.proxy.done
    time.sleep(LATE)
    assert 1 == count_of("x", "rejected", bench.alias), "one rejected call is counted once"
    assert 1 == count_of("x", "granted", bench.alias)
