"""Indexes for operators' lists: the names that are held, with the time of the oldest grant, and the
names that callers wait for, with the time at which the first waiter asked.

The housekeeping thread writes the indexes. Only a permanent lease is entered by the acquire or the
renewal that makes it permanent: see `register.lua`.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..protocol.keys import Keys, quote
from ..protocol.steps import Failure, Run
from .server import Server
from .statistics import NameAndTemplate
from .wire import ROUND, batches, clock, text, whole

#: Seconds between two writes of the index of holders. A lease enters the index within twice this
#: time.
HOLDERS_INTERVAL = 30.0
#: Seconds between two writes of the index of waiters. A waiter enters the index within twice this
#: time.
WAITERS_INTERVAL = 2.0
#: A check reads this many of the oldest entries, and as many at a random position.
_CHECKED = 10
#: Max steps in a round trip.
_BATCH = 200
#: Milliseconds after which an index of waiters expires if no process writes it.
_WAITERS_KEPT = 86_400_000


def holders_key(prefix: str) -> str:
    """Return the Redis key of the index of holders, a sorted set of quoted names. The score of a
    name is the server time in ms at which its oldest lease was granted. The key never expires,
    because permanent leases never expire."""
    return f"{quote(prefix)}:holders"


def waiters_key(prefix: str) -> str:
    """Return the Redis key of the index of waiters, a sorted set of quoted names. The score of a
    name is the server time in ms at which its first waiter asked."""
    return f"{quote(prefix)}:waiting"


class HeldLease(Protocol):
    """The attributes of a lease that housekeeping reads. `remaining`: seconds until the lease
    expires; inf for a permanent lease. `permits`: 0 if the lease excludes all other leases of its
    name, as for a writer."""

    @property
    def _settings(self) -> NameAndTemplate: ...
    @property
    def permits(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def remaining(self) -> float: ...


#: Where a name is stored: the prefix of its Redis keys, and the name, both quoted.
Place = tuple[str, str]
#: A use of a name by this process: its ID, its name, its begin in ms or 0 if unknown, and whether
#: it enters the index at once.
Entry = tuple[Hashable, NameAndTemplate, int, bool]


class Index(ABC):
    """The housekeeping chore for an index.

    Every `interval` seconds, this chore enters the names of the uses that this process already had
    at the previous write. If a use has ended, the chore corrects the entry of its name. The chore
    also checks a few other entries, because a process that was killed doesn't correct its entries.
    """

    suffix: str
    #: Seconds between two writes, and between two checks of other entries.
    interval: float
    check_every: float

    def __init__(self) -> None:
        self.due = math.inf
        self._before: set[Hashable] = set()  # IDs of the uses at the last write
        self._entered: dict[Place, int] = {}  # names entered by this process, and their begin in ms
        self._check_at = 0.0
        #: Names that an acquire or a renewal has entered since the last write.
        self._written: deque[tuple[Place, int]] = deque()

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield the uses of this process."""

    @abstractmethod
    def begin(self, reply: Sequence[Any]) -> int:
        """Return the begin of a name's oldest use in ms, or 0 if the name has none. `reply`: the
        reply of the script `inspect`."""

    def expect(self) -> None:
        """Schedule a write of the index, unless one is scheduled. Call this after a use began."""
        if self.due == math.inf:
            self.due = clock() + self.interval

    def written(self, keys: Keys, since: int) -> None:
        """Record that a name was entered into the index. When its use has ended, the next write
        corrects the entry. `since`: the begin of the use in ms."""
        self._written.append(((keys.prefix, keys.quoted), since))
        self.expect()

    def run(self, server: Server, now: float, leaving: bool) -> None:
        """Write the names whose use was already there at the previous write, unless the process is
        exiting. Also write the names of lasting uses, and correct other entries."""
        self.due = math.inf
        if getattr(server, "quorum", None) is not None:
            return  # a quorum needs no index: operators' lists show all of its names
        self._entered.update(self._written.popleft() for _ in range(len(self._written)))
        found, ids = dict[Place, int](), set[Hashable]()
        for id, named, since, is_lasting in self.entries():
            ids.add(id)
            if is_lasting or (id in self._before and not leaving):
                place = named.keys.prefix, named.keys.quoted
                found[place] = min(found.get(place, since), since)
        if ids or self._entered:
            self.due = now + self.interval
            self._correct(server, list(dict(found.items() ^ self._entered.items())))
            if now >= self._check_at:
                for prefix in {prefix for prefix, _ in (*found, *self._entered)}:
                    self._correct(server, self._some(server, prefix))
                self._check_at = now + self.check_every
        self._before, self._entered = ids, found

    def _some(self, server: Server, prefix: str) -> list[Place]:
        """Return the oldest entries of the index, and a few entries at a random position."""
        key = prefix + self.suffix
        count = int(server.command("ZCARD", key, timeout=ROUND))
        start = secrets.randbelow(max(1, count))
        ranks = [(0, _CHECKED - 1), (start, start + _CHECKED - 1)]
        found = [server.command("ZRANGE", key, *one, timeout=ROUND) for one in ranks]
        return [(prefix, quoted) for quoted in dict.fromkeys(text([*found[0], *found[1]]))]

    def _correct(self, server: Server, places: Sequence[Place]) -> None:
        """Read the state of these names from the server, and correct the index entry of each name.
        If a name has no such use any more, remove its entry."""
        for batch in batches(places, _BATCH):
            answers = server.many([_inspecting(*place) for place in batch])
            for (prefix, quoted), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Failure):
                    continue  # keep the entry, for example if another program wrote the key
                since = self.begin(answer.reply)
                words = ("ZADD", since, quoted) if since else ("ZREM", quoted)
                server.command(words[0], prefix + self.suffix, *words[1:], timeout=ROUND)


class HolderIndex(Index):
    """The housekeeping chore for the index of holders. With this index, operators' lists show the
    names with the oldest leases first. Permanent leases enter it at the next write. `held`: a
    function that returns the leases of this process."""

    suffix, interval, check_every = ":holders", HOLDERS_INTERVAL, 0.0

    def __init__(self, held: Callable[[], Iterable[HeldLease]]) -> None:
        super().__init__()
        self._held = held

    def entries(self) -> Iterator[Entry]:
        for lease in self._held():
            fence = lease.fence
            yield fence, lease._settings, fence // 1000, lease.remaining == math.inf

    def begin(self, reply: Sequence[Any]) -> int:
        fences = [whole(part) for record in reply[9][2::3] for part in record.split(" ")[1:2]]
        return min(fences, default=0) // 1000


class WaiterIndex(Index):
    """The housekeeping chore for the index of waiters. With this index, operators' lists show the
    names with waiters first. `waiting`: the waiters of this process, by token."""

    suffix, interval, check_every = ":waiting", WAITERS_INTERVAL, 30.0

    def __init__(self, waiting: Mapping[str, NameAndTemplate]) -> None:
        super().__init__()
        self._waiting = waiting

    def entries(self) -> Iterator[Entry]:
        # Copy the items in one step, because other threads add and remove waiters.
        return ((token, named, 0, False) for token, named in list(self._waiting.items()))

    def begin(self, reply: Sequence[Any]) -> int:
        tickets = [int(float(ticket)) for ticket in reply[10][1::4]]
        return max(1, min(tickets) // 1000) if tickets else 0

    def _correct(self, server: Server, places: Sequence[Place]) -> None:
        super()._correct(server, places)
        for prefix in {prefix for prefix, _ in places}:
            server.command("PEXPIRE", prefix + self.suffix, _WAITERS_KEPT, timeout=ROUND)


def _inspecting(prefix: str, quoted: str) -> Run:
    base = f"{prefix}:{{{quoted}}}:"
    return Run("inspect", (base + "leases", base + "never"), ("", 200), ROUND)
