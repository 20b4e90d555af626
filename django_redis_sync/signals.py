"""Django signals. An exception in a receiver is logged and has no other effect."""

from __future__ import annotations

from django.dispatch import Signal

#: A lease ended while its holder worked. Arguments: lease, reason (str). Receivers run on another
#: thread than the holder.
lease_lost = Signal()

#: A request was rejected, or was admitted only because of shadow mode. Arguments: request, policy,
#: key and share (str or None), rejection (reason, waiting, mean_hold, limit), enforced (bool: False
#: in shadow mode). Sender: Policy.
acquire_rejected = Signal()

#: Redis became unavailable for request limits (down=True), or is available again (down=False).
#: Arguments: alias (str), down (bool). Sent on another thread. The signals of an alias are sent in
#: the order of its changes.
outage_changed = Signal()
