"""Format the state of names: as text for the terminal and the pages, or as JSON. In JSON, times are
in ISO 8601, and durations are in seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from datetime import timezone as zones
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..engine.names import LABEL_FIELDS
from ..protocol.scripts import CONSTANTS
from .facts import CoolDown, Holder, Rate, Status, Unread, Waiter
from .groups import Group
from .history import Counters, History
from .listing import Past, Selection

#: Max shares that an advice names.
_SHARES_NAMED = 3
#: Max shares of a period in a history.
_PARTS = 4
#: What operators are told before they clear holders.
EFFECT_OF_CLEAR = gettext_lazy(
    "A holder loses its lease and is notified. Its work is not stopped. The next waiter gets "
    "the permit at once."
)
_PASSWORD = re.compile(r"(\w+://)[^/\s]*@")


# For people


def now() -> datetime:
    """Return the current time, in UTC. Unlike Django's function, this one also returns an aware
    datetime if USE_TZ is False."""
    return datetime.now(zones.utc)


def local(at: datetime) -> datetime:
    """Return a time in the current time zone. If USE_TZ is False, this is the zone of the process,
    which Django sets to TIME_ZONE. Then Django's templates and functions don't convert times."""
    return timezone.localtime(at) if settings.USE_TZ else at.astimezone()


def advice(found: History, statuses: Sequence[Status], limit: int | None) -> list[str]:
    """Return sentences that say which bound rejected callers in the period of `found`, and what
    would have been enough. `statuses`: the state of the same names now. `limit`: the limit now, or
    None if unknown. If the limit is large enough by now, no limit is suggested."""
    lines, total, suggested = [], found.total, found.suggested_limit or 0
    if suggested > (limit or 0):
        text = _("A limit of %(limit)s would have been large enough.")
        if found.is_estimate:
            text = _(
                "The rejections and waits suggest that a limit of at least %(limit)s was needed."
            )
        text %= {"limit": suggested}
        if limit is not None:
            text += " " + _("The limit is %d now.") % limit
        lines.append(text)
    if total.share_rejected:
        text = _("Of %(all)d rejections, %(count)d were because of share_limit, not of the limit.")
        every = total.rejected_or_timed_out + total.shadow_rejected
        text %= {"all": max(every, total.share_rejected), "count": total.share_rejected}
        shares = [(one.in_use + one.waiting, one) for s in statuses for one in s.shares]
        busiest = sorted(shares, key=lambda pair: -pair[0])[:_SHARES_NAMED]
        unnamed = _("(none)")
        names = ", ".join(
            f"{one.name or unnamed} ({one.in_use}/{one.limit or '–'})" for _load, one in busiest
        )
        if names:
            text += " " + _("The busiest shares now: %s.") % names
        lines.append(text)
    return lines


def parts(shares: Sequence[tuple[str, float]]) -> str:
    """Return the heaviest shares of a period as text, such as "acme 70 %, (none) 30 %". At most
    _PARTS shares are named."""
    unnamed, some = _("(none)"), shares[:_PARTS]
    return ", ".join(f"{name or unnamed} {round(100 * part)} %" for name, part in some)


def moment(at: datetime) -> str:
    """Return a time in the current time zone. Add the date unless it is today."""
    found = local(at)
    today = found.date() == local(now()).date()
    return found.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """Return a duration as text, in at most its two largest units, such as "2 h 5 min" or "1 h"."""
    if seconds < 1:
        return _("%d ms") % max(0, round(seconds * 1000))
    if seconds < 10:
        return _("%.1f s") % seconds
    if seconds < 60:
        return _("%d s") % int(seconds)
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    d, h = divmod(hours, 24)
    if d:
        text = _("%(d)d d %(h)d h") if h else _("%(d)d d")
    elif h:
        text = _("%(h)d h %(m)d min") if m else _("%(h)d h")
    else:
        text = _("%(m)d min %(s)d s") if s else _("%(m)d min")
    return text % {"d": d, "h": h, "m": m, "s": s}


def rate_text(rate: Rate, of_each: bool = False) -> str:
    """Return a sentence about the rate of a name. `of_each`: True for a policy, of which each key
    has the rate for itself."""
    facts = {"used": rate.used, "most": rate.permits, "period": duration(rate.seconds)}
    text = _("Rate: %(used)d of %(most)d used in the last %(period)s.")
    if of_each:
        text = _("Rate of each key: %(most)d in any %(period)s.")
    elif rate.opens_in:
        text = _("Rate: next in %(next)s, %(used)d of %(most)d used in the last %(period)s.")
        facts["next"] = duration(rate.opens_in)
    return text % facts + (" " + _("An operator set this rate.") if rate.by_operator else "")


def not_a_rate(text: str) -> str:
    """Return the error message for a wrong rate."""
    return _("not a rate such as 300/m, 10/30s or 1000/d: %r") % text


def cool_down_text(cool: CoolDown) -> str:
    """Return a sentence about a cool-down."""
    keys = ("host", "pid", "label", "user", "request")
    who = ":".join(str(cool.label[key]) for key in keys if key in cool.label)
    text = _("Cool-down until %(until)s, begun by %(who)s: no permits are granted.")
    return text % {"until": moment(cool.until), "who": who}


def handed_over() -> str:
    """Return the text that explains the holder state "handed" to operators."""
    return _(
        "Handed over: the holder waited, and got its permit a moment ago. If its process is dead, "
        "the next waiter gets the permit within %d s."
    ) % (CONSTANTS["FIRST"] // 1000)


def without_secrets(text: str) -> str:
    """Return `text` with "***" for the user and password in each URL."""
    return _PASSWORD.sub(r"\1***@", text)


# For machines


def as_json(
    groups: Sequence[Group], unread: Sequence[Unread], past: Past, selection: Selection | None
) -> dict[str, Any]:
    """Return the data of a list for JSON. `selection`: the list from which the names were read, or
    None for a single name."""
    return {
        "at": now().isoformat(),
        "found": len(groups) if selection is None else selection.found,
        "compared": selection and selection.compared,
        "policies": [
            {"name": g.name, "keys": g.keys, "read": len(g.children)} for g in groups if g.keys
        ],
        "names": [status_json(s, past.get((s.name, s.key))) for g in groups for s in g.all],
        "unread": [
            {"name": u.name, "key": u.key, "error": without_secrets(str(u.error))} for u in unread
        ],
    }


def status_json(s: Status, history: History | None) -> dict[str, Any]:
    clash = s.conflicting_limit
    found: dict[str, Any] = {
        **plain(s),
        "display": s.display,
        "conflicting_limit": clash and {"limit": clash[0], "at": clash[1].isoformat()},
        "rate": s.rate and _rate(s.rate),
        "cool_down": s.cool_down and {**plain(s.cool_down), **_labeled(s.cool_down.label)},
        "members": [plain(member) for member in s.members],
        "holders": [_person(s, holder) for holder in s.holders],
        "waiters": [_person(s, waiter) for waiter in s.waiters],
        "workers": [{"worker": worker.name, "jobs": worker.jobs} for worker in s.workers],
        "shares": [
            {"share": h.name or None, "in_use": h.in_use, "waiting": h.waiting, "limit": h.limit}
            for h in s.shares
        ],
    }
    if history is not None:
        found["recent"] = {"minutes": len(history.rows), **asdict(history.total)}
        found["ever"] = asdict(history.ever)
        enough = (history.suggested_limit or 0) <= (s.limit or 0)
        found["suggested_limit"] = None if enough else history.suggested_limit
        found["suggested_limit_is_estimate"] = history.is_estimate
    return found


def _person(s: Status, one: Holder | Waiter) -> dict[str, Any]:
    age = (s.at - one.since).total_seconds()
    own: dict[str, Any] = {"waited_seconds": age}
    if isinstance(one, Holder):
        ends_in = None if one.permanent else one.ends_in
        own = {"held_seconds": age, "ends_in_seconds": ends_in, "permanent": one.permanent}
    return {**plain(one), **own, **_labeled(one.label), "share": one.share or None}


def _labeled(label: Mapping[str, Any]) -> dict[str, Any]:
    return {key: label.get(key) for key in LABEL_FIELDS}


def _rate(rate: Rate) -> dict[str, Any]:
    return {
        **{key: getattr(rate, key) for key in ("permits", "seconds", "used", "by_operator")},
        "opens_in_seconds": rate.opens_in,
    }


def plain(fact: Any) -> dict[str, Any]:
    """Return the fields of the dataclass object `fact` as values for JSON, without `token`,
    `label`, and `ends_in`. Times become ISO 8601 text, and errors become their messages without
    secrets."""
    values = {one.name: getattr(fact, one.name) for one in fields(fact)}
    for name, value in values.items():
        if isinstance(value, datetime):
            values[name] = value.isoformat()
        elif isinstance(value, Exception):
            values[name] = without_secrets(str(value))
    hidden = ("token", "label", "ends_in")
    return {name: value for name, value in values.items() if name not in hidden}


def history_json(
    found: History, shares: Sequence[tuple[datetime, Sequence[tuple[str, float]]]]
) -> dict[str, Any]:
    """Return a history for JSON, without rows that have no events. `shares`: see
    `heaviest_shares`."""
    return {
        "name": found.name,
        "key": found.key,
        "minutes": len(found.rows) * found.step,
        "step_minutes": found.step,
        "total": asdict(found.total),
        "suggested_limit": found.suggested_limit,
        "rows": [
            {"at": start.isoformat(), **asdict(row)}
            for start, row in found.rows
            if row != Counters()
        ],
        "shares": [
            {
                "at": start.isoformat(),
                "heaviest": [{"share": name or None, "part": part} for name, part in parts],
            }
            for start, parts in shares
        ],
    }
