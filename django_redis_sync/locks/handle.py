"""Handles: the texts with which other processes adopt leases."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from typing import Any

from .. import conf, values
from ..engine.quorum import Quorum
from ..engine.wire import clock
from ..protocol import renewals
from ..protocol.keys import Token, keys_of, split
from ..protocol.renewals import Grant
from ..protocol.steps import Plan
from .arguments import checked
from .lease_state import LeaseSettings, LeaseState
from .loss import not_adopted

_MAX_LENGTH = 4096
#: Min value of `max_hold` in a handle, in seconds. The value must be positive, even if the max_hold
#: of the lease has passed.
_MIN_TIME_LEFT = 0.001


def check(settings: LeaseSettings) -> None:
    """Raise NotImplementedError if a lease with these settings can't be detached."""
    if isinstance(settings.alias, Quorum):
        raise NotImplementedError(
            "a lease of several servers can't be detached, because each server has its own fence"
        )


def of(state: LeaseState) -> str:
    """Mark a lease as detached, and return its handle. The handle's `max_hold` is that of the
    lease, minus the time since the grant."""
    settings, grant, known = state.settings, state.grant, state.detached()
    max_hold = max(_MIN_TIME_LEFT, settings.max_hold - (clock() - grant.began))
    values = [1, settings.alias, settings.keys.quoted, grant.token, str(grant.fence), state.permits]
    values += [
        settings.timeout,
        settings.renew,
        max_hold,
        settings.min_hold,
        grant.unanswered,
        known,
        grant.job_id,
    ]
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def adoption(handle: str, on_lost: Callable[[Any], Any] | None) -> tuple[Any, Plan]:
    """Return two objects: the cache alias of the lease, and a plan that adopts the lease. Raise
    TypeError if the handle is not a str, and ValueError if it is malformed."""
    if not isinstance(handle, str):
        raise TypeError(f"a handle is a str, not {type(handle).__name__}")
    checked("on_lost", on_lost)
    try:
        settings, grant, known = _parse(handle, on_lost)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError("this is not the handle of a lease") from error
    return settings.alias, _adopting(settings, grant, known)


def _adopting(settings: LeaseSettings, grant: Grant, known: int) -> Plan:
    """Adopt a lease. Return three objects: the lease's settings, its grant with the new local
    expiry, and the number of the renewal that adopted it. `known`: a number above those of all
    renewals by the former owner. Raise LeaseLost if the lease ended or was adopted before."""
    start = clock()
    # The number of this adoption is random and above `known`. So if two processes adopt the lease,
    # their numbers differ, and Redis rejects the second number.
    nth = known + 1 + int.from_bytes(os.urandom(4), "big")
    times = settings.budget, settings.attempt, start
    until = yield from renewals.renew(settings.keys, grant, settings.timeout, nth, *times, known)
    if until is None:
        raise not_adopted(settings.keys.display)
    return settings, grant._replace(began=start, until=until, ends=until), nth


def _parse(handle: str, on_lost: Callable[[Any], Any] | None) -> tuple[LeaseSettings, Grant, int]:
    if len(handle) > _MAX_LENGTH:
        raise ValueError("too long")
    if re.search(r"[^\w=-]", handle, re.ASCII):  # base64 would skip them, or, from 3.15 on, warn
        raise ValueError("it has characters that no handle has")
    version, alias, quoted, token, fence, permits, *rest, unanswered, known, job = json.loads(
        base64.urlsafe_b64decode(handle.encode("ascii"))
    )
    timeout, renew, max_hold, min_hold = rest
    texts, numbers = (alias, quoted, token, fence, job), (permits, known)
    typed = all(isinstance(v, str) for v in texts) and all(isinstance(v, int) for v in numbers)
    if version != 1 or not (typed and token.isalnum() and len(token) <= 64):
        raise ValueError("the version is unknown, or values have wrong types")
    name, key = split(quoted)
    config = conf.current()
    keys = keys_of(config.prefix(alias), name, key, config.keep(key))
    ends = values.lease("timeout", timeout), bool(renew), values.lease("max_hold", max_hold)
    hold = values.not_negative("min_hold", min_hold)
    settings = LeaseSettings(keys, alias, *ends, hold, on_lost=on_lost)
    grant = Grant(Token(token), int(fence), permits, 0.0, 0.0, 0.0, bool(unanswered), job_id=job)
    return settings, grant, known
