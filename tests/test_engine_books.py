"""The housekeeping jobs: statistics, overrides, names, and the retry queue. Without a server."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from django_redis_sync.engine import housekeeping, overrides, statistics
from django_redis_sync.engine import names as registry
from django_redis_sync.engine.housekeeping import Housekeeper, RetryQueue
from django_redis_sync.engine.names import Names
from django_redis_sync.engine.overrides import OverridePoller
from django_redis_sync.engine.statistics import Gauge, StatisticsBuffer, bucket
from django_redis_sync.protocol.keys import keys_of, policies
from django_redis_sync.protocol.plans import Answer, Failure, Run
from django_redis_sync.protocol.scripts import CONSTANTS, script

PAIR = CONSTANTS["PAIR"]
GONE = Failure(errors.ConnectionError("refused"), 0.0, "unreachable")
FINAL = Failure(errors.ResponseError("WRONGTYPE"), 0.0, "final")


class Recorder:
    """Stand-in for a server. It records steps and commands. All fail with `fails` if it is set."""

    alias = "default"

    def __init__(self) -> None:
        self.steps: list[Run] = []
        self.commands: list[tuple[Any, ...]] = []
        self.timeouts: list[float] = []
        self.fails: Failure | None = None
        self.reply: list[Any] = []

    def many(self, steps: Any) -> list[Any]:
        self.steps += steps
        return [self.fails or Answer(["ok"], 0.0, 0.0) for _ in steps]

    def run(self, step: Run) -> Answer:
        if self.fails:
            raise self.fails
        self.steps.append(step)
        return Answer(self.reply, clock_now(), clock_now())

    def command(self, *words: Any, timeout: float = 0.0) -> Any:
        if self.fails:
            raise self.fails
        self.commands.append(words)
        self.timeouts.append(timeout)
        return ["1790000000", "5"] if words == ("TIME",) else None

    def taken(self) -> list[dict[str, Any]]:
        """Return the arguments of the steps since the last call, by name."""
        steps, self.steps = self.steps, []
        return [dict(zip(script(one.verb).argv, one.argv, strict=True)) for one in steps]


_now = [1000.0]


def clock_now() -> float:
    return _now[0]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time: assign to `now[0]` to change it."""
    _now[0] = 1000.0
    for module in (statistics, overrides, registry, housekeeping):
        monkeypatch.setattr(module, "clock", clock_now)
    return _now


@pytest.fixture
def server() -> Any:
    return Recorder()


def named(name: str, key: str | None = None, template: str = "", keep: int = 360) -> Any:
    return SimpleNamespace(keys=keys_of("p", name, key, keep), template=template)


# Statistics


class GaugedBuffer(StatisticsBuffer):
    """A buffer that writes `gauges`."""

    def __init__(self) -> None:
        self.gauges: list[Gauge] = []
        super().__init__(lambda: self.gauges)

    def add_event(self, kind: str, ms: int = 0, of: Any = None) -> None:
        of = of or named("exports", "7")
        self.events.append((of.keys, of.template, kind, ms, 1))


@pytest.fixture
def buffer(now: list[float]) -> GaugedBuffer:
    return GaugedBuffer()


def by_group(server: Any) -> dict[str, dict[str, Any]]:
    """Return the arguments of the steps since the last call, by group."""
    groups = [step.keys[0].partition("{")[2].partition("}")[0] for step in server.steps]
    return dict(zip(groups, server.taken(), strict=True))


def test_statistics_count_events_and_their_durations_in_buckets(
    buffer: GaugedBuffer, server: Any, now: list[float]
) -> None:
    for kind, ms in (("w", 250), ("w", 0), ("r", 3000), ("n", 0), ("t", 0), ("l", 0), ("s", 0)):
        buffer.add_event(kind, ms)
    buffer.tend(server, now[0])
    written = by_group(server)["exports"]
    expected = {"w": 2 * PAIR + 250, "r": PAIR + 3000, "n": 1, "t": 1, "l": 1, "s": 1}
    assert {kind: str(n) for kind, n in expected.items()} == json.loads(written["counts"])
    assert {"w8": "1", "w0": "1", "r12": "1"} == json.loads(written["durations"])
    assert {"7": "2"} == json.loads(written["rejected"])  # rejected at once, or timed out
    assert [0, 1, 2, 2, 10, 11] == [bucket(ms) for ms in (0, 1, 2, 3, 1023, 1024)]


def test_gauge_is_written_when_it_changed_and_before_it_expires(
    buffer: GaugedBuffer, server: Any, now: list[float]
) -> None:
    buffer.gauges = [Gauge(named("exports", "7"), 2, 0), Gauge(named("exports", "8"), 1, 3)]
    buffer.tend(server, now[0])
    written = by_group(server)["exports"]
    assert [3, 3, [0, 0], {"7": [2, 0], "8": [1, 3]}] == json.loads(written["entry"])
    assert statistics.LIFE * 1000 == written["life"]
    now[0] += statistics.EVERY
    buffer.tend(server, now[0])
    assert {} == by_group(server)
    assert now[0] + statistics.EVERY == buffer.due
    now[0] += statistics.AGAIN
    buffer.tend(server, now[0])
    assert {"%", "exports"} == {*by_group(server)}
    buffer.gauges = []
    buffer.tend(server, now[0])
    assert {""} == {written["entry"] for written in by_group(server).values()}
    now[0] += statistics.AGAIN
    buffer.tend(server, now[0])
    assert ({}, math.inf) == (by_group(server), buffer.due)


def test_gauge_has_the_busiest_keys_and_a_bound_for_the_others(
    buffer: GaugedBuffer, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "NAMED", 1)
    uses = {"a": (5, 0), "b": (4, 1), "c": (0, 9), "d": (3, 2)}
    buffer.gauges = [Gauge(named("exports", key), *use) for key, use in uses.items()]
    buffer.tend(server, now[0])
    *sums, off, busiest = json.loads(by_group(server)["exports"]["entry"])
    assert ([12, 12], [4, 2], {"a": [5, 0], "c": [0, 9]}) == (sums, off, busiest)


def test_rejections_have_the_most_rejected_keys_and_a_bound_for_the_others(
    buffer: GaugedBuffer, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST_KEYS", 2)
    for key, times in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
        for _ in range(times):
            buffer.add_event("n", of=named("exports", key))
    buffer.tend(server, now[0])
    written = by_group(server)["exports"]
    assert ({"a": "5", "b": "4"}, 3) == (json.loads(written["rejected"]), written["rest"])


def test_number_of_groups_is_limited(
    buffer: GaugedBuffer, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST_GROUPS", 3)
    for n in range(9):
        buffer.add_event("g", of=named(f"policy{n}", "7"))
        buffer.add_event("g", of=named("policy0", "7"))
    buffer.tend(server, now[0])
    written = by_group(server)
    assert 3 == len(written)
    assert {"g": "18"} == json.loads(written["%"]["counts"])
    assert {"g": "10"} == json.loads(written["policy0"]["counts"])


def test_statistics_that_could_not_be_written_are_written_next_time(
    buffer: GaugedBuffer, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(steps: Any) -> list[Any]:
        return [Answer(["ok"], 0.0, 0.0), *(GONE for _ in steps[1:])]

    buffer.add_event("g")
    with monkeypatch.context() as patch:
        patch.setattr(server, "many", many)
        with pytest.raises(Failure, match="refused"):
            buffer.tend(server, now[0])
    buffer.tend(server, now[0])
    assert ["exports"] == [*by_group(server)]  # those of the site were written


def test_hurry_writes_all_events_and_removes_the_gauge(
    buffer: GaugedBuffer, server: Any, now: list[float]
) -> None:
    buffer.gauges = [Gauge(named("exports", "7"), 1, 0)]
    buffer.tend(server, now[0])
    server.steps.clear()
    buffer.add_event("r", 5)
    buffer.hurry()
    assert (0.0, True) == (buffer.due, buffer.unwritten)
    buffer.tend(server, now[0])
    written = by_group(server)["exports"]
    assert ("", {"r": str(PAIR + 5)}) == (written["entry"], json.loads(written["counts"]))
    assert not buffer.unwritten


def test_group_index_is_sorted_by_last_event_and_trimmed(
    buffer: GaugedBuffer, server: Any, now: list[float]
) -> None:
    buffer.add_event("g")
    buffer.tend(server, now[0])
    ms, day = 1_790_000_000_000, 86_400_000
    assert [
        ("TIME",),
        ("ZADD", "p:groups", ms, "exports"),
        ("ZREMRANGEBYSCORE", "p:groups", "-inf", ms - day),
        ("ZREMRANGEBYRANK", "p:groups", 0, -1 - statistics.MOST_GROUPS),
        ("PEXPIRE", "p:groups", 2 * day),
    ] == server.commands


# The housekeeper


class StandInWorker:
    """Stand-in for a Worker. It has no thread: the test takes the turns."""

    def __init__(self, name: str, turn: Any, earliest: Any) -> None:
        self.turn, self.earliest = turn, earliest
        self.expected: list[float] = []
        self.expect = self.expected.append

    def rouse(self) -> bool:
        return True

    def finish(self, is_pending: Any, until: float) -> None:
        self.is_pending = is_pending()


@pytest.fixture
def workers(server: Any, monkeypatch: pytest.MonkeyPatch) -> list[StandInWorker]:
    """The workers that were made."""
    made: list[StandInWorker] = []

    def worker(*given: Any) -> StandInWorker:
        made.append(StandInWorker(*given))
        return made[-1]

    monkeypatch.setattr(housekeeping, "Worker", worker)
    monkeypatch.setattr(housekeeping, "server_of", lambda alias: server)
    return made


@pytest.fixture
def housekeeper(now: list[float], workers: list[StandInWorker]) -> Any:
    """A housekeeper with its leases in `held` and its stand-in for a thread in `worker`."""
    held: list[Any] = []
    made: Any = Housekeeper("default", lambda: held)
    made.held, (made.worker,) = held, workers
    return made


def assert_nothing_pending(housekeeper: Any) -> None:
    housekeeper.finish(0.0)
    assert not housekeeper.worker.is_pending


def lease(permits: int, of: Any) -> Any:
    return SimpleNamespace(permits=permits, _settings=of)


def test_gauges_count_the_permits_held_and_the_waiters(
    housekeeper: Any, server: Any, now: list[float]
) -> None:
    def by_name() -> Any:
        now[0] += statistics.EVERY
        housekeeper.worker.turn()
        return json.loads(by_group(server)["%"]["entry"])[3]

    housekeeper.held += [lease(3, named("a")), lease(0, named("b"))]
    housekeeper.adopted(named("a").keys)
    housekeeper.waits("token", named("c"))
    assert {"a": [3, 0], "b": [1, 0], "c": [0, 1]} == by_name()
    housekeeper.waits("token", None)
    assert {"a": [3, 0], "b": [1, 0]} == by_name()


@pytest.mark.parametrize(
    ("error", "level", "message"),
    [
        (GONE, "DEBUG", "housekeeping of 'default' could not write: refused"),
        (RuntimeError("odd"), "ERROR", "housekeeping of 'default' failed, and is tried again"),
    ],
    ids=["outage", "defect"],
)
def test_housekeeper_runs_again_after_a_delay_when_a_job_failed(
    error: Exception,
    level: str,
    message: str,
    housekeeper: Any,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    def fail(*_: Any) -> None:
        raise error

    housekeeper.count(named("a"), "g", 0)
    now[0] += statistics.EVERY
    monkeypatch.setattr(housekeeper.statistics, "tend", fail)
    assert now[0] + housekeeping.RETRY == housekeeper.worker.turn()
    assert [(level, message)] == [(record.levelname, record.message) for record in caplog.records]
    assert (error is not GONE) == ("RuntimeError: odd" in caplog.text)
    housekeeper.forget()
    assert_nothing_pending(housekeeper)


def test_housekeeper_discards_pending_writes_when_the_cache_no_longer_exists(
    housekeeper: Any, now: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(alias: str) -> Any:
        raise ImproperlyConfigured("no such cache")

    housekeeper.count(named("a"), "g", 0)
    housekeeper.names.add(named("a").keys)
    housekeeper.statistics.due = now[0]
    with monkeypatch.context() as patch:
        patch.setattr(housekeeping, "server_of", gone)
        assert math.inf == housekeeper.worker.turn()
    assert (
        "housekeeping of 'default' discards what it had not written: no such cache" in caplog.text
    )
    assert_nothing_pending(housekeeper)
    housekeeper.count(named("a"), "g", 0)  # it doesn't wait for a retry
    assert now[0] + statistics.EVERY == housekeeper.worker.earliest()


def test_adopted_lease_schedules_a_write_of_the_statistics(housekeeper: Any, now: Any) -> None:
    housekeeper.names.noted.add(named("a").keys.leases)
    housekeeper.adopted(named("a", keep=0).keys)
    assert math.inf == housekeeper.statistics.due
    housekeeper.adopted(named("a").keys)
    assert now[0] + statistics.EVERY == housekeeper.statistics.due


def test_each_new_entry_wakes_the_thread_in_time(housekeeper: Any, now: Any) -> None:
    for act, job in (
        (lambda: housekeeper.note(named("a").keys), "names"),
        (lambda: housekeeper.count(named("a"), "n", 0), "statistics"),
        (lambda: housekeeper.adopted(named("a").keys), "statistics"),
    ):
        housekeeper.forget()
        housekeeper.worker.expected.clear()
        act()
        assert [getattr(housekeeper, job).due] == housekeeper.worker.expected
        assert housekeeper.worker.expected[0] < now[0] + 60


def test_overrides_that_an_acquire_read_are_read_again_in_time(
    housekeeper: Any, policy: Any, server: Any, now: list[float]
) -> None:
    server.reply = ["p:exports", "17"]
    plan = housekeeper.heed(policy)
    with contextlib.suppress(StopIteration):
        plan.send(server.run(next(plan)))
    # The job runs at once, so that waiters learn of the change.
    assert ("17 0", [0.0]) == (policy.mark, housekeeper.worker.expected)
    housekeeper.worker.turn()
    with contextlib.suppress(StopIteration):
        next(housekeeper.heed(policy))
    assert [0.0, now[0] + overrides.EVERY] == housekeeper.worker.expected


# Names


def test_policy_is_in_the_registry_and_its_keys_are_in_another(
    server: Any, now: list[float]
) -> None:
    names = Names(list)
    for of in (named("plain"), named("exports", "7"), named("exports", "8")):
        names.add(of.keys)
    names.tend(server, now[0])
    added = {words[1]: words[2:] for words in server.commands if words[0] == "ZADD"}
    ms = 1_790_000_000_000
    assert {
        "p:names": (ms, "plain", ms, "exports@"),
        "p:{exports}:keys": (ms, "7", ms, "8"),
    } == added
    for key in added:
        day = 86_400_000
        assert ("ZREMRANGEBYSCORE", key, "-inf", ms - day) in server.commands
        assert ("ZREMRANGEBYRANK", key, 0, -1 - registry.MOST_NOTED) in server.commands
        assert ("PEXPIRE", key, 2 * day) in server.commands


def test_name_in_use_is_written_once_per_minute(server: Any, now: list[float]) -> None:
    in_use = [named("a").keys]
    names = Names(lambda: in_use)
    names.add(named("a").keys)
    names.add(named("b").keys)
    names.tend(server, now[0])
    server.commands.clear()
    assert 1060.0 == names.due
    names.tend(server, now[0] + 30)
    assert [] == server.commands
    now[0] += 50
    names.add(named("c").keys)  # it doesn't postpone the next write of "a"
    names.tend(server, now[0])
    server.commands.clear()
    now[0] += 10
    names.tend(server, now[0])
    names.tend(server, now[0])
    written = [words[3::2] for words in server.commands if words[0] == "ZADD"]
    assert [("a",)] == written
    assert {named("a").keys.leases} == names.noted


def test_names_are_written_together_but_at_once_after_hurry(server: Any, now: list[float]) -> None:
    names = Names(list)
    names.add(named("a").keys)
    assert now[0] == names.due
    names.tend(server, now[0])
    names.add(named("b").keys)
    assert now[0] + registry.NOTED_AFTER == names.due
    names.hurry()
    assert 0.0 == names.due
    names.tend(server, now[0])
    names.hurry()
    assert now[0] < names.due  # because no name is new
    names.add(named("c").keys)
    assert now[0] == names.due


def test_name_added_during_a_write_is_written_soon(
    server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, command = Names(list), server.command

    def meanwhile(*words: Any, **options: Any) -> Any:
        if words[0] == "ZADD":
            names.add(named("late").keys)
        return command(*words, **options)

    names.add(named("first").keys)
    monkeypatch.setattr(server, "command", meanwhile)
    names.tend(server, now[0])
    assert now[0] + registry.NOTED_AFTER == names.due


def test_names_that_could_not_be_written_are_retried(
    server: Any, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for failure, later in ((GONE, registry.RETRY), (FINAL, registry.NOTED_EVERY)):
        names = Names(list)
        names.add(named("a").keys)
        server.fails = failure
        names.tend(server, now[0])
        assert ([named("a").keys], now[0] + later) == ([*names.fresh], names.due)
        assert names.unwritten
    text = "could not list names in use: "
    logged = [("DEBUG", text + "refused"), ("WARNING", text + "WRONGTYPE")]
    assert logged == [(record.levelname, record.message) for record in caplog.records]


# Overrides


@pytest.fixture
def policy() -> Iterator[Any]:
    policies.clear()
    yield keys_of("p", "exports", "7").policy
    policies.clear()


@pytest.fixture(autouse=True)
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "_read", {})
    keys_of.cache_clear()  # cached keys refer to policies of earlier tests


def poller_of(waiting: Any = (), in_use: Any = ()) -> OverridePoller:
    return OverridePoller(lambda: in_use, lambda: waiting)


def test_override_poller_stops_some_time_after_the_last_use(
    policy: Any, server: Any, now: list[float]
) -> None:
    held, waited = list[Any](), list[Any]()
    poller = poller_of(waited, held)
    poller.needed(policy)
    for used in (held, waited):
        used.append(keys_of("p", "exports", "7"))
        now[0] += 10 * overrides.IDLE
        poller.tend(server, now[0])
        assert now[0] + overrides.EVERY == poller.due
        used.clear()
    now[0] += overrides.IDLE
    server.steps.clear()
    poller.tend(server, now[0])
    assert ([], math.inf) == (server.steps, poller.due)


def test_override_change_wakes_only_the_waiters_of_its_policy(
    policy: Any, server: Any, now: list[float]
) -> None:
    mine, other = keys_of("p", "exports", "7"), keys_of("p", "imports", "7")
    poller = poller_of([mine, other])
    server.reply = ["p:exports", "17"]
    poller.tend(server, now[0])
    assert [("operate", mine.leases)] == [
        (step.verb, step.keys[0]) for step in server.steps if step.verb == "operate"
    ]
    assert "poke" == next(s for s in server.steps if s.verb == "operate").argv[1]
    server.steps.clear()
    poller.tend(server, now[0])
    assert {"marks"} == {step.verb for step in server.steps}  # no override changed


def test_unreadable_overrides_stay_in_force_and_are_logged_once(
    policy: Any, server: Any, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server.reply = ["p:exports", "17"]
    poller = poller_of([keys_of("p", "exports", "7")])
    poller.tend(server, now[0])
    server.fails = GONE
    for _ in range(3):
        now[0] += overrides.STALE
        poller.tend(server, now[0])
    warning = "operators' overrides can't be read, so the last known stay in force: Redis: refused"
    assert ("17 0", [warning]) == (policy.mark, caplog.messages)
    assert now[0] + overrides.STALE == policy.due
    server.fails = None
    poller.tend(server, now[0])
    server.fails = GONE
    poller.tend(server, now[0])
    assert [warning] * 2 == caplog.messages


# The retry queue


@pytest.fixture
def retries(now: list[float], workers: list[StandInWorker]) -> Any:
    """A retry queue with its stand-in for a thread in `worker`."""
    made: Any = RetryQueue("default")
    (made.worker,) = workers
    return made


def cleanup(token: str) -> Run:
    return Run("release", keys_of("p", "x").declared, (token,), 5.0)


def tokens(server: Any) -> list[str]:
    steps, server.steps = server.steps, []
    return [step.argv[0] for step in steps]


def test_retry_queue_retries_failed_steps_in_order_and_gives_up_in_the_end(
    retries: Any, server: Any, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server.fails = GONE
    for token in "abc":
        retries.enqueue(cleanup(token))
    assert now[0] + housekeeping.RETRY == retries.worker.turn()
    assert ["a", "b", "c"] == tokens(server)
    retries.worker.turn()
    assert [] == tokens(server)  # the retry is not due yet
    now[0] += housekeeping.RETRY
    retries.enqueue(cleanup("d"))
    retries.worker.turn()
    assert ["a", "b", "c", "d"] == tokens(server)
    now[0] += housekeeping.GIVE_UP
    retries.worker.turn()
    error = f"a cleanup of {named('x').keys.leases} failed for good: refused"
    assert ([error] * 4, False) == (caplog.messages, retries.busy)


def test_retry_queue_forgets_steps_that_succeeded(
    retries: Any, server: Any, now: list[float]
) -> None:
    retries.enqueue(cleanup("a"))
    assert retries.busy
    assert math.inf == retries.worker.turn()
    assert (["a"], False) == (tokens(server), retries.busy)


def test_retry_queue_drops_its_steps_when_the_alias_no_longer_exists(
    retries: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(alias: str) -> Any:
        raise ImproperlyConfigured("no such cache")

    server.fails = GONE
    retries.enqueue(cleanup("a"))
    retries.worker.turn()
    monkeypatch.setattr(housekeeping, "server_of", gone)
    retries.enqueue(cleanup("b"))
    assert (math.inf, False) == (retries.worker.turn(), retries.busy)


def test_housekeeping_requests_have_a_timeout_of_one_second(
    buffer: GaugedBuffer, server: Any, now: list[float]
) -> None:
    buffer.add_event("g")
    buffer.tend(server, now[0])
    names = Names(list)
    names.add(named("a").keys)
    names.tend(server, now[0])
    assert {1.0} == {*server.timeouts}
    assert {1.0} == {step.timeout for step in server.steps}
