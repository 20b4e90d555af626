"""The operators' view for machines: times in ISO 8601, spans in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from .history import Counters, History
from .listing import Past
from .names import Group
from .status import Holder, Status, Unread, Waiter
from .words import without_secrets


def as_json(
    groups: Sequence[Group],
    past: Past,
    unread: Sequence[Unread],
    found: int,
    compared: int | None = None,
) -> dict[str, Any]:
    """Everything that the tables show, and more. `found`: how many names there are, or keys of the
    policy asked for; `names` has those that were read."""
    return {
        "at": timezone.now().isoformat(),
        "found": found,
        "compared": compared,
        "policies": [
            {"name": g.name, "keys": g.keys, "read": len(g.children)} for g in groups if g.keys
        ],
        "names": [status_json(s, past.get((s.name, s.key))) for g in groups for s in g.all],
        "unread": [
            {"name": u.name, "key": u.key, "error": without_secrets(str(u.error))} for u in unread
        ],
    }


def status_json(s: Status, history: History | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": s.name,
        "key": s.key,
        "display": s.display,
        "kind": s.kind,
        "limit": s.limit,
        "callers_limit": s.callers_limit,
        "override": s.override,
        "paused_since": s.paused_since and s.paused_since.isoformat(),
        "in_use": s.in_use,
        "exclusive": s.exclusive,
        "holding": s.holding,
        "waiting": s.waiting,
        "clash": s.clash and {"limit": s.clash[0], "at": s.clash[1].isoformat()},
        "fence": s.fence,
        "at": s.at.isoformat(),
        "holders": [_holder_json(s, h) for h in s.holders],
        "waiters": [_waiter_json(s, w) for w in s.waiters],
    }
    if history is not None:
        found["recent"] = {"minutes": len(history.rows), **_counters(history.total)}
        found["ever"] = _counters(history.ever)
        found["suggested_limit"] = history.suggested_limit
    return found


def _holder_json(s: Status, h: Holder) -> dict[str, Any]:
    return {
        "id": h.id,
        "since": h.since.isoformat(),
        "held_seconds": (s.at - h.since).total_seconds(),
        "ends_in_seconds": None if h.ends_in == math.inf else h.ends_in,
        "permanent": h.stuck,
        "permits": h.permits,
        "state": h.state,
        "fence": h.fence,
        **_label_json(h.label),
    }


def _waiter_json(s: Status, w: Waiter) -> dict[str, Any]:
    return {
        "id": w.id,
        "position": w.position,
        "since": w.since.isoformat(),
        "waited_seconds": (s.at - w.since).total_seconds(),
        "permits": w.permits,
        "limit": w.limit,
        "alive": w.alive,
        **_label_json(w.label),
    }


def _label_json(label: Mapping[str, Any]) -> dict[str, Any]:
    return {key: label.get(key) for key in ("host", "pid", "thread", "label", "user", "request")}


def _counters(counters: Counters) -> dict[str, Any]:
    return asdict(counters)
