"""Shares in the scripts: rejections, requests without a share, lost keys, full memory, and cost.

`test_protocol_history` checks with random calls that `limit` and `share_limit` hold, that shares
take turns, and that no permit stays free while a waiter may have it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.test_scripts import C, Name
from tests.support.workload import Recording, call

LEASE = {"lease": 60_000}


class Shared(Name):
    """A name with shares. Each request gets a new token: t1, t2, …"""

    def __init__(self, limit: int) -> None:
        super().__init__(keep=5)
        self.limit, self.shares = limit, list[dict[str, Any]]()

    def request(self, share: str, bound: int, how: str = "wait", **said: Any) -> str:
        """Acquire with a new token. `bound`: the share_limit. `how`: "wait", "try", or "shadow"."""
        self.shares.append({"share": share, "share_limit": bound, "limit": self.limit})
        self.pass_time(0.01)
        return self.ask(f"t{len(self.shares)}", how, **LEASE, **self.shares[-1], **said)

    @property
    def places(self) -> str:
        """The waiters in the queue and, after a slash, the parked waiters. A waiter is parked if
        its share is full, or if another waiter of its share is in the queue."""
        parked = sorted(self.contents(self.keys, self.keys.parked))
        return (
            f"{self.state.partition('|')[2]} / {' '.join(m.split(' ')[2] for m in parked)}".strip()
        )


@pytest.fixture
def x() -> Shared:
    """A name with two holders: t1 and t2. t5 is in the queue, and t3, t4, and t6 are parked."""
    x = Shared(2)
    for share in "abaabb":
        x.request(share, 1 if share == "a" else 2)
    assert "t5 / t3 t4 t6" == x.places
    return x


@pytest.mark.promise(22, 32)
def test_rejection_reason_depends_on_which_limit_was_reached() -> None:
    x = Shared(2)
    assert "ok" == x.request("a", 1)[:2]
    assert "no share 0  1" == x.request("a", 1, "try")
    assert "share" == x.request("a", 1, "shadow").split(" ")[-1]
    assert "no full 0  2" == x.request("b", 1, "try")
    assert "full" == x.request("b", 1, "shadow").split(" ")[-1]
    x.wait("w", share="a", share_limit=1, limit=2)
    assert "no share 0  1" == x.end("w", "giveup")
    x.operate("pause")
    assert "no paused 0  1" == x.request("a", 1, "try")
    assert "paused" == x.request("a", 1, "shadow").split(" ")[-1]
    counted = {f[-1]: int(n) for f, n in x.stats.items()}
    assert (3, 4, 3) == (counted["b"], counted["n"], counted["s"])


@pytest.mark.promise(1, 32)
def test_parked_waiters_count_toward_max_waiters_like_queued_waiters(x: Shared) -> None:
    assert "no full 4" == x.request("c", 1, max_waiters=4)[:9]
    assert "wait" == x.request("c", 1, max_waiters=5)[:4]


@pytest.mark.promise(32)
def test_requests_without_a_share_are_queued_in_one_common_share() -> None:
    x = Shared(2)
    assert "ok" == x.request("a", 1)[:2]
    x.request("a", 1)
    assert "ok" == x.request("", 0)[:2]
    assert ["wait", "wait"] == [x.request("", 0)[:4] for _ in range(2)]
    assert "t4 / t5 t2" == x.places


@pytest.mark.promise(3, 32)
def test_parked_waiters_keep_their_order_if_the_clock_is_set_back() -> None:
    x = Shared(1)
    x.request("c", 1)
    x.pass_time(1000)
    for _ in range(3):
        x.request("a", 1)
        x.pass_time(-100)
    x.request("b", 1)
    assert "t2 t5 / t3 t4" == x.places, "t4 came last, although at an earlier time of the clock"


@pytest.mark.promise(12)
def test_all_keys_of_a_name_with_parked_waiters_expire_at_the_same_time(x: Shared) -> None:
    for nth in range(1, 51):
        x.pass_time(1500)
        for n in range(1, 7):
            token = f"t{n}"
            reply = x.renew(token, ms=60_000, nth=nth) if n < 3 else x.ask(token, "again")
            assert ("ok" if n < 3 else "wait") == reply.split()[0], (token, reply)
    expiries = {
        key.rpartition(":")[2]: expiry - x.now
        for rows in x.names.values()
        for key, _, _, expiry in rows
        if not key.endswith("stats")
    }
    assert {"info", "leases", "parked", "queue", "waiters"} <= expiries.keys()
    assert 1 == len({*expiries.values()}), expiries


@pytest.mark.promise(3, 32)
@pytest.mark.parametrize("how", ["giveup", "withdraw", "undo", "granted"])
def test_next_waiter_of_a_share_gets_the_place_of_a_waiter_that_left_without_a_permit(
    how: str,
) -> None:
    x = Shared(1)
    for share in "caabb":
        x.request(share, 1)
    assert "t2 t4 / t3 t5" == x.places
    if how == "granted":  # then it is the turn of the other share
        x.end("t1")
        x.ask("t2", "again")
        assert "t4 / t3 t5" == x.places, "t2 holds the only permit of its share"
        x.end("t2")
        assert "t3 / t5" == x.places
    else:
        x.end("t2", how)
        assert "t3 t4 / t5" == x.places
        x.end("t4", how)
        assert "t3 t5 /" == x.places


def test_wait_of_a_parked_waiter_is_counted_from_its_arrival() -> None:
    x = Shared(1)
    x.request("a", 1)
    x.request("b", 1)
    x.request("b", 1)
    assert "t2 / t3" == x.places
    for _ in range(4):
        x.pass_time(500)
        for token in ("t2", "t3"):
            x.ask(token, "again")
    for token in ("t1", "t2", "t3"):
        x.ask(token, "again")
        x.end(token)
    waits = [int(n) for field, n in x.stats.items() if field[-2:] == ":w"]
    assert [2 * C["PAIR"] + 4000] == waits


@pytest.mark.promise(4, 32)
@pytest.mark.parametrize("part", ["queue", "parked", "leases", "info"])
def test_lost_redis_key_is_repaired_by_the_next_requests_of_the_waiters(
    x: Shared, part: str
) -> None:
    x.lose(part)
    waiting, granted = {f"t{n}": x.shares[n - 1] for n in range(3, 7)}, set[str]()
    for turn in range(150):
        x.pass_time(500)
        for token in ("t1", "t2"):
            x.end(token)
        for token, share in list(waiting.items()):
            if token in x.leases(x.keys):
                x.fences[token] = x.field(token).split(" ")[1]
                x.end(token)
                granted.add(token[:2])
                del waiting[token]
                continue
            how = "again" if x.field(token) else "wait"
            if "gone" == x.ask(token, how, **share, lease=2000):  # start over, as a client does
                del waiting[token]
                waiting[f"{token[:2]}-{turn}"] = share
    assert {"t3", "t4", "t5", "t6"} == granted
    fields = x.contents(x.keys, x.keys.info)
    assert [] == [field for field in fields if field.startswith("/")], "a share has left data"


@pytest.mark.promise(14)
def test_heartbeat_is_answered_if_the_queue_was_lost_and_the_memory_is_full(x: Shared) -> None:
    assert ("ok", "ok") == (x.end("t1"), x.end("t2"))
    assert "t3 t5 | t6 / t4" == x.state.partition("|")[0] + "| " + x.places
    x.lose("queue")
    x.full = True
    assert "gone" == x.ask("t6", "again")


# The number of commands of a script


def crowded(waiters: int, shares: int) -> Shared:
    """Return a name with `shares` shares and `waiters` parked waiters. Each share is full: its
    only permit is in use. The function stores the waiters itself, because scripts are slow on the
    imitation of Redis."""
    x = Shared(shares)
    for number in range(shares):
        x.request(f"s{number}", 1)
    x.request("s0", 1)
    parked, info = {}, {}
    for number in range(waiters):
        share, came = f"s{number % shares}", x.micros + number
        info[f"w{number}"] = f"w {came} 60000 1 {shares} - /1/{share} "
        parked[f"{share} {came:016d} w{number}"] = 0.0
    x.change("info", **info)
    x.change("parked", **parked)
    x.change("waiters", **dict.fromkeys(info, float(x.now + 10**6)))
    x.pass_time(waiters / 1000 + 1)
    return x


def command_count(x: Shared, verb: str, token: str, **said: Any) -> int:
    """Return how many commands the script `verb` runs, and undo what it changed.

    `said`: the arguments of the script."""
    ran, before = list[Any](), x.names.copy()

    class Counting(Recording):
        def call(self, *args: Any) -> Any:
            ran.append(args)
            return super().call(*args)

    x.store = Counting
    x.run(call(verb, x.keys, token, **said))
    x.store, x.names = Recording, before
    return len(ran)


@pytest.mark.promise(31)
@pytest.mark.parametrize(("waiters", "shares"), [(100, 10), (3000, 300)])
def test_number_of_redis_commands_does_not_grow_with_waiters_or_shares(
    waiters: int, shares: int
) -> None:
    x = crowded(waiters, shares)
    asking = {**LEASE, "limit": shares, "share_limit": 1}
    work = [
        command_count(x, "acquire", "new", share="new", how="wait", **asking),
        command_count(x, "acquire", "new", share="s1", how="wait", **asking),
        command_count(x, "acquire", "new", share="s1", how="try", **asking),
        command_count(x, "acquire", f"w{waiters - 1}", how="again", **asking),
        command_count(x, "release", "t3", how="release", fence=x.fences["t3"]),
    ]
    assert all(n <= most for n, most in zip(work, (21, 19, 13, 14, 36), strict=True)), work
    x.end("t2")
    assert "w1" in x.leases(x.keys)
