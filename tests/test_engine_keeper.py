"""The keeper looks when it has to, sends little at a time, and never lets a lease lapse unsaid."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from django_redis_sync import Lock
from django_redis_sync.engine import renewal as keeping
from django_redis_sync.engine.renewal import BATCH, LeaseRenewer
from django_redis_sync.engine.wire import ROUND
from django_redis_sync.protocol.keys import keys_of
from django_redis_sync.protocol.plans import Answer, Failure, Run
from tests.behaviour.both import eventually
from tests.behaviour.watching import View
from tests.support import worker_processes
from tests.support.keepers import fresh_keeper  # noqa: F401 - a fixture
from tests.support.no_threads import NoThreads

KEYS = keys_of("test", "x")


class RenewableLease:
    """A renewed lease on a clock of the test's own, that counts how often it is looked at."""

    def __init__(self, world: World, seconds: float) -> None:
        self.world, self.seconds = world, seconds
        self.until = world.now + seconds
        self._due = world.now + seconds / 3
        self.renewals, self.told_at = 0, math.inf

    @property
    def _deadline(self) -> float:
        self.world.counts["looked at"] += 1
        return self.until - 0.05 * self.seconds

    def _next_renewal(self, now: float) -> Run | None:
        self.world.counts["tended"] += 1
        if now >= self._deadline:
            self.told_at, self._due, self.until = now, math.inf, math.inf
            return None
        return Run("renew", ("x",), (), 60.0)

    def _renewal_done(self, step: Run, answer: Answer | Failure) -> None:
        now = self.world.now
        if isinstance(answer, Failure):
            self._due = min(now + self.seconds / 10, self._deadline)
            return
        assert now < self.until
        self.renewals += 1
        self.until, self._due = answer.sent + self.seconds, now + self.seconds / 3


class World:
    """A keeper without threads: what its threads would do is done here, on a clock that jumps from
    one event to the next. A round trip takes `trip` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trip: float = 0.002) -> None:
        self.now, self.trip, self.answers = 1000.0, trip, True
        self.counts: Counter[str] = Counter()
        self.batches, self.timeouts = list[int](), set[float]()
        self.leases: list[RenewableLease] = []
        world = self

        class Still:
            """In the place of a worker."""

            def __init__(self, name: str, turn: Any, earliest: Any) -> None:
                self.turn, self.runs, self.name = turn, True, name
                self.due = math.inf

            def expect(self, due: float) -> bool:
                self.due = min(self.due, due)
                return True

            def rouse(self) -> bool:
                return self.expect(world.now)

        class Server:
            def node_of(self, step: Run) -> None:
                return None

            def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
                world.batches.append(len(steps))
                world.timeouts |= {step.timeout for step in steps}
                sent = world.now
                world.now += world.trip
                if world.answers:
                    return [Answer(["ok", "1"], sent, world.now) for _ in steps]
                return [Failure(OSError(), world.now, "unanswered") for _ in steps]

        class Housekeeper:
            def note(self, keys: Any) -> None: ...

        monkeypatch.setattr(keeping, "Worker", Still)
        monkeypatch.setattr(keeping, "clock", lambda: world.now)
        monkeypatch.setattr(keeping, "server_of", lambda alias: Server())
        monkeypatch.setattr(keeping, "housekeeper", lambda alias, in_use: Housekeeper())
        self.renewer = LeaseRenewer("simulated")

    def take(self, seconds: float) -> RenewableLease:
        lease = RenewableLease(self, seconds)
        self.leases.append(lease)
        self.renewer.watch(lease, f"t{len(self.leases)}", KEYS)
        return lease

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end, mine = self.now + seconds, self.renewer
        while True:
            workers = [mine._worker, *[lane._worker for lane in mine._queues.values()]]
            next_one = min(workers, key=lambda worker: worker.due)
            if next_one.due > end:
                self.now = max(self.now, end)
                return
            self.now, next_one.due = max(self.now, next_one.due), math.inf
            self.counts[f"turns of {next_one.name.split('-')[2]}"] += 1
            next_one.due = min(next_one.due, next_one.turn())


@pytest.mark.parametrize("number, length", [(1000, 30.0), (10_000, 30.0), (500, 3.0)])
def test_the_work_of_a_minute_grows_with_renewals_and_not_with_leases_times_looks(
    monkeypatch: pytest.MonkeyPatch, number: int, length: float
) -> None:
    world = World(monkeypatch)
    for _ in range(number):  # taken over ten seconds
        world.take(length)
        world.run(10 / number)
    before, batches = world.counts.copy(), len(world.batches)
    world.run(60)
    counts = world.counts - before
    renewals = counts["tended"]
    every_third = number * 60 / (length / 3)
    assert 0.99 * every_third <= renewals <= 1.25 * every_third
    assert counts["looked at"] <= 12 * renewals
    # Not a look for each lease, nor a round trip: those that are due soon are taken along.
    looks, trips = 60 * 40 / length, len(world.batches) - batches
    assert trips <= looks + 2 * renewals / BATCH
    assert counts["turns of keeper"] <= looks + 2 * trips
    assert all(lease.told_at == math.inf for lease in world.leases)


def test_a_round_trip_has_no_more_than_a_batch_of_renewals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    leases = [world.take(30.0) for _ in range(5 * 256)]
    world.run(11)
    assert max(world.batches) == BATCH == 256
    assert len(world.batches) <= 7
    assert {1} == {lease.renewals for lease in leases}
    assert {ROUND} == world.timeouts  # a node that hangs holds up the next batch for no longer


def test_while_nothing_answers_all_are_told_before_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, trip=5.0)
    leases = [world.take(3.0) for _ in range(100)]
    world.answers = False
    # The clock of a look does not wait for the round trip: that is on its own thread.
    lanes = []
    monkeypatch.setattr(
        keeping.NodeQueue, "enqueue", lambda self, orders: lanes.append(len(orders))
    )
    world.run(10)
    assert lanes
    assert all(2.8 <= lease.told_at - 1000 <= 2.9 for lease in leases)


def test_a_renewal_that_failed_is_sent_again_when_its_lease_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.answers = False
    lease = world.take(3.0)
    world.run(1.99)
    assert [1] * 4 == world.batches  # by a third of it, and each tenth after that
    world.answers = True
    world.run(0.5)
    assert (1, math.inf) == (lease.renewals, lease.told_at)


def test_a_renewal_on_its_way_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    sent: list[int] = []
    monkeypatch.setattr(keeping.NodeQueue, "enqueue", lambda self, orders: sent.append(len(orders)))
    lease = world.take(3.0)
    world.run(1.5)
    world.renewer.moved(lease, "t1")  # as after a renewal of the holder's own
    world.run(1.0)
    assert sent == [1]


def test_a_holder_that_shortens_its_lease_is_looked_at_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.answers = False
    lease = world.take(30.0)
    world.run(1)
    lease.until = world.now + 3
    world.renewer.moved(lease, "t1")
    world.run(5)
    assert lease.told_at < 1004


@pytest.mark.parametrize("method", ["_next_renewal", "_renewal_done"])
def test_a_lease_that_fails_stops_no_other(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch)
    broken, sound = world.take(3.0), world.take(3.0)

    def fail(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(broken, method, fail)
    world.run(10)
    assert sound.renewals >= 9
    assert ["the renewal thread of 'simulated' continues after an error"] == caplog.messages
    assert "SystemExit" in caplog.text


@pytest.mark.parametrize("looks", [False, True], ids=["before a look", "after it"])
def test_what_is_forgotten_is_looked_at_no_more(
    looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    for _ in range(1000):
        world.take(30.0)
    if looks:
        world.renewer._turn()
    for number in range(1000):
        world.renewer.forget(f"t{number + 1}")
    assert len(world.renewer._schedule) == 0
    world.counts.clear()
    world.run(100)
    assert world.counts["tended"] == 0
    assert world.counts["turns of keeper"] <= 2
    assert world.renewer._schedule.entries == 0


# Threads that can't be started


@pytest.mark.usefixtures("fresh_keeper")
def test_a_lease_unrenewed_for_want_of_threads_is_believed_in_no_longer_than_it_is(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    with NoThreads(monkeypatch):
        lease = Lock("x", timeout=0.8, renew=True, on_lost=told.append).acquire()
        assert lease
        began = time.monotonic()
        eventually(lambda: not lease.held)
        assert time.monotonic() - began < 2
        assert told == []
    # Whoever needs a thread next has it started, and the holder is told after all.
    assert Lock("other", timeout=5).acquire()
    eventually(lambda: told == [lease])


@pytest.mark.usefixtures("fresh_keeper")
def test_a_holder_that_checks_its_lease_has_the_keeper_started(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NoThreads(monkeypatch):
        lease = Lock("x", timeout=3, renew=True).acquire()
    assert lease
    renewed = View(raw, "x").renewals()
    lease.check()
    eventually(renewed)
    assert lease.held and lease.owned()
    lease.release()


@pytest.mark.usefixtures("fresh_keeper")
def test_without_a_thread_of_its_own_a_renewal_is_sent_by_the_one_that_watches(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("x", timeout=3, renew=True).acquire()  # the keeper's thread is there
    assert lease
    with NoThreads(monkeypatch) as none:
        eventually(View(raw, "x").renewals())
        assert none.tried
        assert lease.held and lease.owned()
    lease.release()


#: A process in which the next thread's stack finds no room, then does: nothing in it is faked.
SQUEEZED = """if True:
    import resource, threading, time
    import django
    django.setup()
    from django_redis_sync import Lock

    assert not Lock("warm").locked()  # connected, and all is imported; no thread of ours yet
    threading.stack_size(256 * 1024 * 1024)
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if "VmSize" in line)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + 128 * 1024 * 1024, hard))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        print("no threads", flush=True)
    told = []
    first = Lock("first", timeout=3, renew=True, on_lost=told.append).acquire()
    print("held", first.held, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    second = Lock("second", timeout=3, renew=True, on_lost=told.append).acquire()
    time.sleep(4)
    print("kept", first.held, second.held, first.owned(), second.owned(), told, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set by Linux's means")
def test_in_a_process_without_room_for_threads_the_next_use_starts_the_keeper(
    raw: redis.Redis,
) -> None:
    done = worker_processes.run("-c", SQUEEZED)
    assert done.stdout.splitlines() == [
        "no threads",
        "held True",
        "kept True True True True []",
    ], done.stderr
    assert "could not start" in done.stderr


@pytest.mark.usefixtures("fresh_keeper")
def test_a_keeper_whose_alias_is_gone_says_so_once_and_rests(
    raw: redis.Redis, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.CACHES = {**settings.CACHES, "gone": settings.CACHES["default"]}
    lease = Lock("x", using="gone", timeout=1, renew=True).acquire()
    settings.CACHES = {name: one for name, one in settings.CACHES.items() if name != "gone"}
    mine = keeping.renewer("gone")
    eventually(lambda: "the leases of 'gone' are no longer renewed" in caplog.text)
    turns, before = [], mine._worker._turn
    mine._worker._turn = lambda: turns.append(1) or before()
    time.sleep(0.5)
    assert lease and caplog.text.count("the leases of 'gone' are no longer renewed") == 1
    assert len(turns) < 5
