"""Jumps of the server's clock: rows 27 and 28 of RESULTS.md."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from tests.behaviour.both import eventually, within
from tests.behaviour.watching import Losses, View
from tests.support import clock
from tests.support.journal import Journal, journalling

pytestmark = pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())

JUMP = 60.0


class Shifted:
    """A server whose clock can jump, its cache alias, and the journal of its scripts."""

    def __init__(self, shim: clock.Clock, alias: str, journal: Journal) -> None:
        self.alias, self.journal, self.shim = alias, journal, shim

    def lock(self, name: str, **options: Any) -> Lock:
        return Lock(name, using=self.alias, **options)

    def shift(self, seconds: float) -> None:
        self.shim.shift(seconds)
        client: redis.Redis = self.journal.client
        client.ping()  # the commands after this one see the new time
        assert abs(client.time()[0] - time.time() - seconds) < 5


@pytest.fixture
def shifted(new_server: Any, alias: Any, tmp_path: Any) -> Iterator[Shifted]:
    shim = clock.Clock(tmp_path)
    server = new_server(environment=shim.environment)
    with journalling(server.url) as journal:
        yield Shifted(shim, alias(server.url), journal)
        journal.check()


def test_row_27_clock_jump_ahead_ends_leases_and_calls_on_lost(shifted, figure) -> None:
    """The jump ends all leases at once. `on_lost` is called for the renewed lease. A later grant
    has a fence that is higher than that of the ended lease."""
    with Losses() as losses:
        first = shifted.lock("renewed", timeout=3, renew=True, on_lost=losses).acquire()
        hard = shifted.lock("hard", timeout=40).acquire()
        watch = within(10)
        shifted.shift(JUMP)
        for old in (first, hard):
            new = shifted.lock(old.name, blocking=False).acquire()
            assert old.fence + JUMP * 1e6 <= new.fence  # a fence contains the time of the grant
            assert not old.owned()
            new.release()
        with watch:
            eventually(lambda: losses.of(first))
    figure(recover=watch.seconds, lost=2)
    for old in (first, hard):
        with pytest.raises(LeaseLost):
            old.release()


def test_row_28_clock_jump_back_extends_a_dead_lease_by_at_most_its_duration(
    shifted, figure
) -> None:
    """The lease of a dead holder ends at most one lease duration after the jump, although its
    stored expiry is now a minute ahead. Waiters and live holders continue."""
    gone = shifted.lock("gone", timeout=4).acquire()
    live = shifted.lock("live", timeout=4, renew=True).acquire()
    view, got = View(shifted.journal.client, "gone"), list[Lease | None]()

    def wait() -> threading.Thread:
        acquire = shifted.lock("gone").acquire
        thread = threading.Thread(target=lambda: got.append(acquire(blocking_timeout=30)))
        thread.start()
        return thread

    # This waiter begins to wait before the jump. The server measures its waiting time with the
    # clock that jumps.
    waiting = [wait()]
    eventually(lambda: view.waiting == 1)
    shifted.shift(-JUMP)
    watch, fence = within(), gone.fence
    waiting.append(wait())
    for number in (1, 2):
        eventually(lambda number=number: len(got) == number, 25)
        won = got[-1]
        assert won and won.held and won.fence > fence
        if number == 1:
            figure(recover=watch.seconds, lost=0)
            assert watch.seconds < 15  # far less than the minute by which the clock jumped
        assert live.held and live.owned()
        fence = won.fence
        won.release()
    eventually(View(shifted.journal.client, "live").renewals())
    assert live.held and live.owned()
    live.release()
    for thread in waiting:
        thread.join(25)


def test_row_28_limit_holds_while_the_clock_jumps_back_and_forth(shifted) -> None:
    """`journal.check()` verifies that the limit was never exceeded, and that fences only grew."""
    stop, released = threading.Event(), list[int]()

    def work() -> None:
        while not stop.is_set():
            sem = Semaphore("both", 2, using=shifted.alias, timeout=5)
            if lease := sem.acquire(blocking_timeout=1):
                time.sleep(0.002)
                with contextlib.suppress(LeaseLost):  # raised if the clock jumped ahead
                    lease.release()
                    released.append(lease.fence)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for seconds in (-1, 0, -30, -29, -60, 0):
        time.sleep(0.25)
        shifted.shift(seconds)
    eventually(lambda: len(released) > 20)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert shifted.journal.check().summary()["released"] > 20
