"""The text of `locks status`: a list of names, or the page of a name. `Seen` has the data, which is
also shown as JSON. Texts of the other actions are in `reports`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.core.management.color import Style
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operators.facts import Holder, Share, Status, Unread, Waiter
from ..operators.formats import as_json, duration, handed_over, moment, without_secrets
from ..operators.history import add, histories_of
from ..operators.listing import INDEX_AGE, Group, Past, Selection, rejected
from ..operators.names import Recent
from ..operators.statistics import counted
from ..operators.status import readable, status_of
from . import reports
from .arguments import find
from .terminal import Cell, Column, numbers, printable, table, texts, wrap

#: Max keys of a policy without statistics that are summed up: those used last.
MAX_SUMMED = 200
#: Max busy keys of a policy for which the page of the policy shows the holders of each key.
MAX_DETAILED = 20


# Data


@dataclass(frozen=True, slots=True)
class Seen:
    """The names that were read. `past`: their events of the last hour. `found`: the number of all
    names, or of all keys of the policy. `compared`, `indexed`: see `operators.listing.Selection`.
    `ordered`: True if --sort was given."""

    groups: Sequence[Group]
    past: Past
    unread: Sequence[Unread]
    found: int
    compared: int | None = None
    ordered: bool = False
    indexed: bool = False

    def as_json(self) -> dict[str, Any]:
        return as_json(self.groups, self.past, self.unread, self.found, self.compared)


def seen(name: str | None, key: str | None, order: str, top: int, using: str | None) -> Seen:
    """Read the list, or a single name. Raise Unavailable if Redis can't be reached."""
    if name is None:
        return _list(order, top, using)
    pairs = find(name, key, using, max_keys=MAX_SUMMED)
    if len(pairs) > 1:
        return _policy(name, order, top, using)
    found, unread = readable(pairs, using=using)
    groups = [Group(one.name, one, ()) for one in found]
    past = {(h.name, h.key): h for h in histories_of(found, using=using)}
    return Seen(groups, past, unread, len(found))


def _list(order: str, top: int, using: str | None) -> Seen:
    selection = Selection(order, using=using)
    groups, unread = selection.read(0, top)
    past, found, compared = selection.past, selection.found, selection.compared
    return Seen(groups, past, unread, found, compared, indexed=selection.indexed)


def _policy(name: str, order: str, top: int, using: str | None) -> Seen:
    """Read a policy: its own overrides, and its keys in the given order, by default those used
    last."""
    own = status_of(name, using=using)
    many = len(Recent(name, using=using)) > MAX_SUMMED
    selection = Selection(order or ("use" if many else "recent"), policy=name, using=using)
    groups, unread = selection.read(0, top if order else MAX_SUMMED)
    children = tuple(one.children[0] for one in groups)
    if not order:
        children = tuple(sorted(children, key=lambda s: (-s.waiting, -s.in_use)))
    statistics = counted([name], using=using) if selection.found > len(children) else {}
    group = Group(name, own if own.used else None, children, selection.found, statistics.get(name))
    if group.own is not None:
        selection.past |= {(name, None): histories_of([own], using=using)[0]}
    compared = selection.compared
    return Seen(
        [group], selection.past, unread, selection.found, compared, bool(order), selection.indexed
    )


# Text


def overview(seen: Seen, width: int | None, style: Style) -> list[str]:
    """Return the list of names, with one line for each name or policy."""
    rows = [_overview_row(group, seen.past, style) for group in seen.groups]
    return [*table(_OVERVIEW(), rows, width), *_rest(seen, len(rows), width)]


def _OVERVIEW() -> list[Column]:
    figures = (_("KEYS"), _("IN USE"), _("WAITING"), _("REJECTED"), _("HELD FOR"), _("WAITING FOR"))
    return [*texts(_("NAME")), *numbers(*figures), *texts(_("NOTES"))]


def _overview_row(group: Group, past: Past, style: Style) -> list[str | Cell]:
    bad = rejected(group, past)
    return [
        group.name,
        str(group.keys) if group.keys else "",
        _use(group, style),
        Cell(_least(group, group.waiting), style.WARNING if group.waiting else None),
        Cell(_least(group, bad), style.WARNING) if bad else "",
        _oldest([h for s in group.all for h in s.holders], group.all[0].at),
        _oldest([w for s in group.all for w in s.waiters], group.all[0].at),
        Cell(", ".join(_notes(group.all)), style.NOTICE),
    ]


def _least(group: Group, figure: int) -> str:
    """Return a sum. If it covers only some of the keys, mark it as a lower bound."""
    return str(figure) if group.whole else f"≥{figure}"


def _rest(seen: Seen, shown: int, width: int | None) -> list[str]:
    """Return lines about the names that a list omits, and about its order."""
    notes = []
    if seen.found > shown:
        words = {"shown": shown, "found": seen.found}
        notes.append(_("%(shown)d of %(found)d are shown: see --top and --sort.") % words)
    if seen.compared is not None:
        text = _("%d were compared: the busiest by the statistics, and those used last.")
        notes.append(text % seen.compared)
    if seen.indexed:
        text = _("The order is that of an index of holders, which is at most %d s old.")
        notes.append(text % INDEX_AGE)
    return [line for text in notes for line in wrap(text, width)]


def page(seen: Seen, width: int | None, style: Style) -> list[str]:
    """Return the page of a name or policy: its state, its last hour, holders, and waiters."""
    (group,) = seen.groups
    if not group.children:
        one = group.all[0]
        head = [_headline(one, style), *members(one), *_notices(one, width, style)]
        return [*head, *_recently(seen, group, width, style), *_people(one, width, style)]
    own, busy = group.own, [s for s in group.children if _busy(s)]
    head = [_policy_line(group, style), *(_notices(own, width, style) if own else ())]
    head += [*_recently(seen, group, width, style), *_rest(seen, len(group.children), width)]
    if group.statistics is not None:
        head += wrap(reports.exactness(group.statistics), width)
    if seen.ordered or len(busy) > MAX_DETAILED:
        listed = group.children if seen.ordered else busy[:MAX_DETAILED]
        return [*head, "", *_keys_table(seen, listed, width, style)]
    # Idle keys are omitted.
    shown = [s for s in group.all if _busy(s) or (s is not own and _notices(s, width, style, own))]
    for one in shown:
        head += ["", _headline(one, style), *_notices(one, width, style, own)]
        head += _people(one, width, style)
    return head


def _keys_table(seen: Seen, keys: Sequence[Status], width: int | None, style: Style) -> list[str]:
    """Return a table with a line for each of these keys."""
    rows = [_overview_row(Group.alone(s), seen.past, style) for s in keys]
    return table(_OVERVIEW(), rows, width)


def holders_table(
    rows: Sequence[tuple[Status, Holder | Waiter]], width: int | None, style: Style
) -> list[str]:
    """Return a table of holders and waiters of several names, for `clear`."""
    columns = [*texts(_("NAME")), *_HOLDERS()]
    return table(columns, [[s.display, *_holder_row(s, one, style)] for s, one in rows], width)


def _people(one: Status, width: int | None, style: Style) -> list[str]:
    """Return tables of the shares, the holders, and the waiters of a name."""
    lines = []
    if one.shares:
        lines += ["", *table(_SHARES(), [_share_row(share, style) for share in one.shares], width)]
        lines += _hidden(one.share_count - len(one.shares))
    if one.holders:
        rows = [_holder_row(one, h, style) for h in one.holders]
        lines += ["", *table(_HOLDERS(), rows, width)]
        lines += _hidden(one.holding - len(one.holders))
        if any(h.state == "handed" for h in one.holders):
            lines += wrap(f"* {handed_over()}", width)
    if one.waiters:
        lines += ["", *table(_WAITERS(), [_waiter_row(one, w, style) for w in one.waiters], width)]
        lines += _hidden(one.waiting - len(one.waiters))
    return lines


def _recently(seen: Seen, group: Group, width: int | None, style: Style) -> list[str]:
    """Return the events of the last hour of a name and its keys."""
    histories = [seen.past[s.name, s.key] for s in group.all]
    if group.statistics is not None:
        # No suggested limit: the limit of a policy is per key.
        histories = [replace(group.statistics.history, suggested_limit=None)]
    best = max(histories, key=lambda h: h.suggested_limit or 0)
    whole = replace(best, total=add(h.total for h in histories))
    of = "" if group.whole else _(" (of the %d keys used last)") % len(group.children)
    return reports.events(whole, width, style, of, group.statistics, group.limit)


def _SHARES() -> list[Column]:
    return [*texts(_("SHARE")), *numbers(_("IN USE"), _("WAITING"))]


def _share_row(share: Share, style: Style) -> list[str | Cell]:
    full = share.limit is not None and share.in_use >= share.limit
    used = str(share.in_use) if share.limit is None else f"{share.in_use}/{share.limit}"
    return [
        share.name or _("(none)"),
        Cell(used, style.WARNING if full else None),
        Cell(str(share.waiting), style.WARNING if share.waiting else None),
    ]


def _HOLDERS() -> list[Column]:
    figures = (_("HELD FOR"), _("LEASE LEFT"), _("PERMITS"))
    return [Column(_("HOLDER")), *numbers(*figures), *texts(_("WHERE"), _("WHO"))]


def _WAITERS() -> list[Column]:
    figures = numbers(_("WAITS FOR"), _("PERMITS"))
    return [*numbers("#"), Column(_("WAITER")), *figures, *texts(_("WHERE"), _("WHO"))]


def _holder_row(one: Status, h: Holder | Waiter, style: Style) -> list[str | Cell]:
    since = duration((one.at - h.since).total_seconds())
    left: str | Cell
    state = ""
    if isinstance(h, Waiter):
        left = _("waits, place %d") % h.position
    elif h.permanent:
        left = Cell(_("permanent"), style.WARNING)
    else:
        left = duration(h.ends_in) + ("*" if h.state == "handed" else "")
        state = _("(released, retained by min_hold)") if h.state == "kept" else ""
    who = _who(h.label, state, h.share)
    return [h.id, since, left, _permits(h.permits), _where(h.label), who]


def _waiter_row(one: Status, w: Waiter, style: Style) -> list[str | Cell]:
    waits = duration((one.at - w.since).total_seconds())
    state = "" if w.alive else _("(silent)")
    if w.next_try:
        left = (w.next_try - one.at).total_seconds()
        facts = {"count": w.sendings, "left": duration(max(0, left))}
        state = _("(away, sendings: %(count)d, due in %(left)s)") % facts
        if not w.alive:
            state = _("(away, sendings: %(count)d, overdue)") % facts
    who = _who(w.label, state, w.share)
    return [str(w.position), w.id, waits, _permits(w.permits), _where(w.label), who]


def _permits(permits: int) -> str:
    return str(permits) if permits else _("all")


def _where(label: Mapping[str, Any]) -> str:
    parts = [str(label[key]) for key in ("host", "pid") if key in label]
    return ":".join(parts)


def _who(label: Mapping[str, Any], state: str = "", share: str = "") -> str:
    # The state comes first, because the end of a line may be cut.
    parts = [f"{state} {label.get('label', '')}".strip()] if state or "label" in label else []
    if share:
        parts.append(_("share %s") % share)
    if "user" in label:
        parts.append(_("user %s") % label["user"])
    if "request" in label:
        parts.append(_("request %s") % label["request"])
    if "thread" in label:
        parts.append(str(label["thread"]))
    return ", ".join(parts)


def _busy(one: Status) -> bool:
    return bool(one.holding or one.waiting)


def _headline(one: Status, style: Style) -> str:
    name = style.MIGRATE_LABEL(printable(one.display))
    if not _busy(one):
        state = _("free")
        if one.limit is not None:
            state = _("free, limit %d") % one.limit
    elif one.exclusive:
        state = _("taken by a writer")
    elif one.kind == "read/write":
        state = ngettext("%d reader", "%d readers", one.in_use) % one.in_use
    elif one.limit is None:
        state = _("%d in use") % one.in_use
    else:
        words = {"used": one.in_use, "limit": one.limit}
        state = _("%(used)d of %(limit)s in use") % words
    if one.waiting:
        state += ", " + ngettext("%d waits", "%d wait", one.waiting) % one.waiting
    return f"{name}: {state}"


def _policy_line(group: Group, style: Style) -> str:
    name = style.MIGRATE_LABEL(printable(group.name))
    words = {
        "keys": ngettext("%d key", "%d keys", group.keys) % group.keys,
        "used": _least(group, group.in_use),
        "waiting": _least(group, group.waiting),
    }
    line = f"{name}: " + _("%(keys)s, %(used)s in use, %(waiting)s waiting") % words
    return line if group.limit is None else line + _(", limit %d each") % group.limit


def members(one: Status) -> list[str]:
    """Return a line for each server of a quorum."""
    lines = []
    for member in one.members:
        if member.error is not None:
            state = _("no answer: %s") % without_secrets(str(member.error))
        else:
            state = _("held by %s") % ", ".join(member.holders) if member.holders else _("free")
            state += ", " + _("paused") if member.paused else ""
        lines.append(f"  {printable(member.alias)}: {printable(state)}")
    return [_("On a quorum of %d servers:") % len(lines), *lines] if lines else []


def _notices(
    one: Status, width: int | None, style: Style, policy: Status | None = None
) -> list[str]:
    """Return lines about overrides, and about callers with different limits. Omit overrides that
    `policy` has too."""
    notices = []
    if one.paused_since is not None and not (policy and policy.paused):
        words = {"for": duration((one.at - one.paused_since).total_seconds()), "name": _words(one)}
        text = _("Paused for %(for)s: no permits are granted. Undo: locks resume %(name)s")
        if one.paused_until is not None:
            words["until"] = moment(one.paused_until)
            text = _(
                "Paused for %(for)s, until %(until)s: no permits are granted. Undo: locks resume "
                "%(name)s"
            )
        notices.append(text % words)
    if one.override is not None and not (policy and policy.override == one.override):
        text = _("An operator set the limit to %(limit)s.")
        if one.callers_limit is not None:
            text = _(
                "An operator set the limit to %(limit)s. The callers’ own limit is %(callers)s."
            )
        notices.append(text % {"limit": one.override, "callers": one.callers_limit})
    if one.conflicting_limit is not None and one.callers_limit is not None and one is not policy:
        before, when = one.conflicting_limit
        ago = duration((one.at - when).total_seconds())
        limits = {"one": one.callers_limit, "other": before, "ago": ago}
        notices.append(
            _("Callers disagree on the limit: %(one)d and, %(ago)s ago, %(other)d.") % limits
        )
    return [line for text in notices for line in reports.warn(text, width, style)]


def _words(one: Status) -> str:
    """Return the arguments of a command for this name."""
    name = shlex.quote(one.name)
    return name if one.key is None else f"{name} --key {shlex.quote(one.key)}"


def _notes(some: Sequence[Status]) -> list[str]:
    notes = {
        _("paused"): any(s.paused for s in some),
        _("resized"): any(s.override is not None for s in some),
        _("callers disagree"): any(s.conflicting_limit is not None for s in some),
        _("permanent"): any(h.permanent for s in some for h in s.holders),
    }
    return [note for note, applies in notes.items() if applies]


def _use(group: Group, style: Style) -> Cell:
    if group.keys:
        return Cell(_least(group, group.in_use))
    one = group.all[0]
    if one.exclusive:
        return Cell(_("writer"), style.WARNING)
    if one.limit is None:
        return Cell(str(one.in_use))
    full = one.in_use >= one.limit
    return Cell(f"{one.in_use}/{one.limit}", style.WARNING if full else None)


def _oldest(some: Sequence[Holder | Waiter], at: datetime) -> str:
    since = min((one.since for one in some), default=None)
    return "" if since is None else duration((at - since).total_seconds())


def _hidden(count: int) -> list[str]:
    return [_("… and %d more") % count] if count > 0 else []
