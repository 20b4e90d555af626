"""If renewals of a lease overlap, its local expiry is not later than its expiry on the server."""

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
    """A server, a proxy in front of it, and the cache alias of the proxy."""

    raw: redis.Redis
    proxy: Proxy
    alias: str

    def lock(self, name: str = "x", **options: Any) -> Lock:
        return Lock(name, using=self.alias, **options)

    def renewals(self) -> int:
        """Return the number of scripts that ran, which include all renewals."""
        return int(self.raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.fixture
def bench(private: RedisServer, alias: Callable[..., str]) -> Iterator[Bench]:
    assert private.port is not None
    with redis.Redis.from_url(private.url) as raw, proxied(HOST, private.port) as proxy:
        bench = Bench(raw, proxy, alias(proxy.url))
        with bench.lock("warm") as lease:
            lease.renew()  # load the scripts, so that the proxy delays a renewal and not a load
        yield bench


def beyond(raw: redis.Redis, lease: Lease) -> float:
    """Return the seconds by which the local expiry is later than the expiry on the server.

    The result is negative if the local expiry is earlier."""
    # Read the clock first: time that passes between the reads makes the result smaller.
    view, at, remaining = View(raw, lease.name), clock(), lease.remaining
    end, now = leases_of(raw, view.keys.leases).get(lease.token, 0.0), view.now()
    return remaining - (clock() - at) - max(0.0, (end - now) / 1000)


@both
async def test_delayed_reply_does_not_undo_a_later_renewal(io, bench) -> None:
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
async def test_renewal_thread_does_not_shorten_an_unanswered_renewal(
    io, bench, method: str
) -> None:
    lease = await io.do(bench.lock(timeout=6, renew=True), "acquire")
    bench.proxy.harm("late", "renew")
    started = io.start(io.do(lease, method, 60))
    await until(io, lambda: View(bench.raw, "x").ends_in > 50)
    before = bench.renewals()
    await until(io, lambda: bench.renewals() > before)  # by the renewal thread
    bench.proxy.let_go()
    await io.result(started)
    assert View(bench.raw, "x").ends_in > 50
    if method == "renew":
        assert beyond(bench.raw, lease) < 0.05 and lease.remaining > 50
        await io.do(lease, "release")


@both
async def test_local_expiry_is_correct_when_a_renewal_reaches_the_server_late(io, bench) -> None:
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.harm("hold", "renew")
    with ThreadPoolExecutor(1) as thread:
        shorter = thread.submit(lease.renew, 6)
        await until(io, lambda: bench.proxy.done == ["hold"])
        assert lease.remaining <= 6  # the shorter renewal may run at any moment
        await until(io, lambda: lease.remaining > 25)  # after a later, longer renewal
        bench.proxy.let_go()
        shorter.result()
    assert beyond(bench.raw, lease) < 0.05 and lease.remaining > 25
    await io.do(lease, "release")


def test_lease_is_checked_in_time_after_an_unanswered_shorter_renewal(bench) -> None:
    """The next renewal is due in 30 s, but the shorter lease may expire after 1 s."""
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


def test_local_expiry_is_never_later_than_the_servers_under_load(raw: redis.Redis) -> None:
    """Twelve threads renew short leases at the times at which the renewal thread renews them."""
    worst = []

    def work(n: int) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            lease = Lock(f"load-{n}", timeout=0.6, renew=True).acquire()
            assert lease is not None
            with contextlib.suppress(LeaseLost):  # a busy machine may lose such a short lease
                while time.monotonic() < end:
                    lease.renew(0.6)
                    time.sleep(0.19 + 0.001 * (len(worst) % 20))
                    lease.renew(5)
                    worst.append(beyond(raw, lease))

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))
    assert len(worst) > 60
    assert max(worst) < 0.05
