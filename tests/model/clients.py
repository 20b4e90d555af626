"""Clients that run the real plans.

A generator can't be copied. So the state of a client is stored as the list of its inputs, and each
new step replays them. States with equal stacks are merged.
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

from django_redis_sync.protocol import plans, scripts, steps
from django_redis_sync.protocol.keys import Keys, keys_of

from .redis import planted

KEYS = keys_of("m", "n")
CHANNEL = "ch:"
FOREVER = math.inf
#: The names of the clients, with which their tokens begin.
NAMES = "abcdefgh"

#: Times in ticks of the model's clocks. Each time of a client is a whole number of ticks.
MILLISECONDS = {
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
    """The real scripts, optionally with a defect, and with times of a few ticks."""

    sources: Mapping[str, str]
    constants: Mapping[str, int]
    micros: int  # of one tick

    @property
    def tick(self) -> float:
        return self.micros / 1_000_000

    def ticks(self, seconds: float) -> int:
        return round(seconds / self.tick)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the plans, too, use times of a few ticks."""
        times: Any = {"BACKOFF": (0.0, self.tick), "SHORTEST_WAIT": self.tick}
        own = {"CONSTANTS": self.constants, "UNDO_BUDGET": 2 * self.tick, "RIDE_OUT": FOREVER}
        with mock.patch.multiple(plans, **times, **own), mock.patch.multiple(steps, **times):
            yield


def protocol(
    micros: int = 1_000_000, lua: Mapping[str, str] = {}, ticks: Mapping[str, int] = {}
) -> Protocol:
    """Return the protocol. In its scripts, each key of `lua` is replaced by its value."""
    times = {**MILLISECONDS, **ticks}
    constants = {**scripts.CONSTANTS, **{n: max(1, t * micros // 1000) for n, t in times.items()}}
    return Protocol(planted(lua, constants), constants, micros)


@dataclass(frozen=True)
class Spec:
    """The behavior of a client: acquire, hold, renew, release, and repeat this `turns` times.

    All times are in ticks. `renew`: the durations of its renewals. `keep`: the durations of the
    renewals that its renewal thread sends, also while other requests are in flight. `share`: the
    writer finally becomes a reader. `offset`: difference of its clock from the server's. `begins`:
    the last tick at which it may begin. `loop`: clients with the same number share an event loop,
    and die together. `tenant`, `bound`: its share of the name, and the share's limit (0: none).
    """

    lease: float = 4
    permits: int = 1
    limit: int = 1
    wait: bool = True
    patience: float = FOREVER
    turns: int = 1
    renew: tuple[float, ...] = ()
    keep: tuple[float, ...] = ()
    share: bool = False
    hold: float = 0
    kind: str = "p"
    fair: bool = True
    asynchronous: bool = False
    loop: int | None = None
    offset: int = 0
    begins: int = 2
    budget: float = FOREVER
    tenant: str = ""
    bound: int = 0


def channel_of(spec: Spec, index: int) -> str:
    return f"{CHANNEL}{index if spec.loop is None else spec.loop}" if spec.asynchronous else "-"


class Begin(NamedTuple):
    """The client is idle, and may begin at any time. The answer is the time."""


class Hold(NamedTuple):
    """The client holds, and may do `other` (renew or share) or release.

    The answer is (choice, time)."""

    other: str | None


class Cancelled(BaseException):
    """Stands for KeyboardInterrupt or the cancellation of a task."""


@dataclass
class Client:
    """The part of a client's state that is not in its plan. Only running the client changes it."""

    spec: Spec
    index: int
    protocol: Protocol
    made: int = 0
    grant: Any = None  # treated as held until its local expiry
    belief: Any = None  # the local expiry
    renewals: int = 0
    kept: int = 0  # number of renewals by the renewal thread
    keeping: Any = None  # the renewal of the renewal thread that is in flight
    debts: list[Any] = field(default_factory=list)  # pending undos
    closed: list[str] = field(default_factory=list)  # ended tokens
    ended: str = ""  # how the last turn ended

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
                self.debts.append,
                spec.kind,
                spec.fair,
                channel=channel_of(spec, self.index),
                share=spec.tenant,
                share_limit=spec.bound,
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
            self.grant = self.belief = None
            self.closed = [f"{self.name()}{n + 1}" for n in range(self.made)]

    def _hold(self, grant: Any, budget: float, attempt: float) -> Any:
        spec, tick = self.spec, self.protocol.tick
        self.belief = steps.LocalExpiry(grant.until)
        self.renewals = self.kept = 0
        try:
            choices: list[Any] = [("renew", lease) for lease in spec.renew]
            for other in (*choices, *[("share", 0)] * spec.share, None):
                choice, now = yield Hold(other and other[0])
                if choice == "release":
                    break
                if choice == "share":
                    self.grant = grant = grant._replace(permits=1)
                    done = yield from plans.share(KEYS, grant, attempt, now)
                else:
                    lease = other[1] * tick
                    nth = self._asked(lease, now)
                    done = yield from plans.renew(KEYS, grant, lease, nth, budget, attempt, now)
                    if done is not None:
                        self.belief.answered(nth, done)
                if not done:
                    break
            self.grant = None
            yield from plans.release(KEYS, grant, spec.hold * tick, budget, attempt, now)
        except (plans.Failure, Cancelled):
            self.debts.append(plans.undoing(KEYS, grant.token))
            raise

    def _asked(self, lease: float, now: float) -> int:
        self.renewals += 1
        self.belief.asked(self.renewals, lease, now)
        return self.renewals

    # The renewal thread, beside the plan

    @property
    def keeps(self) -> bool:
        """True while its renewal thread may send a renewal."""
        idle = self.grant is not None and self.belief is not None and self.keeping is None
        return idle and self.kept < len(self.spec.keep)

    def keep(self, now: float) -> None:
        """Send a renewal of the renewal thread."""
        tick = self.protocol.tick
        lease = self.spec.keep[self.kept] * tick
        self.kept += 1
        nth = self._asked(lease, now)
        self.keeping = plans.renewing(KEYS, self.grant, lease, nth, tick)

    def heard(self, answer: Any) -> None:
        """Process the answer to the renewal thread. `answer` is None if no answer came."""
        step, self.keeping = self.keeping, None
        if answer is None or self.grant is None or self.grant.token != step.argv[0]:
            return
        until = plans.renewed(answer)
        if until is None:
            self.grant = None
        else:
            self.belief.answered(plans.number_of(step), until)


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
    """Return a hashable form of a local variable. Equal forms behave the same."""
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if type(value) is float:
        return round(value, 6)
    if type(value).__name__ == "AcquireRequest":
        return _still(value.give_up_at)  # all other fields are constant for the client
    if isinstance(value, tuple | list):
        return tuple(map(_still, value))
    if isinstance(value, _SKIPPED):
        return None
    if isinstance(value, BaseException):
        return (type(value).__name__, *map(_still, vars(value).values()))
    if dataclasses.is_dataclass(value):
        return tuple(_still(getattr(value, f.name)) for f in dataclasses.fields(value))
    raise TypeError(f"can't compare clients by {value!r}")


def _stack(generator: Any) -> tuple[Any, ...]:
    """Return the position and variables of a generator and of those that it delegates to."""
    frames = []
    while isinstance(generator, GeneratorType):
        frame = generator.gi_frame
        if frame is None:
            break
        local = tuple((name, _still(value)) for name, value in sorted(frame.f_locals.items()))
        frames.append((frame.f_code.co_name, frame.f_lasti, local))
        generator = generator.gi_yieldfrom
    return tuple(frames)


class Node(NamedTuple):
    """A state of one client. `step`: the step that it waits for, None at its end."""

    step: Any
    token: str  # the token of its latest acquire
    believed: tuple[str, int, float, int] | None  # token, fence, until, permits
    debts: tuple[Any, ...]
    closed: frozenset[str]
    ended: str
    phase: str  # idle, acquiring, holding
    keeps: bool
    keeping: Any  # the renewal that its renewal thread has sent


class Lives:
    """The numbered states of one client, which are computed by replaying its plan."""

    def __init__(self, spec: Spec, index: int, protocol: Protocol) -> None:
        self.spec, self.index, self.protocol = spec, index, protocol
        self.nodes: list[Node] = []
        self._histories: list[tuple[Any, ...]] = []
        self._known: dict[Any, int] = {}
        self._next: dict[tuple[int, Any], int] = {}
        self._enter(())

    def send(self, node: int, given: tuple[Any, ...]) -> int:
        """Return the state after the input `given`.

        Inputs: answer reply sent received | fail why at | cancel | say what. Inputs of the renewal
        thread: keep now | heard reply sent received | missed."""
        key = (node, given)
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = self._enter((*self._histories[node], given))
        return found

    def _enter(self, history: tuple[Any, ...]) -> int:
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
                elif word == "keep":
                    client.keep(rest[0])
                elif word == "heard":
                    client.heard(plans.Answer(*rest))
                elif word == "missed":
                    client.heard(None)
                else:
                    step = life.send(rest[0])
        except StopIteration:
            step = None
        grant, belief = client.grant, client.belief
        until = belief.until if belief is not None else grant and grant.until
        node = Node(
            step,
            f"{client.name()}{client.made}",
            None if grant is None else (grant.token, grant.fence, until, grant.permits),
            tuple(client.debts),
            frozenset(client.closed),
            client.ended,
            self._phase(step, client),
            client.keeps,
            client.keeping,
        )
        table = () if belief is None else tuple(sorted(_still(tuple(belief._ends.items()))))
        key = (node, client.made, client.renewals, client.kept, table, _stack(life))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.nodes)
            self.nodes.append(node)
            self._histories.append(history)
        _abandon(life)
        return found

    @staticmethod
    def _phase(step: Any, client: Client) -> str:
        if step is None or isinstance(step, Begin):
            return "idle"
        return "holding" if client.ended == "granted" else "acquiring"


def _abandon(life: Generator[Any, Any, None]) -> None:
    """Close a generator that may yield further undo steps."""
    for _ in range(5):
        try:
            return life.close()
        except RuntimeError:  # the generator yielded a step
            continue
