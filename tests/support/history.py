"""The checker of journals. It replays the entries of a journal, and checks each entry by RULES.

Redis runs one script at a time, so the entries have a definite order. The checker implements the
rules of the protocol without the scripts. It reads the arguments, the writes, and the reply of each
run of a script, and ignores the records that the script stores.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django_redis_sync.protocol.scripts import CONSTANTS, MOST_PERMITS

from .journal import Entry
from .packed import Packed, unpack

RULES = {
    "limit": "the permits in use don't exceed the limit",
    "fence": "fences grow with every grant, and a token has one fence during its lease",
    "owner": "only its owner, expiry, an unclaimed handoff, or an operator ends a lease",
    "extended": "an expired lease is never extended",
    "moved": "only a renewal by token and fence changes the expiry of a lease",
    "ended": "a token that was released, undone, or cleared is never granted again",
    "share": "the permits in use of a share don't exceed its limit",
    "turn": "shares take turns, and the queue has only the first waiter of each share that fits",
    "order": "live waiters are granted in the order of their arrival",
    "place": "a live waiter keeps its place in the queue",
    "rate": "not more permits than those of the rate are granted in any of its periods",
    "paused": "nothing is granted while the name is paused, or during a cool-down",
    "refused": "each rejection has a valid reason",
    "handover": "the first waiter gets a free permit",
    "silent": "a handoff notifies the new holder",
    "term": "the duration of a grant is the requested and the replied one",
    "answer": "the reply agrees with the state",
    "expiry": "keys expire, and not before their contents",
    "vanished": "only scripts change the contents of the keys",
    "keys": "a script writes only the keys of its name",
    "local": "local expiry is never later than the expiry on the server",
    "memory": "full memory denies only requests of new callers, and they change nothing",
    "error": "no script fails",
}


def shorten(entry: Entry) -> str:
    """Return an entry as one line."""
    words = " ".join(str(a)[:8] if len(str(a)) == 32 else str(a) for a in entry.argv)
    writes = "; ".join(" ".join(str(w)[:16] for w in write) for write in entry.writes)
    reply = " ".join(map(str, entry.reply)) or entry.error
    line = f"{entry.seq} @{entry.us} {entry.verb} {entry.name} [{words}] -> {reply} | {writes}"
    # Replace control characters, which are in the text of a compact state.
    shown = "".join(char if char.isprintable() else "." for char in line)
    return shown if len(shown) < 400 else f"{shown[:400]} ..."


@dataclass(slots=True)
class Violation:
    rule: str
    text: str
    entry: Entry
    before: list[Entry]

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.text} ({RULES[self.rule]})"]
        lines += ["    " + shorten(e) for e in self.before]
        return "\n".join([*lines, "  > " + shorten(self.entry)])


@dataclass(slots=True)
class _Token:
    """What the replayed entries say about a token."""

    lease: float = math.inf  # requested duration in ms
    permits: int = 1
    limit: float = math.inf
    channel: str = "-"  # channel of the caller's event loop; "-" in sync code
    share: str = ""
    bound: float = math.inf  # limit of the share
    known: bool = False  # True if the replay has seen an acquire of the token
    fence: int = 0
    nth: int = 0  # number of the newest renewal
    ended: str = ""  # how the token has ended, for example "released"; "" if it has not
    ended_in: int = 0  # epoch in which the token ended; a restart or flush begins a new epoch
    unclaimed: bool = False

    @property
    def weight(self) -> int:
        return self.permits or CONSTANTS["EXCLUSIVE"]


class _Name:
    """The state of a name's keys after the replayed writes."""

    def __init__(self) -> None:
        self.fence = self.us = 0
        self.override: int | None = None
        self.paused = self.seen = False
        self.cools_until = 0  # end of the cool-down in ms
        #: The rates of the callers and of an operator: the permits, and the period in µs.
        self.rate: tuple[int, int] | None = None
        self.own_rate: tuple[int, int] | None = None
        #: The reason why the state is unknown, for example "restarted", or "" if it is known.
        self.unsure = ""
        self.recent: deque[Entry] = deque(maxlen=6)
        self.wipe()

    def wipe(self) -> None:
        self.leases: dict[str, float] = {}  # token -> end of its lease in ms
        self.deadlines: dict[str, float] = {}
        self.packed: Packed | None = None  # the compact state
        #: Set while a script expands the name: the token and the end of the lease in the compact
        #: state. The script has to write this lease again.
        self.expanding: tuple[str, float] | None = None
        self.channels: set[str] = set()  # channels of event loops, also in `deadlines`
        self.queue: dict[str, tuple[float, int]] = {}  # token -> (ticket, arrival in µs)
        self.parked: set[str] = set()
        self.arrived: dict[str, int] = {}  # token -> order of arrival, if the name has shares
        self.held: dict[str, int] = {}  # token -> permits of its unexpired lease
        self.used = 0
        self.paced = deque[tuple[int, int]]()  # grants within the period: time in µs, permits
        # The expiry of each key in ms, or None if the expiry is unknown or the key doesn't exist.
        self.expires: dict[str, float | None] = dict.fromkeys(_KEYS)

    def hold(self, token: str, end: float, weight: int, now: int) -> None:
        self.loose(token)
        self.leases[token] = end
        if end > now:
            self.held[token] = weight
            self.used += weight

    def opens(self, permits: int) -> bool:
        """Return True if the rate allows `permits` more permits."""
        pace = self.own_rate or self.rate
        if pace is None:
            return True
        used = sum(granted for at, granted in self.paced if at + pace[1] > self.us)
        return used + max(1, permits) <= pace[0]

    def spend(self, permits: int, us: int) -> None:
        """Add a grant to the log of the rate. The log keeps what is within the period in force."""
        pace = self.own_rate or self.rate
        if pace is None:
            return
        while self.paced and self.paced[0][0] + pace[1] <= us:
            self.paced.popleft()
        self.paced.append((us, max(1, permits)))

    def loose(self, token: str) -> None:
        self.used -= self.held.pop(token, 0)

    def expire(self, now: int) -> None:
        for token in [token for token in self.held if self.leases.get(token, 0) <= now]:
            self.loose(token)

    def members(self, key: str) -> Any:
        """Return the members of a key. If there are none, the key doesn't exist. For `info`, return
        True: the replay doesn't know the fields of `info`, and assumes that there are some."""
        contents = {"leases": self.leases, "waiters": self.deadlines}
        return {**contents, "queue": self.queue, "parked": self.parked}.get(key, True)


_KEYS = ("leases", "queue", "waiters", "info", "parked")


class History:
    """The result of a replay: the violations of RULES, and the number of each kind of event."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.entries = self.names = self.epochs = 0

    def summary(self) -> dict[str, int]:
        """Return a dict of counts: of the entries, of the names, of the epochs, and of each kind of
        event."""
        head = {"entries": self.entries, "names": self.names, "epochs": self.epochs}
        return {**head, **dict(sorted(self.counts.items()))}

    def rules(self) -> set[str]:
        return {v.rule for v in self.violations}

    def report(self) -> str:
        return "\n".join([f"{len(self.violations)} violations", *map(str, self.violations[:5])])


def judge(
    entries: Iterable[Entry], constants: Mapping[str, int] = CONSTANTS, most: int = 50
) -> History:
    """Replay `entries`, and return the history. Stop after `most` violations."""
    replay = Replay(constants)
    for entry in entries:
        replay.take(entry)
        if len(replay.history.violations) >= most:
            break
    return replay.history


class Replay:
    """Replays the entries of a journal one by one. `history`: the result so far."""

    def __init__(self, constants: Mapping[str, int] = CONSTANTS) -> None:
        self.history, self.constants = History(), constants
        self.names: dict[str, _Name] = {}
        self.tokens: dict[tuple[str, str], _Token] = {}
        self.epoch, self.us, self.turn = "", 0, 0

    def leases(self) -> Iterator[float]:
        """Yield the end of each lease in ms, including expired leases."""
        for at in self.names.values():
            yield from at.leases.values()

    def forget(self) -> None:
        """Forget the tokens that neither hold nor wait, to save memory."""
        live = {
            (name, token)
            for name, at in self.names.items()
            for token in (*at.leases, *at.queue, *at.deadlines)
        }
        self.tokens = {key: token for key, token in self.tokens.items() if key in live}

    def bad(self, rule: str, text: str) -> None:
        if not self.at.unsure:
            # The last item of `recent` is the entry itself, so omit it.
            violation = Violation(rule, text, self.entry, list(self.at.recent)[:-1])
            self.history.violations.append(violation)

    def token(self, token: str) -> _Token:
        return self.tokens.setdefault((self.entry.name, token), _Token())

    def limit_of(self, mine: _Token) -> float:
        return self.at.override or mine.limit

    def too_large(self, mine: _Token) -> bool:
        """Return True if neither the limit nor the rate ever allows the permits at once."""
        pace = self.at.own_rate or self.at.rate
        return mine.permits > min(self.limit_of(mine), pace[0] if pace else MOST_PERMITS)

    def stopped(self) -> bool:
        """Return True if the name is paused, or cools down."""
        return self.at.paused or self.now < self.at.cools_until

    def fits(self, mine: _Token) -> bool:
        if self.stopped() or not self.at.opens(mine.permits):
            return False
        return self.within_limit(mine)

    def within_limit(self, mine: _Token) -> bool:
        if mine.permits == 0:
            return not self.at.held
        return self.at.used + mine.permits <= self.limit_of(mine) and self.fits_share(mine)

    def fits_share(self, mine: _Token) -> bool:
        """Return True if a token can get its permits within the limit of its share."""
        if mine.bound == math.inf:
            return True
        held = sum(n for t, n in self.at.held.items() if self.token(t).share == mine.share)
        return held + mine.permits <= mine.bound

    def alive(self, token: str) -> bool:
        """Return True if the waiter `token` is alive: its heartbeat deadline has not passed. In
        async code, the deadline of its event loop must not have passed either."""
        own = self.at.deadlines.get(token, 0) > self.now
        return own and self.beats(self.token(token).channel)

    def beats(self, channel: str) -> bool:
        return channel == "-" or self.at.deadlines.get(channel, 0) > self.now

    def waiting(self, omit: str = "") -> Iterator[str]:
        """Yield the tokens of the live waiters in the order of the queue. Omit the token `omit`,
        and each waiter that asks for more permits than the limit."""
        queue = self.at.queue
        for token in sorted(queue, key=lambda t: queue[t][0]) if self.at.arrived else queue:
            mine = self.token(token)
            if token != omit and self.alive(token) and not self.too_large(mine):
                yield token

    # One entry

    def take(self, entry: Entry) -> None:
        history = self.history
        if entry.verb == "!wiped":
            history.epochs += 1  # a flush deletes tombstones, so ended tokens can be granted again
            for at in self.names.values():
                at.wipe()
                at.override, at.paused, at.cools_until, at.rate = None, False, 0, None
                at.own_rate = None
            return
        history.entries += 1
        if entry.verb == "!holds":
            self.check_local_expiry(entry)
            return
        if entry.epoch != self.epoch:
            self.restarted(entry)
        self.us = entry.us
        at = self.names.setdefault(entry.name, _Name())
        history.names = len(self.names)
        self.at, self.entry, self.now = at, entry, entry.us // 1000
        at.recent.append(entry)
        self.compare()
        if entry.error:
            if "WRONGTYPE" not in entry.error and "OOM" not in entry.error:
                self.bad("error", entry.error)
            history.counts["denied" if "OOM" in entry.error else "errors"] += 1
        if entry.verb == "inspect":
            return
        self.read_request()
        newcomer = entry.verb == "acquire" and not (self.was_held or self.was_queued)
        if "OOM" in entry.error and (entry.writes or not newcomer):
            self.bad("memory", entry.error)
        for write in entry.writes:
            self.write(*write)
        self.check_grants()
        if not entry.error:
            getattr(self, f"after_{entry.verb}")(*entry.reply)
            self.check_handoff()
        self.check_removed()
        if entry.writes:
            self.check_expiry()

    def check_local_expiry(self, entry: Entry) -> None:
        """Check that the local expiry in a holder's note is not later than the end of its lease."""
        at, (token, until) = self.names.get(entry.name), entry.argv
        if at is None or at.unsure or float(until) <= entry.us / 1000:
            return
        mine, end = self.tokens.get((entry.name, token)), at.leases.get(token, 0)
        self.history.counts["expiries"] += 1
        if mine is not None and not mine.ended and float(until) > end:
            self.at, self.entry = at, entry
            self.bad("local", f"{token[:8]} expires locally {float(until) - end:.0f} ms too late")

    def restarted(self, entry: Entry) -> None:
        self.history.epochs += 1
        self.epoch = entry.epoch
        for at in self.names.values():
            at.unsure = "restarted"
            if entry.us < self.us:
                at.fence = 0  # the clock was set back, so lower fences are no error

    def compare(self) -> None:
        """Expire leases and keys. Compare the expected state with the one that the script found."""
        at, now, entry = self.at, self.now, self.entry
        if entry.us < at.us:
            # The clock went back. So an expired lease that was not removed can be unexpired
            # again.
            for token, end in at.leases.items():
                if end > now and token not in at.held:
                    at.hold(token, end, self.token(token).weight, now)
        at.us = entry.us
        at.expire(now)
        packed, found = None, entry.before
        if isinstance(found[0], str):
            packed = unpack(found[0].encode("utf-8", "surrogateescape"))
            found = (len(packed.leases), 0)
        cards = (len(at.leases), len(at.queue))
        expires = at.expires["info"]
        if expires is not None and expires <= now and (found == (0, 0) or expires < now - 1):
            # By the replay's clock, the keys have expired, so remove them here too. The server may
            # delete them up to 1 ms later. If it deleted them too early, `check_expiry` finds this.
            at.wipe()
            at.expires["info"] = math.inf
            cards = (0, 0)
        if (found != cards or (packed and at.packed and packed != at.packed)) and -1 not in found:
            if not at.unsure and at.seen:
                self.bad("vanished", f"(leases, waiters) {found}, not {cards}")
            at.wipe()
            at.unsure = "" if found == (0, 0) else "lost"
        elif at.unsure == "restarted" or found == (0, 0):
            at.unsure = ""
        if not at.seen and found == (0, 0):
            at.expires["info"] = math.inf
        at.seen, at.packed, at.expanding = True, packed, None

    def read_request(self) -> None:
        """Read the arguments of the script, and prepare the replay of its writes."""
        verb, said, at = self.entry.verb, self.entry.said, self.at
        self.me, self.how = said["token"], said.get("how", "")
        self.mine = mine = self.token(self.me)
        self.granted: dict[str, float] = {}
        self.elements: dict[str, str] = {}
        self.gone: dict[str, tuple[float, int]] = {}  # removed waiters: token -> (ticket, arrival)
        self.was: dict[str, float] = {}  # token -> former heartbeat deadline of a removed waiter
        self.wakes: dict[str, float] = {}
        self.fences: list[str] = []
        asked_fence = int(said.get("fence", 0))
        if verb == "acquire":
            if said["rate"]:
                most, ms = map(int, said["rate"].split("/"))
                at.rate = most, ms * 1000
            if not mine.known:
                mine.lease, mine.limit = float(said["lease"]), int(said["limit"])
                mine.known, mine.channel = True, said["channel"]
                mine.share, mine.bound = said["share"], said["share_limit"] or math.inf
                at.channels.add(mine.channel)
            if self.me not in at.held:
                # Don't change the permits of a held lease: a downgrade may have set them to 1.
                mine.permits = int(said["permits"])
        elif verb == "operate" and not self.entry.error:
            if self.how in ("pause", "resume"):
                at.paused = self.how == "pause"
                at.cools_until = 0 if self.how == "resume" else at.cools_until
            elif self.how == "cool":
                ms = int(said["value"].partition(" ")[0])
                at.cools_until = max(at.cools_until, self.now + ms)
            elif "/" in str(said["value"]):
                most, ms = map(int, said["value"].split("/"))
                at.own_rate = most, ms * 1000
            else:
                at.override = int(said["value"]) if self.how == "resize" else None
                at.own_rate = at.own_rate if self.how == "resize" else None
        self.was_held = self.me in at.held
        self.was_queued = self.me in at.queue or self.me in at.parked
        self.owned = self.was_held and not mine.ended
        self.by_owner = self.owned and asked_fence == mine.fence
        self.nth, known = int(said.get("nth", 0)), int(said.get("known", 0))
        if self.how == "undo" and self.was_held and mine.fence == at.fence and at.paced:
            at.paced.pop()  # the undone grant was the last one, so the rate gets it back
        self.too_late = self.how == "adopt" and known < mine.nth != self.nth
        if self.how == "downgrade" and self.by_owner:
            # The exclusive lease becomes a lease of one permit.
            mine.permits = 1
            at.used += 1 - at.held[self.me]
            at.held[self.me] = 1

    # The writes

    def write(self, command: str, key: str, *args: Any) -> None:
        part = "wake" if key.startswith("wake:") else key
        own = getattr(self, f"on_{command.lower()}_{part}", None)
        if own is not None:
            own(*([key[5:]] if part == "wake" else []), *args)
        elif part in _KEYS and command in ("PEXPIREAT", "PERSIST"):
            expiry = float(args[0]) if command == "PEXPIREAT" else math.inf
            if self.at.members(part):  # a key without members doesn't exist
                self.at.expires[part] = expiry
            if part == "leases" and self.at.packed:
                self.at.expires["leases"] = self.at.expires["info"] = expiry
        elif (command, part) not in _WITHOUT_EFFECT:
            self.bad("keys", f"{command} on {key}")

    def on_hset_leases(self, field: str, text: str) -> None:
        """Read a new compact state as if the script had written the keys of the expanded state."""
        old, new = self.at.packed, unpack(text.encode("utf-8", "surrogateescape"))
        self.at.packed = new
        if old and old.holder and old.holder != new.holder:
            self.on_zrem_leases(old.holder, 0)
        same = old and (old.holder, old.ends, old.record) == (new.holder, new.ends, new.record)
        if new.holder and not same:
            self.put_lease(new.holder, new.ends)
            self.fences.append(str(new.fence))
        # In compact state, the key `leases` exists even without a lease. It expires with `info`.
        self.at.expires["leases"] = self.at.expires["info"]

    def on_del_leases(self) -> None:
        """Note that the script has deleted the compact state. If the compact state had a holder,
        the script is expanding the name, and must write the same lease again."""
        at = self.at
        if at.packed and at.packed.holder:
            at.expanding = at.packed.holder, at.packed.ends
        else:
            at.expires["leases"] = None
        at.packed = None

    def on_zadd_leases(self, end: str, token: str) -> None:
        if self.at.expanding != (token, float(end)):
            self.put_lease(token, float(end))

    def on_zrem_leases(self, token: str, wake: int) -> None:
        at, verb, counts = self.at, self.entry.verb, self.history.counts
        mine = self.token(token)
        if token in at.held:
            own, deadline = token == self.me, at.deadlines.get(token, math.inf)
            if own and (verb, self.how) == ("release", "release"):
                if not self.by_owner:
                    self.bad("owner", f"the lease of {token[:8]} was released with another fence")
            elif mine.unclaimed and wake and deadline <= self.now:
                counts["unclaimed"] += 1
            elif not (own and (verb == "clear" or self.how == "undo")):
                self.bad("owner", f"the unexpired lease of {token[:8]} was removed")
        elif token in at.leases and not mine.ended:
            counts["reclaimed"] += 1
        at.loose(token)
        if at.leases.pop(token, None) is not None:
            self.emptied("leases")

    def on_zadd_queue(self, score: str, token: str) -> None:
        at, ticket = self.at, float(score)
        if token in at.queue:
            self.bad("place", f"{token[:8]} was enqueued twice")
            return
        mine = self.token(token)
        if mine.ended and mine.ended_in == self.history.epochs:
            self.bad("ended", f"{token[:8]} was {mine.ended}, and waits again")
            mine.ended = ""
        self.appears("queue")
        gone = {was for other, (was, _) in self.gone.items() if self.same_share(other, token)}
        if ticket not in gone and any(ticket <= other for other, _ in at.queue.values()):
            self.bad("turn", f"{token[:8]} entered the queue before others")
        at.queue[token] = (ticket, self.entry.us)
        self.history.counts["waited"] += 1
        if at.arrived or mine.share or mine.bound < math.inf:
            self.arrives(token)
            if sum(self.same_share(t, token) for t in at.queue) > 1:
                self.bad("turn", f"two waiters of {mine.share} are in the queue")

    def same_share(self, one: str, other: str) -> bool:
        return self.token(one).share == self.token(other).share

    def on_zrem_queue(self, *tokens: str) -> None:
        for token in tokens:
            if token in self.at.queue:
                self.was.setdefault(token, self.at.deadlines.get(token, 0))
                self.gone[token] = self.at.queue.pop(token)
                self.emptied("queue")

    def on_zadd_parked(self, score: str, member: str) -> None:
        """Record a parked waiter. Because of its share, this waiter is not in the queue yet."""
        token = member.split(" ")[-1]
        self.appears("parked")
        self.at.parked.add(token)
        self.arrives(token)

    def on_zrem_parked(self, *members: str) -> None:
        for token in (member.split(" ")[-1] for member in members):
            if token in self.at.parked:
                self.was.setdefault(token, self.at.deadlines.get(token, 0))
                self.at.parked.discard(token)
                self.gone[token] = (math.inf, self.entry.us)
                self.emptied("parked")

    def arrives(self, token: str) -> None:
        if token not in self.at.arrived:
            self.turn += 1
            self.at.arrived[token] = self.turn

    def on_zadd_waiters(self, score: str, token: str) -> None:
        self.appears("waiters")
        self.at.deadlines[token] = float(score)

    def on_zrem_waiters(self, *tokens: str) -> None:
        for token in tokens:
            if (deadline := self.at.deadlines.pop(token, None)) is not None:
                self.was.setdefault(token, deadline)
                self.emptied("waiters")
                if token in self.at.channels and deadline > self.now:
                    self.bad("place", f"the heartbeat of {token} was removed")

    def on_hset_info(self, *pairs: str) -> None:
        self.fences += [v for f, v in zip(pairs[::2], pairs[1::2], strict=True) if f == "#fence"]

    def on_rpush_wake(self, token: str, message: str) -> None:
        self.elements[token] = message

    def on_pexpireat_wake(self, token: str, at: str) -> None:
        self.wakes[token] = float(at)

    def appears(self, key: str) -> None:
        if not self.at.members(key):
            self.at.expires[key] = math.inf

    def emptied(self, key: str) -> None:
        if not self.at.members(key):
            self.at.expires[key] = None

    def put_lease(self, token: str, end: float) -> None:
        at, now, verb = self.at, self.now, self.entry.verb
        mine, old = self.token(token), at.leases.get(token)
        clamped = old is not None and end < old and self.entry.us < at.fence
        self.appears("leases")
        if not clamped:
            if token in at.held:
                own = token == self.me and self.by_owner
                if verb == "acquire":
                    self.bad("fence", "an unexpired lease was granted again")
                elif not own or verb != "renew" or self.how not in ("set", "adopt"):
                    self.bad("moved", f"the lease of {token[:8]} was moved to {end:.0f}")
                elif self.too_late:
                    self.bad("moved", f"the lease of {token[:8]} was adopted twice")
                elif self.nth < mine.nth:
                    self.bad("moved", f"renewal {self.nth} comes after renewal {mine.nth}")
                mine.nth = self.nth
            elif token == f"k{self.me}" and (verb, self.how) == ("release", "release"):
                self.keep(mine, end)
            elif verb == "renew" or (verb == "release" and token == self.me):
                self.bad("extended", f"the lease of {token[:8]} had expired")
            else:
                self.grant(token, mine, end)
        at.hold(token, end, mine.weight, now)

    def keep(self, kept: _Token, end: float) -> None:
        """Check the lease that a release writes to retain its permits for `min_hold`. Such a lease
        has no owner.

        `kept`: the token of this lease. `end`: its end in ms."""
        hold = int(self.entry.said["hold"])
        if not self.by_owner or self.me in self.at.held:
            self.bad("owner", "permits are retained for a lease that was not released")
        if not self.now < end <= self.mine.fence / 1000 + hold + 1:
            self.bad("term", f"permits are retained until {end:.0f}")
        kept.share = self.mine.share
        kept.permits, kept.ended, kept.ended_in = self.mine.permits, "kept", self.history.epochs

    def grant(self, token: str, mine: _Token, end: float) -> None:
        at, now = self.at, self.now
        own = token == self.me and self.entry.verb == "acquire"
        shadow = own and self.how == "shadow"
        mine.nth = 0  # the renewals of each grant are numbered anew
        if mine.ended:
            if mine.ended_in == self.history.epochs:
                self.bad("ended", f"{token[:8]} was {mine.ended}")
            mine.ended = ""
        if shadow:
            self.history.counts["granted in shadow"] += not self.fits(mine)
        elif self.stopped():
            self.bad("paused", f"{token[:8]} was granted")
        elif not at.opens(mine.permits):
            self.bad("rate", f"{mine.permits} were granted after {sum(n for _, n in at.paced)}")
        elif not self.fits_share(mine):
            self.bad("share", f"{token[:8]} of {mine.share} was granted above {mine.bound}")
        elif not self.within_limit(mine):
            text = f"{at.used} of {self.limit_of(mine)} were in use, {mine.permits} were granted"
            self.bad("limit", text)
        ticket, _ = at.queue.get(token) or self.gone.get(token) or (math.inf, 0)
        ahead = next(self.waiting(token), None)
        if not shadow and ahead is not None and at.queue[ahead][0] < ticket:
            # An unfair request may overtake the first waiter if this waiter arrived less than
            # HEARTBEAT ago. Subtract 1 ms from its age, because times are rounded.
            age = now - at.queue[ahead][1] / 1000 - 1
            unfair = own and str(self.entry.said["fair"]) == "0" and ticket == math.inf
            if not (unfair and age < self.constants["HEARTBEAT"]):
                self.bad("order", f"{token[:8]} was granted before {ahead[:8]}")
        number = at.arrived.pop(token, math.inf)
        for other, came in at.arrived.items() if not shadow else ():
            waits = other in at.queue or other in at.parked
            if waits and came < number and self.same_share(other, token) and self.alive(other):
                self.bad("order", f"{token[:8]} was granted before {other[:8]}, of its share")
        mine.fence = 0
        at.spend(mine.permits, self.entry.us)
        self.granted[token] = end

    # Checks after the writes

    def check_grants(self) -> None:
        """Check the fence, the duration, and the notification of each grant of this script."""
        at, now, reply, counts = self.at, self.now, self.entry.reply, self.history.counts
        for token, end in self.granted.items():
            mine, handed = self.token(token), token in self.elements
            most = self.constants["FIRST"] if handed or mine.lease == math.inf else math.inf
            if handed:
                fence, when, lease = self.elements[token].split(" ")
                if (int(when), float(lease)) != (now, end - now):
                    self.bad("term", f"the message says {when} {lease}, not {now} {end - now}")
                if self.wakes.get(token, 0) < end:
                    self.bad("expiry", f"the wake list of {token[:8]} expires before its lease")
                mine.unclaimed = True
                counts["handed over"] += 1
            elif token == self.me and reply[:1] == ("ok",):
                fence = reply[1]
                counts["granted when asked again" if self.was_queued else "granted at once"] += 1
            else:
                self.bad("silent", f"{token[:8]} was not notified of its grant")
                continue
            if mine.known and end != now + min(mine.lease, most):
                self.bad("term", f"{end - now} ms were granted, {mine.lease} asked for")
            if int(fence) <= at.fence:
                self.bad("fence", f"fence {fence} was granted after fence {at.fence}")
            mine.fence = at.fence = int(fence)
        if self.granted and self.fences[-1:] != [str(at.fence)]:
            self.bad("fence", f"the last fence is {at.fence}, stored was {self.fences[-1:]}")

    def ends(self, why: str) -> None:
        self.mine.ended, self.mine.ended_in = why, self.history.epochs
        if self.me in self.at.queue or self.me in self.at.parked:
            self.bad("answer", f"the token was {why}, and still waits")
        if self.me in self.at.held:
            self.bad("answer", f"the token was {why}, and still holds")

    def claimed(self, fence: Any, lease: Any) -> None:
        """Check a reply that grants or confirms a lease."""
        mine, end = self.mine, self.at.leases.get(self.me, 0)
        if self.me not in self.at.held:
            self.bad("answer", "ok, but the token holds no lease")
        elif float(lease) > end - self.now:
            self.bad("term", f"{lease} ms are promised, {end - self.now} are left")
        if mine.fence and int(fence) != mine.fence:
            self.bad("fence", f"the fence of the token was {mine.fence}, now {fence}")
        mine.fence = mine.fence or int(fence)
        mine.unclaimed = False

    def after_acquire(self, word: str, *rest: Any) -> None:
        at, mine, counts = self.at, self.mine, self.history.counts
        if word == "ok":
            self.claimed(*rest[:2])
            return
        if self.me in at.held and not mine.ended:
            self.bad("answer", f"{word}, but the token holds a lease")
        waits = self.me in at.queue or self.me in at.parked
        if (word == "wait") != waits:
            self.bad("answer", f"{word}, but the token {'waits' if waits else 'does not wait'}")
        if word == "wait":
            deadlines, constants = at.deadlines, self.constants
            due = self.now + int(rest[1]) + constants["PATIENCE"]
            beat = self.now + constants["ALIVE"] if mine.channel != "-" else 0
            if deadlines.get(self.me, 0) < due or deadlines.get(mine.channel, 0) < beat:
                self.bad("place", "the waiter counts as dead before its next heartbeat is due")
        nobody, within = not at.queue and not at.parked, self.fits_share(mine)
        idle = (nobody and self.fits(mine)) or (mine.permits <= mine.bound and not within)
        wrong = {
            "no paused": (not at.paused, "the name is not paused"),
            "no rate": (not self.stopped() and at.opens(mine.permits), "the rate allows it"),
            "no share": (within, f"{mine.share} has less than {mine.bound}"),
            "no full": (idle, f"{at.used} of {self.limit_of(mine)} are in use"),
            "large": (not self.too_large(mine), "the limit and the rate are enough"),
            "kind": (not at.held and nobody, "there is no holder and no waiter"),
            "more": (len(self.entry.writes) < self.constants["BOUND"], "nothing was left"),
            "dead": (not mine.ended, "the token had not ended"),
        }
        is_wrong, why = wrong.get(f"no {rest[0]}" if word == "no" else word, (False, ""))
        if is_wrong:
            self.bad("refused", why)
        if word != "wait":
            counts[f"refused, {rest[0]}" if word == "no" else word] += 1

    def after_release(self, word: str, *rest: Any) -> None:
        how, counts = self.how, self.history.counts
        tombstone = str(self.entry.said["tombstone"])
        if how == "lost":  # in this mode, the script only counts a lost lease
            if word != "ok" or self.entry.writes:
                self.bad("answer", f"{word}, and the script did more than count")
        elif how in ("release", "downgrade"):
            if (word == "ok") != self.by_owner:
                self.bad(
                    "answer",
                    f"{word}, but the lease {'was' if self.by_owner else 'was not'} its caller's",
                )
            counts[f"{how}d" if word == "ok" else f"{how}d, but lost"] += 1
            if word == "ok" and how == "release":
                self.ends("released")
        elif how == "giveup" and word == "ok":
            self.claimed(*rest[:2])
        elif word != "lost":
            counts["given up" if how == "giveup" else "undone"] += 1
            if how == "giveup" and self.owned:
                self.bad("answer", "giveup removed a lease")
            if tombstone == "1" or self.was_held or self.was_queued:
                self.ends("undone")
        elif self.owned:
            self.bad("answer", "lost, but the token held its lease")

    def after_renew(self, word: str, *rest: Any) -> None:
        done = {"ok": "renewed", "adopted": "refused to a second owner"}
        self.history.counts[done.get(word, "renewed, but lost")] += 1
        if word == "adopted":
            if not (self.by_owner and self.too_late):
                self.bad("answer", f"{word}, but there was no other adoption")
        elif (word == "ok") != self.by_owner:
            self.bad(
                "answer",
                f"{word}, but the lease {'was' if self.by_owner else 'was not'} its caller's",
            )
        if word == "ok":
            self.claimed(self.entry.said["fence"], rest[0])

    def after_clear(self, word: str) -> None:
        self.history.counts["cleared" if word == "ok" else "cleared, but gone"] += 1
        if word == "ok":
            self.ends("cleared")
        elif self.was_held or self.was_queued:
            self.bad("answer", f"{word}, but the token held or waited")

    def after_operate(self, word: str) -> None:
        self.history.counts[self.how] += 1

    def check_handoff(self) -> None:
        """Check that no permit is left free that the first live waiter could get."""
        verb, word, at = self.entry.verb, self.entry.reply[0], self.at
        # In mode "lost", the script `release` frees no permits: it only counts a lost lease.
        may_free = self.how != "lost" and (
            (verb == "acquire" and word in ("wait", "no"))
            or (verb == "acquire" and self.was_queued and self.me in self.granted)
            or (verb == "release" and word != "lost" and len(self.entry.reply) == 1)
            or (verb == "clear" and word == "ok")
            or verb == "operate"
        )
        # After a cool-down, a newcomer grants nothing to waiters: the first waiter comes itself.
        cooled = verb == "acquire" and not self.was_queued and 0 < at.cools_until <= self.now
        if cooled or not may_free or not at.queue:
            return
        if len(self.entry.writes) >= self.constants["BOUND"]:
            return
        head = next(self.waiting(), None)
        if head is not None and self.fits(self.token(head)):
            self.bad("handover", f"{head[:8]} waits, {at.used} permits are in use")
        # If a share has permits left, the first waiter of the share must be in the queue.
        firsts = dict[str, str]()
        for token, _ in sorted(at.arrived.items(), key=lambda item: item[1]):
            if token in at.queue or token in at.parked:
                firsts.setdefault(self.token(token).share, token)
        swept = len(at.held) == len(at.leases)
        for share, token in firsts.items() if swept else ():
            if token not in at.queue and self.fits_share(self.token(token)):
                self.bad("turn", f"{token[:8]} is the first of {share}, and is not in the queue")

    def check_removed(self) -> None:
        """Check that this script had a reason to remove each waiter that it removed from the queue.

        A reason: the waiter has a grant, has ended, is dead, or asks for more than the limit."""
        for token in self.gone:
            mine = self.token(token)
            if token in self.at.queue or token in self.at.parked:
                continue
            self.at.arrived.pop(token, None)
            if token in self.granted or self.too_large(mine):
                continue
            if token == self.me and (mine.ended or self.entry.verb == "release"):
                continue
            if self.was[token] > self.now and self.beats(mine.channel):
                self.bad("place", f"{token[:8]} was removed from the queue")

    def check_expiry(self) -> None:
        """Check that each key expires, but not before the last lease and the last waiter have
        ended. The keys of a name with an operator override must not expire."""
        at = self.at
        latest = max((*at.leases.values(), *at.deadlines.values()), default=0)
        marked = at.paused or at.override is not None or at.own_rate is not None
        for key, expires in at.expires.items():
            if expires is None:
                continue
            if expires < (math.inf if marked else latest):
                self.bad("expiry", f"{key} expires at {expires:.0f}, before {latest:.0f}")
            elif expires == math.inf and latest < math.inf and not marked:
                self.bad("expiry", f"{key} never expires")


#: Writes that are irrelevant for the rules.
_WITHOUT_EFFECT = {("DEL", "wake"), ("DEL", "never"), ("DEL", "info"), ("HDEL", "info")}
