"""Django signals. An exception in a receiver is logged and has no other effect."""

from __future__ import annotations

from django.dispatch import Signal

#: A lease ended while its holder worked. Arguments: lease, reason (str). Sent on another thread.
lease_lost = Signal()

#: A request was rejected, or would have been without shadow mode. Arguments: request, policy, key
#: and share (str or None), rejection (reason, waiting, mean_hold, limit), enforced (bool; False in
#: shadow mode). Sender: Policy.
acquire_rejected = Signal()

#: Request limits lost their connection to Redis (down=True), or have it again. Arguments: alias
#: (str), down (bool). Sent on another thread.
outage_changed = Signal()
