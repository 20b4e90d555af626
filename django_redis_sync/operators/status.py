"""Names now: their holders and waiters. Read by the command, the admin page and `status()`.

Frozen statistics, read in a round trip per batch of names. Tokens leave this module whole only for
the operations that need them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from .. import conf
from ..engine import labels
from ..engine.commands import whole
from ..engine.drivers import adrive, drive, error_of
from ..engine.marks import reading, refresh, take
from ..engine.pools import many_anew_if_cut
from ..engine.server import Server, async_server_of, server_of
from ..engine.wire import ATTEMPT, clock
from ..exceptions import SyncError
from ..protocol import plans
from ..protocol.keys import SHOWN, Keys, keys_of, split
from ..protocol.plans import Answer, Failure, Run
from ..protocol.scripts import CONSTANTS
from .configured import configured
from .words import display

#: Rows of holders and of waiters that are read of a name.
MOST_ROWS = 200
_BATCH = 500
# The last moment of year 9999: there is no datetime after it.
_LAST_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease. `permits` 0: all of them. `ends_in`: seconds, inf when permanent, negative never.

    `state`: held, handed (its winner was not heard of yet) or kept (released, within min_hold).
    `stuck`: permanent, so that only its holder or an operator ends it.
    """

    id: str
    since: datetime
    ends_in: float
    permits: int
    state: str
    fence: int
    label: Mapping[str, Any]
    token: str = field(repr=False, default="")

    @property
    def stuck(self) -> bool:
        return self.ends_in == math.inf


@dataclass(frozen=True, slots=True)
class Waiter:
    """A place in the queue, from 1. `alive`: it asked again in time."""

    id: str
    position: int
    since: datetime
    permits: int
    limit: int
    alive: bool
    label: Mapping[str, Any]
    token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class Status:
    """A name now. `limit`: in force (an operator's, the callers', or while the name is unused the
    settings'); `exclusive`: to a writer.

    `callers_limit`: from the last caller; `clash`: the limit of another caller before, and its
    time. `holders` and `waiters` hold MOST_ROWS at the most, `holding` and `waiting` count all.
    """

    name: str
    key: str | None
    kind: str
    limit: int | None
    callers_limit: int | None
    override: int | None
    paused_since: datetime | None
    in_use: int
    exclusive: bool
    holding: int
    waiting: int
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    clash: tuple[int, datetime] | None
    fence: int
    at: datetime

    @property
    def display(self) -> str:
        return self.name if self.key is None else f"{self.name}@{self.key}"

    @property
    def paused(self) -> bool:
        return self.paused_since is not None

    @property
    def used(self) -> bool:
        """Whether anything of it is in Redis, beside its counters and its place in `names`."""
        return bool(self.fence or self.holding or self.waiting or self.paused or self.override)

    @property
    def everyone(self) -> tuple[Holder | Waiter, ...]:
        return (*self.holders, *self.waiters)


@dataclass(frozen=True, slots=True)
class Unread:
    """A name that could not be read, and why."""

    name: str
    key: str | None
    error: SyncError

    @property
    def display(self) -> str:
        return display(self.name, self.key)


def looking(keys: Keys, rows: int = MOST_ROWS) -> Run:
    """The step that reads a name."""
    return Run("inspect", keys.declared, ("", rows), ATTEMPT)


def status_of(name: str, key: str | None = None, *, using: str | None = None) -> Status:
    """A name, or its child for `key`. Unavailable when Redis can't be reached."""
    keys, alias = _place(name, key, using)
    return _status(keys, drive(_look(keys), server_of(alias)), configured().get(name))


async def astatus_of(name: str, key: str | None = None, *, using: str | None = None) -> Status:
    """As status_of."""
    keys, alias = _place(name, key, using)
    reply = await adrive(_look(keys), async_server_of(alias))
    return _status(keys, reply, configured().get(name))


def _place(name: str, key: str | None, using: str | None) -> tuple[Keys, str]:
    config = conf.current()
    alias = using or config.cache
    return keys_of(config.prefix(alias), name, key), alias


def _look(keys: Keys) -> plans.Plan:
    if keys.policy is not None:
        with contextlib.suppress(Failure):  # as in marks.refresh
            take(keys.policy.registry, (yield reading(keys.policy.registry)))
    return (yield from plans.run_once("inspect", keys, ("", MOST_ROWS), ATTEMPT, clock()))


def statuses(
    names: Iterable[tuple[str, str | None]], *, using: str | None = None, rows: int = MOST_ROWS
) -> list[Status]:
    """Several names, a round trip per _BATCH of them. Unavailable when Redis can't be reached."""
    found, limits = [], configured()
    for keys, answer in _looks(names, using, rows):
        if isinstance(answer, Failure):
            raise error_of(answer, looking(keys)) from answer.cause
        found.append(_status(keys, answer.reply, limits.get(split(keys.quoted)[0])))
    return found


def readable(
    names: Iterable[tuple[str, str | None]], *, using: str | None = None, rows: int = MOST_ROWS
) -> tuple[list[Status], list[Unread]]:
    """As statuses, of those names that can be read, and the error that hid the others: a shard
    that is down, another program's value. Unavailable, or that error, when it hides all."""
    found: list[Status] = []
    unread: list[Unread] = []
    limits = configured()
    for keys, answer in _looks(names, using, rows):
        if isinstance(answer, Failure):
            unread.append(Unread(*split(keys.quoted), error_of(answer, looking(keys))))
            if not found and len(unread) == _BATCH:
                break
        else:
            found.append(_status(keys, answer.reply, limits.get(split(keys.quoted)[0])))
    if unread and not found:
        raise unread[0].error
    return found, unread


def _looks(
    names: Iterable[tuple[str, str | None]], using: str | None, rows: int
) -> Iterator[tuple[Keys, Answer | Failure]]:
    config = conf.current()
    alias = using or config.cache
    prefix, server = config.prefix(alias), server_of(alias)
    wanted = [keys_of(prefix, name, key) for name, key in names]
    _refresh_marks(server, wanted)
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        steps = [looking(k, rows) for k in batch]
        yield from zip(batch, many_anew_if_cut(server.many, steps), strict=True)


def _refresh_marks(server: Server, wanted: Iterable[Keys]) -> None:
    """The policies of the children: they decide how a child is shown."""
    for registry in {keys.policy.registry for keys in wanted if keys.policy is not None}:
        refresh(server, registry)


def _status(keys: Keys, reply: Sequence[Any], configured: int | None = None) -> Status:
    """A Status of the reply of the `inspect` verb. `configured`: the limit in the settings."""
    now, fence, override, paused, seen, clash, used, holding, waiting, held, queued = reply
    now = int(now)
    paused, override = keys.marked(whole(paused), whole(override))
    holders, waiters = [], []
    for token, end, text in zip(held[::3], held[1::3], held[2::3], strict=True):
        state, own_fence, _, permits, _, label = _record(text)
        ends_in = math.inf if end == "inf" else (float(end) - now) / 1000
        since = _moment(min(own_fence / 1000, now) or now)
        word = {"g": "handed", "k": "kept"}.get(state, "held")
        holders.append(
            Holder(token[:SHOWN], since, ends_in, permits, word, own_fence, label, token)
        )
    holders.sort(key=lambda holder: holder.fence)
    rows = zip(queued[::4], queued[1::4], queued[2::4], queued[3::4], strict=True)
    for position, (token, ticket, deadline, text) in enumerate(rows, 1):
        _, _, _, permits, own_limit, label = _record(text)
        alive, since = float(deadline) > now, _moment(float(ticket) / 1000)
        waiters.append(
            Waiter(token[:SHOWN], position, since, permits, own_limit, alive, label, token)
        )
    kind, _, said = seen.partition(" ")
    callers = whole(said) or None
    exclusive = whole(used) >= CONSTANTS["EXCLUSIVE"]
    limit = override or callers or configured
    if kind == "w" and not override:
        limit = None
    when, _, before = clash.partition(" ")
    former = whole(before.partition(" ")[2])
    name, key = split(keys.quoted)
    return Status(
        name=name,
        key=key,
        kind="read/write" if kind == "w" else "plain",
        limit=limit,
        callers_limit=callers if kind != "w" else None,
        override=override or None,
        paused_since=_moment(paused) if paused else None,
        in_use=sum(h.permits or 1 for h in holders) if exclusive else whole(used),
        exclusive=exclusive,
        holding=int(holding),
        waiting=int(waiting),
        holders=tuple(holders),
        waiters=tuple(waiters),
        clash=(former, _moment(whole(when))) if former else None,
        fence=whole(fence),
        at=_moment(now),
    )


def _record(text: str) -> tuple[str, int, str, int, int, Mapping[str, Any]]:
    """state, fence, lease, permits, limit and label of a record; an unreadable field is empty."""
    parts = text.split(" ", 6)
    try:
        state, fence, lease, permits, limit, _, label = parts
    except ValueError:
        return "", 0, "", 1, 0, {}
    return state[:1], whole(fence), lease, whole(permits, 1), whole(limit), labels.read(label)


def _moment(ms: float) -> datetime:
    return datetime.fromtimestamp(max(0.0, min(ms, _LAST_MS)) / 1000, tz=timezone.utc)
