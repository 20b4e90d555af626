"""Quorums: several independent servers, of which a majority has to grant a lock.

Plans and the lease renewer use a quorum like one server. Each step is sent to all servers of the
quorum at the same time, with the same token, and the answers are counted. There is no queue. An
acquire that gets no majority releases its grants, and tries again after a random time. The module
`server` decides what each answer means and how long to pause. `voting` sends each step to the
servers and counts their answers.

Two callers can't both have a majority, because any two majorities have a server in common, and a
server grants a lock to one token at a time. The holder has a lease on each server of its majority.
The holder's local expiry is the time until which a majority of the servers has the lease, minus the
margin DRIFT. The margin is needed because the servers' clocks may run at different rates.
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
    Raise ImproperlyConfigured if it has fewer than three aliases, or an alias twice."""
    if not isinstance(using, (list, tuple)) or not all(isinstance(one, str) for one in using):
        raise TypeError(f"using must be a cache alias or a list of them, not {using!r}")
    if len(set(using)) != len(using):
        raise ImproperlyConfigured(f"using={using!r} names a server twice: a server has one vote.")
    if len(using) < 3:
        raise ImproperlyConfigured(
            f"using={using!r}: with fewer than three servers, a quorum can't lose any of them."
        )
    return Quorum(using)
