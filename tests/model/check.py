"""Explore all states of the model breadth-first, and check the invariants of each state.

A broken invariant raises AssertionError. `Checker` then raises a `Violation`, which adds the steps
that led to the state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from django_redis_sync.protocol.scripts import CONSTANTS

from .clients import KEYS, NAMES, TICKS, Hold, Protocol
from .world import Facts, Label, ScriptRun, Setting, State, World

FAR = 10_000  # number of ticks after which all keys must have expired


class Violation(AssertionError):
    """Raised if an invariant is broken. `trace`: the shortest sequence of steps that breaks it."""

    def __init__(self, what: str, trace: str) -> None:
        super().__init__(f"{what}\n{trace}")
        self.what, self.trace = what, trace


@dataclass(frozen=True)
class Explored:
    states: int
    fair: int  # number of states from which liveness was checked
    longest: int  # number of ticks of the longest liveness check
    whole: bool  # True if all states were explored


def weight(permits: int) -> int:
    return permits or CONSTANTS["EXCLUSIVE"]


def used(facts: Facts, now: float, share: str | None = None) -> int:
    """Return the number of permits that are in use at `now` (in ms).

    If `now` is -1, count expired leases too. If `share` is given, count only leases of this
    share."""
    records = (facts.records[t] for t, end in facts.leases.items() if end > now)
    return sum(weight(one.permits) for one in records if share is None or one.share == share)


def fits(facts: Facts, token: str, taken: int, now: float) -> bool:
    """Return True if the waiter `token` can get its permits while `taken` permits are in use."""
    record = facts.records[token]
    limit = int(facts.fields.get("#limit", record.limit))
    free = taken == 0 if record.permits == 0 else taken + record.permits <= limit
    return "#paused" not in facts.fields and free and fits_share(facts, token, now)


def fits_share(facts: Facts, token: str, now: float) -> bool:
    """Return True if the waiter `token` can get its permits within the limit of its share."""
    record = facts.records[token]
    if record.share is None or not record.share_limit:
        return True
    return used(facts, now, record.share) + weight(record.permits) <= record.share_limit


def first_in_queue(facts: Facts) -> str | None:
    return min(facts.queue, key=lambda t: (facts.queue[t], t), default=None)


def is_alive(facts: Facts, token: str, now: float) -> bool:
    """Return True if the waiter `token` is alive: its heartbeat deadline has not passed. In async
    code, the deadline of its event loop must not have passed either."""
    record = facts.records.get(token)
    group = record.channel if record and record.channel != "-" else token
    return min(facts.waiters.get(token, 0), facts.waiters.get(group, 0)) > now


#: Scripts that must hand off all free permits. Other scripts may leave this to the next heartbeat.
_FREEING = ("release", "clear", "operate")
#: The modes (`how`) of the script `release` that require the fence of the lease.
_NAMING = ("release", "downgrade")


def _check_error(world: World, ran: ScriptRun) -> None:
    """Check that no script fails, except an acquire of a new token while the memory is full.
    Such an acquire must have written nothing."""
    if ran.reply[0] == "ERROR":
        denied = f"{ran.verb} of {ran.token} was denied for want of memory"
        assert "OOM" in ran.reply[1], f"the script {ran.verb} stopped: {ran.reply[1]}"
        assert ran.verb == "acquire", denied
        assert ran.token not in world.facts(ran.before).records, denied
        assert ran.before == ran.after, f"{ran.token} was denied as a newcomer, but left data"


def _check_shares(facts: Facts) -> None:
    """Check the invariants of a name with shares."""
    shares = [facts.records[token].share for token in facts.queue]
    assert len(shares) == len(set(shares)), "two waiters of one share are in the queue"
    first: dict[str | None, str] = {}
    for token in sorted(facts.parked, key=facts.parked.__getitem__):
        first.setdefault(facts.records[token].share, token)
    for share, token in first.items():
        idle = share not in shares and fits_share(facts, token, -1)
        assert not idle, f"{token} is parked, but is first of a share that has permits left"
    for share, text in ((f[1:], text) for f, text in facts.fields.items() if f[0] == "/"):
        since, stored, head = text.split(" ")
        use = used(facts, -1, share)
        if facts.leases and since == facts.fields["#shares"]:
            assert int(stored) == use, f"the use of share {share} is {stored}, the leases say {use}"
        assert not head or head in facts.queue, (
            f"{head} is stored as the first of its share, but is not in the queue"
        )


def _left_by(share: str, old: Facts, new: Facts) -> float:
    """Return the ticket of the waiter of `share` that left the queue between `old` and `new`
    without a lease. The next waiter of the share gets this ticket, and so the queue position.
    Return infinity if no such waiter left."""
    gone = old.queue.keys() - new.queue.keys() - new.leases.keys()
    return min((old.queue[t] for t in gone if old.records[t].share == share), default=math.inf)


class Checker:
    """Explores one setting. `sample`: N to check liveness from every N-th state, 0 for no check."""

    def __init__(self, protocol: Protocol, setting: Setting, sample: int = 0) -> None:
        self.world, self.setting, self.sample = World(protocol, setting), setting, sample
        self.sound: set[tuple[int, int]] = set()
        self.needs: dict[State, int] = {}
        self._fair = self._longest = 0
        resized = any(how == "resize" for how, _ in setting.operations)
        limits = [spec.limit for spec in setting.clients]
        self._limit = math.inf if resized else max(limits)
        by_limit = sorted(setting.clients, key=lambda spec: spec.share_limit)
        self.share_limits = {spec.share: spec.share_limit for spec in by_limit}
        self.fair_queue = all(spec.fair for spec in setting.clients)
        self.undisturbed = not (setting.faults or setting.operations)
        leases = [t for s in setting.clients for t in (s.lease, s.hold, *s.renew) if t < math.inf]
        self._max_ticks = 2 * max(leases, default=0) + 4 * TICKS["ASLEEP"]

    def explore(self, most: int = 10**9) -> Explored:
        """Explore up to `most` states. Raise Violation at the first broken invariant."""
        world, start = self.world, self.world.start()
        self.parents: dict[State, tuple[State, Label] | None] = {start: None}
        parents, waiting, seen = self.parents, deque([start]), 0
        while waiting and seen < most:
            state = waiting.popleft()
            seen += 1
            if self.sample and seen % self.sample == 0:
                self.check_liveness(state)
            for label, after, ran in world.steps(state):
                new = after not in parents
                try:
                    if ran is not None:
                        self.check_run(state, after, ran)
                    elif label[0] == "tick":
                        self.check_tick(state, after)
                    if new:
                        self.check_state(after)
                except AssertionError as broken:
                    raise Violation(str(broken), self._trace(state, (label, after))) from None
                if new:
                    parents[after] = (state, label)
                    waiting.append(after)
        return Explored(len(parents), self._fair, self._longest, not waiting)

    # The invariants

    def check_run(self, before: State, after: State, ran: ScriptRun) -> None:
        _check_error(self.world, ran)
        old, new = self.world.facts(ran.before), self.world.facts(ran.after)
        if ran.before != ran.after:
            self.check_changes(before, old, new, ran)
        self.check_reply(before, old, new, ran)

    def check_reply(self, state: State, old: Facts, new: Facts, ran: ScriptRun) -> None:
        record, now = old.records.get(ran.token), self.world.milliseconds(state.now)
        word, said = ran.reply[:2] if ran.reply[0] == "no" else ran.reply[:1], ran.said
        if word == ("gone",) and ran.verb == "acquire":
            waited = ran.token in old.queue or ran.token in old.parked
            small = record and record.permits <= int(old.fields.get("#limit", record.limit))
            lost = f"{ran.token} lost its position by asking again"
            assert not (waited and small), lost
            assert not self.undisturbed, f"{ran.token} lost its position although it asked in time"
        elif word == ("ok",) and (ran.verb == "renew" or said.get("how") in _NAMING):
            ended = f"{ran.verb} confirmed the expired lease of {ran.token}"
            assert record is not None and old.leases.get(ran.token, 0) > now, ended
            other = f"{ran.verb} accepted {ran.token} with the fence of another lease"
            assert str(record.fence) == str(ran.argv[1]), other
        elif word == ("no", "share"):
            share, most = said.get("share", ""), int(said.get("share_limit", 0))
            permits = int(said.get("permits", 0))
            if record:  # the caller's first request has stored these values
                share, most, permits = record.share, record.share_limit, record.permits
            # `release` in mode "giveup" doesn't remove expired leases, so they still count.
            use = used(old, -1 if ran.verb == "release" else now, share)
            full = f"{ran.token} was rejected while its share had permits left"
            assert use + permits > most, full
        elif word == ("no", "full") and not (new.queue or new.parked):
            taken, asked = used(new, now), int(said["permits"])
            limit = int(new.fields.get("#limit", said["limit"]))
            full = f"{ran.token} was rejected while its permits were free"
            assert (taken + asked > limit) if asked else taken, full

    def check_changes(self, state: State, old: Facts, new: Facts, ran: ScriptRun) -> None:
        now, given = self.world.milliseconds(state.now), []
        for token, end in old.leases.items():
            goes = token in new.leases or end <= now or self.may_go(token, old, now, ran)
            assert goes, f"{ran.verb} of {ran.token} took the lease of {token}"
        for token, end in new.leases.items():
            record, was = new.records.get(token), old.records.get(token)
            assert record is not None, f"{token} has a lease without a record"
            if was is not None and was.fence == record.fence and token in old.leases:
                continue
            if record.state != "k":  # state k: permits that `min_hold` retains after a release
                given.append((record.fence, token))
                assert end > now, f"{token} was granted an expired lease"
                assert old.leases.get(token, 0) <= now, f"{token} was granted again while it held"
                assert token not in state.cleared, f"{token} was cleared and came back"
                assert token not in self._closed(state), f"{token} had ended and was granted again"
        head = first_in_queue(new)
        if head and ran.verb in _FREEING and is_alive(new, head, now):
            free = fits(new, head, used(new, -1), -1)
            assert not free, f"permits are free, and {ran.verb} left {head} waiting"
        for fence, token in given:
            assert fence > state.top, f"the fence of {token} did not grow"
            self.check_grant(token, old, new, now)

    def check_grant(self, token: str, old: Facts, new: Facts, now: int) -> None:
        record, ticket = new.records[token], old.queue.get(token, math.inf)
        share, most = record.share, record.share_limit
        alone = new._replace(records={token: record._replace(share=None)})
        taken = used(new, now) - weight(record.permits)
        assert fits(alone, token, taken, now), f"{token} was granted over the limit"
        if share is not None:
            ticket, use = min(ticket, _left_by(share, old, new)), used(new, now, share)
            assert not most or use <= most, f"{token} was granted over the limit of its share"
            waited = token in old.queue or token in old.parked
            came = old.records[token].fence if waited else math.inf
            for other in (*new.queue, *new.parked):
                was = old.records.get(other)
                earlier = was and (was.state, was.share) == ("w", share) and was.fence < came
                assert not earlier, f"{token} was granted before {other} of its share"
        first = [t for t in new.queue if t in old.queue and new.queue[t] < ticket]
        longer = f"{token} was granted before {first}, which had waited longer"
        assert not first or not self.fair_queue, longer

    def may_go(self, token: str, old: Facts, now: int, ran: ScriptRun) -> bool:
        if token == ran.token and ran.verb == "release":
            return ran.said["how"] != "release" or str(ran.argv[1]) == str(old.records[token].fence)
        # A script may remove a handed-off lease that was not claimed before its deadline.
        unclaimed = old.waiters.get(token, math.inf) <= now and token in old.wakes
        return (token, "clear") == (ran.token, ran.verb) or unclaimed

    def check_tick(self, before: State, after: State) -> None:
        now = self.world.milliseconds(after.now)
        left = self.world.facts(after.server).leases
        for token, end in self.world.facts(before.server).leases.items():
            assert end <= now or token in left, f"the lease of {token} expired with its key"

    def check_state(self, state: State) -> None:
        facts, now = self.world.facts(state.server), self.world.milliseconds(state.now)
        if (state.server, state.now) not in self.sound:
            self.check_server(facts, now)
            self.sound.add((state.server, state.now))
        total, in_share = 0, dict[str, int]()
        for index, spec in enumerate(self.setting.clients):
            local = self.world.local_lease(state, index)
            if local is None or local.token in state.cleared:
                continue
            token, fence, _, permits = local
            total += weight(permits)
            own = in_share[spec.share] = in_share.get(spec.share, 0) + weight(permits)
            most = max(self.share_limits[spec.share], permits) if spec.share_limit else math.inf
            assert own <= most, "too many clients of a share hold locally"
            assert total <= max(self._limit, weight(permits)), "too many clients hold locally"
            assert facts.leases.get(token, 0) > now, f"{token} treats an expired lease as held"
            record = facts.records[token]
            same = record.fence == fence and record.state != "k"
            assert same, f"{token} treats another lease than its own as held"

    def check_server(self, facts: Facts, now: int) -> None:
        held = {*facts.leases, *facts.queue, *facts.parked}
        assert held <= facts.records.keys(), "a lease or a waiter without a record"
        tickets = facts.queue.values()
        assert len(tickets) == len(set(tickets)), "two waiters have one ticket"
        live = sum(end > now for end in facts.leases.values())
        within_limit = live <= 1 or used(facts, now) <= self._limit
        assert within_limit, "the server shows more holders than the limit"
        extra, stored = used(facts, -1) - len(facts.leases), facts.fields.get("#extra", "0")
        same = not facts.leases or int(stored) == extra
        assert same, f"#extra is {stored}, the leases say {extra}"
        for token in facts.wakes:
            granted = token in facts.records and facts.records[token].state == "g"
            assert granted, f"{token} left a wake-up message"
        latest = max((*facts.leases.values(), *facts.waiters.values()), default=0)
        lasting = latest == math.inf or "#paused" in facts.fields or "#limit" in facts.fields
        for key, expiry in facts.expiries.items():
            if key.startswith(KEYS.wake) or not lasting:
                assert expiry is not None, f"{key} never expires"
                early = f"{key} expires before a lease or a waiter ends"
                assert expiry >= latest or key.startswith(KEYS.wake), early
            else:
                assert expiry is None, f"{key} expires, although its contents must last"
        if "#shares" in facts.fields:
            _check_shares(facts)

    def _closed(self, state: State) -> set[str]:
        """Return the tokens of finished acquires and ended leases. A script must not grant a permit
        to such a token."""
        closed: set[str] = set()
        for index, client in enumerate(state.clients):
            node = self.world.node(state, index)
            owed = node.undos if client.mode == "dead" else client.undos
            closed |= node.closed - {undo.argv[0] for undo in owed}
        return closed

    # Liveness

    def check_liveness(self, state: State) -> None:
        """Check that without further faults, each waiter gets its permit and each key expires."""
        self._fair += 1
        fair, path, needed = _Fair(self.world, state), list[State](), 0
        try:
            fair.begin()
            while not fair.ended():
                if fair.state in self.needs:
                    needed = self.needs[fair.state]
                    break
                path.append(fair.state)
                late = f"{fair.waiting()} still waits after {len(path)} ticks"
                assert len(path) <= self._max_ticks, late
                fair.tick()
            else:
                left = self.world.purged(fair.state.server, fair.state.now + FAR)
                keys = self.world.facts(left).expiries
                assert not keys, f"left behind: {sorted(keys)}"
        except AssertionError as broken:
            trace = self._trace(state, None) + "\nThen no more faults:\n" + _lines(fair.steps)
            raise Violation(str(broken), trace) from None
        for n, passed in enumerate(reversed(path)):
            self.needs[passed] = needed + n + 1
        self._longest = max(self._longest, needed + len(path))

    # Traces

    def _trace(self, state: State, last: tuple[Label, State] | None) -> str:
        steps = [(last[0], last[1])] if last else []
        at: State = state
        while (parent := self.parents[at]) is not None:
            steps.append((parent[1], at))
            at = parent[0]
        return f"{self.setting.name}, {len(steps)} steps:\n{_lines(reversed(steps))}"


class _Fair:
    """Continues the model from `state`, in one fixed order of steps. No further fault happens, and
    each holder releases its lease."""

    def __init__(self, world: World, state: State) -> None:
        self.world, self.steps, self._free = world, [], 0  # type: list[tuple[Label, State]]
        clients = tuple(c._replace(mode="live") if c.mode == "paused" else c for c in state.clients)
        self.state = state._replace(clients=clients, faults=0)

    def begin(self) -> None:
        while late := next(self.world.late_steps(self.state), None):
            self.do(*late)
        self.take_back()
        self.settle()

    def do(self, label: Label, state: State, ran: ScriptRun | None = None) -> None:
        self.state = state
        self.steps.append((label, state))
        if ran is not None:
            _check_error(self.world, ran)

    def take_back(self) -> None:
        """Undo the operator overrides, and clear permanent leases of dead clients."""
        facts = self.world.facts(self.state.server)
        for field, how in (("#paused", "resume"), ("#limit", "reset")):
            if field in facts.fields:
                after, ran = self.world.run(self.state, "operate", ("", how, "", "-", 0))
                self.do(("an operator says", how), after, ran)
        for token, end in facts.leases.items():
            if end == math.inf and self.state.clients[NAMES.index(token[0])].mode == "dead":
                after, ran = self.world.run(self.state, "clear", (token, "-", 0))
                self.do(("an operator clears", token), after, ran)

    def settle(self) -> None:
        while step := next(self.world.prompt_steps(self.state), None) or self.release():
            self.do(*step)

    def release(self) -> tuple[Label, State] | None:
        for index, client in enumerate(self.state.clients):
            held = isinstance(self.world.node(self.state, index).step, Hold)
            if held and client.mode == "live" and client.pending[0] is None:
                return ("releases", index), self.world.choose(self.state, index, "release")
        return None

    def tick(self) -> None:
        self.do(("tick",), self.world.tick(self.state))
        self.settle()
        # If a lease expired and its permit became free, the next heartbeat must hand off the
        # permit.
        facts, now = self.world.facts(self.state.server), self.world.milliseconds(self.state.now)
        head = first_in_queue(facts)
        free = head and fits(facts, head, used(facts, now), now)
        self._free = self._free + 1 if free else 0
        if head and self.state.clients[NAMES.index(head[0])].mode == "live":
            idle = f"permits are free for {self._free} ticks, and {head} waits"
            assert self._free <= TICKS["HEARTBEAT"] + 1, idle

    def waiting(self) -> str:
        nodes = [self.world.node(self.state, i) for i in range(len(self.state.clients))]
        return ", ".join(
            node.token
            for node, client in zip(nodes, self.state.clients, strict=True)
            if client.mode != "dead" and node.phase != "idle"
        )

    def ended(self) -> bool:
        return not self.waiting()


def _lines(steps: Iterable[tuple[Label, State]]) -> str:
    """Return a text with a line for each step: the tick after the step, what happened, and the
    number of the client."""
    return "\n".join(f"  {state.now:>3}  {' '.join(map(str, label))}" for label, state in steps)


def check(protocol: Protocol, setting: Setting, sample: int = 0, most: int = 10**9) -> Explored:
    with protocol.running():
        return Checker(protocol, setting, sample).explore(most)
