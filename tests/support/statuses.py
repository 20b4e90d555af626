"""Make statuses, holders, and histories without Redis, for tests of the code that shows them."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

from django_redis_sync.operators.facts import Holder, Status, Waiter
from django_redis_sync.operators.groups import Group
from django_redis_sync.operators.history import Counters, History, add

#: The time at which the statuses and histories were read.
AT = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def ago(seconds: float) -> datetime:
    return AT - timedelta(seconds=seconds)


def holder(id: str = "id", held: float = 0.0, **said: Any) -> Holder:
    """Return a holder. `held`: seconds since the lease was acquired. `said`: other fields of the
    Holder."""
    given = {"ends_in": 30.0, "permits": 1, "state": "held", "fence": 1, "label": {}}
    return Holder(id, ago(held), **{**given, "token": f"{id}-token", **said})


def forever(id: str = "id") -> Holder:
    return holder(id, ends_in=math.inf)


def waiter(id: str = "id", position: int = 1, waits: float = 0.0, **said: Any) -> Waiter:
    given = {"permits": 1, "limit": 3, "alive": True, "label": {}, "token": f"{id}-token"}
    return Waiter(id, position, ago(waits), **{**given, **said})


def status(name: str = "exports", key: str | None = None, **said: Any) -> Status:
    """Return the status of an idle name with a limit of 3. `said`: fields with other values."""
    nothing: dict[str, Any] = dict.fromkeys(Status.__dataclass_fields__)
    given = {"name": name, "key": key, "kind": "plain", "limit": 3, "callers_limit": 3, "at": AT}
    given |= {"holders": (), "waiters": (), "in_use": 0, "holding": 0, "waiting": 0, "fence": 1}
    if "holders" in said:
        given["holding"] = len(said["holders"])
        given["in_use"] = sum(holder.permits or 1 for holder in said["holders"])
    if "waiters" in said:
        given["waiting"] = len(said["waiters"])
    return Status(**{**nothing, **given, "exclusive": False, "members": (), "workers": (), **said})


def group(*some: Status, keys: int | None = None, **said: Any) -> Group:
    """Return a `Group`: the statuses of one name, or of a policy and its keys. `some`: the
    statuses. `keys`: the number of keys that the policy has, by default those in `some`."""
    own = next((status for status in some if status.key is None), None)
    children = tuple(status for status in some if status.key is not None)
    return Group(some[0].name, own, children, len(children) if keys is None else keys, **said)


def history(name: str = "exports", key: str | None = None, *rows: Counters, **said: Any) -> History:
    """Return a history with a row of counters for each minute. The last of `rows` is for the minute
    before AT."""
    dated = tuple((ago(60 * (len(rows) - n)), row) for n, row in enumerate(rows))
    total = add(rows)
    given = {"total": total, "ever": total, "suggested_limit": None}
    return History(name, key, dated, **{**given, **said})
