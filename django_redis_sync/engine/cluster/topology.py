"""Which node has which slot, as far as this process knows, and where an answer redirects a step."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis import exceptions as errors
from redis.crc import key_slot

from ...protocol.steps import Failure
from ..wire import clock

#: Seconds that a node may take to say where the slots are, and between two such questions.
LOOK, LOOK_AGAIN = 0.5, 0.5
#: Seconds for which a node that did not answer is asked last, and given LAST_CHANCE to answer when
#: others wait for the same thread.
SUSPECT, LAST_CHANCE = 5.0, 0.3


class Address(NamedTuple):
    host: str
    port: int


class SlotMap(NamedTuple):
    """Slots in ranges: those from starts[i] to ends[i] are at owners[i]."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    owners: tuple[Address, ...]

    def of(self, slot: int) -> Address | None:
        i = bisect_right(self.starts, slot) - 1
        return self.owners[i] if i >= 0 and slot <= self.ends[i] else None


def read_map(reply: Iterable[Any], asked: Address) -> SlotMap:
    """Of CLUSTER SLOTS. A node that does not know its own address says none."""
    rows = sorted(
        (int(start), int(end), Address(primary[0] or asked.host, int(primary[1])))
        for start, end, primary, *_ in reply
    )
    starts, ends, owners = zip(*rows, strict=True) if rows else ((), (), ())
    return SlotMap(starts, ends, owners)


class Topology:
    """Which node has which slot, as far as this process knows. For threads and loops alike."""

    # Invariant: _map and _moved are replaced, never changed in place but for single items.
    def __init__(self, seeds: Sequence[str], ask: Callable[[Address], Any]) -> None:
        self._seeds = [_address(url) for url in seeds]
        self._ask = ask
        self._map: SlotMap | None = None
        self._moved: dict[int, Address] = {}
        self._suspects: dict[Address, float] = {}
        self._looking, self._looked = threading.Lock(), -LOOK_AGAIN

    @property
    def is_known(self) -> bool:
        """Whether a node said yet where the slots are."""
        return self._map is not None

    @property
    def addresses(self) -> list[Address]:
        """The nodes that have slots, those first that answered."""
        owners = self._map.owners if self._map is not None else ()
        found = dict.fromkeys([*owners, *self._moved.values(), *self._seeds])
        return sorted(found, key=self.suspect)

    @property
    def primaries(self) -> list[Address]:
        """The nodes that have slots; the seeds when none is known."""
        owners = dict.fromkeys(self._map.owners) if self._map is not None else {}
        return sorted(owners, key=self.suspect) or self._seeds

    def known(self, key: str) -> Address | None:
        """The node of a key; None when no node was asked yet."""
        if self._map is None:
            return None
        slot = key_slot(key.encode())
        return self._moved.get(slot) or self._map.of(slot) or self.primaries[0]

    def of(self, key: str) -> Address:
        """The node of a key. Asks the nodes when none was asked yet; Failure when none answers."""
        found = self.known(key)
        if found is None:
            self.look()
            found = self.known(key)
            assert found is not None
        return found

    def suspect(self, address: Address) -> bool:
        return clock() < self._suspects.get(address, 0.0)

    def moved(self, error: errors.MovedError) -> Address:
        """Take a slot's node from a MOVED."""
        address = Address(error.host or self.primaries[0].host, error.port)
        self._moved[error.slot_id] = address
        return address

    def lost(self, address: Address) -> None:
        """A node did not answer: another may have its slots by now. Asks the others."""
        self._suspects[address] = clock() + SUSPECT
        if clock() - self._looked >= LOOK_AGAIN:
            with contextlib.suppress(Failure):  # all of it is down: the last known map must do
                self.look()

    def look(self) -> None:
        """Ask the nodes in turn where the slots are. Failure when none answers."""
        began = clock()
        with self._looking:
            if self._map is not None and self._looked > began:
                return  # another thread did, while this waited
            failure = None
            for address in self.addresses:
                try:
                    found = read_map(self._ask(address), address)
                except Failure as error:
                    self._suspects[address] = clock() + SUSPECT
                    failure = error
                    continue
                self._suspects.pop(address, None)
                if found.owners:
                    self._map, self._moved = found, {}
                    self._looked = clock()
                    return
            self._looked = clock()
            raise failure or Failure(errors.ClusterDownError("no slots"), clock(), "busy")


def _address(url: str) -> Address:
    parts = urlsplit(url)
    return Address(parts.hostname or "localhost", parts.port or 6379)


def url_at(seed: str, address: Address) -> str:
    """The address of a node, with the seed's scheme, login and options."""
    parts = urlsplit(seed)
    login, at, _ = parts.netloc.rpartition("@")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return parts._replace(netloc=f"{login}{at}{host}:{address.port}").geturl()


# Where a command goes, and where a node's answer redirects it

#: Redirections that a request follows.
MAX_REDIRECTS = 4

#: Commands that any node can answer: all others name a key first.
_KEYLESS = {"ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "LATENCY", "MEMORY"}
_KEYLESS |= {"PING", "PUBLISH", "RANDOMKEY", "ROLE", "SCRIPT", "SELECT", "SLOWLOG", "TIME"}


def key_of(args: Sequence[Any]) -> str | None:
    """The key that routes a command; None when any node will do."""
    word = args[0].upper()
    if word in _KEYLESS or len(args) < 2:
        return None
    if word in ("EVAL", "EVALSHA"):
        return str(args[3]) if int(args[2]) else None
    return str(args[1])


def is_silence(answer: Any) -> bool:
    return isinstance(answer, Failure) and answer.why in ("unreachable", "unanswered")


def partly(answer: Any) -> Any:
    """A script that met another waiter's key, which its half moved slot has not: it broke off, and
    its writes until then stay. So it counts as unanswered, and is sent again."""
    if isinstance(answer, Failure) and "non local key" in str(answer.cause):
        return Failure(answer.cause, answer.at, "unanswered")
    return answer


def points_elsewhere(answer: Any) -> bool:
    return isinstance(answer, Failure) and isinstance(answer.cause, errors.AskError)
