"""The doctor tries what it praises: an acquire and a release of each kind of name, on names of its
own."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext as _

from ... import conf
from ...engine.drivers import drive
from ...engine.wire import ATTEMPT, clock, is_fake
from ...exceptions import SyncError
from ...protocol import plans
from ...protocol.keys import Keys, keys_of, touched
from ...protocol.renewals import Grant
from ...protocol.steps import Failure
from .servers import Finding, Node

#: For each kind of name: what to call it, the letter that scripts use, and the permits to acquire.
#: A writer acquires 0 permits, which means the whole name.
_KINDS = (("semaphore", "p", 1), ("reader", "w", 1), ("writer", "w", 0))
#: Max random names that are tried to find one on a certain node of a Cluster.
_MAX_TRIES = 5000
#: Seconds of the leases of the trial.
_LEASE = 10.0


def trial(node: Node) -> Iterator[Finding]:
    """Acquire and release a permit of each kind on a node, and yield the finding."""
    prefix = conf.current().prefix(node.server.alias)
    pool: Any = node.server.pool()
    if is_fake(type(pool.make_connection())):
        title = _("This is fakeredis, and no Redis server")
        detail = _("fakeredis can't run the library's scripts: no permit can be acquired.")
        remedy = _(
            "Use a Redis server. Tests without a server: see django_redis_sync.testing, and "
            "REDIS_SYNC['WITHOUT_REDIS']."
        )
        yield Finding("trial", "error", title, detail, remedy)
        return
    if not _remove(node, _own_name(node, prefix)):
        return  # the trial would leave keys; another check reports the missing permission
    tried = list[str]()
    for what, kind, permits in _KINDS:
        tried.append(what)
        error = _error_of(node, prefix, kind, permits)
        if error is not None:
            title = _("A permit can't be acquired and released")
            detail = _("Tried: %(kind)s. Error: %(error)s.")
            words = {"kind": what, "error": str(error).rstrip(".")}
            remedy = _("See the other findings, and the server's log.")
            yield Finding("trial", "error", title, detail % words, remedy)
            return
    title = _("A permit can be acquired and released")
    yield Finding("trial", "ok", title, _("Tried: %s.") % ", ".join(tried))


def _error_of(node: Node, prefix: str, kind: str, permits: int) -> SyncError | None:
    """Acquire and release, and remove what is left. Return the error, or None."""
    keys = _own_name(node, prefix)
    ask = plans.AcquireRequest(
        keys=keys,
        lease=_LEASE,
        permits=permits,
        limit=1,
        wait=False,
        give_up_at=math.inf,
        budget=ATTEMPT,
        attempt=ATTEMPT,
        tokens=lambda: secrets.token_hex(16),
        later=lambda step: None,
        kind=kind,
    )
    try:
        got = drive(plans.acquire(ask, clock()), node.server)
        if not isinstance(got, Grant):
            return SyncError(_("a free permit was not granted"))
        if not drive(plans.release(keys, got, 0.0, ATTEMPT, ATTEMPT, clock()), node.server):
            return SyncError(_("the lease was lost before its release"))
    except SyncError as error:
        return error
    finally:
        _remove(node, keys)
    return None


def _own_name(node: Node, prefix: str) -> Keys:
    """Return the keys of a name on the node that nobody else uses. If the node has very few slots,
    the name may be on another node, and the trial fails."""
    names = (keys_of(prefix, f"doctor-{secrets.token_hex(8)}") for _try in range(_MAX_TRIES))
    found = keys_of(prefix, f"doctor-{secrets.token_hex(8)}")
    return next((one for one in names if node.has(one.leases)), found)


def _remove(node: Node, keys: Keys) -> bool:
    """Delete the keys of the name. Return False if that is impossible; they expire within
    seconds."""
    try:
        node.server.command("DEL", *touched(keys.declared))
    except Failure:
        return False
    return True
