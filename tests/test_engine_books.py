"""The clerk's books: sums, marks, names, and steps to be done later. Without a server."""

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

from django_redis_sync.engine import housekeeping as clerks
from django_redis_sync.engine import names as nameses
from django_redis_sync.engine import overrides as markses
from django_redis_sync.engine import statistics as tallies
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
    """In the place of a server. `fails`: the Failure that everything comes to, if any."""

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
        """The arguments of the steps since the last time, by name."""
        steps, self.steps = self.steps, []
        return [dict(zip(script(one.verb).argv, one.argv, strict=True)) for one in steps]


_now = [1000.0]


def clock_now() -> float:
    return _now[0]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's time."""
    _now[0] = 1000.0
    for module in (tallies, markses, nameses, clerks):
        monkeypatch.setattr(module, "clock", clock_now)
    return _now


@pytest.fixture
def server() -> Any:
    return Recorder()


def named(name: str, key: str | None = None, template: str = "", keep: int = 360) -> Any:
    return SimpleNamespace(keys=keys_of("p", name, key, keep), template=template)


# Sums


class Books(StatisticsBuffer):
    """With shares as the test says."""

    def __init__(self) -> None:
        self.now: list[Gauge] = []
        super().__init__(lambda: self.now)

    def happens(self, kind: str, ms: int = 0, of: Any = None) -> None:
        of = of or named("exports", "7")
        self.events.append((of.keys, of.template, kind, ms, 1))


@pytest.fixture
def tally(now: list[float]) -> Books:
    return Books()


def by_group(server: Any) -> dict[str, dict[str, Any]]:
    """What was written, by group."""
    groups = [step.keys[0].partition("{")[2].partition("}")[0] for step in server.steps]
    return dict(zip(groups, server.taken(), strict=True))


def test_counts_carry_their_milliseconds_and_durations_their_bucket(
    tally: Books, server: Any, now: list[float]
) -> None:
    for kind, ms in (("w", 250), ("w", 0), ("r", 3000), ("n", 0), ("t", 0), ("l", 0), ("s", 0)):
        tally.happens(kind, ms)
    tally.tend(server, now[0])
    said = by_group(server)["exports"]
    expected = {"w": 2 * PAIR + 250, "r": PAIR + 3000, "n": 1, "t": 1, "l": 1, "s": 1}
    assert {kind: str(n) for kind, n in expected.items()} == json.loads(said["counts"])
    assert {"w8": "1", "w0": "1", "r12": "1"} == json.loads(said["durations"])
    assert {"7": "2"} == json.loads(said["rejected"])  # refused at once, or after a wait in vain
    assert [0, 1, 2, 2, 10, 11] == [bucket(ms) for ms in (0, 1, 2, 3, 1023, 1024)]


def test_a_share_is_said_when_it_changed_and_again_before_it_ends(
    tally: Books, server: Any, now: list[float]
) -> None:
    tally.now = [Gauge(named("exports", "7"), 2, 0), Gauge(named("exports", "8"), 1, 3)]
    tally.tend(server, now[0])
    said = by_group(server)["exports"]
    assert [3, 3, [0, 0], {"7": [2, 0], "8": [1, 3]}] == json.loads(said["entry"])
    assert tallies.LIFE * 1000 == said["life"]
    now[0] += tallies.EVERY
    tally.tend(server, now[0])
    assert {} == by_group(server)
    assert now[0] + tallies.EVERY == tally.due
    now[0] += tallies.AGAIN
    tally.tend(server, now[0])
    assert {"%", "exports"} == {*by_group(server)}
    tally.now = []
    tally.tend(server, now[0])
    assert {""} == {said["entry"] for said in by_group(server).values()}
    now[0] += tallies.AGAIN
    tally.tend(server, now[0])
    assert ({}, math.inf) == (by_group(server), tally.due)


def test_the_busiest_by_use_and_by_waiters_are_named_and_the_rest_is_bounded(
    tally: Books, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "NAMED", 1)
    uses = {"a": (5, 0), "b": (4, 1), "c": (0, 9), "d": (3, 2)}
    tally.now = [Gauge(named("exports", key), *use) for key, use in uses.items()]
    tally.tend(server, now[0])
    *statistics, off, busiest = json.loads(by_group(server)["exports"]["entry"])
    assert ([12, 12], [4, 2], {"a": [5, 0], "c": [0, 9]}) == (statistics, off, busiest)


def test_refusals_beyond_the_most_are_bounded(
    tally: Books, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "MOST_KEYS", 2)
    for key, times in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
        for _ in range(times):
            tally.happens("n", of=named("exports", key))
    tally.tend(server, now[0])
    said = by_group(server)["exports"]
    assert ({"a": "5", "b": "4"}, 3) == (json.loads(said["rejected"]), said["rest"])


def test_there_are_only_so_many_groups(
    tally: Books, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "MOST_GROUPS", 3)
    for n in range(9):
        tally.happens("g", of=named(f"policy{n}", "7"))
        tally.happens("g", of=named("policy0", "7"))
    tally.tend(server, now[0])
    written = by_group(server)
    assert 3 == len(written)
    assert {"g": "18"} == json.loads(written["%"]["counts"])
    assert {"g": "10"} == json.loads(written["policy0"]["counts"])


def test_of_several_writes_one_may_fail(
    tally: Books, server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(steps: Any) -> list[Any]:
        return [Answer(["ok"], 0.0, 0.0), *(GONE for _ in steps[1:])]

    tally.happens("g")
    with monkeypatch.context() as patch:
        patch.setattr(server, "many", many)
        with pytest.raises(Failure, match="refused"):
            tally.tend(server, now[0])
    tally.tend(server, now[0])
    assert ["exports"] == [*by_group(server)]  # the sums of the site were written


def test_a_process_that_ends_takes_its_share_back_and_writes_its_events(
    tally: Books, server: Any, now: list[float]
) -> None:
    tally.now = [Gauge(named("exports", "7"), 1, 0)]
    tally.tend(server, now[0])
    server.steps.clear()
    tally.happens("r", 5)
    tally.hurry()
    assert (0.0, True) == (tally.due, tally.unwritten)
    tally.tend(server, now[0])
    said = by_group(server)["exports"]
    assert ("", {"r": str(PAIR + 5)}) == (said["entry"], json.loads(said["counts"]))
    assert not tally.unwritten


def test_groups_are_listed_by_their_last_event_and_the_old_ones_go(
    tally: Books, server: Any, now: list[float]
) -> None:
    tally.happens("g")
    tally.tend(server, now[0])
    ms, day = 1_790_000_000_000, 86_400_000
    assert [
        ("TIME",),
        ("ZADD", "p:groups", ms, "exports"),
        ("ZREMRANGEBYSCORE", "p:groups", "-inf", ms - day),
        ("ZREMRANGEBYRANK", "p:groups", 0, -1 - tallies.MOST_GROUPS),
        ("PEXPIRE", "p:groups", 2 * day),
    ] == server.commands


# The clerk


@pytest.fixture
def housekeeper(
    now: list[float], server: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Housekeeper]:
    """Without a thread: the test takes its turns. `held`: its leases."""
    monkeypatch.setattr(clerks, "server_of", lambda alias: server)
    held: list[Any] = []
    made = Housekeeper("default", lambda: held)
    made.held = held  # type: ignore[attr-defined]
    expected: list[float] = []
    monkeypatch.setattr(made._worker, "expect", expected.append)
    made.expected = expected  # type: ignore[attr-defined]
    monkeypatch.setattr(made._worker, "rouse", lambda: True)
    yield made


def lease(permits: int, of: Any) -> Any:
    return SimpleNamespace(permits=permits, _settings=of)


def test_shares_are_the_permits_held_and_the_waiters(housekeeper: Any) -> None:
    housekeeper.held += [lease(3, named("a")), lease(0, named("b"))]
    housekeeper.waits("token", named("c"))
    found = [(one.of.keys.display, one.in_use, one.waiting) for one in housekeeper._shares()]
    assert [("a", 3, 0), ("b", 1, 0), ("c", 0, 1)] == found
    housekeeper.waits("token", None)
    assert 2 == len([*housekeeper._shares()])


@pytest.mark.parametrize(
    ("error", "level", "said"),
    [
        (GONE, "DEBUG", "housekeeping of 'default' could not write: refused"),
        (RuntimeError("odd"), "ERROR", "housekeeping of 'default' failed, and is tried again"),
    ],
    ids=["outage", "our own mistake"],
)
def test_after_an_error_the_clerk_goes_on_a_while_later(
    error: Exception,
    level: str,
    said: str,
    housekeeper: Any,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    def fail(*_: Any) -> None:
        raise error

    housekeeper.count(named("a"), "g", 0)
    now[0] += tallies.EVERY
    monkeypatch.setattr(housekeeper.statistics, "tend", fail)
    assert now[0] + clerks.RETRY == housekeeper._turn()
    assert not housekeeper._busy
    assert [(level, said)] == [(record.levelname, record.message) for record in caplog.records]
    assert (error is not GONE) == ("RuntimeError: odd" in caplog.text)


def test_a_clerk_whose_alias_is_gone_lets_go_of_what_it_has(
    housekeeper: Any, now: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(alias: str) -> Any:
        raise ImproperlyConfigured("no such cache")

    housekeeper.count(named("a"), "g", 0)
    housekeeper.names.add(named("a").keys)
    housekeeper.statistics.due = now[0]
    with monkeypatch.context() as patch:
        patch.setattr(clerks, "server_of", gone)
        assert math.inf == housekeeper._turn()
    assert "housekeeping of 'default' discards its entries: no such cache" in caplog.text
    assert not any(book.unwritten for book in housekeeper._books)
    housekeeper.count(named("a"), "g", 0)  # what comes later waits for no retry
    assert now[0] + tallies.EVERY == housekeeper._earliest()


def test_an_adopted_lease_is_in_the_sums_though_nothing_happens(housekeeper: Any, now: Any) -> None:
    housekeeper.names.noted.add(named("a").keys.leases)
    housekeeper.adopted(named("a", keep=0).keys)
    assert math.inf == housekeeper.statistics.due
    housekeeper.adopted(named("a").keys)
    assert now[0] + tallies.EVERY == housekeeper.statistics.due


def test_whatever_is_to_be_written_has_the_clerk_come_in_time(housekeeper: Any, now: Any) -> None:
    for act, book in (
        (lambda: housekeeper.note(named("a").keys), "names"),
        (lambda: housekeeper.count(named("a"), "n", 0), "statistics"),
        (lambda: housekeeper.adopted(named("a").keys), "statistics"),
    ):
        housekeeper.forget()
        housekeeper.expected.clear()
        act()
        assert [getattr(housekeeper, book).due] == housekeeper.expected
        assert housekeeper.expected[0] < now[0] + 60


def test_marks_that_were_read_for_an_ask_are_read_again_in_time(
    housekeeper: Any, policy: Any, server: Any, now: list[float]
) -> None:
    server.reply = ["p:exports", "17"]
    plan = housekeeper.heed(policy)
    with contextlib.suppress(StopIteration):
        plan.send(server.run(next(plan)))
    assert ("17 0", [0.0]) == (
        policy.mark,
        housekeeper.expected,
    )  # at once: waiters look at the change
    housekeeper._turn()
    with contextlib.suppress(StopIteration):
        next(housekeeper.heed(policy))
    assert [0.0, now[0] + markses.EVERY] == housekeeper.expected


# Names


def test_a_policy_is_listed_and_its_keys_in_a_list_of_their_own(
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
    for registry in added:
        day = 86_400_000
        assert ("ZREMRANGEBYSCORE", registry, "-inf", ms - day) in server.commands
        assert ("ZREMRANGEBYRANK", registry, 0, -1 - nameses.MOST_NOTED) in server.commands
        assert ("PEXPIRE", registry, 2 * day) in server.commands


def test_a_name_in_use_is_written_again_each_minute(server: Any, now: list[float]) -> None:
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
    names.add(named("c").keys)  # it moves the end of no minute
    names.tend(server, now[0])
    server.commands.clear()
    now[0] += 10
    names.tend(server, now[0])
    names.tend(server, now[0])
    written = [words[3::2] for words in server.commands if words[0] == "ZADD"]
    assert [("a",)] == written
    assert {named("a").keys.leases} == names.noted


def test_names_are_written_in_groups_but_at_once_when_the_process_ends(
    server: Any, now: list[float]
) -> None:
    names = Names(list)
    names.add(named("a").keys)
    assert now[0] == names.due
    names.tend(server, now[0])
    names.add(named("b").keys)
    assert now[0] + nameses.NOTED_AFTER == names.due
    names.hurry()
    assert 0.0 == names.due
    names.tend(server, now[0])
    names.hurry()
    assert now[0] < names.due  # nothing is fresh
    names.add(named("c").keys)
    assert now[0] == names.due


def test_a_name_that_comes_while_others_are_written_is_written_soon(
    server: Any, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    names, write = Names(list), Names._write

    def meanwhile(self: Names, *given: Any) -> None:
        write(self, *given)
        self.add(named("late").keys)

    names.add(named("first").keys)
    monkeypatch.setattr(Names, "_write", meanwhile)
    names.tend(server, now[0])
    assert now[0] + nameses.NOTED_AFTER == names.due


def test_names_that_could_not_be_written_are_kept(
    server: Any, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for failure, later in ((GONE, nameses.RETRY), (FINAL, nameses.NOTED_EVERY)):
        names = Names(list)
        names.add(named("a").keys)
        server.fails = failure
        names.tend(server, now[0])
        assert ([named("a").keys], now[0] + later) == ([*names.fresh], names.due)
        assert names.unwritten
    words = "could not list names in use: "
    said = [("DEBUG", words + "refused"), ("WARNING", words + "WRONGTYPE")]
    assert said == [(record.levelname, record.message) for record in caplog.records]


# Marks


@pytest.fixture
def policy() -> Iterator[Any]:
    policies.clear()
    yield keys_of("p", "exports", "7").policy
    policies.clear()


@pytest.fixture(autouse=True)
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markses, "_read", {})
    keys_of.cache_clear()  # each has its policy


def marks_of(waiting: Any = (), in_use: Any = ()) -> OverridePoller:
    return OverridePoller(lambda: in_use, lambda: waiting)


def test_reading_ends_some_time_after_the_last_use(
    policy: Any, server: Any, now: list[float]
) -> None:
    held, waited = list[Any](), list[Any]()
    marks = marks_of(waited, held)
    marks.needed(policy)
    for used in (held, waited):
        used.append(keys_of("p", "exports", "7"))
        now[0] += 10 * markses.IDLE
        marks.tend(server, now[0])
        assert now[0] + markses.EVERY == marks.due
        used.clear()
    now[0] += markses.IDLE
    server.steps.clear()
    marks.tend(server, now[0])
    assert ([], math.inf) == (server.steps, marks.due)


def test_waiters_look_at_what_changed_and_others_do_not(
    policy: Any, server: Any, now: list[float]
) -> None:
    mine, other = keys_of("p", "exports", "7"), keys_of("p", "imports", "7")
    marks = marks_of([mine, other])
    server.reply = ["p:exports", "17"]
    marks.tend(server, now[0])
    assert [("operate", mine.leases)] == [
        (step.verb, step.keys[0]) for step in server.steps if step.verb == "operate"
    ]
    assert "poke" == next(s for s in server.steps if s.verb == "operate").argv[1]
    server.steps.clear()
    marks.tend(server, now[0])
    assert {"marks"} == {step.verb for step in server.steps}  # nothing new


def test_marks_that_cannot_be_read_stay_as_they_were_and_it_is_said_once(
    policy: Any, server: Any, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server.reply = ["p:exports", "17"]
    marks = marks_of([keys_of("p", "exports", "7")])
    marks.tend(server, now[0])
    server.fails = GONE
    for _ in range(3):
        now[0] += markses.STALE
        marks.tend(server, now[0])
    said = "operators' overrides can't be read, so the last known stay in force: Redis: refused"
    assert ("17 0", [said]) == (policy.mark, caplog.messages)
    assert now[0] + markses.STALE == policy.due
    server.fails = None
    marks.tend(server, now[0])
    server.fails = GONE
    marks.tend(server, now[0])
    assert [said] * 2 == caplog.messages


# RetryQueue


@pytest.fixture
def errands(now: list[float], server: Any, monkeypatch: pytest.MonkeyPatch) -> RetryQueue:
    monkeypatch.setattr(clerks, "server_of", lambda alias: server)
    made = RetryQueue("default")
    monkeypatch.setattr(made._worker, "rouse", lambda: True)
    return made


def errand(token: str) -> Run:
    return Run("release", keys_of("p", "x").declared, (token,), 5.0)


def tokens(server: Any) -> list[str]:
    steps, server.steps = server.steps, []
    return [step.argv[0] for step in steps]


def test_what_failed_is_tried_again_in_its_order_until_it_is_given_up(
    errands: RetryQueue, server: Any, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server.fails = GONE
    for token in "abc":
        errands.enqueue(errand(token))
    assert now[0] + clerks.RETRY == errands._turn()
    assert ["a", "b", "c"] == tokens(server)
    errands._turn()
    assert [] == tokens(server)  # it is not time yet
    now[0] += clerks.RETRY
    errands.enqueue(errand("d"))
    errands._turn()
    assert ["a", "b", "c", "d"] == tokens(server)
    now[0] += clerks.GIVE_UP
    errands._turn()
    said = f"a cleanup of {named('x').keys.leases} failed for good: refused"
    assert ([said] * 4, False) == (caplog.messages, errands.busy)


def test_what_was_done_is_not_done_again(
    errands: RetryQueue, server: Any, now: list[float]
) -> None:
    errands.enqueue(errand("a"))
    assert errands.busy
    assert math.inf == errands._turn()
    assert (["a"], False) == (tokens(server), errands.busy)


def test_what_failed_before_is_not_kept_for_an_alias_that_is_gone(
    errands: RetryQueue, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(alias: str) -> Any:
        raise ImproperlyConfigured("no such cache")

    server.fails = GONE
    errands.enqueue(errand("a"))
    errands._turn()
    monkeypatch.setattr(clerks, "server_of", gone)
    errands.enqueue(errand("b"))
    assert (math.inf, False) == (errands._turn(), errands.busy)


def test_the_clerk_waits_for_no_answer_for_long(
    tally: Books, server: Any, now: list[float]
) -> None:
    tally.happens("g")
    tally.tend(server, now[0])
    names = Names(list)
    names.add(named("a").keys)
    names.tend(server, now[0])
    assert {1.0} == {*server.timeouts}
    assert {1.0} == {step.timeout for step in server.steps}
