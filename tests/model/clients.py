"""The model's clients, which run the plans of the package.

A plan is a generator, and Python can't copy a generator. So the model stores the state of a client
as the list of all inputs of its plan. To reach the next state, it runs a new plan with these
inputs. Two states count as one if the local variables of their generators are equal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple
from unittest import mock

from django_redis_sync.protocol import plans, renewals, scripts, steps
from django_redis_sync.protocol.keys import Keys, keys_of

from .redis import planted

KEYS = keys_of("m", "n")
CHANNEL = "ch:"
FOREVER = math.inf
#: One letter for each client. The tokens of a client begin with its letter.
NAMES = "abcdefgh"

#: The protocol's time constants, in ticks of the model's clock.
TICKS = {
    "FIRST": 3,
    "CLAIM": 2,
    "HEARTBEAT": 2,
    "PATIENCE": 1,
    "ASLEEP": 3,
    "ALIVE": 3,
    "GRACE": 1,
    "TOMBSTONE_TTL": 100,
}


class Protocol(NamedTuple):
    """The scripts, with time constants of a few ticks, and optionally with a planted defect."""

    sources: Mapping[str, str]
    constants: Mapping[str, int]
    micros: int  # length of a tick in µs

    @property
    def tick(self) -> float:
        return self.micros / 1_000_000

    def ticks(self, seconds: float) -> int:
        return round(seconds / self.tick)

    @contextmanager
    def running(self) -> Iterator[None]:
        """In the `with` block, make the plans use the same constants as the scripts."""
        shortest = {"SHORTEST_WAIT": self.tick}
        own = {"CONSTANTS": self.constants, "UNDO_BUDGET": 2 * self.tick, "RIDE_OUT": FOREVER}
        with (
            mock.patch.multiple(plans, **shortest, **own),
            mock.patch.multiple(steps, BACKOFF=(0.0, self.tick), **shortest),
        ):
            yield


def protocol(
    micros: int = 1_000_000, lua: Mapping[str, str] = {}, ticks: Mapping[str, int] = {}
) -> Protocol:
    """Return a protocol whose ticks last `micros` µs.

    `lua`: maps pieces of the scripts to the code that replaces them. `ticks`: the time constants
    that differ from TICKS, in ticks."""
    times = {**TICKS, **ticks}
    constants = {**scripts.CONSTANTS, **{n: max(1, t * micros // 1000) for n, t in times.items()}}
    return Protocol(planted(lua, constants), constants, micros)


@dataclass(frozen=True)
class Spec:
    """The behavior of a client: acquire, hold, renew, release, and repeat this `turns` times.

    All times are in ticks.

    - `lease`: lease duration. `patience`: how long the client waits for a permit.
    - `renew`: lease durations of the renewals that the plan sends.
    - `background`: lease durations of the renewals that the renewal thread sends. They may overlap
      with other requests.
    - `downgrade`: True for a writer that becomes a reader before its release.
    - `hold`: `min_hold` of the release.
    - `loop`: clients with the same number share an event loop, and die together.
    - `begins`: the last tick at which the client may begin.
    - `share`: the share of the client, or "". `share_limit`: the limit of this share, or 0.
    """

    lease: float = 4
    permits: int = 1
    limit: int = 1
    wait: bool = True
    patience: float = FOREVER
    turns: int = 1
    renew: tuple[float, ...] = ()
    background: tuple[float, ...] = ()
    downgrade: bool = False
    hold: float = 0
    kind: str = "p"
    fair: bool = True
    asynchronous: bool = False
    loop: int | None = None
    begins: int = 2
    budget: float = FOREVER
    share: str = ""
    share_limit: int = 0


def channel_of(spec: Spec, index: int) -> str:
    return f"{CHANNEL}{index if spec.loop is None else spec.loop}" if spec.asynchronous else "-"


class Begin(NamedTuple):
    """The step of an idle client. Its answer is the time at which the client begins to acquire."""


class Hold(NamedTuple):
    """The step of a client that holds a lease. The client may release it or do `other`.

    `other`: "renew", "downgrade", or None. The answer is (choice, time): "release" or `other`, and
    the time of the choice."""

    other: str | None


class Cancelled(BaseException):
    """Raised in a plan in place of KeyboardInterrupt or asyncio.CancelledError."""


@dataclass
class Client:
    """The state of a client, except the local variables of its plan."""

    spec: Spec
    index: int
    protocol: Protocol
    made: int = 0
    grant: Any = None  # the current lease, or None
    expiry: Any = None  # the local expiry: until then, the client treats the lease as held
    renewals: int = 0
    sent_renewals: int = 0  # number of renewals that the renewal thread has sent
    renewal: Any = None  # the renewal thread's request that is not yet answered
    undos: list[Any] = field(default_factory=list)  # undo requests that are not yet sent
    closed: list[str] = field(default_factory=list)  # tokens of finished acquires and ended leases
    ended: str = ""  # result of the latest acquire

    def name(self) -> str:
        return NAMES[self.index]

    def token(self) -> str:
        self.made += 1
        return f"{self.name()}{self.made}"

    def life(self) -> Generator[Any, Any, None]:
        spec, tick = self.spec, self.protocol.tick
        budget, attempt = spec.budget * tick, tick
        for _ in range(spec.turns):
            now = yield Begin()
            self.ended = ""
            ask = plans.AcquireRequest(
                KEYS,
                spec.lease * tick,
                spec.permits,
                spec.limit,
                spec.wait,
                now + spec.patience * tick,
                budget,
                attempt,
                self.token,
                self.undos.append,
                spec.kind,
                spec.fair,
                channel=channel_of(spec, self.index),
                share=spec.share,
                share_limit=spec.share_limit,
            )
            try:
                result = yield from plans.acquire(ask, now)
                if isinstance(result, plans.Rejection):
                    self.ended = result.reason
                else:
                    self.grant = result
                    self.ended = "granted"
                    yield from self._hold(result, budget, attempt)
            except (plans.Failure, Cancelled) as error:
                self.ended = self.ended or type(error).__name__
            self.grant = self.expiry = None
            self.closed = [f"{self.name()}{n + 1}" for n in range(self.made)]

    def _hold(self, grant: Any, budget: float, attempt: float) -> Any:
        spec, tick = self.spec, self.protocol.tick
        self.expiry = steps.LocalExpiry(grant.until)
        self.renewals = self.sent_renewals = 0
        try:
            choices: list[Any] = [("renew", lease) for lease in spec.renew]
            for other in (*choices, *[("downgrade", 0)] * spec.downgrade, None):
                choice, now = yield Hold(other and other[0])
                if choice == "release":
                    break
                if choice == "downgrade":
                    self.grant = grant = grant._replace(permits=1)
                    done = yield from plans.downgrade(KEYS, grant, attempt, now)
                else:
                    lease = other[1] * tick
                    nth = self._asked(lease, now)
                    done = yield from renewals.renew(KEYS, grant, lease, nth, budget, attempt, now)
                    if done is not None:
                        self.expiry.answered(nth, done)
                if not done:
                    break
            self.grant = None
            yield from plans.release(KEYS, grant, spec.hold * tick, budget, attempt, now)
        except (plans.Failure, Cancelled):
            self.undos.append(plans.undoing(KEYS, grant.token))
            raise

    def _asked(self, lease: float, now: float) -> int:
        self.renewals += 1
        self.expiry.asked(self.renewals, lease, now)
        return self.renewals

    # The renewal thread, which runs beside the plan

    @property
    def may_renew(self) -> bool:
        """True while the renewal thread may send its next renewal."""
        idle = self.grant is not None and self.expiry is not None and self.renewal is None
        return idle and self.sent_renewals < len(self.spec.background)

    def send_renewal(self, now: float) -> None:
        """Send the next renewal of the renewal thread."""
        tick = self.protocol.tick
        lease = self.spec.background[self.sent_renewals] * tick
        self.sent_renewals += 1
        nth = self._asked(lease, now)
        self.renewal = renewals.renewing(KEYS, self.grant, lease, nth, tick)

    def heard(self, answer: Any) -> None:
        """Process the answer to the last request of the renewal thread. `answer`: the reply, or
        None if no reply came."""
        step, self.renewal = self.renewal, None
        if answer is None or self.grant is None or self.grant.token != step.argv[0]:
            return
        until = renewals.renewed(answer)
        if until is None:
            self.grant = None
        else:
            self.expiry.answered(renewals.number_of(step), until)


_SKIPPED = (
    BuiltinMethodType,
    Protocol,
    Spec,
    Client,
    Keys,
    ModuleType,
    FunctionType,
    MethodType,
    GeneratorType,
)


def _still(value: Any) -> Any:
    """Return a hashable form of the value of a local variable. Two states of a client are compared
    by these forms."""
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if type(value) is float:
        return round(value, 6)
    if type(value).__name__ == "AcquireRequest":
        return _still(value.give_up_at)  # the other fields of a request never change
    if isinstance(value, tuple | list):
        return tuple(map(_still, value))
    if isinstance(value, _SKIPPED):
        return None
    if isinstance(value, BaseException):
        return (type(value).__name__, *map(_still, vars(value).values()))
    if dataclasses.is_dataclass(value):
        return tuple(_still(getattr(value, f.name)) for f in dataclasses.fields(value))
    raise TypeError(f"can't make a hashable form of {value!r}")


def _stack(generator: Any) -> tuple[Any, ...]:
    """Return the position and the local variables of a generator, and of each generator to which it
    delegates with `yield from`."""
    frames = []
    while isinstance(generator, GeneratorType):
        frame = generator.gi_frame
        if frame is None:
            break
        local = tuple((name, _still(value)) for name, value in sorted(frame.f_locals.items()))
        frames.append((frame.f_code.co_name, frame.f_lasti, local))
        generator = generator.gi_yieldfrom
    return tuple(frames)


class LocalLease(NamedTuple):
    """A lease that a client treats as held until the time `until` (in seconds)."""

    token: str
    fence: int
    until: float
    permits: int


class Node(NamedTuple):
    """A state of one client. `step`: the latest step of its plan, or None if the plan has ended."""

    step: Any
    token: str  # the token of the latest acquire
    local_lease: LocalLease | None
    undos: tuple[Any, ...]
    closed: frozenset[str]
    ended: str
    phase: str  # "idle", "acquiring", or "holding"
    may_renew: bool
    renewal: Any  # the renewal thread's request that is not yet answered


class Lives:
    """The states of one client that an exploration has reached. Each state has a number."""

    def __init__(self, spec: Spec, index: int, protocol: Protocol) -> None:
        self.spec, self.index, self.protocol = spec, index, protocol
        self.nodes: list[Node] = []
        self.histories: list[tuple[Any, ...]] = []
        self.known: dict[Any, int] = {}
        self.next: dict[tuple[int, Any], int] = {}
        self.enter(())

    def send(self, node: int, given: tuple[Any, ...]) -> int:
        """Return the number of the state that follows the state `node` after the input `given`.

        Inputs of the plan:
        - ("answer", reply, sent, received): the reply to the plan's request, and the times of both.
        - ("fail", why, at): the request failed at the time `at`. `why`: as in `plans.Failure`.
        - ("cancel",): raise Cancelled in the plan.
        - ("say", answer): the answer to `Begin` or `Hold`.

        Inputs of the renewal thread:
        - ("renew", now): send the next renewal.
        - ("heard", reply, sent, received): the reply to this renewal, and the times of both.
        - ("missed",): no reply to this renewal came."""
        key = (node, given)
        found = self.next.get(key)
        if found is None:
            found = self.next[key] = self.enter((*self.histories[node], given))
        return found

    def enter(self, history: tuple[Any, ...]) -> int:
        client = Client(self.spec, self.index, self.protocol)
        life = client.life()
        try:
            step = life.send(None)
            for word, *rest in history:
                if word == "answer":
                    reply, sent, received = rest
                    reply = list(reply) if type(reply) is tuple else reply
                    step = life.send(plans.Answer(reply, sent, received))
                elif word == "fail":
                    why, at = rest
                    step = life.throw(plans.Failure(OSError(why), at, why))
                elif word == "cancel":
                    step = life.throw(Cancelled())
                elif word == "renew":
                    client.send_renewal(rest[0])
                elif word == "heard":
                    client.heard(plans.Answer(*rest))
                elif word == "missed":
                    client.heard(None)
                else:
                    step = life.send(rest[0])
        except StopIteration:
            step = None
        grant, expiry = client.grant, client.expiry
        until = expiry.until if expiry is not None else grant and grant.until
        node = Node(
            step,
            f"{client.name()}{client.made}",
            None if grant is None else LocalLease(grant.token, grant.fence, until, grant.permits),
            tuple(client.undos),
            frozenset(client.closed),
            client.ended,
            self._phase(step, client),
            client.may_renew,
            client.renewal,
        )
        table = () if expiry is None else tuple(sorted(_still(tuple(expiry._ends.items()))))
        key = (node, client.made, client.renewals, client.sent_renewals, table, _stack(life))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.nodes)
            self.nodes.append(node)
            self.histories.append(history)
        _abandon(life)
        return found

    @staticmethod
    def _phase(step: Any, client: Client) -> str:
        if step is None or isinstance(step, Begin):
            return "idle"
        return "holding" if client.ended == "granted" else "acquiring"


def _abandon(life: Generator[Any, Any, None]) -> None:
    """Close a generator, even if it yields further steps to undo its acquire."""
    for _ in range(5):
        try:
            return life.close()
        except RuntimeError:  # the generator yielded a step
            continue
