"""The state of a name as frozen facts: its holders, waiters, and servers.

Tokens leave the package whole only for the actions that need them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ..engine.wire import read_label, whole
from ..exceptions import SyncError
from ..protocol.keys import SHOWN, Keys, display, share_of_terms, split, unquote_share
from ..protocol.scripts import CONSTANTS, MOST_PERMITS

# The last millisecond of year 9999: there is no datetime after it.
_LAST_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease. `permits` 0: all of them. `ends_in`: seconds, inf when permanent, negative never.

    `state`: held, handed (its winner was not heard of yet) or kept (released, within min_hold).
    `permanent`: permanent, so that only its holder or an operator ends it.
    """

    id: str
    since: datetime
    ends_in: float
    permits: int
    state: str
    fence: int
    label: Mapping[str, Any]
    token: str = field(repr=False, default="")
    share: str = ""

    @property
    def permanent(self) -> bool:
        return self.ends_in == math.inf


@dataclass(frozen=True, slots=True)
class Waiter:
    """A place in the queue, from 1. `alive`: it asked again in time. A job that is away has
    `next_try`, when its task queue delivers it again, and `sendings`."""

    id: str
    position: int
    since: datetime
    permits: int
    limit: int
    alive: bool
    label: Mapping[str, Any]
    token: str = field(repr=False, default="")
    share: str = ""
    next_try: datetime | None = None
    sendings: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a name: permits in use and waiters. `name`: its text, empty for the callers
    without a share. `limit`: its share_limit, as far as a holder or a waiter shown says it."""

    name: str
    in_use: int
    waiting: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A server of a quorum: its alias, the ids of the holders there, or why it gave no answer."""

    alias: str
    holders: tuple[str, ...] = ()
    paused: bool = False
    error: SyncError | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A name now. `limit`: in force (an operator's, the callers', or while the name is unused the
    settings'); `exclusive`: to a writer.

    `callers_limit`: from the last caller; `conflicting_limit`: the limit of another caller before,
    and its time. `holders` and `waiters` hold MAX_ROWS at the most, `holding` and `waiting` count
    all. `paused_until`: when the pause ends by itself. `members`: the servers, if it is a lock on a
    quorum. `shares`: the heaviest by permits and waiters, `TOP_SHARES` at the most; of all of them,
    `share_count` have permits or waiters, and `shares_waiting` have waiters.
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
    conflicting_limit: tuple[int, datetime] | None
    fence: int
    at: datetime
    paused_until: datetime | None = None
    members: tuple[Member, ...] = ()
    shares: tuple[Share, ...] = ()
    share_count: int = 0
    shares_waiting: int = 0

    @property
    def display(self) -> str:
        return display(self.name, self.key)

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


def status_from(keys: Keys, reply: Sequence[Any], configured: int | None = None) -> Status:
    """Return the status that a reply of the script `inspect` shows. `configured`: the limit in the
    settings."""
    now, fence, override, paused, seen, clash, used, holding, waiting, held, queued = reply[:11]
    now = int(now)
    since_paused, until, override = keys.marked(paused, whole(override), now)
    holders, waiters, share_limits = [], [], dict[str, int]()
    for token, end, text in zip(held[::3], held[1::3], held[2::3], strict=True):
        state, own_fence, _, permits, _, share, share_limit, label = _record(text)
        share_limits[share] = max(share_limit, share_limits.get(share, 0))
        ends_in = math.inf if end == "inf" else (float(end) - now) / 1000
        since = _moment(min(own_fence / 1000, now) or now)
        word = {"g": "handed", "k": "kept"}.get(state, "held")
        holders.append(
            Holder(token[:SHOWN], since, ends_in, permits, word, own_fence, label, token, share)
        )
    holders.sort(key=lambda holder: holder.fence)
    rows = zip(queued[::4], queued[1::4], queued[2::4], queued[3::4], strict=True)
    for position, (token, ticket, deadline, text) in enumerate(rows, 1):
        if text[:1] == "a":
            waiters.append(_away(token, position, float(ticket), float(deadline), text, now))
            continue
        _, _, _, permits, own_limit, share, share_limit, label = _record(text)
        share_limits[share] = max(share_limit, share_limits.get(share, 0))
        alive, since = float(deadline) > now, _moment(float(ticket) / 1000)
        waiters.append(
            Waiter(token[:SHOWN], position, since, permits, own_limit, alive, label, token, share)
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
        paused_since=_moment(since_paused) if since_paused else None,
        paused_until=_moment(until) if since_paused and until < math.inf else None,
        in_use=sum(h.permits or 1 for h in holders) if exclusive else whole(used),
        exclusive=exclusive,
        holding=int(holding),
        waiting=int(waiting),
        holders=tuple(holders),
        waiters=tuple(waiters),
        conflicting_limit=(former, _moment(whole(when))) if former else None,
        fence=whole(fence),
        at=_moment(now),
        **_shares(reply[11:], share_limits),
    )


def _shares(reply: Sequence[Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return what a reply says of the shares: nothing for a name without them."""
    if not reply:
        return {}
    count, waiting, rows = reply
    shares = []
    for quoted, used, queued in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        name = unquote_share(quoted)
        shares.append(Share(name, whole(used), whole(queued), limits.get(name) or None))
    return {
        "shares": tuple(shares),
        "share_count": int(count),
        "shares_waiting": int(waiting),
    }


def _record(text: str) -> tuple[str, int, str, int, int, str, int, Mapping[str, Any]]:
    """state, fence, lease, permits, limit, share, its limit, and label of a record; an unreadable
    field is empty."""
    parts = text.split(" ", 6)
    try:
        state, fence, lease, permits, limit, _, rest = parts
    except ValueError:
        return "", 0, "", 1, 0, "", 0, {}
    share, share_limit, label = share_of_terms(rest)
    found = state[:1], whole(fence), lease, whole(permits, 1), whole(limit)
    return *found, share, share_limit % MOST_PERMITS, read_label(label)


def _away(place: str, position: int, ticket: float, due: float, record: str, now: float) -> Waiter:
    """Return a job that is away. It is late if it is not back some time after it was due."""
    _, nth, _, _, _, _, share, job = [*record.split(" ", 7), *[""] * 7][:8]
    alive, since = due + CONSTANTS["TURN"] > now, _moment(ticket / 1000)
    label, (share, _, _) = read_label(job), share_of_terms(f"/0{share} ")
    shown = place[:SHOWN], position, since, 1, 0, alive, label, place, share
    return Waiter(*shown, next_try=_moment(due), sendings=whole(nth))


def _moment(ms: float) -> datetime:
    return datetime.fromtimestamp(max(0.0, min(ms, _LAST_MS)) / 1000, tz=timezone.utc)
