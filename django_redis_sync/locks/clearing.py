"""`clear`: end the leases of a name, as an operator does."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from .. import values
from .arguments import checked
from .callers import check_may_wait

#: Max holders that a call ends.
MAX_CLEARED = 1000


def clear(
    name: str,
    *,
    key: str | None = None,
    using: str | None = None,
    by: str | None = None,
    reason: str = "",
) -> int:
    """End all leases of a name, and return their number. Waiters stay, and get the permits.

    A holder whose lease was ended gets LeaseLost. At most MAX_CLEARED leases are ended. The call is
    recorded as an action of an operator, like `manage.py locks clear`.

    - `key`: the key, if `name` is the name of a keyed policy.
    - `using`: a cache alias. None: the alias of a quorum that lately held the name, or CACHE.
    - `by`, `reason`: texts for the record. None: the user of the process.

    Raise TypeError or ValueError if an argument is wrong. Raise Unavailable if Redis can't be
    reached.
    """
    from ..operators import actions
    from ..operators.status import statuses

    _check(name, key, using, by, reason)
    check_may_wait("django_redis_sync", "clear")
    (status,) = statuses([(name, key)], using=using, rows=MAX_CLEARED)
    tokens = [holder.token for holder in status.holders]
    found = actions.clear(status, tokens, using=using, by=by or "", reason=reason)
    return sum(one.done for one in found)


async def aclear(
    name: str,
    *,
    key: str | None = None,
    using: str | None = None,
    by: str | None = None,
    reason: str = "",
) -> int:
    """Async version of `clear()`."""
    run = sync_to_async(clear, thread_sensitive=False)
    return await run(name, key=key, using=using, by=by, reason=reason)


def _check(name: Any, key: Any, using: Any, by: Any, reason: Any) -> None:
    """Raise TypeError or ValueError for a wrong argument of `clear`."""
    if name is None:
        values.text("name", name)
    checked("name", name)
    checked("key", key)
    if using is not None:
        values.alias("using", using)
    if by is not None:
        values.text("by", by)
    values.text("reason", reason)
