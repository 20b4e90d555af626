"""The state of the server, the network, and the clients, and all possible next steps.

The clock ticks only if no client and no message can proceed now, so nothing is late without a
fault. A message, a reply, or a client that is late, lost, or dead is a fault. A run has only a few
faults. A delayed message arrives, and a paused client continues, at any later time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from django_redis_sync.protocol.scripts import arguments_of
from tests.support.packed import unpack

from .clients import KEYS, Begin, Hold, Lives, Protocol, Spec, channel_of
from .redis import Frozen, ScriptError, Scripts, Store

EPOCH = 1_700_000_000_000_000  # µs: as many digits as a real clock has


@dataclass(frozen=True)
class Setting:
    """The clients, ticks, faults, and operator actions of an exploration.

    `horizon`: number of ticks. `faults`: number of faults of the given `kinds`. `operations`: (how,
    value) of `operate`, or ("clear", ""), each at most once, in this order.
    """

    name: str
    clients: tuple[Spec, ...]
    horizon: int = 8
    faults: int = 1
    kinds: str = "crash pause lose delay deaf slow"
    operations: tuple[tuple[str, str], ...] = ()


class Client(NamedTuple):
    """The state of a client.

    `doing`: ("sent", at, slow) | ("reply", at, reply) | ("wait", at, due) | ("sleep", at, due), or
    None if the client is idle, holds, or has ended. `early`: messages that arrived before the
    client waited for them. `kept`: the request of its renewal thread, in the form of `doing`."""

    node: int
    mode: str  # live, paused, dead
    doing: tuple[Any, ...] | None
    early: tuple[tuple[str, str], ...]
    debts: tuple[Any, ...]
    kept: tuple[Any, ...] | None = None


class State(NamedTuple):
    """The state of the world.

    `loose`: messages on the network that no client waits for: ("run", client, verb, token, argv),
    ("pop", token, due), ("push", client, token, element, late)."""

    now: int
    server: int
    clients: tuple[Client, ...]
    loose: tuple[tuple[Any, ...], ...]
    faults: int
    operated: int
    top: int  # the largest fence so far
    cleared: frozenset[str]
    full: bool = False  # True if the memory is full


class Record(NamedTuple):
    state: str
    fence: int
    permits: int
    limit: int
    channel: str
    share: str | None
    bound: int  # of the share; 0 for none


class Facts(NamedTuple):
    """The state of a server for the invariants, with times in ms of the server.

    `parked`: the arrival of each waiter behind the first of its share."""

    leases: dict[str, float]
    queue: dict[str, float]
    waiters: dict[str, float]
    parked: dict[str, int]
    records: dict[str, Record]
    fields: dict[str, str]
    wakes: frozenset[str]
    expiries: dict[str, int | None]


class Ran(NamedTuple):
    """One run of a script, for the invariants."""

    verb: str
    token: str
    argv: tuple[Any, ...]
    reply: Any
    before: int
    after: int

    @property
    def said(self) -> dict[str, Any]:
        """The arguments (ARGV) by name."""
        return arguments_of(self.verb, self.argv)


Label = tuple[Any, ...]


class World:
    def __init__(self, protocol: Protocol, setting: Setting) -> None:
        self.protocol, self.setting = protocol, setting
        self.lives = [Lives(spec, i, protocol) for i, spec in enumerate(setting.clients)]
        self._scripts = Scripts(protocol.sources)
        self._servers: list[Frozen] = []
        self._known: dict[Frozen, int] = {}
        self._runs: dict[Any, tuple[int, Any, tuple[tuple[str, str], ...]]] = {}
        self._facts: dict[int, Facts] = {}

    def start(self) -> State:
        clients = tuple(Client(0, "live", None, (), ()) for _ in self.lives)
        return State(0, self._number(()), clients, (), self.setting.faults, 0, 0, frozenset())

    # The server

    def micros(self, now: int) -> int:
        return EPOCH + now * self.protocol.micros

    def milliseconds(self, now: int) -> int:
        return self.micros(now) // 1000

    def _number(self, frozen: Frozen) -> int:
        found = self._known.get(frozen)
        if found is None:
            found = self._known[frozen] = len(self._servers)
            self._servers.append(frozen)
        return found

    def facts(self, server: int) -> Facts:
        found = self._facts.get(server)
        if found is None:
            found = self._facts[server] = self._look(self._servers[server])
        return found

    def _look(self, frozen: Frozen) -> Facts:
        data = {key: items for key, _, items, _ in frozen}
        info, leases = dict(data.get(KEYS.info, ())), dict(data.get(KEYS.leases, ()))
        if packed := leases.get("#"):
            lone = unpack(packed.encode("latin-1"))
            info = info | lone.fields
            leases = {lone.holder: float(lone.ends)} if lone.holder else {}
        records = {}
        for token, text in info.items():
            if not token.startswith(("#", "/")):
                state, fence, _, permits, limit, channel, *more = text.split(" ")
                state = state[:1]  # the number of the newest renewal follows
                number = int(fence) if fence.isdigit() else -1  # never a valid fence
                bound, share = 0, None
                if more and more[0].startswith("/"):
                    _, most, share = more[0].split("/")
                    bound = int(most)
                numbers = number, int(permits), int(limit)
                records[token] = Record(state, *numbers, channel, share, bound)
        parked = data.get(KEYS.parked, ())
        return Facts(
            leases,
            dict(data.get(KEYS.queue, ())),
            dict(data.get(KEYS.waiters, ())),
            {member.split(" ")[2]: int(member.split(" ")[1]) for member, _ in parked},
            records,
            {name: value for name, value in info.items() if name.startswith(("#", "/"))},
            frozenset(key[len(KEYS.wake) :] for key in data if key.startswith(KEYS.wake)),
            {key: expiry for key, _, _, expiry in frozen},
        )

    def purged(self, server: int, now: int) -> int:
        return self._number(Store(self._servers[server], self.micros(now)).freeze())

    def _execute(self, server: int, now: int, verb: str, token: str, argv: Any, full: bool) -> Any:
        """Return the server afterwards, the reply as a tuple, and the published messages."""
        key = (server, now, verb, token, argv, full)
        found = self._runs.get(key)
        if found is None:
            store = Store(self._servers[server], self.micros(now), full)
            try:
                reply = _hashable(self._scripts.run(store, verb, KEYS.declared, argv))
            except ScriptError as error:
                reply = ("ERROR", str(error))
            found = self._number(store.freeze()), reply, tuple(store.published)
            self._runs[key] = found
        return found

    def run(self, state: State, verb: str, token: str, argv: Any) -> tuple[State, Ran]:
        """Run a script on the server, and serve the clients that block on its pushed elements."""
        before = state.server
        server, reply, published = self._execute(before, state.now, verb, token, argv, state.full)
        state = state._replace(server=server)
        if server != before:
            facts = self.facts(server)
            given = (r.fence for r in facts.records.values() if r.state != "w")
            top = max(given, default=0)
            if verb == "clear" and reply[0] == "ok":
                state = state._replace(cleared=state.cleared | {token})
            state = state._replace(top=max(state.top, top))
            for woken in sorted(facts.wakes):
                state = self._serve(state, woken)
        for channel, message in published:
            woken, _, element = message.partition(" ")
            index = "abcdefgh".index(woken[0])
            assert channel == channel_of(self.setting.clients[index], index)
            push = ("push", index, woken, element, False)
            state = state._replace(loose=_with(state.loose, push))
        return state, Ran(verb, token, argv, reply, before, server)

    def _serve(self, state: State, token: str) -> State:
        """Give the element of a token to the oldest BLPOP: an abandoned one before a client's."""
        for item in state.loose:
            if item[0] == "pop" and item[1] == token:
                state, _ = self._pop(state, token)
                return state._replace(loose=_without(state.loose, item))
        for index, client in enumerate(state.clients):
            doing = client.doing
            if doing is None or doing[0] != "wait" or self.setting.clients[index].asynchronous:
                continue
            if self.lives[index].nodes[client.node].step.token == token:
                state, element = self._pop(state, token)
                doing = None if client.mode == "dead" else ("reply", doing[1], element)
                return _put(state, index, client._replace(doing=doing))
        return state

    def _pop(self, state: State, token: str) -> tuple[State, Any]:
        store = Store(self._servers[state.server], self.micros(state.now))
        element = store.call("LPOP", KEYS.wake + token) or None
        return state._replace(server=self._number(store.freeze())), element

    # The clients

    def clock(self, state: State, index: int) -> float:
        return round((state.now + self.setting.clients[index].offset) * self.protocol.tick, 9)

    def believes(self, state: State, index: int) -> tuple[str, int, float, int] | None:
        """Return the token, fence, end, and permits of the lease that a client treats as held."""
        client = state.clients[index]
        believed = self.lives[index].nodes[client.node].believed
        if believed is None or client.mode == "dead":
            return None
        return believed if believed[2] > self.clock(state, index) + 1e-6 else None

    def _go_on(self, state: State, index: int, *given: Any) -> State:
        """Give an input to a client, and send the message of its next step."""
        client, lives = state.clients[index], self.lives[index]
        before = len(lives.nodes[client.node].debts)
        node = lives.send(client.node, given)
        found = lives.nodes[node]
        step, now, doing = found.step, state.now, None
        plans = self.protocol.plans
        if isinstance(step, plans.Run):
            doing = ("sent", now, False)
        elif isinstance(step, plans.Wait):
            doing = ("wait", now, now + max(1, self.protocol.ticks(step.seconds)))
        elif isinstance(step, plans.Sleep):
            doing = ("sleep", now, now + max(1, self.protocol.ticks(step.seconds)))
        debts = client.debts + found.debts[before:]
        state = _put(state, index, client._replace(node=node, doing=doing, debts=debts))
        if isinstance(step, plans.Wait):
            state = self._begin_to_wait(state, index, step.token)
        return state

    def _begin_to_wait(self, state: State, index: int, token: str) -> State:
        client = state.clients[index]
        if not self.setting.clients[index].asynchronous:
            return self._serve(state, token) if token in self.facts(state.server).wakes else state
        for item in client.early:
            if item[0] == token:
                early = tuple(other for other in client.early if other is not item)
                doing = ("reply", client.doing[1], item[1])  # type: ignore[index]
                return _put(state, index, client._replace(doing=doing, early=early))
        return state

    def _answer(self, state: State, index: int) -> State:
        """Deliver the reply that is on its way to a client."""
        _, sent, reply = state.clients[index].doing  # type: ignore[misc]
        now = self.clock(state, index)
        if type(reply) is tuple and reply[0] == "ERROR":
            return self._go_on(state, index, "fail", "final", now)
        at = round(now - (state.now - sent) * self.protocol.tick, 9)
        return self._go_on(state, index, "answer", reply, at, now)

    def _fail(self, state: State, index: int, why: str = "unanswered") -> State:
        return self._go_on(state, index, "fail", why, self.clock(state, index))

    # Steps

    def steps(self, state: State) -> Iterator[tuple[Label, State, Ran | None]]:
        """Yield each possible step: its label, the state after it, and the script that ran."""
        quiet = True
        for step in self.prompt_steps(state):
            quiet = False
            yield step
        yield from self._choices(state)
        yield from self._late_steps(state)
        if state.faults:
            spent = state._replace(faults=state.faults - 1)
            yield from self._faults(spent)
        if quiet and state.now < self.setting.horizon:
            yield ("tick",), self.tick(state), None

    def prompt_steps(self, state: State) -> Iterator[tuple[Label, State, Ran | None]]:
        """Yield the steps that must happen before the clock ticks, in any order."""
        for index, client in enumerate(state.clients):
            doing = client.doing
            if doing is not None:
                kind = doing[0]
                if kind == "sent" and not doing[2]:
                    yield self._executed(state, index)
                elif kind == "wait" and doing[2] <= state.now:
                    # The server (or, in async code, a timer) ends the wait in any case.
                    done = ("reply", doing[1], None) if client.mode != "dead" else None
                    after = _put(state, index, client._replace(doing=done))
                    yield ("waited until its timeout", index), after, None
                elif client.mode == "live":
                    if kind == "reply":
                        yield ("gets a reply", index, doing[2]), self._answer(state, index), None
                    elif kind == "sleep" and doing[2] <= state.now:
                        slept = _put(state, index, client._replace(doing=("reply", doing[1], None)))
                        yield ("slept", index), self._answer(slept, index), None
            if client.kept is not None:
                yield from self._kept(state, index)
            if client.debts and client.mode == "live":
                debt, *left = client.debts
                after = _put(state, index, client._replace(debts=tuple(left)))
                after, ran = self.run(after, debt.verb, debt.argv[0], debt.argv)
                yield ("undoes later", index, debt.argv, ran.reply), after, ran
        for item in state.loose:
            if item[0] == "push" and not item[4]:
                yield self._delivered(state, item)

    def _executed(self, state: State, index: int) -> tuple[Label, State, Ran]:
        client = state.clients[index]
        step, sent = self.lives[index].nodes[client.node].step, client.doing[1]  # type: ignore[index]
        after, ran = self.run(state, step.verb, step.argv[0], step.argv)
        after = _put(after, index, after.clients[index]._replace(doing=("reply", sent, ran.reply)))
        return ("runs", index, step.verb, step.argv, ran.reply), after, ran

    def _kept(self, state: State, index: int) -> Iterator[tuple[Label, State, Ran | None]]:
        """Run the request of the renewal thread, or deliver its answer."""
        client = state.clients[index]
        step = self.lives[index].nodes[client.node].keeping
        word, at, *reply = client.kept  # type: ignore[misc]
        if word == "sent":
            after, ran = self.run(state, step.verb, step.argv[0], step.argv)
            kept = ("reply", at, ran.reply)
            after = _put(after, index, after.clients[index]._replace(kept=kept))
            yield (
                ("runs its background renewal", index, step.verb, step.argv, ran.reply),
                after,
                ran,
            )
        elif client.mode == "live":
            now = self.clock(state, index)
            sent = round(now - (state.now - at) * self.protocol.tick, 9)
            after = self._keeper(state, index, None, "heard", reply[0], sent, now)
            yield ("gets the reply of its background renewal", index, reply[0]), after, None

    def _keeper(self, state: State, index: int, kept: Any, *given: Any) -> State:
        client = state.clients[index]
        node = self.lives[index].send(client.node, given)
        return _put(state, index, client._replace(node=node, kept=kept))

    def _delivered(self, state: State, item: tuple[Any, ...]) -> tuple[Label, State, None]:
        _, index, token, element, _ = item
        after = state._replace(loose=_without(state.loose, item))
        client = state.clients[index]
        step = self.lives[index].nodes[client.node].step
        if client.mode == "dead":
            pass
        elif client.doing and client.doing[0] == "wait" and step.token == token:
            done = ("reply", client.doing[1], element)
            after = _put(after, index, client._replace(doing=done))
        else:
            after = _put(after, index, client._replace(early=(*client.early, (token, element))))
        return ("gets a message", index, element), after, None

    def _choices(self, state: State) -> Iterator[tuple[Label, State, Ran | None]]:
        """Yield the steps that clients and operators may take at any time."""
        for index, client in enumerate(state.clients):
            if client.mode != "live":
                continue
            if self.lives[index].nodes[client.node].keeps:
                now = self.clock(state, index)
                after = self._keeper(state, index, ("sent", state.now), "keep", now)
                yield ("renews in the background", index), after, None
            if client.doing is not None:
                continue
            step, now = self.lives[index].nodes[client.node].step, self.clock(state, index)
            if isinstance(step, Begin) and state.now <= self.setting.clients[index].begins:
                yield ("begins", index), self._go_on(state, index, "say", now), None
            elif isinstance(step, Hold):
                yield ("releases", index), self._choose(state, index, "release"), None
                if step.other:
                    yield (step.other + "s", index), self._choose(state, index, step.other), None
        if state.operated < len(self.setting.operations):
            yield from self._operations(state)

    def _choose(self, state: State, index: int, choice: str) -> State:
        return self._go_on(state, index, "say", (choice, self.clock(state, index)))

    def _operations(self, state: State) -> Iterator[tuple[Label, State, Ran | None]]:
        how, value = self.setting.operations[state.operated]
        state = state._replace(operated=state.operated + 1)
        if how == "clear":
            facts = self.facts(state.server)
            for token in sorted(facts.leases.keys() | facts.queue.keys() | facts.parked.keys()):
                after, ran = self.run(state, "clear", token, (token, "-", 0))
                yield ("an operator clears", token, ran.reply), after, ran
        else:
            after, ran = self.run(state, "operate", "", ("", how, value, "-", 0))
            yield ("an operator says", how, value), after, ran

    def _late_steps(self, state: State) -> Iterator[tuple[Label, State, Ran | None]]:
        """Yield the steps that end a delay, at any time."""
        for item in state.loose:
            if item[0] == "run":
                _, index, verb, token, argv = item
                after = state._replace(loose=_without(state.loose, item))
                after, ran = self.run(after, verb, token, argv)
                yield ("a late copy runs", index, verb, argv, ran.reply), after, ran
            elif item[0] == "push" and item[4]:
                yield self._delivered(state, item)
        for index, client in enumerate(state.clients):
            if client.mode == "paused":
                after = _put(state, index, client._replace(mode="live"))
                yield ("continues", index), after, None
            if client.doing and client.doing[0] == "sent" and client.doing[2]:
                yield self._executed(state, index)

    def _faults(self, state: State) -> Iterator[tuple[Label, State, Ran | None]]:
        kinds = self.setting.kinds
        if "full" in kinds and not state.full:
            yield ("the memory is full",), state._replace(full=True), None
        for index, client in enumerate(state.clients):
            if client.mode == "dead":
                continue
            node = self.lives[index].nodes[client.node]
            doing = client.doing[0] if client.doing else None
            idle = node.phase == "idle" and doing is None
            if "crash" in kinds and not idle:
                yield ("dies", index), self._all_crashed(state, index), None
            if client.mode != "live":
                continue
            if "pause" in kinds and not idle and doing != "sent":
                yield ("stops", index), _put(state, index, client._replace(mode="paused")), None
            if client.kept is not None:
                yield from self._keeper_faults(state, index)
            if doing == "sent":
                ghost = ("run", index, node.step.verb, node.step.argv[0], node.step.argv)
                adrift = state._replace(loose=_with(state.loose, ghost))
                if "delay" in kinds:
                    yield (
                        ("gets no reply, its message is late", index),
                        self._fail(adrift, index),
                        None,
                    )
                if "slow" in kinds and not client.doing[2]:  # type: ignore[index]
                    slow = client._replace(doing=("sent", client.doing[1], True))  # type: ignore[index]
                    yield ("is slow to reach the server", index), _put(state, index, slow), None
                if "cancel" in kinds:
                    yield (
                        ("is cancelled, its message late", index),
                        self._go_on(adrift, index, "cancel"),
                        None,
                    )
            elif doing == "reply":
                is_run = isinstance(node.step, self.protocol.plans.Run)
                if "lose" in kinds and (is_run or client.doing[2] is not None):  # type: ignore[index]
                    yield ("loses the reply", index), self._fail(state, index), None
                if "cancel" in kinds:
                    yield ("is cancelled", index), self._go_on(state, index, "cancel"), None
            elif doing == "wait":
                adrift = self._adrift(state, index)
                if "deaf" in kinds:
                    yield ("loses its wait", index), self._fail(adrift, index), None
                if "cancel" in kinds:
                    yield ("is cancelled", index), self._go_on(adrift, index, "cancel"), None
        for item in state.loose:
            if item[0] == "push" and not item[4]:
                without = _without(state.loose, item)
                if "lose" in kinds:
                    yield ("a message is lost", *item[1:4]), state._replace(loose=without), None
                if "delay" in kinds:
                    late = _with(without, (*item[:4], True))
                    yield ("a message is late", *item[1:4]), state._replace(loose=late), None

    def _keeper_faults(self, state: State, index: int) -> Iterator[tuple[Label, State, Ran | None]]:
        client, missed = state.clients[index], self._keeper(state, index, None, "missed")
        if client.kept[0] == "reply" and "lose" in self.setting.kinds:  # type: ignore[index]
            yield ("loses the reply of its background renewal", index), missed, None
        elif client.kept[0] == "sent" and "delay" in self.setting.kinds:  # type: ignore[index]
            late = missed._replace(loose=_with(state.loose, self._ghost(state, index)))
            yield ("gets no reply, its background renewal is late", index), late, None

    def _ghost(self, state: State, index: int) -> tuple[Any, ...]:
        """Return the request of the renewal thread as a message that no client waits for."""
        step = self.lives[index].nodes[state.clients[index].node].keeping
        return "run", index, step.verb, step.argv[0], step.argv

    def _adrift(self, state: State, index: int) -> State:
        """Keep the BLPOP of a client that no longer waits for it on the server."""
        client, spec = state.clients[index], self.setting.clients[index]
        if spec.asynchronous:
            return state
        token = self.lives[index].nodes[client.node].step.token
        ghost = ("pop", token, client.doing[2])  # type: ignore[index]
        return state._replace(loose=_with(state.loose, ghost))

    def _all_crashed(self, state: State, index: int) -> State:
        """Kill a client, and all other clients of its event loop."""
        specs = self.setting.clients
        loop = channel_of(specs[index], index)
        for other, spec in enumerate(specs):
            if other == index or loop == channel_of(spec, other) != "-":
                state = self._crashed(state, other)
        return state

    def _crashed(self, state: State, index: int) -> State:
        client = state.clients[index]
        doing, node = client.doing, self.lives[index].nodes[client.node]
        if doing and doing[0] == "sent":
            ghost = ("run", index, node.step.verb, node.step.argv[0], node.step.argv)
            state = state._replace(loose=_with(state.loose, ghost))
        if client.kept and client.kept[0] == "sent":
            state = state._replace(loose=_with(state.loose, self._ghost(state, index)))
        if doing and (doing[0] != "wait" or self.setting.clients[index].asynchronous):
            doing = None  # a BLPOP stays on the server after its client died
        return _put(state, index, Client(client.node, "dead", doing, (), ()))

    def tick(self, state: State) -> State:
        now = state.now + 1
        loose = tuple(i for i in state.loose if i[0] != "pop" or i[2] > now)
        return state._replace(now=now, server=self.purged(state.server, now), loose=loose)


def _hashable(reply: Any) -> Any:
    return tuple(map(_hashable, reply)) if type(reply) is list else reply


def _put(state: State, index: int, client: Client) -> State:
    """Return the state with another client, in a third of the time of `State._replace`."""
    now, server, clients, *others = state
    clients = (*clients[:index], client, *clients[index + 1 :])
    return State(now, server, clients, *others)


def _with(items: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    return tuple(sorted((*items, item), key=repr))


def _without(items: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    at = items.index(item)
    return items[:at] + items[at + 1 :]
