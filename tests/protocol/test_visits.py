"""The script `visit`: a job asks for a permit. If it has to come back later, the job is "away", and
keeps its position in the queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.test_scripts import C, Name

pytestmark = pytest.mark.promise(33)


class Visited(Name):
    """A name whose permits jobs request with the script `visit`. `job`: the ID of a job, here a
    letter. `nth`: how many times the task queue has sent the job again."""

    turn = 0

    def visit(self, job: str, nth: int = 0, token: str = "", **said: Any) -> str:
        self.turn += 1
        said = {"lease": 5000, "job": f"job {job}", **said}
        return self.ask(token or f"{job}-{self.turn}", verb="visit", id=job, nth=nth, **said)

    def away(self, *jobs: str, **said: Any) -> None:
        """Run `visit` for each job, and check that the reply is "later". The jobs are then away."""
        for job in jobs:
            assert "later" == self.visit(job, **said)[:5]

    def key(self, part: str) -> str:
        return self.keys.leases.removesuffix("leases") + part

    def members(self, part: str) -> str:
        """Return the members of a sorted set of the name, in the order of their scores. `part`: the
        last part of the key."""
        rows = sorted(self.contents(self.keys, self.key(part)).items(), key=lambda row: row[1])
        return " ".join(member for member, _ in rows)

    def counted(self, what: str) -> int:
        return sum(int(n) for field, n in self.stats.items() if field.endswith(f":{what}"))


@pytest.fixture
def x() -> Visited:
    return Visited(keep=5)


def test_data_of_a_job_is_deleted_when_the_job_releases_its_permit(x: Visited) -> None:
    assert f"ok {x.micros} 5000" == x.visit("a", token="t")
    assert "t |" == x.state
    assert "ok" == x.end("t", id="a")
    assert ("|", "", "", "") == (x.state, x.members("due"), x.members("places"), x.field("a"))


def test_job_keeps_its_position_in_the_queue_while_it_is_away(x: Visited) -> None:
    x.hold("h")
    x.away("a", "b", "c")
    x.end("h")
    assert "a b c" == x.members("places")
    assert "ok" == x.visit("a", 1)[:2]
    assert "b c" == x.members("places")
    ticket = int(x.contents(x.keys, x.key("places"))["b"])
    assert f"later {C['AWAY'] // 2} 2 {ticket} 0" == x.visit("b", 1)


def test_repeated_visit_returns_the_same_reply(x: Visited) -> None:
    x.hold("h")
    first = x.visit("a", token="t")
    assert first[:-1] + "-1" == x.visit("a", token="t"), "the rank is that of a copy"
    assert x.counted("v") == 1
    x.operate("resize", 2)
    assert x.visit("a", 1, token="u").startswith(x.visit("a", 1, token="u"))
    assert "h u |" == x.state
    assert "ok" == x.end("u", "undo", tombstone=1)
    assert "dead" == x.visit("a", 1, token="u"), "a late copy is granted"


def test_copy_of_a_running_job_is_dropped_after_the_job_has_ended(x: Visited) -> None:
    x.visit("a", token="t", lease=60_000)
    ticket = x.micros
    assert f"later 1000 0 {ticket} -1" == x.visit("a")
    x.pass_time(8000)
    assert f"later 2000 0 {ticket} -1" == x.visit("a"), (
        "the delay is not a quarter of the run so far"
    )
    x.end("t", id="a")
    assert ["drop copy"] * 2 == [x.visit("a"), x.visit("a", 1)]
    assert (4, 2) == (x.counted("v") - 1, x.counted("d"))


def test_copy_of_a_job_gets_a_permit_when_the_lease_of_the_job_has_expired(x: Visited) -> None:
    x.visit("a", token="t", lease=1)
    x.pass_time(1)
    assert "ok" == x.visit("a", token="u")[:2]
    assert "u |" == x.state
    # The first run of the job (token t) ends only now. The second run (token u) must continue.
    x.end("t", id="a")
    assert "later" == x.visit("a")[:5]


def test_copy_of_a_job_is_dropped_only_after_the_next_delivery_of_the_job_arrived(
    x: Visited,
) -> None:
    x.hold("h", lease=60_000)
    delay = int(x.visit("a").split(" ")[1])
    assert f"later {delay + C['TURN']} 0 {x.micros} -1" == x.visit("a"), (
        "delivery 1 may still arrive"
    )
    assert "later" == x.visit("a", 1)[:5]
    assert "drop copy" == x.visit("a")
    x.end("h")
    assert "ok" == x.visit("a", 2, token="t")[:2]
    x.end("t", id="a")
    assert "drop copy" == x.visit("a", 2), "the job had a copy, but its record is gone"


def test_copy_of_a_job_replaces_an_overdue_delivery_of_the_job(x: Visited) -> None:
    x.hold("h", lease=60_000)
    delay = int(x.visit("a").split(" ")[1])
    x.pass_time(delay + C["TURN"] - 1)
    assert "-1" == x.visit("a").split(" ")[4]
    x.pass_time(1)
    assert ["1", "0"] == x.visit("a").split(" ")[2::2]


@pytest.mark.promise(2)
def test_waiter_gets_a_permit_before_a_job_that_is_between_two_visits(x: Visited) -> None:
    x.hold("h")
    x.away("a")
    x.wait("w")
    x.end("h")
    assert ("w |", "later") == (x.state, x.visit("a", 1)[:5])


@pytest.mark.promise(2)
def test_job_does_not_overtake_a_waiter_that_needs_several_permits(x: Visited) -> None:
    x.hold("h", limit=2)
    x.wait("w", limit=2, permits=2)
    x.pass_time(1)
    x.away("a", limit=2)
    assert "h | w" == x.state


def starve(x: Visited, job: str) -> int:
    """Run `visit` STARVED times for a job that gets no permit. After that, a permit is reserved
    for the job. Return the `nth` of its next visit."""
    for nth in range(C["STARVED"]):
        assert "later" == x.visit(job, nth)[:5]
    return C["STARVED"]


def test_permit_is_reserved_for_a_job_that_got_none_at_several_visits(x: Visited) -> None:
    x.hold("h")
    nth = starve(x, "a")
    x.end("h")
    assert "no" == x.ask("n", "try")[:2]
    x.away("b")
    x.wait("w")
    assert "| w" == x.state
    assert "ok" == x.visit("a", nth)[:2]


def test_reservation_of_a_permit_for_an_absent_job_ends_after_a_short_time(x: Visited) -> None:
    x.hold("h")
    starve(x, "a")
    x.away("b", "c")
    x.end("h")
    began, reply = x.now, x.ask("w")
    while reply[:4] == "wait":
        x.pass_time(int(reply.split(" ")[2]))
        reply = x.ask("w", "again")
    assert C["TURN"] <= x.now - began <= C["TURN"] + C["HEARTBEAT"]
    # The job `a` missed its reserved permit, so the script reserves none for `e` during REST.
    x.away("d")
    starve(x, "e")
    assert "ok" == x.ask("v", "try", limit=2)[:2]


def test_overdue_job_loses_its_position_in_the_queue(x: Visited) -> None:
    x.hold("h", lease=600_000)
    x.away("a")
    x.pass_time(C["PLACE_LIFE"])
    x.away(*"bc")
    assert "a b c" == x.members("places")
    x.pass_time(C["LATEST"])
    x.visit("b", 1)
    assert ("b c", "", 1) == (x.members("places"), x.field("a"), x.counted("x"))


def test_record_of_a_job_does_not_expire_while_the_job_runs(x: Visited) -> None:
    x.visit("a", token="t", lease=600_000, limit=2)
    x.pass_time(C["PLACE_LIFE"] + 1)
    x.visit("b", limit=2)
    assert "-1" == x.visit("a", limit=2).split(" ")[4]


def test_jobs_keep_their_order_when_all_data_was_lost(x: Visited) -> None:
    x.hold("h")
    tickets = {job: x.visit(job).split(" ")[3] for job in "abc"}
    x.names.clear()
    x.pass_time(1)
    x.hold("h")
    for job in "cab":
        x.visit(job, 1, ticket=tickets[job])
    x.visit("d", ticket=9 * 10**15)  # a ticket from the future is replaced
    x.away("e")
    assert "a b c d e" == x.members("places")


def test_job_is_rejected_if_the_number_of_waiters_has_reached_max_waiters(x: Visited) -> None:
    x.hold("h")
    x.away("a")
    assert "no full 1  1" == x.visit("b", max_waiters=1)
    assert "a" == x.members("places")
    assert "later" == x.visit("a", 1, max_waiters=1)[:5]


def test_jobs_are_postponed_while_the_name_is_paused(x: Visited) -> None:
    x.operate("pause")
    for nth in range(5):
        assert "later" == x.visit("a", nth)[:5]
    x.operate("resume")
    assert "ok" == x.visit("a", 5)[:2]


def test_job_is_postponed_until_the_end_of_a_pause_with_a_duration(x: Visited) -> None:
    x.operate("pause", f"{x.now} {x.now + 20_000}")
    x.change("info", _hold="50000")
    assert f"later 20001 1 {x.micros} 0" == x.visit("a")


def test_delay_of_a_job_grows_with_its_rank_and_the_mean_hold(x: Visited) -> None:
    x.visit("a", token="t", limit=2)
    x.hold("h", lease=600_000, limit=2)
    x.pass_time(2000)
    x.end("t", id="a")
    replies = [x.visit(job).split(" ")[1] for job in "bcd"]
    assert ["1800", "3600", "5400"] == replies
    x.pass_time(300_000)  # the delay is at least a quarter of the time since the last grant
    assert str(C["LATEST"]) == x.visit("b", 1).split(" ")[1]


def test_name_stays_in_expanded_state_while_a_job_is_between_two_visits(x: Visited) -> None:
    x.visit("a", token="t")
    x.away("b")
    x.end("t", id="a")
    x.hold("h")
    assert not x.packed
    x.end("h")
    x.visit("b", 1, token="u")
    x.end("u", id="b")
    x.hold("h")
    assert x.packed


@pytest.mark.promise(12)
def test_redis_keys_expire_after_all_jobs_have_lost_their_places(x: Visited) -> None:
    def ends() -> set[Any]:
        own = [row for row in x.names["t:{x}:"] if row[0] in map(x.key, ("places", "due", "info"))]
        return {expiry and expiry - x.now for *_, expiry in own}

    x.hold("h")
    x.away("a")
    assert {C["PLACE_LIFE"] + C["AWAY"] // 2 + 2 * C["GRACE"]} == ends()
    x.operate("pause")
    x.away("b")
    assert {None} == ends()
    x.operate("resume")
    (end,) = ends()
    assert C["PLACE_LIFE"] < end < 2 * C["PLACE_LIFE"]


def test_permit_is_granted_only_to_jobs_near_the_front_of_the_queue(x: Visited) -> None:
    x.hold("h", limit=1)
    names = [f"p{n:02}" for n in range(12)]
    x.away(*names)
    x.end("h")
    near = 1 * (1 + C["AWAY"] // (C["AWAY"] // 2))
    assert "later" == x.visit(names[near], 1)[:5]
    assert "ok" == x.visit(names[near - 1], 1)[:2]


@pytest.mark.parametrize("share", [{}, {"share": "s", "share_limit": 1}], ids=["alone", "share"])
def test_job_gets_a_permit_if_all_jobs_before_it_seem_lost(
    x: Visited, share: dict[str, Any]
) -> None:
    x.hold("h", lease=60_000, **share)
    lost = [f"p{n:03}" for n in range(C["BOUND"] * 2)]
    x.away(*lost, **share)
    delay = int(x.visit("q", **share).split(" ")[1])
    x.end("h")
    x.pass_time(delay)
    assert "later" == x.visit("q", 1, **share)[:5], "the jobs before may still come within TURN"
    x.pass_time(C["TURN"])
    assert "ok" == x.visit("q", 2, **share)[:2]
    assert "0" == x.visit(lost[0], 1, **share).split(" ")[4], "a late job lost its position"


# Shares


def test_waiters_of_all_shares_count_toward_max_waiters(x: Visited) -> None:
    both = {"limit": 2, "share_limit": 1, "share": "a"}
    x.hold("h", **both)
    x.wait("w", **both)
    assert "no full" == x.visit("a", max_waiters=1, **both)[:7]
    assert "ok" == x.visit("b", max_waiters=1, **{**both, "share": "b"})[:2]


@pytest.mark.promise(32)
def test_job_of_a_free_share_does_not_wait_for_jobs_of_a_full_share(x: Visited) -> None:
    both = {"limit": 4, "share_limit": 2}
    granted = [x.visit(f"a{n}", share="a", **both)[:5] for n in range(40)]
    assert {"later"} == set(granted[2:])
    assert "ok" == x.visit("b", share="b", **both)[:2]


def test_rank_of_a_job_considers_that_shares_take_turns(x: Visited) -> None:
    x.hold("h")
    jobs = ("a1", "a2", "b1", "b2", "b3")
    ranks = [x.visit(job, share=job[0]).split(" ")[4] for job in jobs]
    assert ["0", "1", "0", "2", "4"] == ranks


def test_job_with_a_share_leaves_no_data_after_its_permit_is_released(x: Visited) -> None:
    x.hold("h")
    x.visit("a", share="s", share_limit=1)
    x.end("h")
    x.visit("a", 1, token="t", share="s", share_limit=1)
    x.end("t", id="a")
    assert "" == x.members("places") + x.members("placed") + x.members("due")


# Operators


@pytest.mark.promise(25)
def test_inspect_lists_jobs_that_are_away_as_waiters(x: Visited) -> None:
    x.hold("h")
    x.wait("w")
    x.visit("a")
    x.visit("b")
    *_, waiting, _, rows = x.do("inspect")
    assert (3, ["w", "a", "b"], str(x.micros)) == (waiting, rows[::4], rows[5])
    *_, waiting, _, rows = x.do("inspect", max_rows=2)
    assert (3, ["w", "a"]) == (waiting, rows[::4])


@pytest.mark.promise(26)
def test_cleared_job_is_dropped_at_its_next_delivery(x: Visited) -> None:
    x.hold("h")
    x.away("a", "b")
    assert ["ok"] == x.do("clear", "a")
    assert "b" == x.members("places")
    assert "drop cleared" == x.visit("a", 1)
    assert ["gone"] == x.do("clear", "a")
