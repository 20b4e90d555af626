"""Jumps of the server's clock: rows 27 and 28."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis

from devtools.servers import RedisServer
from django_redis_sync import Lease, LeaseLost, Lock, Semaphore
from exam import clock
from tests.behaviour.both import eventually
from tests.behaviour.watching import View
from tests.support.journal import journalling

from .conftest import Figure, Watch

pytestmark = pytest.mark.skipif(bool(clock.reason()), reason=clock.reason())

JUMP = 60.0


class Shifted(NamedTuple):
    """A server's clock, its cache alias, a plain client, and the journal of its scripts."""

    clock: clock.Clock
    alias: str
    client: redis.Redis
    journal: Any

    def view(self, name: str) -> View:
        return View(self.client, name)


@pytest.fixture
def shifted(new_server: Any, alias: Any, tmp_path: Any) -> Iterator[Shifted]:
    shim = clock.Clock(tmp_path)
    server: RedisServer = new_server(environment=shim.environment)
    with journalling(server.url) as journal, redis.Redis.from_url(server.url) as client:
        yield Shifted(shim, alias(server.url), client, journal)
        journal.check()


def test_shim_moves_only_the_clock_of_its_server(shifted: Shifted) -> None:
    Lock("any", using=shifted.alias).acquire()
    for seconds in (JUMP, -JUMP, 0.0):
        shifted.clock.shift(seconds)
        # The server reads its clock once per event.
        shifted.client.ping()
        server, here = shifted.client.time()[0], time.time()
        assert abs(server - here - seconds) < 5


def test_row_27_clock_jump_ahead_ends_leases_and_calls_on_lost(
    shifted: Shifted, figure: Figure
) -> None:
    """All leases end at once. A renewed lease calls `on_lost`, others have an outdated fence."""
    notified: list[float] = []
    watch = Watch()
    renewed = Lock("renewed", using=shifted.alias, timeout=3, renew=True)
    renewed.on_lost = lambda lease: notified.append(watch.seconds)
    first = renewed.acquire()
    hard = Lock("hard", using=shifted.alias, timeout=40).acquire()
    assert first and hard
    watch.start = time.monotonic()
    shifted.clock.shift(JUMP)
    for old in (first, hard):
        new = Lock(old.name, using=shifted.alias, blocking=False).acquire()
        assert new and new.fence > old.fence
        assert old.fence + JUMP * 1e6 <= new.fence  # a fence contains the time of the grant
        assert not old.owned()
        new.release()
    eventually(lambda: notified)
    assert not first.held
    for old in (first, hard):
        with pytest.raises(LeaseLost):
            old.release()
    assert notified[0] < 10
    figure(recover=notified[0], lost=2)


def test_row_28_clock_jump_back_extends_a_dead_lease_by_at_most_its_duration(
    shifted: Shifted, figure: Figure
) -> None:
    """The lease of a dead holder ends at most one lease duration after the jump, although its
    stored expiry is now a minute ahead. Waiters and live holders continue."""
    gone = Lock("gone", using=shifted.alias, timeout=4).acquire()
    live = Lock("live", using=shifted.alias, timeout=4, renew=True).acquire()
    assert gone and live
    late: list[Lease | None] = []
    early: list[Lease | None] = []

    def wait(into: list[Lease | None]) -> None:
        into.append(Lock("gone", using=shifted.alias).acquire(blocking_timeout=30))

    # One thread waits during the jump. The server times the wait by the clock that jumps back.
    waiting = [threading.Thread(target=wait, args=(early,))]
    waiting[0].start()
    eventually(lambda: shifted.view("gone").waiting == 1)
    shifted.clock.shift(-JUMP)
    watch = Watch()
    waiting.append(threading.Thread(target=wait, args=(late,)))
    waiting[1].start()
    eventually(lambda: early, 25)
    over = watch.seconds
    (won,) = early
    assert won and won.fence > gone.fence and won.held
    assert over < 15  # not a minute
    assert live.held and live.owned()
    won.release()
    waiting[1].join(25)
    (second,) = late
    assert second and second.fence > won.fence
    second.release()
    time.sleep(1.5)  # past the first expiry of the live lease
    assert live.held and live.owned()
    live.release()
    waiting[0].join(25)
    figure(recover=over, lost=0)


def test_row_28_limit_holds_while_the_clock_jumps_back_and_forth(
    shifted: Shifted,
) -> None:
    """The journal checks the limit and that fences grow."""
    stop, released = threading.Event(), list[int]()

    def work() -> None:
        while not stop.is_set():
            lease = Semaphore("both", 2, using=shifted.alias, timeout=5).acquire(blocking_timeout=1)
            if lease:
                time.sleep(0.002)
                with contextlib.suppress(LeaseLost):  # if the clock jumped ahead meanwhile
                    lease.release()
                    released.append(lease.fence)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for seconds in (-1, 0, -30, -29, -60, 0):
        time.sleep(0.25)
        shifted.clock.shift(seconds)
    eventually(lambda: len(released) > 20)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    history = shifted.journal.check()
    assert history.summary()["released"] > 20
