"""Renewals of one lease that overlap: belief ends no later than the server's lease."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import redis

from devtools.servers import HOST, RedisServer
from django_redis_sync import Lease, LeaseLost, Lock
from django_redis_sync.engine.wire import clock
from tests.support.packed import leases_of

from .both import Sync, both, until
from .proxy import Proxy, proxied
from .watching import View


class Bench(NamedTuple):
    """A server, the way to it through a proxy that can keep answers back, and how it counts."""

    raw: redis.Redis
    proxy: Proxy
    alias: str

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return Lock(name, using=self.alias, **options)

    def renewals(self) -> int:
        """How many scripts ran that could have been one."""
        return int(self.raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.fixture
def bench(private: RedisServer, alias: Callable[..., str]) -> Iterator[Bench]:
    assert private.port is not None
    with redis.Redis.from_url(private.url) as raw, proxied(HOST, private.port) as proxy:
        bench = Bench(raw, proxy, alias(proxy.url))
        with bench.lock("warm") as lease:
            lease.renew()  # the scripts are there: what is kept back is a run of one
        yield bench


def beyond(raw: redis.Redis, lease: Lease) -> float:
    """Seconds for which belief outlives the server's lease; below 0 when it ends sooner."""
    # The clock first: what passes before the next look only makes it less.
    view, at, believed = View(raw, lease.name), clock(), lease.remaining
    end, now = leases_of(raw, view.keys.leases).get(lease.token, 0.0), view.now()
    return believed - (clock() - at) - max(0.0, (end - now) / 1000)


@both
async def test_an_answer_that_comes_late_does_not_undo_a_later_renewal(io, bench) -> None:
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("late", "renew")
    with ThreadPoolExecutor(1) as thread:
        longer = thread.submit(lease.renew, 60)
        await until(io, lambda: View(bench.raw, "x").ends_in > 50)
        await io.do(lease, "renew", 20)
        bench.proxy.let_go()
        longer.result()
    assert ["late"] == bench.proxy.done
    assert beyond(bench.raw, lease) < 0.05
    assert 10 < lease.remaining < 20
    await io.do(lease, "release")


@pytest.mark.parametrize("method", ["renew", "detach"])
@both
async def test_the_keeper_cuts_nothing_off_a_renewal_that_is_not_answered_yet(
    io, bench, method: str
) -> None:
    lease = await io.do(bench.lock(timeout=6, renew=True), "acquire")
    bench.proxy.harm("late", "renew")
    started = io.start(io.do(lease, method, 60))
    await until(io, lambda: View(bench.raw, "x").ends_in > 50)
    before = bench.renewals()
    await until(io, lambda: bench.renewals() > before)  # the keeper's
    bench.proxy.let_go()
    await io.result(started)
    assert View(bench.raw, "x").ends_in > 50
    if method == "renew":
        assert beyond(bench.raw, lease) < 0.05 and lease.remaining > 50
        await io.do(lease, "release")


@both
async def test_a_renewal_that_reaches_the_server_late_is_believed_as_it_may_be(io, bench) -> None:
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("hold", "renew")
    with ThreadPoolExecutor(1) as thread:
        shorter = thread.submit(lease.renew, 6)
        await until(io, lambda: bench.proxy.done == ["hold"])
        assert lease.remaining <= 6  # it may begin at any moment
        await until(io, lambda: lease.remaining > 25)  # the keeper asked for more, and later
        bench.proxy.let_go()
        shorter.result()
    assert beyond(bench.raw, lease) < 0.05 and lease.remaining > 25
    await io.do(lease, "release")


def test_a_lease_that_may_be_over_soon_is_looked_after_soon(bench) -> None:
    """Its keeper would look in half a minute, and the shorter lease is over in one second."""
    lost: list[Lease] = []
    lease = bench.lock(max_hold=5, timeout=5, on_lost=lost.append).acquire()
    assert lease is not None
    lease.renew(90)
    bench.proxy.harm("hold", "renew", times=4)
    with ThreadPoolExecutor(1) as thread:
        shorter = thread.submit(lease.renew, 1)
        Sync().run(until(Sync(), lambda: lost, 15))
        bench.proxy.let_go()
        assert shorter.exception() is not None
    assert not lease.held


def test_belief_holds_under_load(raw: redis.Redis) -> None:
    """Short leases of twelve threads, renewed by hand at the moments at which the keeper does."""
    worst = []

    def work(n: int) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            lease = Lock(f"load-{n}", timeout=0.6, renew=True).acquire()
            assert lease is not None
            with contextlib.suppress(LeaseLost):  # so short a lease may be, on a busy machine
                while time.monotonic() < end:
                    lease.renew(0.6)
                    time.sleep(0.19 + 0.001 * (len(worst) % 20))
                    lease.renew(5)
                    worst.append(beyond(raw, lease))

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))
    assert len(worst) > 60
    assert max(worst) < 0.05
