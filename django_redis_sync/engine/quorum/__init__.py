"""Several independent servers that grant together: the majority's answer holds.

To plans and keepers a quorum is one more server. Each step goes to all of them at once, under the
same token, and the answers are counted. There is no queue: an ask without a majority gives back its
grants and tries again after a random while.

Why this is safe: any two majorities share a server, and a server grants to one token at a time.
Belief in a lease ends when the first of the longest-lived majority may end. The servers are asked
for more than the holder believes in, so that clocks may run apart by DRIFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from ..server import Members

if TYPE_CHECKING:
    from .server import AsyncQuorumServer, QuorumServer


class Quorum(Members):
    """The aliases of a quorum, in place of a server's alias."""

    __slots__ = ()

    def sync_server(self, _: str) -> QuorumServer:
        """For `server_of`."""
        from .server import QuorumServer

        return QuorumServer(self)

    def async_server(self, _: str) -> AsyncQuorumServer:
        """For `async_server_of`."""
        from .server import AsyncQuorumServer

        return AsyncQuorumServer(self)


def quorum_of(using: Any) -> Quorum:
    """The quorum of some aliases. TypeError, or ImproperlyConfigured with the reason."""
    if not isinstance(using, (list, tuple)) or not all(isinstance(one, str) for one in using):
        raise TypeError(f"using must be a cache alias or a list of them, not {using!r}")
    if len(set(using)) != len(using):
        raise ImproperlyConfigured(f"using={using!r} names a server twice: it has one vote.")
    if len(using) < 3:
        raise ImproperlyConfigured(
            f"using={using!r}: a quorum of fewer than three servers survives the loss of none."
        )
    return Quorum(using)
