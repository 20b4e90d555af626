"""Simulated clients that call the scripts directly, in random order.

The clients follow the protocol, including tombstones after an unanswered acquire. Everything else
goes wrong: replies are lost, copies arrive late, clients die, leases expire, operators interfere.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import redis
from django.conf import settings

from django_redis_sync.locks.lease_state import LocalExpiry
from django_redis_sync.protocol import plans, scripts
from django_redis_sync.protocol.keys import Keys, keys_of, share_terms

from .journal import Journal, wrap
from .planting import planted

#: Constants for leases of 30 to 100 ms.
FAST = {
    **scripts.CONSTANTS,
    "FIRST": 60,
    "CLAIM": 25,
    "HEARTBEAT": 15,
    "PATIENCE": 25,
    "ASLEEP": 80,
    "ALIVE": 40,
    "GRACE": 60,
}


#: The default values of arguments.
DEFAULTS: dict[str, Any] = {
    "mark": "-",
    "token": "",
    "lease": 1000,
    "permits": 1,
    "limit": 1,
    "kind": "p",
    "max_waiters": 10**9,
    "fair": 1,
    "channel": "-",
    "label": "",
    "keep": 0,
    "compact": 1,
    "tombstone": 0,
    "hold": 0,
    "place": "",
    "ticket": 0,
    "job": "",
    "fence": 0,
    "ms": 0,
    "nth": 0,
    "known": 0,
    "value": "",
    "max_rows": 100,
}


@cache
def arguments(verb: str) -> tuple[str, ...]:
    return scripts.header(scripts.read(verb), "ARGV")


def argv_of(verb: str, said: Mapping[str, Any], only: Collection[str] = ()) -> list[Any]:
    """Return the ARGV of a script from its arguments by name.

    An acquire composes `terms` and `wants` from their parts. `only`: names that must be arguments
    of the script."""
    names, parts = arguments(verb), set[str]()
    if "terms" in names:
        parts = {"permits", "limit", "channel", "label", "kind", "share", "share_limit"}
        if said.get("share") or said.get("share_limit"):
            share = share_terms(said.get("share") or "", said.get("share_limit") or 0)
            said = {**said, "label": f"{share} {said['label']}", "compact": 0}
        terms = "{permits} {limit} {channel} {label}".format_map(said)
        said = {"terms": terms, "wants": "{kind} {limit}".format_map(said), **said}
    unknown = set(only) - set(names) - parts
    assert not unknown, f"{verb} takes no {unknown}"
    return [said[name] for name in names]


def words(reply: Any) -> list[bytes]:
    """Return the words of a script's reply as bytes."""
    return reply.split(b" ") if isinstance(reply, bytes) else reply


class Call(NamedTuple):
    verb: str
    keys: tuple[str, ...]
    said: dict[str, Any]

    @property
    def argv(self) -> list[Any]:
        """The arguments in the order of the script's head."""
        return argv_of(self.verb, {**DEFAULTS, **self.said}, self.said)

    @property
    def asked(self) -> list[Any]:
        """The arguments of EVAL and EVALSHA after the script."""
        return [len(self.keys), *self.keys, *self.argv]

    def run_on(self, client: redis.Redis) -> Any:
        return client.eval(scripts.script(self.verb).source, *self.asked)


def call(verb: str, keys: Keys, token: str = "", **said: Any) -> Call:
    """Return a call of a script with its arguments by name."""
    return Call(verb, keys.declared, {"token": token, **said})


@dataclass
class Kind:
    """A name, and the options of its requests."""

    keys: Keys
    limit: int
    permits: tuple[int, ...]
    kind: str = "p"
    shares: tuple[str, ...] = ()


@dataclass
class Client:
    kind: Kind
    rng: random.Random
    token: str = ""
    ask: dict[str, Any] = field(default_factory=dict)
    state: str = "idle"  # asking, waiting, holding, ending
    fence: str = "0"
    nth: int = 0
    known: int | None = None  # number of the newest renewal in the handle, if it was adopted
    unanswered: bool = False
    belief: LocalExpiry | None = None  # None: unknown
    believing: type[LocalExpiry] = LocalExpiry
    beside: list[Call] = field(default_factory=list)  # calls that are sent at the same time
    sent: float = 0.0
    ending: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = {n: getattr(self, f"_{n}") for n in ("asking", "waiting", "holding", "ending")}
        self.steps: dict[str, Callable[[], Call | None]] = {"idle": self._idle, **steps}

    def call(self, verb: str, **said: Any) -> Call:
        return call(verb, self.kind.keys, self.token, **said)

    def step(self) -> Call | None:
        self.sent = time.time()
        return self.steps[self.state]()

    def renew(self) -> Call:
        more = "inf" if self.rng.random() < 0.03 else self.rng.randint(20, 120)
        self.nth += 1
        if self.belief is not None:
            self.belief.asked(self.nth, plans.seconds(more), self.sent)
        return self.call("renew", fence=self.fence, how="set", ms=more, nth=self.nth)

    def _idle(self) -> Call:
        rng = self.rng
        self.token, self.unanswered, self.fence = f"{rng.getrandbits(128):032x}", False, "0"
        self.nth, self.known, self.belief = 0, None, None
        self.ask = {
            "lease": rng.choice(["inf", 400, 400, *(rng.randint(30, 100) for _ in range(30))]),
            "permits": rng.choice(self.kind.permits),
            "limit": self.kind.limit,
            "kind": self.kind.kind,
            "how": "try" if rng.random() < 0.25 else "wait",
            "max_waiters": 3 if rng.random() < 0.1 else scripts.ANY,
            "fair": int(rng.random() < 0.85),
            "channel": rng.choice(["-", "-", "loop:1", "loop:2"]),
        }
        if self.kind.shares:
            self.ask |= {"share": rng.choice(self.kind.shares), "share_limit": 2, "fair": 1}
        self.state = "asking"
        return self._asking()

    def _asking(self) -> Call:
        return self.call("acquire", **self.ask)

    def _waiting(self) -> Call | None:
        roll = self.rng.random()
        if roll < 0.4:
            return self.call("acquire", **{**self.ask, "how": "again"})
        if roll < 0.7:
            return self.call("pop")
        if roll < 0.75:
            return self._end("giveup")
        if roll < 0.79:
            return self._end("undo")
        if roll < 0.81:
            self.state = "idle"  # dead: doesn't ask again
        return None

    def _holding(self) -> Call | None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.25:
            hold = 30 if self.rng.random() < 0.15 else 0
            return self._end("release", hold)
        if roll < 0.45:
            if roll < 0.35:
                self.beside.append(self.renew())
            return self.renew()
        if roll < 0.5:
            return self.call("renew", fence=self.fence, how="confirm")
        if roll < 0.55:
            return self.call("acquire", **self.ask)
        if roll < 0.58:
            return self.call("renew", fence=int(self.fence) - 1, how="set", ms=500)
        if roll < 0.61:
            return self.call("release", fence=int(self.fence) - 1, how="release")
        if roll < 0.63:
            return self._end("undo")
        if roll < 0.73 and self.ask["permits"] == 0:
            return self.call("release", fence=self.fence, how="share")
        if roll < 0.65 and self.ask["lease"] != "inf":
            self.state = "idle"  # dead: its lease expires
        if roll > 0.96:
            self.known, self.nth = self.nth, self.nth + rng.randint(1, 1000)
            return self._adopt(self.nth)
        if roll > 0.9 and self.known is not None:
            return self._adopt(self.known + rng.randint(1, 1000))  # a second use of the handle
        if roll > 0.93:
            # A copy of the last renewal but one. If there is none, the script applies this one.
            self.belief = self.belief if self.nth > 1 else None
            return self.call("renew", fence=self.fence, how="set", ms=90, nth=max(0, self.nth - 1))
        return None

    def _adopt(self, nth: int) -> Call:
        self.belief = None  # the lease now belongs to another client
        said = {"how": "adopt", "ms": 90, "nth": nth, "known": self.known}
        return self.call("renew", fence=self.fence, **said)

    def _end(self, how: str, hold: int = 0) -> Call:
        fence = self.fence if how == "release" else "0"
        self.ending = {"fence": fence, "how": how, "tombstone": int(self.unanswered), "hold": hold}
        self.state = "ending"
        return self._ending()

    def _ending(self) -> Call:
        return self.call("release", **self.ending)

    def take(self, done: Call, reply: Any) -> None:
        """Process the reply, which is None if it was lost."""
        if done.said["token"] != self.token or (done.verb == "pop" and not reply):
            return
        if reply is None:
            self.unanswered |= done.verb == "acquire"
            return
        if done.verb == "pop":
            self.state, self.fence = "holding", reply.split()[0].decode()
            return
        reply = words(reply)
        word = reply[0].decode()
        if done.verb == "acquire":
            if word == "ok":
                if self.state != "holding":
                    until = self.sent + plans.seconds(reply[2].decode()) - plans.TICK
                    self.belief = self.believing(until)
                self.state, self.fence = "holding", reply[1].decode()
            elif word == "wait":
                self.state = "waiting"
            elif self.unanswered or self.state == "holding":
                self._end("undo")
            else:
                self.state = "idle"
        elif done.verb == "renew":
            nth = self.belief is not None and done.said.get("nth")
            if word == "ok" and done.said["how"] == "set" and nth:
                until = self.sent + plans.seconds(reply[1].decode()) - plans.TICK
                self.belief.answered(nth, until)
            if word == "lost" and done.said["fence"] == self.fence:
                self._end("undo")
            elif word == "adopted" and done.said["nth"] == self.nth:
                self.state = "idle"  # adopted by another client, which lets it expire
        elif self.state == "ending":
            if done.said["how"] == "giveup" and word == "ok":
                self.state, self.fence = "holding", reply[1].decode()
            elif self.unanswered and not (done.said["tombstone"] and word != "lost"):
                self.ending = {"how": "undo", "tombstone": 1}
                if done.said["how"] == "undo" and done.said["tombstone"]:
                    self.state = "idle"
            else:
                self.state = "idle"


class Workload:
    """A random workload. `clients`: number per busy name; `mutate` changes the text of a script."""

    def __init__(
        self,
        client: redis.Redis,
        seed: int,
        *,
        clients: int = 7,
        constants: Mapping[str, int] = FAST,
        mutate: Callable[[str, str], str] = lambda verb, source: source,
        prefix: str = "test-sync",
        believing: type[LocalExpiry] = LocalExpiry,
    ) -> None:
        self.redis, self.rng = client, random.Random(seed)
        self.journal = Journal(client, f"{prefix}-journal:{seed}", constants)
        self.shas = {
            verb: client.script_load(
                wrap(verb, planted(verb, partial(mutate, verb), constants), self.journal.key)
            )
            for verb in scripts.NAME_SCRIPTS
        }
        kinds = (
            Kind(keys_of(prefix, f"lock{seed}"), 1, (1,)),
            Kind(keys_of(prefix, f"pool{seed}"), 3, (1, 1, 2, 3)),
            Kind(keys_of(prefix, f"both{seed}"), 1000, (1, 1, 0), "w"),
            # Few clients use this name, so expired leases stay there for a while.
            Kind(keys_of(prefix, f"quiet{seed}"), 2, (1,)),
            Kind(keys_of(prefix, f"shares{seed}"), 3, (1, 1, 2), shares=("a", "b", "c d", "")),
        )
        numbers = (clients, clients, clients, 2, clients)
        self.clients = [
            Client(kind, self.rng, believing=believing)
            for kind, n in zip(kinds, numbers, strict=True)
            for _ in range(n)
        ]
        self.late: list[tuple[int, Call]] = []
        self.kinds, self.round = kinds, 0

    def run(self, operations: int) -> None:
        """Run about `operations` scripts."""
        done = 0
        while done < operations:
            self.round += 1
            done += self._round()
            roll = self.rng.random()
            if roll < 0.01:
                time.sleep(0.08)  # most leases expire without being removed
            elif roll < 0.05:
                time.sleep(self.rng.uniform(0.002, 0.03))

    def _round(self) -> int:
        rng = self.rng
        sent: list[tuple[Client | None, Call]] = []
        for client in rng.sample(self.clients, 6):
            if (step := client.step()) is not None:
                sent.append((client, step))
                sent += [(client, other) for other in client.beside]
                client.beside.clear()
                if rng.random() < 0.06:
                    # The client sends the request again, and the first copy arrives later.
                    client.unanswered |= step.verb == "acquire"
                    due = self.round + int(10 ** rng.uniform(0, 3))
                    if step.verb != "pop":
                        self.late.append((due, step))
        sent += [(None, copy) for due, copy in self.late if due <= self.round]
        self.late = [(due, copy) for due, copy in self.late if due > self.round]
        if rng.random() < 0.06:
            sent.append((None, self._operator()))
        if self.round % 50 == 0:
            owned = {client.token for client in self.clients}
            sent += [(None, one) for one in self._permanent() if one.said["token"] not in owned]
        rng.shuffle(sent)
        with self.redis.pipeline(transaction=False) as pipe:
            for _, one in sent:
                if one.verb == "pop":
                    pipe.lpop(one.keys[0].removesuffix("leases") + "wake:" + one.said["token"])
                else:
                    pipe.evalsha(self.shas[one.verb], *one.asked)
            replies = pipe.execute(raise_on_error=False)
        received = list(zip(sent, replies, strict=True))
        rng.shuffle(received)
        for (client, one), reply in received:
            if client is not None:
                lost = rng.random() < 0.05 or isinstance(reply, Exception)
                client.take(one, None if lost else reply)
        self.journal.believe(self._believed(time.time()))
        return len(sent)

    def _believed(self, now: float) -> Iterator[tuple[str, str, float]]:
        for client in self.clients:
            if client.state == "holding" and client.belief is not None:
                until = client.belief.until
                if now < until < math.inf:
                    yield client.kind.keys.info, client.token, until

    def _operator(self) -> Call:
        rng, kind = self.rng, self.rng.choice(self.kinds)
        how = rng.choice(["clear"] * 4 + ["pause"] * 2 + ["resume", "resize", "reset", "inspect"])
        if how == "clear":
            client = rng.choice(self.clients)
            return call("clear", client.kind.keys, client.token)
        if how == "inspect":
            return call("inspect", kind.keys)
        if how == "pause":
            # A lasting pause would stop the workload.
            self.late.append((self.round + 10, call("operate", kind.keys, how="resume")))
        value = max(1, kind.limit + rng.choice((-2, -1, 1))) if how == "resize" else ""
        return call("operate", kind.keys, how=how, value=value)

    def settle(self) -> None:
        """Undo the operator overrides, and clear permanent leases, so that all keys expire."""
        for kind in self.kinds:
            for how in ("resume", "reset"):
                self._eval(call("operate", kind.keys, how=how))
        for one in self._permanent():
            self._eval(one)

    def _permanent(self) -> list[Call]:
        """Return a `clear` call for each permanent lease, which would block its name for ever."""
        return [
            call("clear", kind.keys, token.decode())
            for kind in self.kinds
            if self.redis.type(kind.keys.leases) == b"zset"  # a lease in compact state expires
            for token, end in self.redis.zrange(kind.keys.leases, 0, -1, withscores=True)
            if end == math.inf
        ]

    def _eval(self, one: Call) -> Any:
        return self.redis.evalsha(self.shas[one.verb], *one.asked)


_seeds = itertools.count(1)


def workload(raw: redis.Redis, **options: Any) -> Workload:
    """Return a workload below the prefix of the tests, with a new seed."""
    return Workload(raw, next(_seeds), prefix=settings.PREFIX, **options)
