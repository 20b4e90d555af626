"""Django signals, sent robustly and off the hot path."""

from __future__ import annotations

from django.dispatch import Signal

#: A lease ended under its holder. Arguments: lease, reason (str). Sent on a thread of its own.
lease_lost = Signal()

#: A request was refused, or would have been if it were enforced. Arguments: request, policy, key
#: (str or None), refusal (reason, waiting, mean_hold, limit), enforced (bool). Sender: Policy.
acquire_rejected = Signal()

#: Request limits lost their Redis, or found it again. Arguments: alias (str), down (bool). Sent
#: on a thread of its own.
outage_changed = Signal()
