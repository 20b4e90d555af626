"""Django signals, sent robustly and off the hot path."""

from __future__ import annotations

from django.dispatch import Signal

#: A lease ended under its holder. Arguments: lease, reason (str). Sent on a thread of its own.
lease_lost = Signal()
