"""The server's clock jumps: rows 27 and 28."""

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
    """A server, its clock, the alias that leads there and the journal of what it ran."""

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


def test_the_shim_moves_the_servers_clock_and_no_other(shifted: Shifted) -> None:
    Lock("any", using=shifted.alias).acquire()
    for seconds in (JUMP, -JUMP, 0.0):
        shifted.clock.shift(seconds)
        # The server reads its clock once per event.
        shifted.client.ping()
        server, here = shifted.client.time()[0], time.time()
        assert abs(server - here - seconds) < 5


def test_row_27_the_servers_clock_jumps_ahead(shifted: Shifted, figure: Figure) -> None:
    """Every lease ends at once. Who renews learns of it; who does not is refused by its fence."""
    told: list[float] = []
    watch = Watch()
    renewed = Lock("renewed", using=shifted.alias, timeout=3, renew=True)
    renewed.on_lost = lambda lease: told.append(watch.seconds)
    first = renewed.acquire()
    hard = Lock("hard", using=shifted.alias, timeout=40).acquire()
    assert first and hard
    watch.start = time.monotonic()
    shifted.clock.shift(JUMP)
    for old in (first, hard):
        new = Lock(old.name, using=shifted.alias, blocking=False).acquire()
        assert new and new.fence > old.fence
        assert old.fence + JUMP * 1e6 <= new.fence  # it says when the grant happened
        assert not old.owned()
        new.release()
    eventually(lambda: told)
    assert not first.held
    for old in (first, hard):
        with pytest.raises(LeaseLost):
            old.release()
    assert told[0] < 10
    figure(recover=told[0], lost=2)


def test_row_28_the_servers_clock_jumps_back(shifted: Shifted, figure: Figure) -> None:
    """A lease of a holder that is gone ends no later than a whole lease after the jump, although
    its end lies a minute ahead now. Waiters and live holders go on."""
    gone = Lock("gone", using=shifted.alias, timeout=4).acquire()
    live = Lock("live", using=shifted.alias, timeout=4, renew=True).acquire()
    assert gone and live
    late: list[Lease | None] = []
    early: list[Lease | None] = []

    def wait(into: list[Lease | None]) -> None:
        into.append(Lock("gone", using=shifted.alias).acquire(blocking_timeout=30))

    # One waits when it happens; its wait is timed by the server, whose clock goes back under it.
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
    assert over < 15  # and not a minute
    assert live.held and live.owned()
    won.release()
    waiting[1].join(25)
    (next_one,) = late
    assert next_one and next_one.fence > won.fence
    next_one.release()
    time.sleep(1.5)  # renewed beyond its first end
    assert live.held and live.owned()
    live.release()
    waiting[0].join(25)
    figure(recover=over, lost=0)


def test_row_28_permits_are_never_given_twice_when_the_clock_goes_to_and_fro(
    shifted: Shifted,
) -> None:
    """Judged by the journal: no more than the limit, and fences grow, whatever the clock does."""
    stop, released = threading.Event(), list[int]()

    def work() -> None:
        while not stop.is_set():
            lease = Semaphore("both", 2, using=shifted.alias, timeout=5).acquire(blocking_timeout=1)
            if lease:
                time.sleep(0.002)
                with contextlib.suppress(LeaseLost):  # when the clock jumped ahead meanwhile
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
