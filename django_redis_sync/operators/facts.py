"""The state of a name as frozen dataclasses: its holders, waiters, shares, and servers.

Tokens are secrets. They are stored here for actions, and shown only in part, as `id`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ..engine.names import read_label
from ..engine.wire import whole
from ..exceptions import SyncError
from ..protocol.keys import SHOWN, Keys, display, share_of_terms, split, unquote_share
from ..protocol.scripts import CONSTANTS, MOST_PERMITS

#: Approximate max number of holders, waiters, and shares that a script reads to find the heaviest
#: shares: those with the most permits and waiters.
MAX_RECORDS = 10_000
# The last whole second of the year 9999, in ms. Python has no later datetime.
_LAST_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder and its lease.

    - `id`: the beginning of the holder's token. `since`: time of the grant.
    - `ends_in`: seconds until the lease expires, or inf if the lease is permanent.
    - `permits`: the number of permits, or 0 if the holder has the whole name, as a writer does.
    - `state`: "held", "handed", or "kept". "handed": the holder waited, was granted the permit, and
      has not claimed it yet. "kept": the holder released the permit, but `min_hold` retains it.
    - `label`: host, process, and other texts about the holder.
    - `share`: "" if the holder gave no share.
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
        """True if the lease never expires: only its holder or an operator can end it."""
        return self.ends_in == math.inf


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiter. `position`: the rank in the queue, from 1. `since`: when the waiter first asked.
    `alive`: False if the last heartbeat is overdue."""

    id: str
    position: int
    since: datetime
    permits: int
    limit: int
    alive: bool
    label: Mapping[str, Any]
    token: str = field(repr=False, default="")
    share: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a name. `name`: the text of the share, or "" for the share of all callers that
    gave none. `in_use`, `waiting`: its permits in use and its waiters. `limit`: the share_limit, or
    None if no holder or waiter in the Status has one."""

    name: str
    in_use: int
    waiting: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A Celery worker that holds `jobs` of the name in its memory, besides those that are among the
    waiters. `name`: its node name, such as "celery@host"."""

    name: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Member:
    """A server of a quorum. `holders`: the ids of the holders on this server. `error`: the error if
    the server did not answer."""

    alias: str
    holders: tuple[str, ...] = ()
    paused: bool = False
    error: SyncError | None = None


@dataclass(frozen=True, slots=True)
class FactsOfName:
    """A name, or the key `key` of a policy."""

    name: str
    key: str | None

    @property
    def display(self) -> str:
        return display(self.name, self.key)


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of a name: at most `permits` grants in any `seconds`.

    `used`: the permits granted within the last `seconds`. `opens_in`: seconds until a newcomer
    could get a permit, as far as the rate is concerned. `by_operator`: True if an operator set it.
    """

    permits: int
    seconds: float
    used: int
    opens_in: float
    by_operator: bool


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down of a name. `label`: that of the caller of `cool_down()`."""

    since: datetime
    until: datetime
    label: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Status(FactsOfName):
    """The state of a name.

    - `kind`: "plain" or "read/write".
    - `limit`: the limit in force. This is the limit of an operator, or else of the last caller, or
      else of the settings. It is None if it is unknown, or if the name has no limit.
    - `callers_limit`: the limit of the last caller. `override`: the limit of an operator.
    - `conflicting_limit`: the limit of earlier callers, and the time at which a caller with another
      limit replaced it. None if callers have not disagreed.
    - `in_use`: permits in use. `exclusive`: True if a writer holds the name.
    - `holding` and `waiting`: the numbers of holders and waiters. `holders` and `waiters` list at
      most MAX_ROWS of each. `waiting` includes the jobs of `workers`.
    - `workers`: the Celery workers that hold more jobs of the name than are among the waiters.
    - `fence`: the last fencing token. `at`: the time at which the state was read.
    - `paused_since` and `paused_until`: start and end of the pause. `paused_until` is also None for
      a pause without an end.
    - `members`: the servers if this is a lock on a quorum.
    - `shares`: the heaviest shares, at most TOP_SHARES. `share_count`: the number of shares with
      permits or waiters. `shares_waiting`: the number of shares with waiters.
    - `rate`: the rate of the name, or None. `cool_down`: the cool-down that lasts, or None.
    """

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
    workers: tuple[Worker, ...] = ()
    rate: Rate | None = None
    cool_down: CoolDown | None = None

    @property
    def paused(self) -> bool:
        return self.paused_since is not None

    @property
    def used(self) -> bool:
        """True if the name was granted before, or has a holder, a waiter, or an override."""
        return bool(self.fence or self.holding or self.waiting or self.paused or self.resized)

    @property
    def resized(self) -> bool:
        """True if an operator set the limit or the rate."""
        return self.override is not None or (self.rate is not None and self.rate.by_operator)

    @property
    def held(self) -> int:
        """The number of jobs that `workers` hold."""
        return sum(worker.jobs for worker in self.workers)

    @property
    def shares_are_complete(self) -> bool:
        """False if `shares` may be incomplete, because the script that finds them reads only about
        MAX_RECORDS records."""
        return self.holding + self.waiting + self.share_count < MAX_RECORDS

    @property
    def everyone(self) -> tuple[Holder | Waiter, ...]:
        """The holders and the waiters."""
        return (*self.holders, *self.waiters)


@dataclass(frozen=True, slots=True)
class Unread(FactsOfName):
    """A name that could not be read, and the error."""

    error: SyncError


class Configured(NamedTuple):
    """What the settings say about a name. `limit`: None if it is missing or a function. `rate`:
    "PERMITS/MS", or "" if there is none."""

    limit: int | None = None
    rate: str = ""


def status_from(keys: Keys, reply: Sequence[Any], configured: Configured | None = None) -> Status:
    """Return the status of a name from a reply of the script `inspect`. `configured`: what the
    settings say about the name, or None."""
    configured = configured or Configured()
    now, fence, override, paused, seen, clash, used, holding, waiting, held, queued, jobs = reply[
        :12
    ]
    now = int(now)
    since_paused, until, override = keys.overrides_in_force(paused, whole(override), now)
    holders, waiters, share_limits = [], [], Counter[str]()
    for token, end, text in zip(held[::3], held[1::3], held[2::3], strict=True):
        state, own_fence, _, permits, _, share, label = _record(text, share_limits)
        ends_in = math.inf if end == "inf" else (float(end) - now) / 1000
        # A fence is the time of the grant in µs. If the server's clock was set back, a fence may be
        # ahead of the clock. Then show the grant as if it was made now.
        since = datetime_of(own_fence / 1000 if 0 < own_fence / 1000 < now + 1 else now)
        word = {"g": "handed", "k": "kept"}.get(state, "held")
        holders.append(
            Holder(token[:SHOWN], since, ends_in, permits, word, own_fence, label, token, share)
        )
    rows = zip(queued[::4], queued[1::4], queued[2::4], queued[3::4], strict=True)
    for position, (token, ticket, deadline, text) in enumerate(rows, 1):
        place, since = (token[:SHOWN], position), datetime_of(float(ticket) / 1000)
        _, _, _, permits, own_limit, share, label = _record(text, share_limits)
        alive = float(deadline) > now
        waiters.append(Waiter(*place, since, permits, own_limit, alive, label, token, share))
    workers = [Worker(*pair) for pair in zip(jobs[::2], map(whole, jobs[1::2]), strict=True)]
    kind, last_limit = [*seen.split(" "), ""][:2]
    is_plain, callers = kind != "w", whole(last_limit) % MOST_PERMITS or None
    exclusive = whole(used) >= CONSTANTS["EXCLUSIVE"]
    when, _, before = clash.partition(" ")
    former = whole((*before.split(" "), "")[1]) % MOST_PERMITS
    former = former if former != callers else 0  # the callers disagree about the rate only
    name, key = split(keys.quoted)
    return Status(
        name=name,
        key=key,
        kind="plain" if is_plain else "read/write",
        limit=override or ((callers or configured.limit) if is_plain else None),
        callers_limit=callers if is_plain else None,
        override=override or None,
        paused_since=datetime_of(since_paused) if since_paused else None,
        paused_until=datetime_of(until) if since_paused and until < math.inf else None,
        in_use=sum(h.permits or 1 for h in holders) if exclusive else whole(used),
        exclusive=exclusive,
        holding=int(holding),
        waiting=int(waiting),
        holders=tuple(sorted(holders, key=lambda holder: holder.fence)),
        waiters=tuple(waiters),
        conflicting_limit=(former, datetime_of(whole(when))) if former else None,
        fence=whole(fence),
        at=datetime_of(now),
        workers=tuple(sorted(workers, key=lambda worker: (-worker.jobs, worker.name))),
        **_shares(reply[12:15], share_limits),
        **_rate(reply[15:], now, _unused(keys, configured) if is_plain else ""),
    )


def _shares(reply: Sequence[Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of Status about shares. Return {} for a name without shares."""
    if not reply or reply[0] == "":
        return {}
    count, waiting, rows = reply
    shares = []
    for quoted, used, queued in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        name = unquote_share(quoted)
        shares.append(Share(name, whole(used), whole(queued), limits.get(name) or None))
    return {"shares": tuple(shares), "share_count": int(count), "shares_waiting": int(waiting)}


def _rate(reply: Sequence[Any], now: int, unused: str) -> dict[str, Any]:
    """Return the fields of Status about the rate and the cool-down. `reply`: the last four values
    of the script `inspect`; () for a name without them. `unused`: the rate if `reply` has none."""
    found, (rate, used, opens, cool) = dict[str, Any](), reply or ("", "", "", "")
    if not rate:
        rate, used, opens = unused, "0", "0"
    if rate:
        (permits, _, ms), since = rate.partition(" ")[0].partition("/"), rate.partition(" ")[2]
        found["rate"] = Rate(
            int(permits), int(ms) / 1000, whole(used), int(opens) / 1000, not since.isdecimal()
        )
    since, until, label = f"{cool}  ".split(" ", 2)
    if cool and int(since) <= now < int(until):
        begins, ends = datetime_of(int(since)), datetime_of(int(until))
        found["cool_down"] = CoolDown(begins, ends, read_label(label))
    return found


def _unused(keys: Keys, configured: Configured) -> str:
    """Return the rate that a name has not used yet, as in the reply of `inspect`."""
    if keys.rate_override:
        return f"{keys.rate_override} policy"
    return f"{configured.rate} 0" if configured.rate else ""


def _record(
    text: str, share_limits: Counter[str]
) -> tuple[str, int, str, int, int, str, Mapping[str, Any]]:
    """Return seven fields of a record: state, fence, lease duration, permits, limit, share, and
    label. If the record can't be read, return defaults. Also store the limit of the record's share
    in `share_limits`."""
    try:
        state, fence, lease, permits, limit, _, rest = text.split(" ", 6)
    except ValueError:
        return "", 0, "", 1, 0, "", {}
    share, share_limit, label = share_of_terms(rest)
    share_limits[share] = max(share_limit % MOST_PERMITS, share_limits[share])
    return state[:1], whole(fence), lease, whole(permits, 1), whole(limit), share, read_label(label)


def datetime_of(ms: float) -> datetime:
    """Return the time `ms` milliseconds after 1970 as a datetime. If `ms` is negative, or too large
    for a datetime, return the nearest possible time."""
    return datetime.fromtimestamp(max(0.0, min(ms, _LAST_MS)) / 1000, tz=timezone.utc)
