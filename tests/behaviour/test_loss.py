"""A client never treats a lease as held for longer than the server does.

If a lease can't be renewed, its holder is notified before the lease expires on the server. If
renewals overlap, the client's local expiry of the lease is not later than the server's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.db import connections

from django_redis_sync import Lease, LeaseLost, Lock, Unavailable
from django_redis_sync.signals import lease_lost

from .both import both, eventually, until
from .conftest import Bench
from .watching import View

pytestmark = pytest.mark.promise(7)

#: Socket timeouts longer than the leases. A loss must be reported before such a timeout ends.
PATIENT = {"SOCKET_TIMEOUT": 5, "SOCKET_CONNECT_TIMEOUT": 5}


@pytest.fixture
def paths(new_bench) -> list[Bench]:
    """Two servers, each behind a proxy."""
    return [new_bench(**PATIENT) for _ in range(2)]


@pytest.mark.parametrize(
    ("fault", "seconds", "beside"),
    [
        ("swallow", 3, ""),
        ("swallow", 4.5, ""),
        ("refuse", 3, ""),
        ("swallow", 3, "another alias hangs"),
        ("swallow", 3, "callbacks are slow"),
    ],
)
@both
async def test_loss_is_reported_before_the_lease_ends(
    io, paths, losses, figure, fault: str, seconds: float, beside: str
) -> None:
    mine, other = paths if "alias" in beside else (paths[0], paths[0])
    options = {"timeout": seconds, "renew": True}
    slow = (lambda _: time.sleep(2)) if "slow" in beside else None
    others = [
        await io.do(other.lock(f"other-{n}", on_lost=slow, **options), "acquire")
        for n in range({"": 0, "another alias hangs": 20, "callbacks are slow": 3}[beside])
    ]
    lock = mine.lock(on_lost=losses, **options)
    lease = await io.do(lock, "acquire")
    await until(io, mine.view().renewals())
    for bench in {mine, other}:
        bench.proxy.cause(fault, "", times=100_000)
    await until(io, lambda: losses.of(lease))
    assert losses.preceded(mine.view().end, lease)
    early = mine.view().end / 1000 - losses.of(lease)
    figure(recover=seconds - early, lost=1, said=f"notified {early * 1000:.0f} ms before")
    await until(io, lambda: mine.view().holding == 0)
    await until(io, lambda: not any(lease.held for lease in others))
    mine.proxy.calm()
    with pytest.raises(LeaseLost):
        await io.do(lock, "release")


@both
async def test_loss_is_reported_within_a_third_of_the_lease_duration(io, raw, losses) -> None:
    """A slow callback of one lease delays no renewal and no report of another lease."""

    def slow(lease: Lease) -> None:
        losses(lease)
        time.sleep(10)

    cleared = await io.do(Lock("x", timeout=6, renew=True, on_lost=slow), "acquire")
    kept = await io.do(Lock("kept", timeout=3, renew=True), "acquire")
    hard = await io.do(Lock("hard", timeout=0.3, on_lost=losses), "acquire")
    View(raw, "x").clear()
    at = time.time()
    await until(io, lambda: losses.of(cleared))
    # The renewal that notices the loss is due within 2 s, a third of the lease duration of 6 s.
    assert losses.of(cleared) - at < 2.6 + 3 * losses.late
    await until(io, lambda: losses.of(hard) and not hard.held)
    end = View(raw, "kept").end + 3000
    await until(io, lambda: View(raw, "kept").end > end)
    assert kept.held and await io.do(kept, "owned")


def test_callback_that_raises_system_exit_stops_no_other_callback(raw, caplog, monkeypatch) -> None:
    """When a lease is lost, one thread calls `on_lost` and the receivers of `lease_lost`. Then the
    thread closes its database connections."""
    ran = list[tuple[str, Any, int]]()

    def raising(what: str, error: BaseException | None) -> Any:
        def receive(lease: Lease, **_: Any) -> None:
            ran.append((what, lease, threading.get_ident()))
            if error:
                raise error

        return receive

    def close_all() -> None:
        if threading.get_ident() in {thread for _, _, thread in ran}:
            ran.append(("closed", held, threading.get_ident()))

    monkeypatch.setattr(connections, "close_all", close_all)
    for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("any"), None):
        ran.clear()
        caplog.clear()
        receiver, on_lost = raising("signal", error), raising("callback", error)
        held = Lock("n", timeout=0.9, renew=True, on_lost=on_lost).acquire()
        lease_lost.connect(receiver)
        try:
            View(raw, "n").clear()
            eventually(lambda: ["signal", "callback", "closed"] == [what for what, _, _ in ran])
        finally:
            lease_lost.disconnect(receiver)
        assert 1 == len({(lease, thread) for _, lease, thread in ran}) and held is ran[0][1]
        assert threading.get_ident() != ran[0][2]
        failed = caplog.messages.count("a callback or receiver failed")
        assert failed == (2 if error else 0) == caplog.text.count(f"\n{type(error).__name__}")


# Renewals that overlap


def beyond(raw: redis.Redis, lease: Lease) -> float:
    """Return by how many seconds the local expiry is later than the expiry on the server. Return a
    negative number if the local expiry is earlier."""
    # Read the local clock before `remaining`. A delay between these two reads then makes the result
    # smaller. So it can't make the test fail.
    view, at, remaining = View(raw, lease.name), time.monotonic(), lease.remaining
    end, now = view.leases.get(lease.token, 0.0), view.now()
    return remaining - (time.monotonic() - at) - max(0.0, (end - now) / 1000)


@pytest.mark.promise(8)
@pytest.mark.parametrize(("fault", "asked", "later"), [("late", 60, 20), ("hold", 6, 90)])
@both
async def test_local_expiry_is_correct_when_a_renewal_is_delayed(io, bench, fault, asked, later):
    """Send `renew(asked)`, which the proxy delays, and then `renew(later)`. The lease lasts for
    `later` seconds, whether this is more or less than `asked`."""
    lease = await io.do(bench.lock(), "acquire")
    bench.proxy.cause(fault, "renew")
    with ThreadPoolExecutor(1) as thread:
        delayed = thread.submit(lease.renew, asked)
        if fault == "late":
            await until(io, lambda: bench.view().ends_in > 50)
        else:
            await until(io, lambda: bench.proxy.done)
            assert lease.remaining <= 6  # the delayed `renew(6)` may run at any moment
        await io.do(lease, "renew", later)
        bench.proxy.let_go()
        with contextlib.suppress(Unavailable):
            delayed.result()
    assert [fault] == bench.proxy.done
    assert beyond(bench.client, lease) < 0.05
    assert later / 2 < lease.remaining <= later
    await io.do(lease, "release")


def test_on_lost_is_called_soon_if_a_renewal_to_a_shorter_time_gets_no_reply(bench) -> None:
    """After `renew(90)`, the next renewal is due in 30 s. The unanswered `renew(1)` may have
    shortened the lease to 1 s, so the holder must be notified sooner."""
    lost: list[Any] = []
    lease = bench.lock(max_hold=5, timeout=5, on_lost=lost.append).acquire()
    lease.renew(90)
    bench.proxy.cause("hold", "renew", times=4)
    with ThreadPoolExecutor(1) as thread:
        shorter = thread.submit(lease.renew, 1)
        eventually(lambda: lost, 15)
        bench.proxy.let_go()
        assert shorter.exception() is not None
    assert not lease.held


@pytest.mark.promise(8)
@both
async def test_grant_that_arrives_after_the_end_of_its_lease_is_not_returned(io, paths) -> None:
    bench = paths[0]
    lock = Lock("x", using=bench.alias, timeout=1.5)
    bench.proxy.cause("late")
    late = io.start(io.do(lock, "acquire", False))
    await until(io, lambda: bench.proxy.done)
    await io.sleep(1.5)  # counted from a time after the request was sent
    bench.proxy.let_go()
    lease = await io.result(late)
    assert lease.held, "the caller got a lease that was over"
    assert 1 == bench.view().holding
    await io.do(lease, "release")
    assert bench.view().empty
