"""The lease renewer: when it looks at a lease, what it sends, and when a lease counts as lost."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_sync import Lock
from django_redis_sync.engine import renewal
from django_redis_sync.engine.renewal import BATCH, LeaseRenewer, NodeQueue
from django_redis_sync.engine.schedule import Schedule
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
    """A lease on the clock of a `World`, which counts the calls."""

    def __init__(self, world: World, seconds: float) -> None:
        self.world, self.seconds = world, seconds
        self.until = world.now + seconds
        self._due = world.now + seconds / 3
        self.renewals, self.lost_at = 0, math.inf
        self.failures: list[str] = []

    @property
    def _deadline(self) -> float:
        self.world.counts["looked at"] += 1
        return self.until - 0.05 * self.seconds

    def _next_renewal(self, now: float) -> Run | None:
        self.world.counts["tended"] += 1
        if now >= self._deadline:
            self.lost_at, self._due, self.until = now, math.inf, math.inf
            return None
        return Run("renew", ("x",), (), 60.0)

    def _renewal_done(self, step: Run, answer: Answer | Failure) -> None:
        now = self.world.now
        if isinstance(answer, Failure):
            self.failures.append(answer.why)
            self._due = min(now + self.seconds / 10, self._deadline)
            return
        assert now < self.until
        self.renewals += 1
        self.until, self._due = answer.sent + self.seconds, now + self.seconds / 3


class World:
    """A renewer without threads. `run()` takes the turns of its workers, on a clock that jumps from
    one turn to the next. A round trip takes `trip` seconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trip: float = 0.002) -> None:
        self.now, self.trip, self.answers = 1000.0, trip, True
        self.counts: Counter[str] = Counter()
        self.batches, self.timeouts = list[int](), set[float]()
        self.leases: list[RenewableLease] = []
        self.workers: list[Any] = []
        world = self

        class StandInWorker:
            def __init__(self, name: str, turn: Any, earliest: Any) -> None:
                self.turn, self.runs, self.name = turn, True, name
                self.due = math.inf
                world.workers.append(self)

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

        class RecordedSchedule(Schedule):
            def __init__(self) -> None:
                super().__init__()
                world.schedule = self

        monkeypatch.setattr(renewal, "Worker", StandInWorker)
        monkeypatch.setattr(renewal, "Schedule", RecordedSchedule)
        monkeypatch.setattr(renewal, "clock", lambda: world.now)
        self.server = Server()
        monkeypatch.setattr(renewal, "server_of", lambda alias: self.server)
        monkeypatch.setattr(renewal, "housekeeper", lambda alias, in_use: Housekeeper())
        self.renewer = LeaseRenewer("simulated")

    def take(self, seconds: float) -> RenewableLease:
        lease = RenewableLease(self, seconds)
        self.leases.append(lease)
        self.renewer.watch(lease, f"t{len(self.leases)}", KEYS)
        return lease

    def run(self, seconds: float) -> None:
        """Let this time pass."""
        end = self.now + seconds
        while True:
            next_one = min(self.workers, key=lambda worker: worker.due)
            if next_one.due > end:
                self.now = max(self.now, end)
                return
            self.now, next_one.due = max(self.now, next_one.due), math.inf
            self.counts[f"turns of {next_one.name.split('-')[2]}"] += 1
            next_turn = next_one.turn()  # may change `due`
            next_one.due = min(next_one.due, next_turn)


@pytest.mark.parametrize("number, length", [(1000, 30.0), (10_000, 30.0), (500, 3.0)])
def test_work_of_the_renewer_grows_with_the_number_of_renewals(
    monkeypatch: pytest.MonkeyPatch, number: int, length: float
) -> None:
    world = World(monkeypatch)
    for _ in range(number):  # all in ten seconds
        world.take(length)
        world.run(10 / number)
    before, batches = world.counts.copy(), len(world.batches)
    world.run(60)
    counts = world.counts - before
    renewals = counts["tended"]
    every_third = number * 60 / (length / 3)
    assert 0.99 * every_third <= renewals <= 1.25 * every_third
    assert counts["looked at"] <= 12 * renewals
    # Leases that are due soon are renewed together, so turns and round trips are fewer than leases.
    turns, trips = 60 * 40 / length, len(world.batches) - batches
    assert trips <= turns + 2 * renewals / BATCH
    assert 0 < counts["turns of renewer"] <= turns + 2 * trips
    assert all(lease.lost_at == math.inf for lease in world.leases)


def test_renewals_are_sent_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    leases = [world.take(30.0) for _ in range(5 * 256)]
    world.run(11)
    assert max(world.batches) == BATCH == 256
    assert len(world.batches) <= 7
    assert {1} == {lease.renewals for lease in leases}
    assert {ROUND} == world.timeouts  # the longest delay that a silent node causes


def test_leases_are_lost_before_they_expire_while_no_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, trip=5.0)
    leases = [world.take(3.0) for _ in range(100)]
    world.answers = False
    # Another thread sends the renewals, so the watching thread doesn't wait for replies.
    sent: list[int] = []
    monkeypatch.setattr(
        renewal.NodeQueue, "enqueue", lambda self, renewals: sent.append(len(renewals))
    )
    world.run(10)
    assert sent
    assert all(2.8 <= lease.lost_at - 1000 <= 2.9 for lease in leases)


def test_failed_renewal_is_retried_when_its_lease_is_due_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.answers = False
    lease = world.take(3.0)
    world.run(1.99)
    assert [1] * 4 == world.batches  # after 1.0, 1.3, 1.6, and 1.9 seconds
    world.answers = True
    world.run(0.5)
    assert (1, math.inf) == (lease.renewals, lease.lost_at)


def test_renewal_in_flight_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    sent: list[int] = []
    monkeypatch.setattr(
        renewal.NodeQueue, "enqueue", lambda self, renewals: sent.append(len(renewals))
    )
    lease = world.take(3.0)
    world.run(1.5)
    world.renewer.moved(lease, "t1")  # as when the holder renewed it
    world.run(1.0)
    assert sent == [1]


def test_shortened_lease_is_lost_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.answers = False
    lease = world.take(30.0)
    world.run(1)
    lease.until = world.now + 3
    world.renewer.moved(lease, "t1")
    world.run(5)
    assert lease.lost_at < 1004


@pytest.mark.parametrize("method", ["_next_renewal", "_renewal_done"])
def test_exception_of_one_lease_stops_no_other_renewal(
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


@pytest.mark.parametrize("planned", [False, True], ids=["new", "planned"])
def test_forgotten_leases_leave_the_schedule(
    planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    for _ in range(1000):
        world.take(30.0)
    if planned:
        world.workers[0].turn()
    for number in range(1000):
        world.renewer.forget(f"t{number + 1}")
    assert len(world.schedule) == 0
    world.counts.clear()
    world.run(100)
    assert world.counts["tended"] == 0
    assert world.counts["turns of renewer"] <= 2
    assert world.schedule.entries == 0


# Errors


def test_failing_renewals_are_logged_once_and_so_is_the_recovery(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done, gone = Answer(["ok"], 0.0, 0.0), Failure(OSError("refused"), 0.0, "unreachable")
    outcomes = [[done], [gone] * 3, [gone], [done], [done], [gone], [done]]
    replies = iter(outcomes)
    # Without a thread, the renewals are sent by the caller.
    without_thread = SimpleNamespace(rouse=lambda: False)
    monkeypatch.setattr(renewal, "Worker", lambda *_: without_thread)
    queue = NodeQueue("default", lambda steps: next(replies), lambda *_: None)
    for answers in outcomes:
        queue.enqueue([("t", Run("renew", (), (), 1.0))] * len(answers))
    recovered = "the leases of 'default' are renewed again"
    assert [
        "3 leases of 'default' could not be renewed: refused",
        recovered,
        "1 leases of 'default' could not be renewed: refused",
        recovered,
    ] == caplog.messages


@pytest.mark.parametrize("where", ["node_of", "many"])
def test_unexpected_exception_fails_the_renewals_and_is_logged(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("odd")

    world = World(monkeypatch)
    leases = [world.take(3.0), world.take(3.0)]
    monkeypatch.setattr(world.server, where, fail)
    world.run(1.1)
    assert [["unanswered"]] * 2 == [lease.failures for lease in leases]
    assert "a renewal on 'simulated' failed" == caplog.messages[0]
    assert "RuntimeError: odd" in caplog.text


# Threads that can't be started


@pytest.mark.usefixtures("fresh_keeper")
def test_lease_expires_locally_in_time_when_no_thread_can_renew_it(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    with NoThreads(monkeypatch):
        lease = Lock("x", timeout=0.8, renew=True, on_lost=lost.append).acquire()
        assert lease
        began = time.monotonic()
        eventually(lambda: not lease.held)
        assert time.monotonic() - began < 2
        assert lost == []
    # The next acquire starts the thread, which then calls `on_lost`.
    assert Lock("other", timeout=5).acquire()
    eventually(lambda: lost == [lease])


@pytest.mark.usefixtures("fresh_keeper")
def test_check_starts_the_renewer_when_its_thread_could_not_start(
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
def test_watching_thread_sends_renewals_when_the_node_queue_gets_no_thread(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("x", timeout=3, renew=True).acquire()  # starts the watching thread
    assert lease
    with NoThreads(monkeypatch) as none:
        eventually(View(raw, "x").renewals())
        assert none.tried
        assert lease.held and lease.owned()
    lease.release()


#: A process in which a thread can't start at first, because memory for its stack is limited.
SQUEEZED = """if True:
    import resource, threading, time
    import django
    django.setup()
    from django_redis_sync import Lock

    assert not Lock("warm").locked()  # connects and imports everything, but starts no thread
    threading.stack_size(256 * 1024 * 1024)
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if "VmSize" in line)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + 128 * 1024 * 1024, hard))
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        print("no threads", flush=True)
    lost = []
    first = Lock("first", timeout=3, renew=True, on_lost=lost.append).acquire()
    print("held", first.held, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    second = Lock("second", timeout=3, renew=True, on_lost=lost.append).acquire()
    time.sleep(4)
    print("renewed", first.held, second.held, first.owned(), second.owned(), lost, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc are Linux's")
def test_next_use_starts_the_renewer_when_memory_for_threads_was_short(
    raw: redis.Redis,
) -> None:
    done = worker_processes.run("-c", SQUEEZED)
    assert done.stdout.splitlines() == [
        "no threads",
        "held True",
        "renewed True True True True []",
    ], done.stderr
    assert "could not start" in done.stderr


@pytest.mark.usefixtures("fresh_keeper")
def test_renewer_logs_a_missing_alias_once_and_stops_its_turns(
    raw: redis.Redis,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[int] = []

    class CountingWorker(renewal.Worker):
        def __init__(self, name: str, turn: Any, earliest: Any) -> None:
            super().__init__(name, lambda: turns.append(1) or turn(), earliest)

    monkeypatch.setattr(renewal, "Worker", CountingWorker)
    settings.CACHES = {**settings.CACHES, "gone": settings.CACHES["default"]}
    lease = Lock("x", using="gone", timeout=1, renew=True).acquire()
    settings.CACHES = {name: one for name, one in settings.CACHES.items() if name != "gone"}
    eventually(lambda: "the leases of 'gone' are no longer renewed" in caplog.text)
    turns.clear()
    time.sleep(0.5)
    assert lease and caplog.text.count("the leases of 'gone' are no longer renewed") == 1
    assert len(turns) < 5
