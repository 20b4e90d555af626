"""Simulated clients that call the scripts directly and in random order.

The clients follow the protocol, and write tombstones after an unanswered acquire. The rest is
random: replies are lost, second copies of requests arrive late, clients die, leases expire, and
operators act. The workload moves the server's clock before each call.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import redis

from django_redis_sync.protocol import scripts
from django_redis_sync.protocol.keys import Keys, keys_of, share_terms
from django_redis_sync.protocol.steps import TICK, LocalExpiry, seconds
from tests.model.redis import WRITES, Frozen, ScriptError, Store, compiled, number

from .journal import Entry
from .packed import unpack

#: Default values of the scripts' arguments.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("token", "label", "id", "job", "value"), ""),
    **dict.fromkeys(("keep", "tombstone", "hold", "fence", "ms", "nth", "known"), 0),
    **dict.fromkeys(("permits", "limit", "fair", "compact"), 1),
    **dict.fromkeys(("overrides", "channel"), "-"),
    "lease": 1000,
    "kind": "p",
    "max_waiters": scripts.ANY,
    "held": 0,
    "max_rows": 100,
}


@cache
def arguments(verb: str) -> tuple[str, ...]:
    return scripts.header(scripts.read(verb), "ARGV")


def argv_of(verb: str, said: Mapping[str, Any], only: Collection[str] = ()) -> list[Any]:
    """Return the ARGV of the script `verb`. `said`: the values of the arguments, by name.

    The arguments `terms` and `wants` of an acquire are composed of several values in `said`.
    Check that each name in `only` is an argument of the script or a part of `terms`."""
    names, parts = arguments(verb), set[str]()
    if "terms" in names:
        parts = {*("permits", "limit", "channel", "label", "kind", "share", "share_limit", "rate")}
        if said.get("share") or said.get("share_limit"):
            share = share_terms(said.get("share") or "", said.get("share_limit") or 0)
            said = {**said, "label": f"{share} {said['label']}", "compact": 0}
        terms = "{permits} {limit} {channel} {label}".format_map(said)
        wants = "{kind} {limit}".format_map(said)
        if said.get("rate"):
            said, wants = {**said, "compact": 0}, f"{wants} {said['rate']}"
        said = {"terms": terms, "wants": wants, **said}
    unknown = set(only) - set(names) - parts
    assert not unknown, f"{verb} takes no {unknown}"
    return [said[name] for name in names]


def words(reply: Any) -> list[bytes]:
    """Split the reply of a script into words. If the reply is a list, return it unchanged."""
    return reply.split(b" ") if isinstance(reply, bytes) else reply


class Call(NamedTuple):
    """A call of the script `verb`. `said`: the script's arguments, by name. If `verb` is "pop", the
    call runs no script, but pops a wake-up message."""

    verb: str
    keys: tuple[str, ...]
    said: dict[str, Any]

    @property
    def argv(self) -> list[Any]:
        """The arguments in the order in which the script expects them."""
        return argv_of(self.verb, {**DEFAULTS, **self.said}, self.said)

    @property
    def asked(self) -> list[Any]:
        """The arguments of the EVAL command after the source of the script."""
        return [len(self.keys), *self.keys, *self.argv]

    @property
    def base(self) -> str:
        return self.keys[0].removesuffix("leases")

    def run_on(self, client: redis.Redis) -> Any:
        return client.eval(scripts.script(self.verb).source, *self.asked)


def call(verb: str, keys: Keys, token: str = "", **said: Any) -> Call:
    """Return a call of a script with its arguments by name."""
    return Call(verb, keys.declared, {"token": token, **said})


# The server

START = 1_700_000_000_000_000  # time in µs at which the server's clock starts


class Recording(Store):
    """Records the writes of a script as a journal does. Counts how often the script calls TIME."""

    def __init__(self, base: str, *args: Any) -> None:
        super().__init__(*args)
        self.base, self.writes, self.clock_reads = base, list[tuple[Any, ...]](), 0

    def call(self, *args: Any) -> Any:
        name, key, *_ = *args, ""
        is_lease = (name, key) == ("ZREM", f"{self.base}leases")
        wake = [int(f"{self.base}wake:{args[2]}" in self.data)] if is_lease else []
        reply = super().call(*args)
        self.clock_reads += name == "TIME"
        if name in WRITES and key != f"{self.base}stats" and (name, reply) != ("PEXPIREAT", 0):
            texts = [utf8(arg if isinstance(arg, str) else number(arg)) for arg in args[2:]]
            self.writes.append((name, key.removeprefix(self.base), *texts, *wake))
        return reply


def utf8(text: str) -> str:
    """Convert a text of the imitated Redis (Latin-1) to the text in a journal (UTF-8)."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


class ModelServer:
    """A server for workloads: the imitation of Redis in tests/model/redis.py.

    `micros`: its clock, which tests move. `entries`: its journal. `lua`: maps pieces of the scripts
    to the code that replaces them. `said`: values by the name of an argument. Each script
    call gets these values, if the script has such arguments."""

    store: Any = Recording

    def __init__(self, lua: Mapping[str, str] = {}, **said: Any) -> None:
        self.scripts, self.said = compiled(tuple(lua.items())), said
        self.micros, self.full, self.published = START, False, list[tuple[str, str]]()
        self.names: dict[str, Frozen] = {}
        self.entries, self.number = list[Entry](), 0

    def run(self, one: Call) -> Any:
        """Run a call and return the words of its reply, or ["OOM"] if the memory is full."""
        store = self.store(one.base, self.names.get(one.base, ()), self.micros, self.full)
        if one.verb == "pop":
            reply = store.call("LPOP", f"{one.base}wake:{one.said['token']}")
        else:
            mine = {name: said for name, said in self.said.items() if name in arguments(one.verb)}
            one, error = one._replace(said={**one.said, **mine}), ""
            before = self.before(one, store)
            argv = tuple(str(word) for word in one.argv)
            try:
                reply = self.scripts.run(store, one.verb, one.keys, argv)
            except ScriptError as failed:
                reply, error = ["OOM" if "OOM" in str(failed) else "ERROR"], str(failed)
            assert store.clock_reads <= 1, f"{store.clock_reads} readings of the clock: {one}"
            entry = self.micros, one.verb, one.base[:-1], argv
            shown = () if error or one.verb == "inspect" else tuple(reply)
            self.add(*entry, shown, before, tuple(store.writes), error)
        self.published += store.published
        self.names[one.base] = store.freeze()
        return reply

    def add(self, *entry: Any) -> None:
        self.number += 1
        self.entries.append(Entry(self.number, "", *entry))

    def before(self, one: Call, store: Store) -> tuple[Any, int]:
        _, leases, _ = store.data.get(f"{one.base}leases", ("", {}, 0))
        _, queue, _ = store.data.get(f"{one.base}queue", ("", {}, 0))
        return utf8(leases["#"]) if "#" in leases else len(leases), len(queue)

    def contents(self, keys: Keys, key: str) -> dict[str, Any]:
        """Return the fields of a hash, or the members of a sorted set with their scores.
        Return {} if the key doesn't exist."""
        rows = self.names.get(keys.leases.removesuffix("leases"), ())
        return dict(next((items for name, _, items, _ in rows if name == key), ()))

    def leases(self, keys: Keys) -> dict[str, float]:
        """Return the end of each lease in ms, including expired leases."""
        leases = self.contents(keys, keys.leases)
        return unpack(leases["#"].encode("latin-1")).leases if "#" in leases else leases

    def ends(self, keys: Keys) -> Iterator[float]:
        """Yield the end of each lease and the deadline of each waiter of a name, in ms."""
        yield from self.leases(keys).values()
        yield from self.contents(keys, keys.waiters).values()

    def left_keys(self) -> list[str]:
        """Return the keys that have not expired, except statistics."""
        rows = (row for frozen in self.names.values() for row in Store(frozen, self.micros).data)
        return [key for key in rows if not key.endswith(":stats")]

    def note_expiry(self, keys: Keys, token: str, until: float) -> None:
        """Note in the journal that a holder treats its lease as held until `until` (in seconds)."""
        name, argv = keys.leases.removesuffix(":leases"), (token, f"{until * 1000:.3f}")
        self.add(self.micros, "!holds", name, argv)


class FullAtTimes(ModelServer):
    """A server whose memory is full in every third second."""

    def run(self, one: Call) -> Any:
        self.full = self.micros // 1_000_000 % 3 == 0
        return super().run(one)


# The clients


class Kind(NamedTuple):
    """A name, the number of its clients, and the options of their requests.

    `permits`: the numbers of permits that a request may ask for; 0 means exclusive. `shares`: the
    shares of the clients. `rate`: "PERMITS/MS", or "" for none. `overrides`: those of the
    name's policy, which the checker of journals doesn't know. `calm`: True if most requests allow
    compact state."""

    keys: Keys
    clients: int
    limit: int = 1
    permits: tuple[int, ...] = (1,)
    kind: str = "p"
    shares: tuple[str, ...] = ()
    rate: str = ""
    overrides: tuple[str, ...] = ("-",)
    calm: bool = False


def kinds(keep: int = 0) -> list[Kind]:
    """Return names for a `Workload`: a lock, semaphores, a read/write lock, and shares."""
    return [
        Kind(keys_of("t", "lock", None, keep), 7),
        Kind(keys_of("t", "pool", None, keep), 7, 3, (1, 1, 2, 3)),
        Kind(keys_of("t", "both", None, keep), 7, 1000, (1, 1, 0), "w"),
        # Only two clients, so that the name is often in compact state, also with an expired lease.
        Kind(keys_of("t", "quiet", None, keep), 2, 2, (1, 1, 2)),
        Kind(keys_of("t", "shares", None, keep), 8, 3, (1, 1, 2), shares=("a", "b", "c d", "")),
        Kind(keys_of("t", "paced", None, keep), 6, 4, (1, 1, 2), rate="5/3000"),
    ]


@dataclass
class Client:
    kind: Kind
    rng: random.Random
    expiry_class: type[LocalExpiry] = LocalExpiry
    token: str = ""
    ask: dict[str, Any] = field(default_factory=dict)
    state: str = "idle"  # "idle", "asking", "waiting", "holding", or "ending"
    fence: str = "0"
    nth: int = 0
    known: int | None = None  # number of the newest renewal before the adoption
    unanswered: bool = False
    expiry: LocalExpiry | None = None  # None if it is unknown
    sent: float = 0.0
    ending: dict[str, Any] = field(default_factory=dict)

    def call(self, verb: str, **said: Any) -> Call:
        if verb in ("acquire", "release"):
            said["overrides"] = self.rng.choice(self.kind.overrides)
        if verb != "pop":
            said["keep"] = self.kind.keys.keep
        return call(verb, self.kind.keys, self.token, **said)

    def step(self, now: float) -> list[Call]:
        """Return the calls that the client sends together at the time `now` (in seconds)."""
        self.sent = now
        steps: dict[str, Callable[[], Sequence[Call | None]]] = {
            "idle": self.idle,
            "asking": lambda: [self.call("acquire", **self.ask)],
            "waiting": self.waiting,
            "holding": self.holding,
            "ending": lambda: [self.call("release", **self.ending)],
        }
        return [one for one in steps[self.state]() if one is not None]

    def seldom(self, chance: float) -> bool:
        """Return True with the probability `chance`, or a tenth of it if `Kind.calm` is True."""
        return self.rng.random() < chance * (0.1 if self.kind.calm else 1)

    def renew(self) -> Call:
        ms = "inf" if self.seldom(0.03) else self.rng.randint(1500, 9000)
        self.nth += 1
        if self.expiry is not None:
            self.expiry.asked(self.nth, seconds(str(ms)), self.sent)
        return self.call("renew", fence=self.fence, how="set", ms=ms, nth=self.nth)

    def idle(self) -> list[Call]:
        rng, kind = self.rng, self.kind
        if self.token and rng.random() < 0.03:
            return [self.call("acquire", **{**self.ask, "how": "again"})]  # a late heartbeat
        self.token, self.unanswered, self.fence = f"{rng.getrandbits(128):032x}", False, "0"
        self.nth, self.known, self.expiry = 0, None, None
        self.ask = {
            "lease": rng.choice(["inf", 1, 30_000, *(rng.randint(1000, 9000) for _ in range(30))]),
            "permits": rng.choice(kind.permits),
            "limit": kind.limit if rng.random() < 0.95 else kind.limit + 1,
            "kind": kind.kind if rng.random() < 0.97 else "pw"["wp".index(kind.kind)],
            "how": rng.choice(["try"] * 4 + ["wait"] * 12 + ["shadow"]),
            "max_waiters": rng.choice([0, 3, *[scripts.ANY] * 18]),
            "fair": int(rng.random() < 0.85),
            "channel": rng.choice(["-", "-", "loop:1", "loop:2"]),
        }
        if kind.rate:
            self.ask |= {"rate": kind.rate}
        if not self.seldom(1):
            self.ask |= {"lease": rng.randint(900, 9000), "limit": kind.limit, "kind": kind.kind}
            self.ask["how"] = "try"
        if kind.shares:
            bound = rng.choice([2, 2, 2, 2, 1, 3])
            self.ask |= {"share": rng.choice(kind.shares), "share_limit": bound, "fair": 1}
            self.ask["how"] = rng.choice([self.ask["how"]] * 9 + ["shadow"])
        self.state = "asking"
        return [self.call("acquire", **self.ask)]

    def waiting(self) -> list[Call | None]:
        roll = self.rng.random()
        if roll < 0.4:
            return [self.call("acquire", **{**self.ask, "how": "again"})]
        if roll < 0.7:
            return [self.call("pop")]
        if roll < 0.79:
            return [self.end("giveup" if roll < 0.75 else "undo")]
        if roll < 0.81:
            self.state = "idle"  # the client dies while it waits
        return []

    def holding(self) -> list[Call | None]:
        rng, fence = self.rng, self.fence
        roll = rng.random()
        if roll < 0.25:
            return [self.end("release", 2000 if self.seldom(0.15) else 0)]
        if roll < 0.45:
            return [self.renew(), self.renew() if roll < 0.35 else None]
        if roll < 0.5:
            return [self.call("renew", fence=fence, how="confirm")]
        if roll < 0.55:
            return [self.call("acquire", **self.ask)]
        if roll < 0.58:
            return [self.call("renew", fence=int(fence) - 1, how="set", ms=9000)]
        if roll < 0.61:
            return [self.call("release", fence=int(fence) - 1, how="release")]
        if roll < 0.63:
            return [self.end("undo")]
        if roll < 0.73 and self.ask["permits"] == 0:
            return [self.call("release", fence=fence, how="downgrade")]
        if roll < 0.65 and self.ask["lease"] != "inf":
            self.state = "idle"  # the client dies, so its lease expires
        if roll > 0.96:
            self.known, self.nth = self.nth, self.nth + rng.randint(1, 1000)
            return [self.adopt(self.nth)]
        if roll > 0.9 and self.known is not None:
            return [self.adopt(self.known + rng.randint(1, 1000))]  # another process adopts
        if roll > 0.93:
            # Send a late copy of an older renewal. If the client has sent at most one renewal, the
            # script may apply this copy. In this case, forget the local expiry.
            self.expiry = self.expiry if self.nth > 1 else None
            return [self.call("renew", fence=fence, how="set", ms=9000, nth=max(0, self.nth - 1))]
        return []

    def adopt(self, nth: int) -> Call:
        self.expiry = None  # another client adopts the lease
        said = {"how": "adopt", "ms": 9000, "nth": nth, "known": self.known}
        return self.call("renew", fence=self.fence, **said)

    def end(self, how: str, hold: int = 0) -> Call:
        fence = self.fence if how == "release" else "0"
        self.ending = {"fence": fence, "how": how, "tombstone": int(self.unanswered), "hold": hold}
        self.state = "ending"
        return self.call("release", **self.ending)

    def take(self, answered: Call, reply: Any) -> None:
        """Process the reply to a call. `reply`: a list of words, or None if it was lost."""
        if answered.said["token"] != self.token or (answered.verb == "pop" and not reply):
            return
        if reply is None:
            self.unanswered |= answered.verb == "acquire"
        elif answered.verb == "pop":
            self.state, self.fence = "holding", reply.split(" ")[0]
        elif answered.verb != "release" or self.state == "ending":
            getattr(self, f"_take_{answered.verb}")(answered, *reply)

    def _take_acquire(self, answered: Call, word: str, *rest: str) -> None:
        if word == "ok":
            if self.state != "holding":
                until = self.sent + seconds(rest[1]) - TICK
                self.expiry = self.expiry_class(until)
            self.state, self.fence = "holding", rest[0]
        elif word == "wait":
            self.state = "waiting"
        elif self.unanswered or self.state == "holding":
            self.end("undo")
        else:
            self.state = "idle"

    def _take_renew(self, answered: Call, word: str, *rest: str) -> None:
        said = answered.said
        if word == "ok" and said["how"] == "set" and self.expiry is not None and said.get("nth"):
            until = self.sent + seconds(rest[0]) - TICK
            self.expiry.answered(said["nth"], until)
        if word == "lost" and said["fence"] == self.fence:
            self.end("undo")
        elif word == "adopted" and said["nth"] == self.nth:
            self.state = "idle"  # the lease now belongs to another client

    def _take_release(self, answered: Call, word: str, *rest: str) -> None:
        if answered.said["how"] == "giveup" and word == "ok":
            self.state, self.fence = "holding", rest[0]
        elif self.unanswered and not (answered.said["tombstone"] and word != "lost"):
            self.ending = {"how": "undo", "tombstone": 1}
            if answered.said["how"] == "undo" and answered.said["tombstone"]:
                self.state = "idle"
        else:
            self.state = "idle"


class Workload:
    """Random clients of `server`: a ModelServer, or an object with the same methods.

    `faults`: a factor for the probability of faults and operator actions."""

    def __init__(
        self,
        server: Any,
        seed: int,
        names: Sequence[Kind] | None = None,
        expiry_class: type[LocalExpiry] = LocalExpiry,
        faults: float = 1.0,
    ) -> None:
        self.server, self.rng, self.round, self.faults = server, random.Random(seed), 0, faults
        self.kinds = names or kinds()
        self.clients = [
            Client(kind, self.rng, expiry_class) for kind in self.kinds for _ in range(kind.clients)
        ]
        self.late: list[tuple[int, Call]] = []

    def run(self, operations: int) -> None:
        """Run about `operations` calls."""
        done = 0
        while done < operations:
            self.round += 1
            done += self._round()
            roll = self.rng.random()
            if roll < 0.05:
                self.pass_time(self.rng.uniform(0.1, 2) if roll > 0.01 else 6)
            elif roll < 0.12:  # set the clock to the next expiry or deadline, or 1 ms before
                now = self.server.micros
                ends = [1000 * end for kind in self.kinds for end in self.server.ends(kind.keys)]
                soon = min((end for end in ends if end > now), default=now)
                if soon < now + 10_000_000:
                    self.server.micros = int(soon) - self.rng.choice([0, 0, 1000])

    def pass_time(self, seconds: float) -> None:
        self.server.micros += int(seconds * 1_000_000)

    def _round(self) -> int:
        rng = self.rng
        sent: list[tuple[Client | None, Call]] = []
        for client in rng.sample(self.clients, min(6, len(self.clients))):
            for one in client.step(self.server.micros / 1e6):
                sent.append((client, one))
                if rng.random() < 0.06 * self.faults and one.verb != "pop":
                    # The client sends this request twice, and one of the two copies arrives late.
                    client.unanswered |= one.verb == "acquire"
                    self.late.append((self.round + int(10 ** rng.uniform(0, 2.3)), one))
        sent += [(None, copy) for due, copy in self.late if due <= self.round]
        self.late = [(due, copy) for due, copy in self.late if due > self.round]
        if rng.random() < 0.06 * self.faults:
            sent += [(None, one) for one in self.operator()]
        if self.round % 50 == 0:
            owned = {client.token for client in self.clients}
            sent += [(None, one) for one in self.permanent() if one.said["token"] not in owned]
        rng.shuffle(sent)
        received = []
        for client, one in sent:
            self.pass_time(rng.choice([0, 1e-6, 0.001, 0.01, 0.05]))
            received.append((client, one, self.server.run(one)))
        rng.shuffle(received)
        for client, one, reply in received:
            if client is not None:
                lost = rng.random() < 0.05 * self.faults or reply == ["ERROR"]
                client.take(one, None if lost else reply)
        self._note_expiries(self.server.micros / 1e6)
        return len(sent)

    def _note_expiries(self, now: float) -> None:
        for client in self.clients:
            if client.state == "holding" and client.expiry is not None:
                until = client.expiry.until
                if now < until < math.inf:
                    self.server.note_expiry(client.kind.keys, client.token, until)

    def operator(self) -> list[Call]:
        rng, kind = self.rng, self.rng.choice(self.kinds)
        how = rng.choice(["clear"] * 4 + ["pause"] * 2 + ["resume", "resize", "reset"])
        how = rng.choice([how] * 8 + ["inspect", "cool"])
        if how == "clear":
            client = rng.choice(self.clients)
            return [call("clear", client.kind.keys, client.token)]
        if how == "inspect":
            return [call("inspect", kind.keys)]
        if how == "pause":
            self.late.append((self.round + 10, call("operate", kind.keys, how="resume")))
        value = max(1, kind.limit + rng.choice((-2, -1, 1))) if how == "resize" else ""
        if how == "resize" and kind.rate:
            value = rng.choice((value, "1/1000", "2/4000", "9/3000"))
        value = f"{rng.randint(1, 3000)} label" if how == "cool" else value
        return [call("operate", kind.keys, how=how, value=value)]

    def settle(self) -> None:
        """Undo operator overrides and clear permanent leases, so that all keys can expire."""
        for kind in self.kinds:
            for how in ("resume", "reset"):
                self.server.run(call("operate", kind.keys, how=how))
        for one in self.permanent():
            self.server.run(one)

    def permanent(self) -> list[Call]:
        """Return a call of `clear` for each permanent lease. Such a lease never expires."""
        return [
            call("clear", kind.keys, token)
            for kind in self.kinds
            for token, end in self.server.leases(kind.keys).items()
            if end == math.inf
        ]
