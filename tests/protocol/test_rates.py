"""The log of a rate, on a server whose clock the tests set: never more than N in any period, nearly
all of them used, and waiters that come when the rate opens."""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from typing import Any

import pytest

from django_redis_sync.engine.rates import RateLog
from django_redis_sync.protocol.keys import keys_of
from tests.support.workload import ModelServer, call

pytestmark = pytest.mark.promise(35)

KEYS = keys_of("t", "paced")
MINUTE = 60_000_000


class Paced:
    """Callers of a name with a rate. `granted`: the time in µs and the permits of each grant."""

    def __init__(self, rate: str, limit: int = 10**6, lua: Any = ()) -> None:
        self.server, self.said = ModelServer(dict(lua)), {"rate": rate, "limit": limit}
        self.granted, self.tokens = list[tuple[int, int]](), count(1)

    def at(self, micros: int) -> Paced:
        """Set the clock to so many µs after its start."""
        self.server.micros = 1_700_000_000_000_000 + micros
        return self

    @property
    def now(self) -> int:
        return self.server.micros - 1_700_000_000_000_000

    def ask(self, how: str = "try", token: str = "", permits: int = 1, **said: Any) -> list[str]:
        token = token or f"{next(self.tokens):032x}"
        said = {**self.said, "how": how, "permits": permits, **said}
        reply: list[str] = self.server.run(call("acquire", KEYS, token, **said))
        return [*reply, token]

    def take(self, permits: int = 1) -> tuple[str, str] | None:
        """Acquire and release at once. Return the token and the fence, or None."""
        word, *rest = self.ask(permits=permits)
        if word != "ok":
            return None
        self.granted.append((self.now, permits))
        self.end(rest[-1], rest[0])
        return rest[-1], rest[0]

    def end(self, token: str, fence: str = "0", how: str = "release") -> list[str]:
        reply: list[str] = self.server.run(call("release", KEYS, token, fence=fence, how=how))
        return reply

    def most_in(self, period: int) -> int:
        """Return the most permits that were granted in any period."""
        window, most, total = deque[tuple[int, int]](), 0, 0
        for at, permits in self.granted:
            window.append((at, permits))
            total += permits
            while window[0][0] <= at - period:
                total -= window.popleft()[1]
            most = max(most, total)
        return most


@pytest.mark.parametrize("most", [1, 7, 100, 150])
@pytest.mark.parametrize("spread", [True, False], ids=["spread", "random"])
def test_no_period_has_more_grants_than_the_rate_and_nearly_all_are_used(most, spread) -> None:
    paced, rng = Paced(f"{most}/60000"), random.Random(most)
    step = MINUTE // most
    while paced.now < 3 * MINUTE:
        paced.take(1 if most < 7 else rng.choice((1, 1, 1, 2)))
        paced.at(paced.now + (step // 2 if spread else int(rng.expovariate(2 / step)) + 1))
    assert paced.most_in(MINUTE) <= most
    used = sum(permits for at, permits in paced.granted if at < 2 * MINUTE)
    assert used >= 2 * most * (0.98 if most > 7 else 0.75), "callers asked twice as often"
    assert len(paced.server.contents(KEYS, KEYS.info)["#log"]) <= 16 + 200 * 12


def test_grants_that_follow_each_other_closely_leave_the_period_at_most_a_hundredth_late() -> None:
    paced = Paced("1000/60000")
    for n in range(1000):
        paced.at(n * 30_000)
        assert paced.take() is not None
    assert paced.at(MINUTE - 1).take() is None
    later = 0
    while paced.at(MINUTE + later).take() is None:
        later += 50_000
    assert later <= MINUTE // 100 + 30_000


def test_all_permits_may_come_at_once_and_the_next_after_exactly_one_period() -> None:
    paced = Paced("300/60000").at(5)
    assert [paced.take() is not None for _ in range(301)] == [True] * 300 + [False]
    assert paced.at(MINUTE + 4).take() is None
    assert all(paced.at(MINUTE + 5).take() for _ in range(300))


def test_a_rejected_caller_learns_exactly_when_the_rate_opens() -> None:
    paced = Paced("2/60000")
    paced.at(0).take()
    paced.at(10_000_000).take()
    word, reason, waiting, _, _, opens, _ = paced.at(15_000_000).ask()
    assert (word, reason, waiting, opens) == ("no", "rate", "0", "45000")
    assert paced.at(15_000_000 + int(opens) * 1000 - 2000).ask()[:2] == ["no", "rate"]
    assert paced.at(15_000_000 + int(opens) * 1000).take()


def test_a_rejected_caller_learns_when_the_rate_opens_after_those_that_wait() -> None:
    paced = Paced("3/600")
    for at in (0, 100_000, 200_000):
        assert paced.at(at).take()
    opens = []
    for _ in range(3):
        word, reason, waiting, _, _, after, _ = paced.at(300_000).ask()
        opens.append((word, reason, waiting, after))
        waiter = paced.ask("wait")[-1]
    assert [("no", "rate", f"{n}", f"{300 + 100 * n}") for n in range(3)] == opens
    paced.end(waiter, how="undo")
    assert "500" == paced.ask()[5], "a waiter that has left still counts"


def test_each_waiter_comes_when_the_rate_opens_for_it_and_its_predecessors() -> None:
    paced = Paced("3/600")
    for at in (0, 100_000, 200_000):
        assert paced.at(at).take()
    paced.at(300_000)
    waits = [paced.ask("wait") for _ in range(3)]
    assert [(word, delay, rank, exact) for word, _, delay, rank, exact, _ in waits] == [
        ("wait", "300", "0", "rate"), ("wait", "400", "1", "rate"), ("wait", "500", "2", "rate"),
    ]  # fmt: skip
    for at, (*_, token) in zip((600_000, 700_000, 800_000), waits, strict=True):
        assert paced.at(at - 1000).ask("again", token)[0] == "wait"
        assert paced.at(at).ask("again", token)[0] == "ok"


def test_a_waiter_for_several_permits_comes_when_all_are_open() -> None:
    paced = Paced("3/600")
    for at in (0, 100_000, 200_000):
        assert paced.at(at).take()
    _, _, delay, _, exact, token = paced.at(300_000).ask("wait", permits=2)
    assert (delay, exact) == ("400", "rate")
    assert paced.at(700_000).ask("again", token, permits=2)[0] == "ok"


def test_a_newcomer_does_not_pass_a_waiter_and_serves_it() -> None:
    paced = Paced("1/600")
    paced.at(0).take()
    *_, first = paced.at(1000).ask("wait")
    assert paced.at(700_000).ask()[0] == "no"
    assert paced.ask("again", first)[0] == "ok", "the newcomer's call has granted the permit"


def test_a_head_that_leaves_passes_its_time_on() -> None:
    paced = Paced("2/1000")
    paced.at(0).take()
    paced.at(600_000).take()
    *_, first = paced.at(800_000).ask("wait")
    *_, second = paced.ask("wait")
    paced.at(850_000).end(first, how="giveup")
    pops = paced.server.run(call("pop", KEYS, second))
    assert pops and pops.startswith("0 "), "the new first waiter was told to ask again"
    _, _, delay, rank, exact, _ = paced.ask("again", second)
    assert (delay, rank, exact) == ("150", "0", "rate")


def test_an_undone_grant_is_given_back_once_if_it_is_the_last() -> None:
    paced = Paced("2/60000")
    tokens = [paced.at(at).ask("wait")[-1] for at in (0, 1000)]
    paced.end(tokens[0], how="undo")
    assert paced.ask()[:2] == ["no", "rate"], "the log can't tell where an older grant was"
    paced.end(tokens[1], how="undo")
    paced.end(tokens[1], how="undo")
    assert [paced.take() is not None for _ in range(2)] == [True, False]


def test_a_repeated_request_and_a_renewal_spend_nothing() -> None:
    paced = Paced("2/60000")
    word, fence, *_, token = paced.ask("wait")
    assert paced.ask("wait", token)[:2] == [word, fence] == ["ok", fence]
    paced.server.run(call("renew", KEYS, token, fence=fence, how="set", ms=9000, nth=1))
    assert paced.take() and not paced.take()


def test_log_of_a_process_opens_when_enough_grants_are_one_period_old() -> None:
    """Processes without Redis have this log. It agrees with that in Redis."""
    log, rate = RateLog(), (4, 10.0)
    for now in (0.0, 1.0, 2.0):
        assert log.opens(rate, 2, now) == 0
        log.spend(rate, 1, now)
    log.spend(rate, 1, 2.0)
    assert [log.opens(rate, permits, 3.0) for permits in (1, 2, 3, 4)] == [7, 8, 9, 9]
    assert (log.used(rate, 10.5), log.opens(rate, 1, 10.5), log.opens(rate, 2, 10.5)) == (3, 0, 0.5)
    assert (log.used(rate, 12.0), log.opens(rate, 4, 12.0)) == (0, 0), "all left the log at once"


def test_a_clock_that_is_set_back_blocks_for_one_period_at_most() -> None:
    paced = Paced("2/60000").at(3600_000_000)
    assert paced.take() and paced.take()
    assert paced.at(0).take() is None
    assert paced.at(59_000_000).take() is None
    assert paced.at(60_000_000).take() and paced.take() and not paced.take()


def test_the_log_outlives_the_leases() -> None:
    paced = Paced("1/600000")
    paced.take()
    assert paced.at(599_999_000).take() is None
    assert paced.at(600_000_000).take()
    paced.at(600_000_000 + 600_000_000 + 11_000_000)
    assert paced.server.left_keys() == [], "all keys expire"


def test_a_rate_also_applies_to_callers_that_give_none_for_one_period() -> None:
    paced = Paced("1/60000")
    paced.take()
    assert paced.at(30_000_000).ask(rate="")[:2] == ["no", "rate"]
    assert paced.at(59_000_000).ask(rate="")[:2] == ["no", "rate"]
    assert paced.at(200_000_000).ask(rate="")[0] == "ok"
    assert paced.ask(rate="")[0] == "ok"


def test_of_several_cool_downs_the_longest_counts_and_no_pause_ends() -> None:
    paced = Paced("", limit=5)
    cool = lambda ms: paced.server.run(call("operate", KEYS, how="cool", value=f"{ms} {{}}"))  # noqa: E731
    for ms in (30_000, 10_000):
        cool(ms)
    assert paced.at(11_000_000).ask()[:6:5] == ["no", "19000"]
    _, _, delay, _, exact, token = paced.at(29_500_000).ask("wait")
    assert exact == "rate" and 500 <= int(delay) <= 501
    assert paced.at(29_500_000 + int(delay) * 1000).ask("again", token)[0] == "ok"
    paced.server.run(call("operate", KEYS, how="pause", value=""))
    cool(1000)
    assert paced.ask()[:2] == ["no", "paused"], "the pause lasts longer than the cool-down"
    assert paced.at(40_000_000).ask()[:2] == ["no", "paused"]
    paced.server.run(call("operate", KEYS, how="resume"))
    assert paced.ask()[0] == "ok"


def test_an_operators_rate_applies_until_it_is_reset() -> None:
    paced = Paced("5/60000")
    paced.server.run(call("operate", KEYS, how="resize", value="1/60000"))
    assert paced.take() and not paced.take()
    assert paced.ask(permits=2)[:2] == ["large", "1"]
    paced.server.run(call("operate", KEYS, how="reset"))
    assert paced.take() and paced.take()


@pytest.mark.parametrize("of", ["name", "policy"])
def test_the_callers_rate_applies_to_waiters_as_soon_as_the_operators_rate_is_reset(of) -> None:
    """Without a rate, the reset would grant permits to all waiters at once."""
    paced, overrides = Paced("3/60000"), "-" if of == "name" else "0 0/1/60000"
    if of == "name":
        paced.server.run(call("operate", KEYS, how="resize", value="1/60000"))
    waits = [paced.ask("wait", overrides=overrides) for _ in range(5)]
    assert [one[0] for one in waits] == ["ok"] + ["wait"] * 4
    paced.server.run(call("operate", KEYS, how="reset" if of == "name" else "poke"))
    again = [paced.ask("again", one[-1]) for one in waits]
    assert [one[0] for one in again] == ["ok"] * 3 + ["wait"] * 2


def test_a_rate_of_the_policy_replaces_that_of_the_callers_but_not_that_of_the_key() -> None:
    paced, overrides = Paced("5/60000"), "0 0/2/60000"

    def used() -> tuple[str, str]:
        reply = paced.server.run(call("inspect", KEYS, overrides=overrides))
        return reply[15], reply[16]

    assert used() == ("2/60000 policy", "0"), "a key that was never used"
    assert [paced.ask(overrides=overrides)[0] for _ in range(3)] == ["ok", "ok", "no"]
    assert used() == ("2/60000 policy", "2")
    assert paced.ask(overrides="0 7/2/60000", permits=3)[:2] == ["large", "2"]
    paced.server.run(call("operate", KEYS, how="resize", value="3/60000"))
    assert [paced.ask(overrides=overrides)[0] for _ in range(2)] == ["ok", "no"]
    assert used() == ("3/60000 op", "3")
    paced.server.run(call("operate", KEYS, how="reset"))
    assert [paced.ask()[0] for _ in range(3)] == ["ok", "ok", "no"], "the rate of the callers"


def test_the_log_of_a_rate_that_only_the_policy_has_outlives_the_leases() -> None:
    paced, overrides = Paced(""), "0 0/1/600000"
    _, fence, *_, token = paced.ask(overrides=overrides)
    paced.end(token, fence)
    paced.server.run(call("operate", KEYS, how="pause", value=""))
    paced.server.run(call("operate", KEYS, how="resume", overrides=overrides))
    assert paced.at(599_999_000).ask(overrides=overrides)[:2] == ["no", "rate"]
    assert paced.at(601_000_000).ask(overrides=overrides)[0] == "ok"
