"""Figures of names and policies, and what they are put in order by: without a server."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from django_redis_sync.exceptions import SyncError
from django_redis_sync.operators import configured, export, listing, names, status, sums, words
from django_redis_sync.operators import history as histories
from django_redis_sync.operators.doctor import Finding, findings
from django_redis_sync.operators.history import Counters, add, carried, history_of, suggest
from django_redis_sync.operators.listing import FIGURES, hour, since
from django_redis_sync.operators.names import natural
from django_redis_sync.operators.status import Unread
from django_redis_sync.protocol.keys import keys_of, quote
from django_redis_sync.protocol.plans import Answer, Failure
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.support import statuses as make
from tests.support.statuses import ago, forever, group, history, holder, waiter

PAIR = CONSTANTS["PAIR"]


# Policies


def test_a_policy_is_what_its_keys_are_together() -> None:
    found = group(
        make.status(limit=2, holders=(holder(permits=2),)),
        make.status(key="7", limit=5, holders=(holder(), holder()), waiters=(waiter(),)),
        make.status(key="8", limit=3),
    )
    assert (5, 4, 3, 1) == (found.limit, found.in_use, found.holding, found.waiting)
    assert found.whole and not group(*found.all, keys=9).whole


def test_of_sums_and_of_what_was_read_the_larger_counts() -> None:
    def sums_of(in_use: int, waiting: int) -> Any:
        return SimpleNamespace(in_use=in_use, waiting=waiting)

    one = make.status(key="7", holders=(holder(), holder()), waiters=(waiter(),))
    assert (9, 8) == (
        (found := group(one, keys=99, sums=sums_of(9, 8))).in_use,
        found.waiting,
    )
    older = group(one, keys=99, sums=sums_of(1, 0))
    assert (2, 1, True) == (older.in_use, older.waiting, older.whole)


def test_a_policy_is_paused_when_its_plain_name_is_or_all_its_keys() -> None:
    paused = {"paused_since": make.AT}
    some = [make.status(key="7", **paused), make.status(key="8")]
    assert not group(*some).paused
    assert group(some[0]).paused
    assert group(make.status(**paused), some[1]).paused
    assert not group(make.status(), some[0]).paused


def test_names_are_in_the_order_of_their_numbers() -> None:
    some = ["job 10", "job 2", "Job 1", "a", "job 2b"]
    assert ["a", "Job 1", "job 2", "job 2b", "job 10"] == sorted(some, key=natural)


# Orders


def test_each_figure_puts_the_largest_first() -> None:
    past = {
        ("a", None): history("a", None, Counters(rejected=1, timed_out=1)),
        ("b", None): history("b", None, Counters(rejected=1)),
        ("c", None): history("c", None, Counters(granted=99)),
    }
    some = [
        group(make.status("a", limit=9, holders=(holder(held=5), holder(held=90)))),
        group(make.status("b", limit=1, holders=(holder(held=50),), waiters=(waiter(), waiter()))),
        group(make.status("c", limit=4, waiters=(waiter(),))),
    ]

    def by(field: str) -> str:
        ranked = sorted(some, key=lambda one: FIGURES[field](one, past), reverse=True)
        return "".join(one.name for one in ranked)

    assert ("bac", "bca", "abc", "abc") == (by("use"), by("waiting"), by("refused"), by("oldest"))


def test_the_oldest_holder_tells_since_when() -> None:
    some = [make.status(holders=(holder(held=5), holder(held=50)))]
    assert ago(50) == since(some)
    assert since([make.status()]) is None


def test_the_hour_of_a_policy_is_known_when_all_its_keys_are() -> None:
    found = group(make.status(key="7"), make.status(key="8"))
    past = {
        ("exports", "7"): history("exports", "7", Counters(granted=1)),
        ("exports", "8"): history("exports", "8", Counters(granted=2)),
    }
    assert Counters(granted=3) == hour(found, past)
    assert hour(found, {("exports", "7"): past["exports", "7"]}) is None
    assert hour(group(*found.all, keys=3), past) is None
    sums: Any = SimpleNamespace(history=history("exports", None, Counters(rejected=9)))
    told = group(*found.all, keys=3, sums=sums)
    assert (Counters(rejected=9), 9) == (hour(told, past), FIGURES["refused"](told, past))


def test_the_heaviest_are_told_as_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, in turn by use and by refusals; the sums speak of them as keys do."""
    name, user = quote("job@night"), quote("7@home")

    def known(*keys: str) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(key=key) for key in keys)

    asked: list[Any] = []

    def sums_of(groups: Any, using: Any) -> Any:
        asked.append(*groups)
        if groups == [sums.SITE]:
            found = known(f"{name}@{user}", "plain"), known(f"{name}@8", "other", "third")
        else:
            found = known(user, "8"), known("9", user)
        return [SimpleNamespace(busiest=found[0], refused=found[1])]

    monkeypatch.setattr(listing, "sums_of", sums_of)
    assert ["job@night", "plain", "other", "third"] == listing.heaviest()
    assert ["7@home", "9", "8"] == listing.heaviest("api")
    assert [sums.SITE, "api"] == asked


def test_the_heaviest_are_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Latest(f"n{n}" for n in range(listing.MOST_COMPARED + 50))
    compared: list[str] = []

    def groups_of(units: Any, most: int, **_: Any) -> Any:
        compared[:] = units
        return [group(make.status(unit)) for unit in units], []

    monkeypatch.setattr(listing, "groups_of", groups_of)
    monkeypatch.setattr(listing, "heaviest", lambda policy, using: ["n149", "n0", "gone"])
    monkeypatch.setattr(listing, "Recent", lambda *_, **__: some)
    for order in ("use", "-use"):  # the least of the same ones first
        assert listing.MOST_COMPARED == listing.Selection(order).compared
        assert ["n149", "n0"] == compared[:2] and {"n1", "n90"} < {*compared}
        assert listing.MOST_COMPARED == len(compared) == len({*compared})
    del some[listing.MOST_COMPARED :]
    assert listing.Selection("use").compared is None  # all were


# History


def counted(value: int) -> dict[str, str]:
    return {"17:w": str(value), "17:r": str(value)}


def test_a_count_and_its_milliseconds_are_taken_apart() -> None:
    reply = {"17:g": "4", "17:w": str(2 * PAIR + 1500), "17:r": str(3 * PAIR + 250), "17:p": "7"}
    reply |= {"16:n": "1", "total:w": "5", "total:w:ms": "2500", "total:g": "10"}
    found = history_of("x", None, reply, 17, 2)
    assert [1, 0] == [row.rejected for _, row in found.rows]
    this = found.rows[1][1]
    assert (4, 2, 1.5, 3, 0.25, 7) == (
        this.granted,
        this.waited,
        this.wait_seconds,
        this.released,
        this.held_seconds,
        this.peak,
    )
    assert (14, 7, 4.0) == (found.ever.granted, found.ever.waited, found.ever.wait_seconds)
    assert 1020 == found.rows[1][0].timestamp()


def test_counters_add_up_and_of_peaks_the_highest_stays() -> None:
    found = add([Counters(granted=1, peak=3), Counters(granted=2, peak=2), Counters(lost=1)])
    assert Counters(granted=3, lost=1, peak=3) == found
    assert 5 == Counters(rejected=2, timed_out=3, shadow_rejected=9).turned_away


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        (Counters(granted=60, waited=60, released=120, held_seconds=240.0, peak=2), 6),
        (Counters(granted=60, waited=60, released=120, held_seconds=240.0, peak=9), 10),
        (Counters(granted=60, released=60, held_seconds=600.0, rejected=60, peak=2), 25),
        (Counters(granted=60, released=60, held_seconds=600.0, timed_out=60, peak=2), 25),
        (Counters(granted=60, released=60, held_seconds=600.0, shadow_rejected=30, peak=2), 14),
        (Counters(granted=60, waited=60, released=120, held_seconds=240.0, peak=1), None),
        (Counters(granted=120, released=120, held_seconds=240.0, peak=2), None),
        (Counters(granted=198, waited=2, released=200, held_seconds=240.0, peak=2), 6),
        (Counters(granted=199, waited=1, released=200, held_seconds=240.0, peak=2), None),
        (Counters(granted=60, waited=60, peak=2), None),
        (Counters(), None),
    ],
)
def test_a_limit_is_advised_by_what_was_wanted_in_the_busiest_minute(
    row: Counters, limit: int | None
) -> None:
    assert limit == suggest([row])
    assert limit == suggest([row, Counters()])


def test_use_is_carried_on_by_the_permits_of_those_that_stay() -> None:
    rows = [Counters(granted=2, peak=5), Counters(), Counters()]
    found = history("x", None, *rows)
    held = [(ago(170), 4), (ago(90), 1)]
    for one in (held, held[::-1]):
        assert [5, 4, 5] == [row.peak for _, row in carried(found, one).rows]


# Words


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 ms"),
        (0.0154, "15 ms"),
        (1.0, "1.0 s"),
        (9.94, "9.9 s"),
        (10.0, "10 s"),
        (59.9, "59 s"),
        (60.0, "1 min 0 s"),
        (3599.0, "59 min 59 s"),
        (3600.0, "1 h 0 min"),
        (5445.0, "1 h 30 min"),
        (86399.0, "23 h 59 min"),
        (86400.0, "1 d 0 h"),
        (180000.0, "2 d 2 h"),
        (float("inf"), "for ever"),
    ],
)
def test_a_time_span_is_told_by_its_two_largest_units(seconds: float, said: str) -> None:
    assert said == words.duration(seconds)


def test_passwords_are_not_told() -> None:
    said = words.without_secrets("Error at redis://me:s3cret@h:1/0, or rediss://:word@h/1.")
    assert "Error at redis://***@h:1/0, or rediss://***@h/1." == said
    assert "redis://***@h:1/0" == words.without_secrets("redis://me:wo@rd@h:1/0")


# Statuses


def reply(**said: Any) -> list[Any]:
    given = {"now": "1000000", "fence": "5", "limit": "", "paused": "", "seen": "p 3", "clash": ""}
    given |= {"used": "0", "holding": 0, "waiting": 0, "holders": [], "waiters": [], **said}
    return [*given.values()]


def test_what_a_server_says_of_a_name_is_told_apart() -> None:
    holders = [["t1", "1030000", "h 990000000 30000 2 3 - {}"], ["t2", "inf", "g 5 inf 1 3 - {}"]]
    holders += [["t3", "1000500", "k 7 500 1 3 - {}"]]
    waiters = [["w1", "999000000", "1002000", "w 0 30000 1 3 - {}"]]
    waiters += [["w2", "999500000", "1000000", "w 0 30000 2 4 - {}"]]
    found = status._status(
        keys_of("p", "x"),
        reply(
            used="4",
            holding=3,
            waiting=2,
            holders=[*chain(*holders)],
            waiters=[*chain(*waiters)],
        ),
    )
    by_fence = [(one.token, one.state, one.ends_in, one.permits) for one in found.holders]
    assert [
        ("t2", "handed", float("inf"), 1),
        ("t3", "kept", 0.5, 1),
        ("t1", "held", 30.0, 2),
    ] == by_fence
    assert [True, False, False] == [one.stuck for one in found.holders]
    told = [(one.position, one.permits, one.limit, one.alive) for one in found.waiters]
    assert [(1, 1, 3, True), (2, 2, 4, False)] == told
    assert (10.0, 1.0) == (
        (found.at - found.holders[2].since).total_seconds(),
        (found.at - found.waiters[0].since).total_seconds(),
    )


@pytest.mark.parametrize(("clash", "told"), [("", None), ("400000 p 4", (4, 600.0)), ("4", None)])
def test_who_disagreed_on_the_limit_is_told_with_its_time(clash: str, told: Any) -> None:
    found = status._status(keys_of("p", "x"), reply(clash=clash))
    said = found.clash and (found.clash[0], (found.at - found.clash[1]).total_seconds())
    assert told == said


@pytest.mark.parametrize("fence", ["1000000001", "9000000000", "0"])
def test_nobody_holds_since_a_time_to_come_or_since_1970(fence: str) -> None:
    said = reply(used="1", holding=1, holders=["t", "1030000", f"h {fence} 30000 1 3 - {{}}"])
    found = status._status(keys_of("p", "x"), said)
    assert found.at == found.holders[0].since


def test_a_read_write_lock_has_no_limit_but_an_operators() -> None:
    plain, locked = (status._status(keys_of("p", "x"), reply(seen=f"{kind} 3")) for kind in "pw")
    assert ((3, 3), (None, None)) == tuple((s.limit, s.callers_limit) for s in (plain, locked))
    marked = status._status(keys_of("p", "x"), reply(seen="w 3", limit="4"))
    assert (4, None, 4) == (marked.limit, marked.callers_limit, marked.override)


def test_a_writer_is_in_once() -> None:
    writer = ["t", "1030000", "h 990000000 30000 0 1 - {}"]
    taken = reply(used=str(CONSTANTS["EXCLUSIVE"]), holding=1, holders=writer, seen="w 1")
    found = status._status(keys_of("p", "x"), taken)
    assert (True, 1, "read/write") == (found.exclusive, found.in_use, found.kind)
    readers = status._status(keys_of("p", "x"), reply(used=str(CONSTANTS["EXCLUSIVE"] - 1)))
    assert (False, CONSTANTS["EXCLUSIVE"] - 1) == (readers.exclusive, readers.in_use)
    many = status._status(keys_of("p", "x"), reply(used="150", holding=150, holders=writer))
    assert (150, 1) == (many.in_use, len(many.holders))  # of whom only some are read


@pytest.mark.parametrize("record", ["h", "h 5 30000 many 3 - {}"])
def test_a_holder_whose_record_cannot_be_read_has_a_permit(record: str) -> None:
    said = reply(used="1", holding=1, holders=["t", "1030000", record])
    (found,) = status._status(keys_of("p", "x"), said).holders
    assert ("held", 1, 30.0) == (found.state, found.permits, found.ends_in)
    if record == "h":
        assert (0, 1000.0, {}) == (found.fence, found.since.timestamp(), found.label)


@pytest.mark.parametrize(
    "said",
    [{"fence": "1"}, {"holding": 1}, {"waiting": 1}, {"paused": "9"}, {"limit": "4"}],
    ids=str,
)
def test_a_name_is_used_when_anything_of_it_is_there(said: Any) -> None:
    assert status._status(keys_of("p", "x"), reply(**{"fence": "0", **said})).used


def test_an_unused_name_has_the_limit_of_the_settings() -> None:
    nothing = reply(fence="0", seen="")
    assert not status._status(keys_of("p", "x"), nothing).used
    assert status._status(keys_of("p", "x"), nothing).callers_limit is None
    assert 7 == status._status(keys_of("p", "x"), nothing, 7).limit
    assert 3 == status._status(keys_of("p", "x"), reply(), 7).limit
    assert 4 == status._status(keys_of("p", "x"), reply(limit="4"), 7).limit


# Sums


def test_the_shares_of_living_processes_are_added_up() -> None:
    shares = {
        "a": '2000 [2,1,[1,0],{"7":[2,0],"8":[0,1]}]',
        "b": '1500 [1,5,[0,2],{"7":[1,5]}]',
        "dead": '1000 [90,90,[9,9],{"7":[90,90]}]',
        "odd": "2000 nothing",
    }
    in_use, waiting, off, by_key, living = sums._in_use(shares, 1000)
    assert (3, 6, [1, 2], 2) == (in_use, waiting, off, living)
    assert {"7": [3, 5], "8": [0, 1]} == by_key


def test_durations_are_told_by_upper_bounds() -> None:
    sketch = {"5:d:w3": "6", "5:d:w10": "3", "6:d:w12": "1", "5:d:r1": "1", "5:k:7": "9"}
    sketch |= {"5:k:w1": "99", "5:k:r9": "99"}  # refusals of keys that are called so
    for one in (sketch, dict(reversed(sketch.items()))):  # a hash has no order
        found = sums._quantiles(one, "w")
        assert (0.008, 4.096) == (found.p50, found.p95)
    assert (0.002, 0.002) == ((held := sums._quantiles(sketch, "r")).p50, held.p95)
    assert sums._quantiles({}, "w").p50 is None


def test_refusals_and_what_may_be_missing_of_any_are_those_of_all_hours() -> None:
    found, off = sums._refused(
        {"5:k:7": "9", "6:k:7": "1", "6:k:8": "2", "5:off": "3", "6:off": "4"}
    )
    assert ({"7": 10, "8": 2}, 7) == (dict(found), off)


def test_sums_name_what_is_theirs() -> None:
    shares = {"a": '1000001 [3,2,[1,5],{"7":[1,2],"8":[2,0]}]', "dead": "1000000 [9,9,[9,9],{}]"}
    sketch = {"5:d:w3": "1", "5:d:r1": "1", "5:k:7": "9", "5:k:9": "3", "5:off": "4"}
    found = sums._sums("exports", 1000.0, 2, shares, sketch, {"16:g": "5"})
    assert (3, 2, 1, 5, 4, 1) == (
        found.in_use,
        found.waiting,
        found.use_off,
        found.waiting_off,
        found.refused_off,
        found.processes,
    )
    assert [("8", 2, 0, 0), ("7", 1, 2, 9)] == [
        (one.key, one.in_use, one.waiting, one.refused) for one in found.busiest
    ]
    assert [("7", 1, 2, 9), ("9", 0, 0, 3)] == [
        (one.key, one.in_use, one.waiting, one.refused) for one in found.refused
    ]
    assert (0.008, 0.002, 5) == (found.waited.p50, found.held.p50, found.history.total.granted)


@pytest.mark.parametrize(("processes", "granted"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_sums_are_told_while_any_process_or_count_is_there(
    processes: int, granted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = history("api", None, Counters(granted=granted))
    kept = SimpleNamespace(name="api", processes=processes, history=past)
    monkeypatch.setattr(names, "sums_of", lambda policies, using: [kept])
    assert bool(processes or granted) == ("api" in names.counted(["api"]))


def test_a_permanent_holder_is_stuck() -> None:
    assert forever().stuck and not holder().stuck
    assert replace(holder(), ends_in=-1.0).stuck is False


def test_a_lease_that_is_kept_after_its_release_is_carried_on_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [Counters(granted=3, released=1, peak=3), Counters()]
    monkeypatch.setattr(
        histories, "histories", lambda pairs, minutes, using: [history("x", None, *rows)]
    )
    kept, writer = holder(held=100, state="kept", permits=5), holder(held=100, permits=0)
    (found,) = histories.histories_of([make.status("x", holders=(kept, writer))], minutes=2)
    assert [3, 1] == [row.peak for _, row in found.rows]


def test_the_settings_tell_the_names_and_their_limits(settings: Any) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}, "nightly": {}, "by-code": {"limit": "a.b"}},
        "ENDPOINTS": {
            "reports:export": "exports",
            "api:*": {"limit": 20},
            "named": {"name": "imports", "limit": 5},
            "other": {"name": "exports", "limit": 7},
        },
    }
    expected = {"exports": 7, "nightly": None, "by-code": None, "api:*": 20, "imports": 5}
    assert expected == configured.configured()


def test_what_can_be_no_name_is_left_to_the_checks(settings: Any) -> None:
    wrong = {"": {"limit": 3}, 7: {"limit": 3}, "a\0b": {"limit": 3}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {**wrong, "exports": {"limit": 3}}}
    assert {"exports": 3} == configured.configured()


def test_a_finding_of_all_nodes_names_none() -> None:
    one, two = (Finding(id, "ok", id, "") for id in ("one", "two"))
    found = findings.together([("a:1", [one, two]), ("b:2", [one])])
    assert [("one", ()), ("two", ("a:1",))] == [(each.id, each.nodes) for each in found]


def test_a_history_is_that_of_an_hour_unless_more_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "command", lambda alias, word: ["7230", "5"])
    monkeypatch.setattr(histories, "pipelined", lambda alias, some: [{} for _ in some])
    (found,) = histories.histories([("x", None)])
    assert (60, 7200) == (len(found.rows), found.rows[-1][0].timestamp())


# For machines


def test_holders_and_waiters_are_told_to_machines() -> None:
    label = {"host": "h", "pid": 7, "user": "42"}
    one = make.status(
        holders=(holder("a", held=65, ends_in=12.5, permits=2, fence=9, label=label), forever("b")),
        waiters=(waiter("w", 1, waits=7, alive=False),),
    )
    said = export.status_json(one, None)
    first, second = said.pop("holders")
    who: dict[str, Any] = {"thread": None, "label": None, "request": None, **label}
    assert first == {
        "id": "a",
        "held_seconds": 65.0,
        "ends_in_seconds": 12.5,
        "permanent": False,
        "permits": 2,
        "state": "held",
        "fence": 9,
        "since": "2026-01-31T11:58:55+00:00",
        **who,
    }
    assert (None, True) == (second["ends_in_seconds"], second["permanent"])
    assert said.pop("waiters") == [
        {
            "id": "w",
            "position": 1,
            "since": "2026-01-31T11:59:53+00:00",
            "waited_seconds": 7.0,
            "permits": 1,
            "limit": 3,
            "alive": False,
            **dict.fromkeys(who),
            **dict.fromkeys(label),
        }
    ]
    assert said == {
        "name": "exports",
        "key": None,
        "display": "exports",
        "kind": "plain",
        "limit": 3,
        "callers_limit": 3,
        "override": None,
        "paused_since": None,
        "in_use": 3,
        "exclusive": False,
        "holding": 2,
        "waiting": 1,
        "clash": None,
        "fence": 1,
        "at": "2026-01-31T12:00:00+00:00",
    }


def test_marks_and_counts_are_told_to_machines() -> None:
    one = make.status(key="7", paused_since=ago(60), override=9, clash=(4, ago(30)))
    past = history(
        "exports",
        "7",
        *(Counters(granted=2), Counters(granted=1)),
        suggested_limit=5,
        ever=Counters(granted=9),
    )
    said = export.status_json(one, past)
    assert ("exports@7", "2026-01-31T11:59:00+00:00", 9) == tuple(
        said[part] for part in ("display", "paused_since", "override")
    )
    assert {"limit": 4, "at": "2026-01-31T11:59:30+00:00"} == said["clash"]
    assert (2, 3, 9, 5) == (
        said["recent"]["minutes"],
        said["recent"]["granted"],
        said["ever"]["granted"],
        said["suggested_limit"],
    )
    unread = [Unread("odd", "8", SyncError("at redis://u:word@h:1"))]
    found = export.as_json([group(one, keys=20)], {("exports", "7"): past}, unread, 21, 20)
    assert (21, 20) == (found["found"], found["compared"])
    assert [{"name": "exports", "keys": 20, "read": 1}] == found["policies"]
    assert [said] == found["names"]
    (gone,) = found["unread"]
    assert ("odd", "8") == (gone["name"], gone["key"]) and "word" not in gone["error"]


# The order of a list


class Latest(list[str]):
    """In the place of names.Recent: the most recently used first."""

    def every(self) -> list[str]:
        return [*self]


@pytest.mark.parametrize(
    ("order", "names"),
    [("recent", "b10 a b9"), ("-recent", "b9 a b10"), ("name", "a b9 b10"), ("-name", "b10 b9 a")],
)
def test_a_list_is_in_the_order_asked_for(
    order: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "Recent", lambda *_, **__: Latest(["b10", "a", "b9"]))
    monkeypatch.setattr(listing, "groups_of", lambda units, *_, **__: ([*units], []))
    monkeypatch.setattr(listing.Selection, "_remember", lambda *_: None)
    selection = listing.Selection(order)
    assert (names.split(), 3) == (selection.read(0, 9)[0], selection.found)


def test_short_lists_are_by_name_and_long_ones_by_the_time_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "MOST_BY_NAME", 3)
    for most, order in ((3, "name"), (4, "recent")):
        monkeypatch.setattr(listing, "Recent", lambda *_, most=most, **__: Latest("n" * most))
        assert [order] * 2 == [listing.Selection(given).order for given in ("", "-nonsense")]


def test_of_a_search_only_what_was_sought_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Latest([f"Job{n}" for n in range(listing.MOST_COMPARED + 1)] + ["other"])
    monkeypatch.setattr(listing, "Recent", lambda *_, **__: some)
    monkeypatch.setattr(listing, "heaviest", lambda policy, using: ["other", "Job100"])
    monkeypatch.setattr(listing, "groups_of", lambda units, *_, **__: ([*map(alone, units)], []))
    selection = listing.Selection("use", query="jOB")
    monkeypatch.setattr(listing.Selection, "_remember", lambda *_: None)
    shown = [one.name for one in selection.read(0, 999)[0]]
    assert (listing.MOST_COMPARED, "Job100", False) == (len(shown), shown[0], "other" in shown)
    assert (listing.MOST_COMPARED + 1, listing.MOST_COMPARED, listing.MOST_COMPARED) == (
        selection.found,
        selection.compared,
        selection.readable,  # so many pages it has
    )


def alone(name: str) -> Any:
    return group(make.status(name))


@pytest.mark.parametrize(("failing", "tried"), [((0, 40), 10), ((0, 9), 40), ((1, 40), 40)])
def test_where_nothing_can_be_read_it_is_not_tried_for_long(
    failing: tuple[int, int], tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def looks(names: Any, using: Any, rows: Any) -> Any:
        failed = Failure(ConnectionError("refused"), 0.0, "unreachable")
        for n in range(40):
            asked.append(n)
            answer = failed if n in range(*failing) else Answer(reply(), 0.0, 0.0)
            yield keys_of("p", "exports"), answer

    monkeypatch.setattr(status, "_looks", looks)
    monkeypatch.setattr(status, "_BATCH", 10)
    with nullcontext() if tried == 40 else pytest.raises(SyncError, match="refused"):
        found, unread = status.readable([])
        assert len(range(*failing)) == len(unread) and 40 == len(found) + len(unread)
    assert tried == len(asked)
