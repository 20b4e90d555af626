"""Shares in the scripts: both limits, turns between shares, order in a share, no idle permit.

Random calls on the model's Redis (`test_model` compares it with a real one). The expected outcome
of each step follows from the requests, not from what the scripts store about shares.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import keys_of
from tests.model.redis import ScriptError, Store, compiled
from tests.support.workload import DEFAULTS, argv_of

KEYS = keys_of("shares", "n")
START = 1_700_000_000_000_000
C = scripts.CONSTANTS


class Name:
    """A name with shares. `asked`: the request of each token, with the request's number."""

    def __init__(self, limit: int, lua: Mapping[str, str] = {}) -> None:
        self.verbs, self.frozen, self.micros = compiled(tuple(lua.items())), (), START
        self.limit, self.full, self.paused, self.number = limit, False, False, 0
        self.asked: dict[str, dict[str, Any]] = {}
        self.trail: list[Any] = []

    def run(self, verb: str, **args: Any) -> Any:
        store = Store(self.frozen, self.micros, self.full)
        argv = argv_of(verb, {**DEFAULTS, **args})
        try:
            reply = self.verbs.run(store, verb, KEYS.declared, argv)
        except ScriptError as error:
            assert "OOM" in str(error), f"{verb} {args}: {error}"
            reply = ["OOM"]
        self.frozen = store.freeze()
        self.micros += 10
        self.trail.append((verb, args, reply))
        return reply

    def ask(self, share: str, bound: int, permits: int = 1, **args: Any) -> tuple[str, Any]:
        """Send the request of a new caller. Return its token and the reply."""
        self.number += 1
        token = f"t{self.number}"
        self.asked[token] = {
            "share": share,
            "bound": bound or 10**9,
            "permits": permits,
            "number": self.number,
        }
        args = {"how": "wait", "lease": 60_000, "limit": self.limit, **args}
        args |= {"share": share, "share_limit": bound, "permits": permits}
        return token, self.run("acquire", token=token, **args)

    def again(self, token: str, **args: Any) -> Any:
        return self.run("acquire", token=token, how="again", limit=self.limit, **args)

    def release(self, token: str, how: str = "release", **args: Any) -> Any:
        fence = self.info().get(token, "- 0").split(" ")[1]
        return self.run("release", token=token, fence=fence, how=how, **args)

    # The stored state

    def key(self, key: str) -> dict[str, Any]:
        return dict(next((items for name, _, items, _ in self.frozen if name == key), ()))

    def info(self) -> dict[str, str]:
        return self.key(KEYS.info)

    def queue(self) -> list[str]:
        return [t for t, _ in sorted(self.key(KEYS.queue).items(), key=lambda row: row[::-1])]

    def parked(self) -> list[str]:
        return [member.split(" ")[-1] for member in sorted(self.key(KEYS.parked))]

    def waiting(self) -> list[str]:
        """Return the tokens of the waiters, in order of arrival."""
        found = [t for t, text in self.info().items() if text.startswith("w ")]
        return sorted(found, key=lambda t: self.asked[t]["number"])

    def holding(self) -> dict[str, int]:
        """Return the permits of each lease by token, which has the prefix k during `min_hold`."""
        held = ((t, self.asked.get(t) or self.asked[t[1:]]) for t in self.key(KEYS.leases))
        return {t: request["permits"] for t, request in held}

    def use(self) -> Counter[str]:
        """Return the permits in use by share."""
        used = Counter[str]()
        for token, permits in self.holding().items():
            used[(self.asked.get(token) or self.asked[token[1:]])["share"]] += permits
        return used

    def dead(self, token: str) -> bool:
        return self.key(KEYS.waiters).get(token, 0) <= self.micros // 1000


class RandomRun:
    """Random calls on one name, each followed by `check`."""

    def __init__(self, chance: random.Random, lua: Mapping[str, str] = {}) -> None:
        self.chance = chance
        self.name = Name(chance.randint(1, 6), lua)
        self.shares = {f"s {i}": chance.randint(1, 4) for i in range(chance.randint(1, 5))}
        self.shares["a%20b"] = 0  # without a limit
        self.shares[""] = 2
        self.sized = chance.random() < 0.3
        self.entered: dict[str, int] = {}  # by queued share: the turn after which it was queued
        self.got: dict[str, int] = {}  # by share: its latest turn
        self.steps = self.turn = 0
        self.words: set[str] = set()

    def step(self) -> None:
        chance, name = self.chance, self.name
        self.steps += 1
        name.micros += chance.choice([0, 0, 1, 700, 5000])
        before = name.holding(), name.queue(), name.use(), name.waiting()
        work = "ask release expire leave again die resize rebound shadow pause clear back"
        weights = [9, 5, 1, 1.5, 3, 0.5, 0.2, 0.3, 0.3, 0.2, 0.3, 0.2]
        what = chance.choices(work.split(), weights)[0]
        token, word = getattr(self, what)()
        self.words.add(word)
        self.check(what, token, word, *before)

    # The calls

    def ask(self, **args: Any) -> tuple[str, str]:
        chance, name = self.chance, self.name
        share = chance.choice([*self.shares])
        bound = self.shares[share]
        permits = chance.randint(1, min(2, bound or 2, name.limit)) if self.sized else 1
        how = {"how": chance.choice(["wait", "wait", "wait", "try"]), **args}
        channel = chance.choice(["-", "loop"])
        token, reply = name.ask(share, bound, permits, channel=channel, **how)
        return token, " ".join(reply[:2] if reply[0] == "no" else [reply[0], *reply[4:]])

    def shadow(self) -> tuple[str, str]:
        return self.ask(how="shadow")

    def release(self) -> tuple[str, str]:
        held = [t for t in self.name.holding() if t[0] != "k"]
        if not held:
            return "", ""
        token = self.chance.choice(held)
        hold = self.chance.choice([0, 0, 0, 30_000])
        return token, self.name.release(token, hold=hold)[0]

    def expire(self) -> tuple[str, str]:
        """Let the first lease expire while all waiters send heartbeats."""
        ends = sorted(self.name.key(KEYS.leases).values())
        if not ends or ends[0] == float("inf"):
            return "", ""
        self.heartbeat()
        self.name.micros = max(self.name.micros, int(ends[0]) * 1000)
        self.heartbeat()
        self.name.run("operate", how="poke")
        return "", "poke"

    def heartbeat(self) -> None:
        for token in self.name.waiting():
            self.name.again(token)

    def leave(self) -> tuple[str, str]:
        tokens = self.name.waiting()
        if not tokens:
            return "", ""
        token = self.chance.choice(tokens)
        return token, self.name.release(token, self.chance.choice(["undo", "giveup"]))[0]

    def again(self) -> tuple[str, str]:
        tokens = self.name.waiting()
        if not tokens:
            return "", ""
        token = self.chance.choice(tokens)
        return token, self.name.again(token)[0]

    def die(self) -> tuple[str, str]:
        """Let up to 3 waiters die. The others send heartbeats until the dead ones are removed."""
        tokens = self.name.waiting()
        dead = set(self.chance.sample(tokens, min(len(tokens), 3)))
        for _ in range(7):
            self.name.micros += 1_000_000
            for token in self.name.waiting():
                if token not in dead:
                    self.name.again(token)
        self.name.run("operate", how="poke")
        return "", "died"

    def resize(self) -> tuple[str, str]:
        self.name.limit = self.chance.randint(1, 6)
        self.name.run("operate", how="resize", value=self.name.limit)
        return "", "resized"

    def rebound(self) -> tuple[str, str]:
        share = self.chance.choice([*self.shares])
        self.shares[share] = self.chance.randint(1 if share == "" else 0, 4)
        return "", ""

    def pause(self) -> tuple[str, str]:
        self.name.paused = not self.name.paused
        self.name.run("operate", how="pause" if self.name.paused else "resume")
        return "", "paused"

    def clear(self) -> tuple[str, str]:
        tokens = [*self.name.waiting(), *self.name.holding()]
        token = self.chance.choice(tokens) if tokens else ""
        if token:
            self.name.run("clear", token=token)
        return token, "cleared"

    def back(self) -> tuple[str, str]:
        self.name.micros -= 3000
        return "", "back"

    # The checks

    def check(
        self,
        what: str,
        asked: str,
        word: str,
        held_before: dict[str, int],
        queue_before: list[str],
        use_before: Counter[str],
        waiting_before: list[str],
    ) -> None:
        name = self.name
        info, queue, parked = name.info(), name.queue(), name.parked()
        waiting, use = name.waiting(), name.use()
        of = name.asked
        assert sorted(queue + parked) == sorted(waiting), f"{queue} {parked} {waiting}"
        ring = [of[t]["share"] for t in queue]
        assert len(set(ring)) == len(ring), "two waiters of one share are in the queue"
        if what in ("die", "expire"):  # many scripts, with turns in between
            self.entered.clear()
        # Grants, in order.
        used = 0 if what in ("release", "clear", "expire", "die") else sum(held_before.values())
        fresh = [t for t in name.holding() if t not in held_before and t[0] != "k"]
        fresh.sort(key=lambda t: int(info[t].split(" ")[1]))
        shadow = what == "shadow" and asked in fresh
        for t in fresh:
            share = of[t]["share"]
            assert not name.paused or shadow, "granted while paused"
            if t == asked and t not in waiting_before:
                if not shadow:
                    assert not set(queue_before) & set(queue), "a newcomer overtook the queue"
                    own = [w for w in waiting_before if of[w]["share"] == share and w in waiting]
                    assert not own, "a newcomer overtook its share"
                continue
            earlier = [w for w in waiting if of[w]["share"] == share and w != t]
            assert all(of[w]["number"] > of[t]["number"] or name.dead(w) for w in earlier), "order"
            self.turn += 1
            for other, since in self.entered.items():
                if other != share and other in ring and since < self.got.get(share, 0):
                    newest = self.got.get(other, 0)
                    assert newest > self.got[share], f"{share} had two turns while {other} waited"
            self.got[share] = self.turn
        if fresh and not shadow:
            assert sum(name.holding().values()) <= max(name.limit, used), "above the limit"
        for t in () if shadow else fresh:
            share = of[t]["share"]
            most = max(of[t]["bound"], 0)
            others = [o for o in fresh if of[o]["share"] == share and o != t]
            assert use[share] <= most or others or use[share] <= use_before[share], "share_limit"
        # If the first waiter of a share fits below share_limit, it is in the queue. The head of the
        # queue does not fit.
        for share in {of[t]["share"] for t in waiting}:
            first = next(t for t in waiting if of[t]["share"] == share)
            fits = use[share] + of[first]["permits"] <= of[first]["bound"]
            if fits:
                assert share in ring, f"{share} could take a permit but is not in the queue"
            if share in ring:
                assert queue[ring.index(share)] == first, (
                    "another waiter than the first of its share is in the queue"
                )
        if queue and not name.paused:
            head = of[queue[0]]
            free = sum(name.holding().values()) + head["permits"] <= name.limit
            fits = use[head["share"]] + head["permits"] <= head["bound"]
            assert what in ("rebound", "back", "") or not (free and fits), "a permit is idle"
        # The stored fields of shares.
        stored = {k[1:]: v.split(" ") for k, v in info.items() if k.startswith("/")}
        busy = {s.replace("%", "%25").replace(" ", "%20") for s in {*use, *ring}}
        assert set(stored) == busy, f"{stored} {busy}"
        for share in {*use, *ring}:
            since, held, first = stored[share.replace("%", "%25").replace(" ", "%20")]
            assert int(held) * (since == info["#shares"]) == use[share], f"{share}: {held} {use}"
            assert first == (queue[ring.index(share)] if share in ring else ""), "first"
        expiries = {key: expiry for key, *_, expiry in name.frozen if key != KEYS.stats}
        if parked:
            assert expiries[KEYS.parked] == expiries[KEYS.info], "the parked key does not expire"
        for share in [*self.entered]:
            if share not in ring:
                del self.entered[share]
        for share in ring:
            self.entered.setdefault(share, self.turn)

    def finish(self) -> None:
        """Clear all waiters and holders, and check that no data of a share is left."""
        name = self.name
        if name.paused:
            self.pause()
        while name.waiting() or name.holding():
            for token in [*name.waiting(), *name.holding()]:
                name.run("clear", token=token)
        left = [field for field in name.info() if field.startswith("/")]
        assert not left and not name.key(KEYS.parked) and not name.key(KEYS.queue)


def random_runs(seeds: range, steps: int, lua: Mapping[str, str] = {}) -> set[str]:
    words = set[str]()
    for seed in seeds:
        one = RandomRun(random.Random(seed), lua)
        try:
            for _ in range(steps):
                one.step()
            one.finish()
        except AssertionError as error:
            trail = "\n".join(map(str, one.name.trail[-12:]))
            raise AssertionError(f"seed {seed}, step {one.steps}: {error}\n{trail}") from error
        words |= one.words
    return words


@pytest.mark.promise(1)
@pytest.mark.promise(2)
@pytest.mark.parametrize("part", range(4))
def test_random_runs_keep_both_limits_and_leave_no_permit_idle(part: int) -> None:
    words = random_runs(range(part * 15, part * 15 + 15), 200)
    assert words >= {"ok", "wait", "no full", "no share", "resized", "paused"}


#: The seeds with which a rare defect is found.
SEEDS = {"a newcomer overtakes the parked waiters of its share": range(61, 62)}

DEFECTS = {
    "the limit of the share is not checked on entry": {
        "local fitting, last = share_fits(held, permits, bound), nil": (
            "local fitting, last = true, nil"
        )
    },
    "a head above its limit is not parked": {"    elseif over then\n": "    elseif false then\n"},
    "the next of a share goes to the head of the queue": {
        "first = call_up(name, share, held, false)\n  end": (
            "first = call_up(name, share, held, '1')\n  end"
        )
    },
    "a release calls up no waiter of its share": {
        "first = call_up(name, share, held, ticket)": "first = ''"
    },
    "a newcomer overtakes the parked waiters of its share": {
        "free and fitting and queued == 0 and not last": "free and fitting and queued == 0"
    },
    "a newcomer overtakes the queue": {
        "free and fitting and queued == 0 and not last": "free and fitting and not last"
    },
    "all waiters of a share enter the queue": {
        "if fitting and first == '' and not last then": "if fitting then"
    },
    "a waiter enters the queue before earlier waiters of its share": {
        "if fitting and first == '' and not last then": "if fitting and first == '' then"
    },
    "the data of an idle share stays": {"if held == 0 and first == '' then": "if false then"},
    "a released lease still counts for its share": {
        "held = math.max(0, held - weight(": "held = math.max(0, held - 0 * weight("
    },
    "two permits count as one": {"held = held + weight(permits)\n": "held = held + 1\n"},
    "the parked key does not expire": {"      set_expiry(name, PARKED, expiry)\n": ""},
    "the reply names the wrong limit": {
        "return answer_no(name, 'share '": "return answer_no(name, 'full '"
    },
    "a parked waiter that leaves is not removed": {
        "redis.call('ZREM', PARKED, parked_as(share, arrival or 0, t))": "local _ = arrival"
    },
}


@pytest.mark.promise(1)
@pytest.mark.parametrize("name", DEFECTS)
def test_random_runs_find_the_defect(name: str) -> None:
    with pytest.raises(AssertionError, match=r"seed|words"):
        words = random_runs(SEEDS.get(name, range(40)), 200, DEFECTS[name])
        assert "no share" in words, "words"


@pytest.mark.promise(22)
def test_shadow_mode_returns_the_limit_that_would_have_rejected() -> None:
    name = Name(2)
    assert ["ok"] == name.ask("a", 1, how="shadow")[1][:1]
    assert "share" == name.ask("a", 1, how="shadow")[1][-1]
    assert "full" == name.ask("b", 1, how="shadow")[1][-1]
    name.run("operate", how="pause")
    assert "paused" == name.ask("a", 1, how="shadow")[1][-1]


def places(name: Name) -> tuple[list[str], list[str]]:
    return name.queue(), name.parked()


def queue_and_park(name: Name) -> None:
    """Grant t1 and t2. Queue t5, and park t3, t4, and t6 behind their shares."""
    for share in ("a", "b", "a", "a", "b", "b"):
        name.ask(share, 1 if share == "a" else 2)


@pytest.mark.promise(4)
@pytest.mark.parametrize("part", ["queue", "parked", "leases", "info"])
def test_waiters_that_ask_again_repair_a_lost_key(part: str) -> None:
    name = Name(2)
    queue_and_park(name)
    assert (["t5"], ["t3", "t4", "t6"]) == places(name)
    lost = getattr(KEYS, part)
    name.frozen = tuple(row for row in name.frozen if row[0] != lost)
    got, tokens = set[str](), {f"t{n}": n for n in range(3, 7)}
    for _ in range(200):
        name.micros += 500_000
        for token, of in list(tokens.items()):
            how = "again" if token in name.info() else "wait"
            share, bound = name.asked[f"t{of}"]["share"], name.asked[f"t{of}"]["bound"]
            if token in name.key(KEYS.leases):
                got.add(f"t{of}")
                name.release(token)
                del tokens[token]
                continue
            asking = {"share": share, "share_limit": bound, "limit": 2, "lease": 2000}
            word = name.run("acquire", token=token, how=how, **asking)[0]
            if word == "gone":  # start over, as a client does
                del tokens[token]
                name.number += 1
                name.asked[f"t{name.number}"] = name.asked[f"t{of}"]
                tokens[f"t{name.number}"] = of
        for token in list(name.holding()):
            if token in ("t1", "t2"):
                name.release(token)
    assert {"t3", "t4", "t5", "t6"} == got
    assert not [field for field in name.info() if field.startswith("/")]


@pytest.mark.promise(14)
def test_only_newcomers_are_rejected_when_the_memory_is_full() -> None:
    name = Name(2)
    queue_and_park(name)
    name.full = True
    assert ["OOM"] == name.ask("c", 1)[1] == name.ask("a", 1)[1]
    for token in ("t3", "t5"):
        assert "wait" == name.again(token)[0]
    assert ["ok"] == name.release("t1")
    assert "t3" not in name.waiting() or "t5" not in name.waiting()
    assert ["ok"] == name.release("t2")
    assert {"t3", "t5"} == set(name.holding())


@pytest.mark.promise(14)
def test_heartbeat_repairs_a_share_when_the_memory_is_full() -> None:
    name = Name(2)
    for share in "abb":
        name.ask(share, 2)
    assert (["t3"], []) == places(name)
    name.frozen = tuple(row for row in name.frozen if row[0] != KEYS.queue)
    name.full = True
    assert ["gone"] == name.again("t3")


@pytest.mark.promise(1)
def test_max_waiters_counts_queued_and_parked_waiters() -> None:
    name = Name(1)
    for share in "aabb":
        name.ask(share, 1)
    assert ["no", "full", "3"] == name.ask("c", 1, max_waiters=3)[1][:3]
    assert "wait" == name.ask("c", 1, max_waiters=4)[1][0]


def test_wait_of_a_parked_waiter_counts_from_its_arrival() -> None:
    name = Name(1)
    name.ask("a", 1)
    waiters = [name.ask("b", 1, keep=60)[0] for _ in range(2)]
    assert [waiters[1]] == name.parked()
    for _ in range(4):
        name.micros += 500_000
        for token in waiters:
            name.again(token, keep=60)
    name.release("t1", keep=60)
    for token in waiters:
        assert "ok" == name.again(token, keep=60)[0]
        name.release(token, keep=60)
    fields = name.key(KEYS.stats).items()
    waits = [int(n) for field, n in fields if field.endswith(":w")]
    count, ms = divmod(sum(waits), C["PAIR"])
    assert (2, True) == (count, 4000 <= ms < 4200)


@pytest.mark.promise(1)
def test_request_without_a_share_waits_in_the_common_share() -> None:
    name = Name(2)
    name.ask("a", 1)
    name.ask("a", 1)
    assert "ok" == name.ask("", 0)[1][0]
    assert "wait" == name.ask("", 0)[1][0] == name.ask("", 0)[1][0]
    assert (["t4"], ["t5", "t2"]) == places(name)


# The number of commands of a script


class _Counting(Store):
    """Counts the commands that it runs."""

    ran = 0

    def call(self, *args: Any) -> Any:
        self.ran += 1
        return super().call(*args)


def crowded_name(waiters: int, shares: int) -> Name:
    """Return a name whose shares each hold their one permit and have parked waiters. The state is
    written directly, because scripts are slow on the model's Redis."""
    name = Name(shares)
    for number in range(shares):
        name.ask(f"s{number}", 1)
    rank, info = [], dict(name.info())
    for number in range(waiters):
        token, share = f"w{number}", f"s{number % shares}"
        terms = f"1 {shares} - /1/{share} "
        info[token] = f"w {name.micros + number} 60000 {terms}"
        rank.append((f"{share} {name.micros + number:016d} {token}", 0.0))
        name.asked[token] = {"share": share, "bound": 1, "permits": 1, "number": 10**6 + number}
    far = name.micros // 1000 + 10**6
    alive = tuple((f"w{number}", float(far)) for number in range(waiters))
    frozen = [row for row in name.frozen if row[0] != KEYS.info]
    frozen += [(KEYS.info, "h", tuple(info.items()), far), (KEYS.parked, "z", tuple(rank), far)]
    frozen += [(KEYS.waiters, "z", alive, far)]
    name.frozen, name.micros = tuple(sorted(frozen)), name.micros + waiters + 10
    return name


def command_count(name: Name, verb: str, **args: Any) -> int:
    """Return how many commands a script runs. Discard its changes."""
    store = _Counting(name.frozen, name.micros)
    name.verbs.run(store, verb, KEYS.declared, argv_of(verb, {**DEFAULTS, **args}))
    return store.ran


@pytest.mark.promise(31)
@pytest.mark.parametrize(("waiters", "shares"), [(100, 10), (1000, 10), (10_000, 1000)])
def test_command_count_does_not_grow_with_waiters_and_shares(waiters: int, shares: int) -> None:
    name = crowded_name(waiters, shares)
    asking = {"how": "wait", "lease": 60_000, "limit": shares, "share_limit": 1}
    fence = name.info()["t2"].split(" ")[1]
    work = [
        command_count(name, "acquire", token="new", share="new", **asking),
        command_count(name, "acquire", token="new", share="s1", **asking),
        command_count(name, "acquire", token="new", share="s1", **asking | {"how": "try"}),
        command_count(name, "acquire", token=f"w{waiters - 1}", **asking | {"how": "again"}),
        command_count(name, "release", token="t2", how="release", fence=fence),
    ]
    assert all(n <= most for n, most in zip(work, (21, 19, 13, 14, 36), strict=True)), work
    name.release("t1", hold=0)
    assert "w0" in name.holding()
