"""The statistics of a name count each event once. `lost` counts leases that expired or were cleared
while their holder was alive. `skipped` counts calls that did not want to wait."""

from __future__ import annotations

import time

import pytest

from django_redis_sync import LeaseLost, Lock

from .both import both, until
from .watching import count_of

#: Seconds to wait before a test reads a count. If the library counted an event twice, the second
#: count would arrive within this time.
LATE = 0.3


@both
async def test_lost_lease_is_counted_once_when_its_holder_calls_several_methods(io, view) -> None:
    lease = await io.do(Lock("taken"), "acquire")
    view("taken").clear()
    for _ in range(2):
        assert not await io.do(lease, "owned")
    for method, *args in (["renew"], ["extend", 5], ["reacquire"], ["downgrade"], ["release"]):
        with pytest.raises((LeaseLost, TypeError)):
            await io.do(lease, method, *args)
    with pytest.raises(LeaseLost):
        async with io.entered(Lock("slow", timeout=0.1)):
            await io.sleep(0.3)
    for name in ("taken", "slow"):
        await until(io, lambda name=name: count_of(name, "lost"))
    time.sleep(LATE)
    assert [1, 1] == [count_of(name, "lost") for name in ("taken", "slow")], "counted exactly once"


@pytest.mark.promise(22)
@pytest.mark.parametrize("fault", ["cut", "drop"])
@both
async def test_call_is_counted_only_once_if_its_reply_is_lost(io, bench, fault: str) -> None:
    lease = await io.do(bench.lock(timeout=3, renew=True), "acquire")
    await io.sleep(3.2)  # longer than the lease duration of 3 s, so the lease was renewed
    bench.proxy.cause(fault)
    assert not await io.do(bench.lock(), "acquire", False)
    bench.proxy.cause(fault, "release")
    await io.do(lease, "release")
    assert [fault] * 2 == bench.proxy.done
    time.sleep(LATE)
    counts = [count_of("x", event, bench.alias) for event in ("granted", "skipped", "released")]
    assert [1, 1, 1] == counts, "each call is counted once"
    assert 0 == count_of("x", "lost", bench.alias), "a release whose reply is lost is no loss"


@both
async def test_late_renewal_of_a_released_lease_is_not_counted_as_a_loss(io, bench) -> None:
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.cause("hold", "renew")
    renewal = io.start(io.do(lease, "renew"))
    await until(io, lambda: bench.proxy.done)
    await io.do(lease, "release")
    bench.proxy.let_go()
    with pytest.raises(LeaseLost):
        await io.result(renewal)
    time.sleep(LATE)
    assert 0 == count_of("x", "lost", bench.alias), "a late renewal is no loss"


@both
async def test_lost_lease_is_counted_once_when_replies_of_the_counting_script_are_lost(
    io, bench
) -> None:
    lease = await io.do(bench.lock(timeout=3, renew=True), "acquire")
    bench.view().clear()
    bench.proxy.cause("cut", "release", 2)
    assert not await io.do(lease, "owned")
    await until(io, lambda: bench.proxy.done == ["cut", "cut"])
    assert 1 == count_of("x", "lost", bench.alias), "a lost lease is counted exactly once"
