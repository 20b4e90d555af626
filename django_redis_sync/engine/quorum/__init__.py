"""Quorums: several independent servers, of which a majority has to grant a lock.

Plans and the lease renewer use a quorum like a single server. Each step is sent to all servers of
the quorum at the same time, with the same token, and the answers are counted. There is no queue. If
an acquire gets no majority, it releases its grants, and tries again after a random time.

The module `voting` sends each step to the servers, and counts their answers. The module `server`
decides what the answers mean, and how long an acquire pauses before the next try.

Two callers can't both have a majority, because any two majorities have a server in common, and a
server grants a lock to one token at a time. The holder has a lease on each server of its majority.
For the holder, the lock ends a little earlier than these leases. This safety margin is needed,
because the servers' clocks may run at different rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from ..server import Members

if TYPE_CHECKING:
    from .server import AsyncQuorumServer, QuorumServer


class Quorum(Members):
    """The aliases of a quorum. This object can be used in place of a server's alias."""

    def sync_server(self, _: str) -> QuorumServer:
        """Return a sync server object for this quorum. `server_of` calls this method."""
        from .server import QuorumServer

        return QuorumServer(self)

    def async_server(self, _: str) -> AsyncQuorumServer:
        """Return an async server object for this quorum. `async_server_of` calls this method."""
        from .server import AsyncQuorumServer

        return AsyncQuorumServer(self)


def quorum_of(using: Any) -> Quorum:
    """Return the quorum of the aliases `using`. Raise TypeError if `using` is not a list of str.
    Raise ImproperlyConfigured if there are fewer than three aliases, or if an alias occurs twice.
    """
    if not isinstance(using, (list, tuple)) or not all(isinstance(one, str) for one in using):
        raise TypeError(f"using must be a cache alias or a list of aliases, not {using!r}")
    if len(set(using)) != len(using):
        raise ImproperlyConfigured(f"using={using!r} contains an alias twice.")
    if len(using) < 3:
        raise ImproperlyConfigured(
            f"using={using!r}: with fewer than three servers, a quorum needs all of them."
        )
    return Quorum(using)
