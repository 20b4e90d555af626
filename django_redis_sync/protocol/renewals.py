"""A grant, and the plans that renew its lease, adopt it, or ask whether it is still held."""

from __future__ import annotations

import math
from typing import NamedTuple

from .keys import Keys
from .steps import TICK, Answer, Failure, Plan, Run, SendState, milliseconds, once, persist, seconds


class Grant(NamedTuple):
    """A granted lease. It began at `began` and is held at least until `until`.

    - `ends`: when a lease of the requested duration would end. If `until` is earlier, because the
      server has granted a shorter lease, the holder must renew the lease.
    - `unanswered`: True if an acquire of this token was not answered. The release then writes a
      tombstone.
    - `rejected`: why the limit would have rejected the request, if shadow mode granted it.
    - `waited`: seconds from the first request to the grant, or 0 if the request was not queued.
    - `used`: permits in use after the grant or, if unknown, the permits of this grant.
    - `job_id`: the ID of the job that runs with the lease, or "".
    """

    token: str
    fence: int
    permits: int
    began: float
    until: float
    ends: float
    unanswered: bool
    rejected: str = ""
    waited: float = 0.0
    used: int = 0
    job_id: str = ""


def renewing(
    keys: Keys,
    grant: Grant,
    lease: float,
    nth: int,
    timeout: float,
    how: str = "set",
    known: int = 0,
) -> Run:
    """Return the step that renews a lease. `nth`: number of the renewal. After a renewal with a
    higher number, the server ignores this step. `how`, `known`: as in the script `renew`."""
    step = renewal(keys, grant.token, grant.fence, how, milliseconds(lease), nth, known, timeout)
    return step._replace(argv=(*step.argv, grant.job_id)) if grant.job_id else step


def number_of(renewal: Run) -> int:
    """Return the number `nth` of a renewal."""
    return int(renewal.argv[4])


def renewal(
    keys: Keys, token: str, fence: int, how: str, ms: str, nth: int, known: int, timeout: float
) -> Run:
    """Return a step of the script `renew`. `how`, `ms`, `nth`, `known`: as in the script."""
    return Run("renew", keys.declared, (token, fence, how, ms, nth, known, keys.keep), timeout)


def renew(
    keys: Keys,
    grant: Grant,
    lease: float,
    nth: int,
    budget: float,
    attempt: float,
    start: float,
    known: int | None = None,
) -> Plan:
    """Renew a lease, or adopt it if `known` is given (see the script `renew`). Return its new local
    expiry, or None if the lease is lost."""
    if lease == math.inf:
        yield from register(keys, grant.fence, start + budget, attempt)
    step = renewing(keys, grant, lease, nth, attempt, *(() if known is None else ("adopt", known)))
    return renewed((yield from persist(step, start + budget, SendState())))


def renewed(answer: Answer) -> float | None:
    """Return the local expiry after an answer to a renewal, or None if the lease is lost."""
    return answer.sent + seconds(answer.reply[1]) - TICK if answer.reply[0] == "ok" else None


def confirm(keys: Keys, grant: Grant, attempt: float, start: float) -> Plan:
    """Return True if the server still has the lease. Nothing changes on the server."""
    step = renewal(keys, grant.token, grant.fence, "confirm", "0", 0, 0, attempt)
    return (yield from once(step, start))[0] == "ok"


def register(keys: Keys, fence: int, until: float, timeout: float) -> Plan:
    """Add the name of a lease that becomes permanent to the index of holders. Housekeeping does
    that too, but only if this process is not killed before. `fence`: that of the lease."""
    entry = (fence // 1000, keys.quoted)
    try:
        step = Run("register", (f"{keys.prefix}:holders",), entry, timeout)
        yield from persist(step, until, SendState())
    except Failure as failure:
        if failure.why != "final":  # housekeeping logs what can't succeed, such as a denied key
            raise
