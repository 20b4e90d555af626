"""Record which node of a Redis Cluster stores which slots, and find the node for a command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis import exceptions as errors
from redis.crc import key_slot

from ...protocol.steps import Failure
from ..mutex import Mutex
from ..wire import clock

#: LOOK: max seconds that a node may take to answer CLUSTER SLOTS. LOOK_AGAIN: min seconds between
#: two reads of the slots, if nodes don't answer.
LOOK, LOOK_AGAIN = 0.5, 0.5
#: Seconds for which a node counts as suspect after it failed to answer. Other nodes are then tried
#: first.
SUSPECT = 5.0


class Address(NamedTuple):
    host: str
    port: int


#: The primary node of each slot, or None for a slot without a primary node. Item N is for slot N.
Slots = list[Address | None]


def read_slots(reply: Iterable[Any], asked: Address) -> Slots:
    """Return the slots from a reply to CLUSTER SLOTS. `asked`: the node that sent the reply. Its
    host is used where the reply contains no host."""
    slots: Slots = [None] * 16384
    for start, end, (host, port, *_), *_ in reply:
        slots[start : end + 1] = [Address(host or asked.host, port)] * (end + 1 - start)
    return slots


class Topology:
    """Which node stores which slots, as this process last read it. All threads and event loops of
    the process share this object.

    `seeds`: the URLs in LOCATION. `ask(address)`: sends CLUSTER SLOTS to a node, returns the reply.
    """

    # Invariant: _slots is only replaced as a whole, or changed one item at a time. So threads can
    # read it without a lock.
    def __init__(self, seeds: Sequence[str], ask: Callable[[Address], Any]) -> None:
        urls = map(urlsplit, seeds)
        self._seeds = [Address(one.hostname or "localhost", one.port or 6379) for one in urls]
        self._ask = ask
        self._slots: Slots = []  # empty until a node has answered
        self._suspects: dict[Address, float] = {}
        self._looking, self._looked = Mutex(), -LOOK_AGAIN

    @property
    def addresses(self) -> list[Address]:
        """All known nodes, with suspect nodes last."""
        found = dict.fromkeys([*filter(None, dict.fromkeys(self._slots)), *self._seeds])
        return sorted(found, key=self.suspect)

    @property
    def primaries(self) -> list[Address]:
        """The nodes that store slots, with suspect nodes last. If the slots are not known yet, the
        nodes in LOCATION."""
        return sorted(filter(None, dict.fromkeys(self._slots)), key=self.suspect) or self._seeds

    def known(self, key: str) -> Address | None:
        """Return the node that stores a key. Return None if the slots are not known yet."""
        slots = self._slots
        return (slots[key_slot(key.encode())] or self.primaries[0]) if slots else None

    def of(self, key: str) -> Address:
        """Return the node that stores a key. If the slots are not known yet, ask the nodes. Raise
        Failure if no node answers."""
        if not self._slots:
            self.look()
        found = self.known(key)
        assert found is not None
        return found

    def suspect(self, address: Address) -> bool:
        """Return True if the node failed to answer a request in the last SUSPECT seconds."""
        return clock() < self._suspects.get(address, 0.0)

    def moved(self, error: errors.MovedError) -> Address:
        """Record which node now stores a slot, according to a MOVED error. Return that node."""
        address = Address(error.host or self.primaries[0].host, error.port)
        self._slots[error.slot_id] = address
        return address

    def lost(self, address: Address) -> None:
        """Record that the node at `address` did not answer. Unless the slots were read lately, read
        them again, because another node may have taken over the slots of this node."""
        self._suspects[address] = clock() + SUSPECT
        if clock() - self._looked >= LOOK_AGAIN:
            with contextlib.suppress(Failure):  # if no node answers, keep the last known slots
                self.look()

    def look(self) -> None:
        """Read the slots from the first node that answers. Raise Failure if no node answers."""
        began = clock()

        def look() -> None:
            if self._slots and self._looked > began:
                return  # another thread has read the slots while this thread waited
            failure = None
            for address in self.addresses:
                try:
                    found = read_slots(self._ask(address), address)
                except Failure as error:
                    self._suspects[address] = clock() + SUSPECT
                    failure = error
                    continue
                self._suspects.pop(address, None)
                if any(found):
                    self._slots, self._looked = found, clock()
                    return
            self._looked = clock()
            raise failure or Failure(errors.ClusterDownError("no slots"), clock(), "busy")

        self._looking.run(look)


def url_at(seed: str, address: Address) -> str:
    """Return the URL of the node at `address`: the URL `seed` with the node's host and port."""
    parts = urlsplit(seed)
    login, at, _ = parts.netloc.rpartition("@")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return parts._replace(netloc=f"{login}{at}{host}:{address.port}").geturl()


# Routing

#: Commands without a key. Any node can answer them.
_KEYLESS = {"ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "LATENCY", "MEMORY"}
_KEYLESS |= {"PING", "PUBLISH", "RANDOMKEY", "ROLE", "SCRIPT", "SELECT", "SLOWLOG", "TIME"}


def key_of(args: Sequence[Any]) -> str | None:
    """Return the key that determines the node of a command, or None if any node can answer it."""
    word = args[0].upper()
    if word in _KEYLESS or len(args) < 2:
        return None
    if word in ("EVAL", "EVALSHA"):
        return str(args[3]) if int(args[2]) else None
    return str(args[1])


def is_silence(answer: Any) -> bool:
    """Return True if `answer` is a Failure because the node did not answer."""
    return isinstance(answer, Failure) and answer.why in ("unreachable", "unanswered")


def partly(answer: Any) -> Any:
    """If `answer` says that a script stopped halfway, return an "unanswered" Failure, so that the
    plan repeats the step. Otherwise, return `answer`. A script stops halfway if its slot is moving
    to another node, and one of its keys has already moved. The earlier writes stay."""
    if isinstance(answer, Failure) and "non local key" in str(answer.cause):
        return Failure(answer.cause, answer.at, "unanswered")
    return answer


def points_elsewhere(answer: Any) -> bool:
    """Return True if `answer` is a redirection to another node."""
    return isinstance(answer, Failure) and isinstance(answer.cause, errors.AskError)
