"""Explore all states breadth-first, check the invariants of each, and print the trace to a
violation."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from django_redis_sync.protocol.scripts import CONSTANTS

from .clients import KEYS, MILLISECONDS, Hold, Protocol
from .world import Facts, Label, Ran, Setting, State, World

FAR = 10_000  # ticks: later than every expiry


class Violation(AssertionError):
    """An invariant that doesn't hold, and the shortest trace to that state."""

    def __init__(self, what: str, trace: str) -> None:
        super().__init__(f"{what}\n{trace}")
        self.what, self.trace = what, trace


class _Broken(Exception):
    pass


@dataclass(frozen=True)
class Explored:
    states: int
    fair: int  # number of states from which liveness was checked
    longest: int  # longest wait in ticks in these checks
    whole: bool  # True if all states were explored


def weight(permits: int) -> int:
    return permits or CONSTANTS["EXCLUSIVE"]


def used(facts: Facts, now: float) -> int:
    """Return the permits of unexpired leases, or of all leases if `now` is -1."""
    return sum(weight(facts.records[t].permits) for t, end in facts.leases.items() if end > now)


def fits(facts: Facts, token: str, taken: int) -> bool:
    record = facts.records[token]
    limit = int(facts.fields.get("#limit", record.limit))
    if "#paused" in facts.fields:
        return False
    return taken == 0 if record.permits == 0 else taken + record.permits <= limit


def share_use(facts: Facts, share: str, now: float) -> int:
    """Return the permits of a share's unexpired leases, or of all its leases if `now` is -1."""
    records = (facts.records[t] for t, end in facts.leases.items() if end > now)
    return sum(weight(record.permits) for record in records if record.share == share)


def within(facts: Facts, token: str, now: float) -> bool:
    """Return True if the limit of its share allows the permits of a waiter."""
    record = facts.records[token]
    if record.share is None or not record.bound:
        return True
    return share_use(facts, record.share, now) + weight(record.permits) <= record.bound


def first_in_queue(facts: Facts) -> str | None:
    return min(facts.queue, key=lambda t: (facts.queue[t], t), default=None)


def is_alive(facts: Facts, token: str, now: float) -> bool:
    """Return True if the deadlines of a waiter and of its event loop haven't passed."""
    record = facts.records.get(token)
    group = record.channel if record and record.channel != "-" else token
    return min(facts.waiters.get(token, 0), facts.waiters.get(group, 0)) > now


#: Scripts that hand off freed permits. After other scripts, the next heartbeat does it.
_FREEING = ("release", "clear", "operate")
#: The modes of `release` that require the fence of the lease.
_NAMING = ("release", "share")


def _check_error(world: World, ran: Ran) -> None:
    """Check that a script fails only if the memory is full, and that it then rejects a new
    acquire without any write."""
    if ran.reply[0] != "ERROR":
        return
    if "OOM" not in ran.reply[1]:
        raise _Broken(f"the script {ran.verb} stopped: {ran.reply[1]}")
    if ran.verb != "acquire" or ran.token in world.facts(ran.before).records:
        raise _Broken(f"{ran.verb} of {ran.token} was denied for want of memory")
    if ran.before != ran.after:
        raise _Broken(f"{ran.token}, a newcomer that was denied, left something")


def _check_shares(facts: Facts) -> None:
    """Check the invariants of a name with shares."""
    shares = [facts.records[token].share for token in facts.queue]
    if len(shares) > len(set(shares)):
        raise _Broken("two waiters of one share are in the queue")
    for token in facts.parked:
        share = facts.records[token].share
        if share not in shares:
            ahead = {t: at for t, at in facts.parked.items() if facts.records[t].share == share}
            first = min(ahead, key=ahead.__getitem__)
            if within(facts, first, -1):
                raise _Broken(
                    f"{first} is first of its share, which has permits left, and is parked"
                )
    for field, text in facts.fields.items():
        if field.startswith("/"):
            since, stored, first = text.split(" ")
            use = share_use(facts, field[1:], -1)
            if facts.leases and since == facts.fields["#shares"] and int(stored) != use:
                raise _Broken(f"the use of share {field[1:]} is {stored}, the leases say {use}")
            if first and first not in facts.queue:
                raise _Broken(f"{first} is noted as first of its share, and not in the queue")


def _asked_of_share(old: Facts, ran: Ran) -> tuple[str, int, int]:
    """Return the share, its limit, and the permits of a rejected caller or a former waiter."""
    if record := old.records.get(ran.token):
        return record.share or "", record.bound, record.permits
    return ran.said["share"], int(ran.said["share_limit"]), int(ran.said["permits"])


def _left_by(share: str, old: Facts, new: Facts) -> float:
    """Return the ticket of a waiter that left, which the next waiter of the share inherits."""
    gone = old.queue.keys() - new.queue.keys() - new.leases.keys()
    return min((old.queue[t] for t in gone if old.records[t].share == share), default=math.inf)


class Checker:
    """An exploration of one setting.

    `sample`: check liveness from every n-th state; 0 for none."""

    def __init__(self, protocol: Protocol, setting: Setting, sample: int = 0) -> None:
        self.world, self.setting, self.sample = World(protocol, setting), setting, sample
        self._sound: set[tuple[int, int]] = set()
        self._needs: dict[State, int] = {}
        self._fair = self._longest = 0
        resized = any(how == "resize" for how, _ in setting.operations)
        limits = [spec.limit for spec in setting.clients]
        self._limit = math.inf if resized else max(limits)
        self._bounds = {s.tenant: s.bound for s in sorted(setting.clients, key=lambda s: s.bound)}
        self._fair_queue = all(spec.fair for spec in setting.clients)
        self._undisturbed = not (setting.faults or setting.operations)
        leases = [t for s in setting.clients for t in (s.lease, s.hold, *s.renew) if t < math.inf]
        self._bound = 2 * max(leases, default=0) + 4 * MILLISECONDS["ASLEEP"]

    def explore(self, most: int = 10**9) -> Explored:
        """Explore up to `most` states. Raise Violation at the first broken invariant."""
        world, start = self.world, self.world.start()
        self._parents: dict[State, tuple[State, Label] | None] = {start: None}
        parents, waiting, seen = self._parents, deque([start]), 0
        while waiting and seen < most:
            state = waiting.popleft()
            seen += 1
            if self.sample and seen % self.sample == 0:
                self._check_liveness(state)
            for label, after, ran in world.steps(state):
                new = after not in parents
                try:
                    if ran is not None:
                        self._check_run(state, after, ran)
                    elif label[0] == "tick":
                        self._check_tick(state, after)
                    if new:
                        self._check_state(after)
                except _Broken as broken:
                    raise Violation(str(broken), self._tell(state, (label, after))) from None
                if new:
                    parents[after] = (state, label)
                    waiting.append(after)
        return Explored(len(parents), self._fair, self._longest, not waiting)

    # What must hold

    def _check_run(self, before: State, after: State, ran: Ran) -> None:
        _check_error(self.world, ran)
        if ran.before == ran.after:
            old = new = self.world.facts(ran.before)
        else:
            old, new = self.world.facts(ran.before), self.world.facts(ran.after)
            self._check_changes(before, old, new, ran)
        self._check_reply(before, old, ran)
        if ran.reply[:2] == ("no", "share"):
            share, bound, permits = _asked_of_share(old, ran)
            # A caller that gives up removes no expired leases, because it gets no permit.
            now = -1 if ran.verb == "release" else self.world.milliseconds(before.now)
            if share_use(old, share, now) + permits <= bound:
                raise _Broken(f"{ran.token} was rejected while its share had permits left")
        if ran.reply[:2] == ("no", "full") and not (new.queue or new.parked):
            taken, asked = used(new, self.world.milliseconds(before.now)), int(ran.said["permits"])
            limit = int(new.fields.get("#limit", ran.said["limit"]))
            if taken + asked <= limit if asked else not taken:
                raise _Broken(f"{ran.token} was rejected while its permits were free")

    def _check_reply(self, state: State, old: Facts, ran: Ran) -> None:
        record, now = old.records.get(ran.token), self.world.milliseconds(state.now)
        waited = (
            ran.verb == "acquire"
            and ran.reply[0] == "gone"
            and (ran.token in old.queue or ran.token in old.parked)
        )
        if waited and record and record.permits <= int(old.fields.get("#limit", record.limit)):
            raise _Broken(f"{ran.token} asked again and lost its place by that")
        if ran.verb == "acquire" and ran.reply[0] == "gone" and self._undisturbed:
            raise _Broken(f"{ran.token} asked in time and had lost its place")
        named = ran.verb == "renew" or (ran.verb == "release" and ran.said["how"] in _NAMING)
        if named and ran.reply[0] == "ok":
            if old.leases.get(ran.token, 0) <= now or record is None:
                raise _Broken(f"{ran.verb} confirmed the expired lease of {ran.token}")
            if str(record.fence) != str(ran.argv[1]):
                raise _Broken(f"{ran.verb} accepted {ran.token} with the fence of another lease")

    def _check_changes(self, state: State, old: Facts, new: Facts, ran: Ran) -> None:
        now = self.world.milliseconds(state.now)
        for token, end in old.leases.items():
            if token not in new.leases and end > now and not self._may_go(token, old, now, ran):
                raise _Broken(f"{ran.verb} of {ran.token} took the lease of {token}")
        given = []
        for token, end in new.leases.items():
            record, was = new.records.get(token), old.records.get(token)
            if record is None:
                raise _Broken(f"{token} has a lease without a record")
            if was is not None and was.fence == record.fence and token in old.leases:
                continue
            if record.state == "k":
                continue  # retained by min_hold after its release
            if end <= now:
                raise _Broken(f"{token} was granted an expired lease")
            given.append((record.fence, token))
            if old.leases.get(token, 0) > now:
                raise _Broken(f"{token} was granted again while it held")
            if token in state.cleared:
                raise _Broken(f"{token} was cleared and came back")
            if token in self._closed(state):
                raise _Broken(f"{token} had ended and was granted again")
        head = first_in_queue(new)
        alive = head and ran.verb in _FREEING and is_alive(new, head, now)
        if head and alive and fits(new, head, used(new, -1)) and within(new, head, -1):
            raise _Broken(f"permits are free, and {ran.verb} left {head} waiting")
        for fence, token in given:
            if fence <= state.top:
                raise _Broken(f"the fence of {token} did not grow")
            taken = used(new, now)
            if not fits(new, token, taken - weight(new.records[token].permits)):
                raise _Broken(f"{token} was granted over the limit")
            ticket = old.queue.get(token, math.inf)
            if (share := new.records[token].share) is not None:
                ticket = min(ticket, _left_by(share, old, new))
                self._check_share(token, old, new, now)
            first = [t for t in new.queue if t in old.queue and new.queue[t] < ticket]
            if first and self._fair_queue:
                raise _Broken(f"{token} was granted before {first[0]}, which had waited longer")

    def _check_share(self, token: str, old: Facts, new: Facts, now: int) -> None:
        """Check the invariants of a grant's share."""
        share, bound = new.records[token].share, new.records[token].bound
        assert share is not None
        if bound and share_use(new, share, now) > bound:
            raise _Broken(f"{token} was granted over the limit of its share")
        came = old.records[token].fence if token in old.queue or token in old.parked else math.inf
        for other in (*new.queue, *new.parked):
            record = old.records.get(other)
            if record and record.state == "w" and record.share == share and record.fence < came:
                raise _Broken(f"{token} was granted before {other} of its share")

    def _may_go(self, token: str, old: Facts, now: int, ran: Ran) -> bool:
        if token == ran.token and ran.verb == "release":
            return ran.said["how"] != "release" or str(ran.argv[1]) == str(old.records[token].fence)
        if token == ran.token and ran.verb == "clear":
            return True
        # A new holder that didn't claim its permit in time.
        return old.waiters.get(token, math.inf) <= now and token in old.wakes

    def _check_tick(self, before: State, after: State) -> None:
        now = self.world.milliseconds(after.now)
        gone = self.world.facts(before.server).leases.items()
        left = self.world.facts(after.server).leases
        for token, end in gone:
            if end > now and token not in left:
                raise _Broken(f"the lease of {token} expired with its key")

    def _check_state(self, state: State) -> None:
        if (state.server, state.now) not in self._sound:
            self._check_server(state)
            self._sound.add((state.server, state.now))
        facts, total, tenants = None, 0, dict[str, int]()
        for index in range(len(state.clients)):
            believed = self.world.believes(state, index)
            if believed is None or believed[0] in state.cleared:
                continue
            token, fence, _, permits = believed
            facts = facts or self.world.facts(state.server)
            total += weight(permits)
            spec = self.setting.clients[index]
            tenants[spec.tenant] = tenants.get(spec.tenant, 0) + weight(permits)
            if spec.bound and tenants[spec.tenant] > max(self._bounds[spec.tenant], permits):
                raise _Broken("too many clients of a share hold locally")
            if total > max(self._limit, weight(permits)):
                raise _Broken("too many clients hold locally")
            if facts.leases.get(token, 0) <= self.world.milliseconds(state.now):
                raise _Broken(f"{token} treats an expired lease as held")
            if facts.records[token].fence != fence or facts.records[token].state == "k":
                raise _Broken(f"{token} treats another lease than its own as held")

    def _check_server(self, state: State) -> None:
        facts, now = self.world.facts(state.server), self.world.milliseconds(state.now)
        held = [facts.records.get(t) for t in (*facts.leases, *facts.queue, *facts.parked)]
        if None in held:
            raise _Broken("a lease or a waiter without a record")
        if len(facts.queue) > len(set(facts.queue.values())):
            raise _Broken("two waiters have one ticket")
        taken = used(facts, now)
        if taken > self._limit and sum(end > now for end in facts.leases.values()) > 1:
            raise _Broken("the server shows more holders than the limit")
        extra = used(facts, -1) - len(facts.leases)
        if facts.leases and int(facts.fields.get("#extra", 0)) != extra:
            raise _Broken(f"#extra is {facts.fields.get('#extra')}, the leases say {extra}")
        for token in facts.wakes:
            if token not in facts.records or facts.records[token].state != "g":
                raise _Broken(f"{token} left an element to wake it")
        self._check_expiries(facts)
        if "#shares" in facts.fields:
            _check_shares(facts)

    def _check_expiries(self, facts: Facts) -> None:
        latest = max((*facts.leases.values(), *facts.waiters.values()), default=0)
        lasting = latest == math.inf or "#paused" in facts.fields or "#limit" in facts.fields
        for key, expiry in facts.expiries.items():
            if key.startswith(KEYS.wake):
                if expiry is None:
                    raise _Broken(f"{key} never expires")
            elif lasting:
                if expiry is not None:
                    raise _Broken(f"{key} expires, and with it what was to last")
            elif expiry is None:
                raise _Broken(f"{key} never expires")
            elif expiry < latest:
                raise _Broken(f"{key} expires before a lease or a waiter ends")

    def _closed(self, state: State) -> set[str]:
        """Return the ended tokens, to which nothing may be granted any more."""
        closed: set[str] = set()
        for index, client in enumerate(state.clients):
            node = self.world.lives[index].nodes[client.node]
            owed = node.debts if client.mode == "dead" else client.debts
            closed |= node.closed - {debt.argv[0] for debt in owed}
        return closed

    # Liveness

    def _check_liveness(self, state: State) -> None:
        """Check that without further faults, all waiters are granted and all keys expire."""
        self._fair += 1
        try:
            fair = _Fair(self.world, state)
        except _Broken as broken:
            raise Violation(str(broken), self._tell(state, None)) from None
        path: list[State] = []
        needed = 0
        try:
            while not fair.ended():
                if fair.state in self._needs:
                    needed = self._needs[fair.state]
                    break
                path.append(fair.state)
                if len(path) > self._bound:
                    raise _Broken(f"{fair.waiting()} still waits after {len(path)} ticks")
                fair.tick()
            else:
                left = self.world.purged(fair.state.server, fair.state.now + FAR)
                if self.world.facts(left).expiries:
                    raise _Broken(f"left behind: {sorted(self.world.facts(left).expiries)}")
        except _Broken as broken:
            trace = self._tell(state, None) + "\nThen no more faults:\n" + fair.told()
            raise Violation(str(broken), trace) from None
        for n, passed in enumerate(reversed(path)):
            self._needs[passed] = needed + n + 1
        self._longest = max(self._longest, needed + len(path))

    # Traces

    def _tell(self, state: State, last: tuple[Label, State] | None) -> str:
        steps = [(last[0], last[1])] if last else []
        at: State = state
        while (parent := self._parents[at]) is not None:
            steps.append((parent[1], at))
            at = parent[0]
        lines = [f"{self.setting.name}, {len(steps)} steps:"]
        return "\n".join(lines + [step_line(self.world, *step) for step in reversed(steps)])


class _Fair:
    """A deterministic run without further faults, in which holders release their leases."""

    def __init__(self, world: World, state: State) -> None:
        self.world, self._steps, self._free = world, [], 0  # type: list[tuple[Label, State]]
        clients = tuple(c._replace(mode="live") if c.mode == "paused" else c for c in state.clients)
        self.state = state._replace(clients=clients, faults=0)
        while late := next(world._late_steps(self.state), None):
            self._do(*late)
        self._take_back()
        self._settle()

    def _do(self, label: Label, state: State, ran: Ran | None = None) -> None:
        self.state = state
        self._steps.append((label, state))
        if ran is not None:
            _check_error(self.world, ran)

    def _take_back(self) -> None:
        """Undo the operator overrides, and clear permanent leases of dead clients."""
        facts = self.world.facts(self.state.server)
        for field, how in (("#paused", "resume"), ("#limit", "reset")):
            if field in facts.fields:
                after, ran = self.world.run(self.state, "operate", "", ("", how, "", "-", 0))
                self._do(("an operator says", how), after, ran)
        for token, end in facts.leases.items():
            if end == math.inf and self.state.clients["abcdefgh".index(token[0])].mode == "dead":
                after, ran = self.world.run(self.state, "clear", token, (token, "-", 0))
                self._do(("an operator clears", token), after, ran)

    def _settle(self) -> None:
        while step := next(self.world.prompt_steps(self.state), None) or self._release():
            self._do(*step)

    def _release(self) -> tuple[Label, State] | None:
        for index, client in enumerate(self.state.clients):
            held = isinstance(self.world.lives[index].nodes[client.node].step, Hold)
            if held and client.mode == "live" and client.doing is None:
                return ("releases", index), self.world._choose(self.state, index, "release")
        return None

    def tick(self) -> None:
        self._do(("tick",), self.world.tick(self.state))
        self._settle()
        # If a permit became free by expiry, the next heartbeat must hand it off.
        facts = self.world.facts(self.state.server)
        head = first_in_queue(facts)
        now = self.world.milliseconds(self.state.now)
        free = head and fits(facts, head, used(facts, now)) and within(facts, head, now)
        self._free = self._free + 1 if free else 0
        owner = self.state.clients["abcdefgh".index(head[0])] if head else None
        if owner and owner.mode == "live" and self._free > MILLISECONDS["HEARTBEAT"] + 1:
            raise _Broken(f"permits are free for {self._free} ticks, and {head} waits")

    def waiting(self) -> str:
        return ", ".join(
            self.world.lives[i].nodes[c.node].token
            for i, c in enumerate(self.state.clients)
            if self._busy(i)
        )

    def _busy(self, index: int) -> bool:
        client = self.state.clients[index]
        node = self.world.lives[index].nodes[client.node]
        return client.mode != "dead" and node.phase != "idle"

    def ended(self) -> bool:
        return not any(self._busy(index) for index in range(len(self.state.clients)))

    def told(self) -> str:
        return "\n".join(step_line(self.world, *step) for step in self._steps)


def step_line(world: World, label: Label, state: State) -> str:
    """Return a line of a trace: the tick, the client, the step, and the leases held after it."""
    what, *rest = label
    if rest and isinstance(rest[0], int):
        who, rest = "abcdefgh"[rest[0]], rest[1:]
    else:
        who = ""
    details = " ".join(_short(item) for item in rest)
    held = []
    for index in range(len(state.clients)):
        believed = world.believes(state, index)
        if believed:
            until = world.protocol.ticks(believed[2]) if believed[2] < math.inf else "ever"
            offset = world.setting.clients[index].offset if believed[2] < math.inf else 0
            until = until if until == "ever" else until - offset
            held.append(f"{believed[0]} until {until}")
    line = f"  {state.now:>3}  {who:1} {what} {details}".rstrip()
    return f"{line:<100}  | {', '.join(held)}" if held else line


def _short(item: Any) -> str:
    if isinstance(item, tuple):
        return "(" + " ".join(_short(part) for part in item if part != "") + ")"
    text = str(item)
    return text.replace("1700000", "~") if text.startswith("1700000") else text


def check(protocol: Protocol, setting: Setting, sample: int = 0, most: int = 10**9) -> Explored:
    return Checker(protocol, setting, sample).explore(most)
