"""The script `visit`: a job keeps its place in the queue while it is away."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from django_redis_sync.protocol.scripts import CONSTANTS
from tests.test_protocol_scripts import Name

pytestmark = pytest.mark.promise(33)

C = CONSTANTS


class Visited(Name):
    """A name whose permits jobs request by the script `visit`. `place`: the digest of a job, here a
    letter."""

    def visit(self, place: str, nth: int = 0, token: str = "", **arguments: Any) -> list[Any]:
        self.turn = getattr(self, "turn", 0) + 1
        token = token or f"{place}-{self.turn}"
        arguments = {"lease": 5000, "job": f"job {place}", "keep": 5, **arguments}
        return self.run("visit", token, place=place, nth=nth, **arguments)

    def away(self, *places: str) -> None:
        """Let each job visit once, with the reply "later"."""
        for place in places:
            assert "later" == self.visit(place)[0]

    def places(self) -> list[str]:
        return [place.decode() for place in self.raw.zrange(self.key("places"), 0, -1)]

    def key(self, part: str) -> str:
        return self.keys.leases.removesuffix("leases") + part

    def overdue(self, place: str, ms: int) -> None:
        """Let the job be due `ms` ago."""
        self.raw.zadd(self.key("due"), {place: self.now() - ms})

    def counted(self, what: str) -> int:
        fields = self.raw.hgetall(self.keys.stats).items()
        return sum(int(n) for field, n in fields if field.decode().endswith(f":{what}"))


@pytest.fixture
def x(raw: redis.Redis) -> Visited:
    return Visited(raw)


def test_visit_grants_a_lease_to_the_token_of_the_job(x: Visited) -> None:
    word, fence, lease = x.visit("a", token="t")
    assert ("ok", "5000", ["t"]) == (word, lease, x.holders())
    assert "ok" == x.release("t", fence, place="a")
    assert [] == x.holders()


def test_job_keeps_its_place_while_it_is_away(x: Visited) -> None:
    fence = x.hold("h")
    x.away("a", "b", "c")
    x.release("h", fence)
    assert ["a", "b", "c"] == x.places()
    assert "ok" == x.visit("a", 1)[0]
    assert ["b", "c"] == x.places()
    word, ms, nth, _, rank = x.visit("b", 1)
    assert ("later", "2", "0") == (word, nth, rank)
    assert C["SOONEST"] <= int(ms) <= C["LATEST"]


def test_repeated_visit_returns_the_same_reply(x: Visited) -> None:
    x.hold("h")
    first = x.visit("a", token="t")
    again = x.visit("a", token="t")
    assert first[2:4] == again[2:4] == ["1", first[3]]
    x.operate("resize", 2)
    granted = x.visit("a", 1, token="u")
    repeated = x.visit("a", 1, token="u")
    assert granted[0] == repeated[0] == "ok"
    assert granted[1] == repeated[1]
    assert 2 == len(x.holders())


def test_late_copy_of_an_undone_visit_is_not_granted(x: Visited) -> None:
    fence = x.hold("h")
    x.visit("a", token="t")
    x.undo("t")
    x.release("h", fence)
    assert ["dead"] == x.visit("a", token="t")
    assert [] == x.holders()


def test_copy_of_a_running_job_is_postponed_then_dropped(x: Visited) -> None:
    fence = x.visit("a", token="t")[1]
    word, ms, nth, _, rank = x.visit("a")
    assert ("later", "0", "-1") == (word, nth, rank)
    assert int(ms) >= 1000
    x.release("t", fence, place="a")
    assert ["drop", "copy"] == x.visit("a")
    assert ["drop", "copy"] == x.visit("a", 1)


def test_released_job_without_copies_leaves_no_data(x: Visited) -> None:
    fence = x.visit("a", token="t")[1]
    x.release("t", fence, place="a")
    assert 0 == x.raw.exists(x.key("due"), x.key("places"))
    assert not x.raw.hexists(x.keys.info, "a")


def test_copy_of_a_job_is_granted_when_the_lease_of_the_job_expired(x: Visited) -> None:
    x.visit("a", token="t", lease=1)
    time.sleep(0.01)
    assert "ok" == x.visit("a", token="u")[0]
    assert ["u"] == x.holders()
    # The first run ends now. The record describes the second run, so it stays.
    x.release("t", "1", place="a")
    assert "later" == x.visit("a")[0]


def test_older_delivery_is_dropped_only_after_a_later_one_arrived(x: Visited) -> None:
    fence = x.hold("h")
    x.visit("a")
    word, _, nth, _, rank = x.visit("a")  # delivery 1 has not arrived yet
    assert ("later", "0", "-1") == (word, nth, rank)
    assert "later" == x.visit("a", 1)[0]
    assert ["drop", "copy"] == x.visit("a")
    x.release("h", fence)
    assert "ok" == x.visit("a", 2)[0]


def test_older_delivery_is_accepted_when_the_later_one_is_overdue(x: Visited) -> None:
    x.hold("h")
    x.visit("a")
    x.overdue("a", C["TURN"] + 1)
    word, _, nth, _, rank = x.visit("a")
    assert ("later", "1", "0") == (word, nth, rank)


def test_waiters_are_served_before_jobs_that_are_away(x: Visited) -> None:
    fence = x.hold("h")
    x.away("a")
    x.wait("w")
    x.release("h", fence)
    assert ["w"] == x.holders()
    assert "later" == x.visit("a", 1)[0]


def test_job_does_not_overtake_a_waiter_for_several_permits(x: Visited) -> None:
    x.hold("h", limit=2)
    x.wait("w", limit=2, permits=2)
    assert "later" == x.visit("a", limit=2)[0]
    assert ["h"] == x.holders()


def starve(x: Visited, place: str) -> int:
    """Let a job visit in vain until a permit is reserved for it. Return its next `nth`."""
    for nth in range(C["STARVED"]):
        assert "later" == x.visit(place, nth)[0]
    return C["STARVED"]


def test_permit_is_reserved_for_a_job_after_too_many_vain_visits(x: Visited) -> None:
    fence = x.hold("h")
    nth = starve(x, "a")
    x.release("h", fence)
    assert "no" == x.ask("n", how="try")[0]
    assert "later" == x.visit("b")[0]
    x.wait("w")
    assert [] == x.holders()
    assert "ok" == x.visit("a", nth)[0]


def test_job_that_does_not_come_back_delays_others_for_one_turn(x: Visited) -> None:
    fence = x.hold("h")
    starve(x, "a")
    x.away("b", "c")
    x.release("h", fence)
    began = time.monotonic()
    word, _, told, _ = x.ask("w", how="wait")
    while word == "wait":
        assert int(told) <= C["TURN"]
        time.sleep(int(told) / 1000)
        word, _, told, *_ = [*x.ask("w", how="again"), "", ""]
    assert "ok" == word
    assert 1 < time.monotonic() - began < 4
    # After an absent job, no permit is reserved for other jobs for a while.
    x.away("d")
    starve(x, "e")
    assert "ok" == x.ask("v", how="try", limit=2)[0]


def test_overdue_job_loses_its_place(x: Visited) -> None:
    x.hold("h", lease=60_000)
    x.away(*"abc")
    x.overdue("a", C["PLACE_LIFE"] + 1)
    x.visit("b", 1)
    assert ["b", "c"] == x.places()
    assert not x.raw.hexists(x.keys.info, "a")
    assert 1 == x.counted("x")


def test_job_that_runs_longer_than_place_life_is_still_known(x: Visited) -> None:
    x.visit("a", token="t", lease=600_000, limit=2)
    x.overdue("a", C["PLACE_LIFE"] + 1)
    x.visit("b", limit=2)
    assert ("later", "-1") == (x.visit("a", limit=2)[0], x.visit("a", limit=2)[4])


def test_places_keep_their_order_after_a_flush(x: Visited) -> None:
    x.hold("h")
    tickets = {place: x.visit(place)[3] for place in "abc"}
    x.raw.flushdb()
    x.hold("h")
    for place in "cab":
        x.visit(place, 1, ticket=tickets[place])
    x.visit("d")
    assert [*"abcd"] == x.places()


def test_ticket_from_the_future_is_replaced_by_the_current_time(x: Visited) -> None:
    x.hold("h")
    x.visit("a", ticket=9 * 10**15)
    x.away("b")
    assert ["a", "b"] == x.places()


def test_job_is_rejected_when_max_waiters_are_waiting(x: Visited) -> None:
    x.hold("h")
    x.away("a")
    assert ["no", "full"] == x.visit("b", max_waiters=1)[:2]
    assert ["a"] == x.places()
    assert "later" == x.visit("a", 1, max_waiters=1)[0]


def test_jobs_are_postponed_while_the_name_is_paused(x: Visited) -> None:
    x.operate("pause")
    for nth in range(5):
        assert "later" == x.visit("a", nth)[0]
    x.operate("resume")
    assert "ok" == x.visit("a", 5)[0]


def test_job_returns_when_a_pause_with_an_end_has_ended(x: Visited) -> None:
    x.raw.hset(x.keys.info, "#hold", 50_000)
    x.operate("pause", f"{x.now()} {x.now() + 20_000}")
    assert 15_000 < int(x.visit("a")[1]) <= 20_001


def test_job_is_postponed_when_an_operator_lowered_the_limit(x: Visited) -> None:
    x.visit("a", limit=3)
    x.operate("resize", 1)
    assert "later" == x.visit("b", limit=3)[0]


def test_name_with_places_is_never_compact(x: Visited) -> None:
    fence = x.visit("a", token="t")[1]
    x.away("b")
    x.release("t", fence, place="a")
    fence = x.hold("h")
    assert not x.packed
    x.release("h", fence)
    fence = x.visit("b", 1, token="u")[1]
    x.release("u", fence, place="b")
    x.hold("h")
    assert x.packed


def test_keys_of_places_outlive_the_places(x: Visited) -> None:
    x.hold("h")
    x.away("a")
    ttls = {x.raw.pttl(x.key(part)) for part in ("places", "due", "info")}
    assert min(ttls) > C["PLACE_LIFE"]
    assert max(ttls) <= C["PLACE_LIFE"] + C["LATEST"] + 2 * C["GRACE"]


def test_keys_of_places_expire_again_after_an_override_was_removed(x: Visited) -> None:
    x.operate("pause")
    x.away("a")
    assert -1 == x.raw.pttl(x.key("places"))
    x.operate("resume")
    assert C["PLACE_LIFE"] < x.raw.pttl(x.key("places")) < 2 * C["PLACE_LIFE"]


def test_permit_is_granted_only_to_jobs_near_the_front(x: Visited) -> None:
    fence = x.hold("h", limit=1)
    names = [f"p{n:02}" for n in range(12)]
    x.away(*names)
    x.release("h", fence)
    near = 1 * (1 + C["AWAY"] // (C["AWAY"] // 2))
    assert "later" == x.visit(names[near], 1)[0]
    assert "ok" == x.visit(names[near - 1], 1)[0]


def test_deliveries_of_jobs_and_dropped_copies_are_counted(x: Visited) -> None:
    fence = x.visit("a", token="t")[1]
    x.visit("a")
    x.release("t", fence, place="a")
    x.visit("a")
    assert (3, 1) == (x.counted("v"), x.counted("d"))


def test_copy_seen_before_the_job_ran_is_dropped_after_the_job(x: Visited) -> None:
    fence = x.hold("h")
    x.visit("a")
    x.visit("a")
    x.release("h", fence)
    fence = x.visit("a", 1, token="t")[1]
    x.release("t", fence, place="a")
    assert ["drop", "copy"] == x.visit("a")


# Shares


def test_max_waiters_counts_the_waiters_of_all_shares(x: Visited) -> None:
    both = {"limit": 2, "share_limit": 1, "share": "a"}
    x.hold("h", **both)
    x.wait("w", **both)
    assert ["no", "full"] == x.visit("a", max_waiters=1, **both)[:2]
    assert "ok" == x.visit("b", max_waiters=1, **{**both, "share": "b"})[0]


def test_jobs_of_a_share_do_not_exceed_its_limit(x: Visited) -> None:
    both = {"limit": 4, "share_limit": 2}
    granted = [x.visit(f"a{n}", share="a", **both)[0] for n in range(3)]
    assert ["ok", "ok", "later"] == granted
    assert "ok" == x.visit("b", share="b", **both)[0]


def test_job_of_a_free_share_does_not_wait_for_jobs_of_a_full_share(x: Visited) -> None:
    both = {"limit": 2, "share_limit": 1}
    assert "ok" == x.visit("a", share="a", **both)[0]
    for n in range(40):
        assert "later" == x.visit(f"a{n:02}", share="a", **both)[0]
    assert "ok" == x.visit("b", share="b", **both)[0]


def test_rank_of_a_job_counts_the_turns_of_shares(x: Visited) -> None:
    x.hold("h")
    ranks = [x.visit(place, share=place[0])[4] for place in ("a1", "a2", "b1", "b2", "b3")]
    assert ["0", "1", "0", "2", "4"] == ranks


def test_released_job_of_a_share_leaves_no_data(x: Visited) -> None:
    fence = x.hold("h")
    x.visit("a", share="s", share_limit=1)
    x.release("h", fence)
    fence = x.visit("a", 1, token="t", share="s", share_limit=1)[1]
    x.release("t", fence, place="a")
    assert 0 == x.raw.exists(*(x.key(part) for part in ("places", "placed", "due")))


# Operators


def test_inspect_lists_jobs_that_are_away_as_waiters(x: Visited) -> None:
    x.hold("h")
    x.wait("w")
    ticket = x.visit("a")[3]
    x.visit("b")
    *_, waiting, _, rows = x.run("inspect")
    assert (3, [b"w", b"a", b"b"]) == (waiting, rows[::4])
    assert [ticket.encode()] == rows[5:6]
    *_, waiting, _, rows = x.run("inspect", max_rows=2)
    assert (3, [b"w", b"a"]) == (waiting, rows[::4])


def test_cleared_job_is_dropped_at_its_next_delivery(x: Visited) -> None:
    x.hold("h")
    x.away("a", "b")
    assert ["ok"] == x.run("clear", "a")
    assert ["b"] == x.places()
    assert ["drop", "cleared"] == x.visit("a", 1)
    assert ["gone"] == x.run("clear", "a")
