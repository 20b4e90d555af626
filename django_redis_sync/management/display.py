"""Statistics as people read them, and as JSON: both from the same values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.core.management.color import Style
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operators.audit import Act
from ..operators.doctor import Finding
from ..operators.history import add
from ..operators.listing import Past
from ..operators.names import Group
from ..operators.status import Holder, Status, Unread, Waiter
from ..operators.sums import AGAIN, Sums
from ..operators.words import duration, handed_over, without_secrets
from .looking import Seen
from .terminal import Cell, Column, printable, table, wrap

#: Busy keys of a policy up to which the page of the policy shows the holders of each.
MOST_DETAILED = 20
#: Names that could not be read, of which it is said.
MOST_UNREAD = 5


# As people read them


def overview(seen: Seen, width: int | None, style: Style) -> list[str]:
    """A line for each name; a policy's keyed children share a line."""
    rows = [_overview_row(group, seen.past, style) for group in seen.groups]
    return [*table(_OVERVIEW(), rows, width), *_rest(seen, len(rows), width)]


def _OVERVIEW() -> list[Column]:
    return [
        Column(_("NAME"), flexible=True),
        Column(_("KEYS"), right=True),
        Column(_("IN USE"), right=True),
        Column(_("WAITING"), right=True),
        Column(_("REFUSED"), right=True),
        Column(_("HELD FOR"), right=True),
        Column(_("WAITING FOR"), right=True),
        Column(_("NOTES"), flexible=True),
    ]


def _overview_row(group: Group, past: Past, style: Style) -> list[str | Cell]:
    refused = sum(past[s.name, s.key].total.turned_away for s in group.all)
    if group.sums is not None:
        refused = group.sums.history.total.turned_away
    return [
        group.name,
        str(group.keys) if group.keys else "",
        _use(group, style),
        Cell(_least(group, group.waiting), style.WARNING if group.waiting else None),
        Cell(_least(group, refused), style.WARNING) if refused else "",
        _oldest([h for s in group.all for h in s.holders], group.all[0].at),
        _oldest([w for s in group.all for w in s.waiters], group.all[0].at),
        Cell(", ".join(_notes(group.all)), style.NOTICE),
    ]


def _least(group: Group, figure: int) -> str:
    """A sum, marked where it is of some of the keys only."""
    return str(figure) if group.whole else f"≥{figure}"


def _rest(seen: Seen, shown: int, width: int | None) -> list[str]:
    """The number of names that a list leaves out, and of those that its order compared."""
    said = []
    if seen.found > shown:
        words = {"shown": shown, "found": seen.found}
        said.append(_("%(shown)d of %(found)d are shown: see --top and --sort.") % words)
    if seen.compared is not None:
        text = _("Compared were %d: the busiest by the sums, and those used last.")
        said.append(text % seen.compared)
    return [line for text in said for line in wrap(text, width)]


def unread(found: Sequence[Unread]) -> str:
    """A text about the names that could not be read; empty when there are none."""
    if not found:
        return ""
    names = ", ".join(printable(one.display) for one in found[:MOST_UNREAD])
    if len(found) > MOST_UNREAD:
        names += ", …"
    said = ngettext(
        "%(n)d name can't be read: %(names)s. %(why)s",
        "%(n)d names can't be read: %(names)s. %(why)s",
        len(found),
    )
    return said % {
        "n": len(found),
        "names": names,
        "why": printable(without_secrets(str(found[0].error))),
    }


def page(seen: Seen, width: int | None, style: Style) -> list[str]:
    """All there is about a name: its last hour first, then its holders and waiters."""
    (group,) = seen.groups
    if not group.children:
        one = group.all[0]
        head = [_headline(one, style), *_marks(one, width, style)]
        return [*head, *_recently(seen, group, width, style), *_people(one, width, style)]
    told, busy = group.own, [s for s in group.children if _busy(s)]
    head = [_policy_line(group, style), *(_marks(told, width, style) if told else ())]
    head += [*_recently(seen, group, width, style), *_rest(seen, len(group.children), width)]
    if group.sums is not None:
        head += wrap(_exactness(group.sums), width)
    if seen.ordered or len(busy) > MOST_DETAILED:
        listed = group.children if seen.ordered else busy[:MOST_DETAILED]
        return [*head, "", *_keys_table(seen, listed, width, style)]
    # A line about the policy is not repeated for each key; idle keys are left out.
    shown = [s for s in group.all if _busy(s) or (s is not told and _marks(s, width, style, told))]
    for one in shown:
        head += ["", _headline(one, style), *_marks(one, width, style, told)]
        head += _people(one, width, style)
    return head


def _keys_table(seen: Seen, keys: Sequence[Status], width: int | None, style: Style) -> list[str]:
    """A line for each of these keys."""
    rows = [_overview_row(Group.alone(s), seen.past, style) for s in keys]
    return table(_OVERVIEW(), rows, width)


def holders_table(
    rows: Sequence[tuple[Status, Holder | Waiter]], width: int | None, style: Style
) -> list[str]:
    """Holders and waiters of several names, as `clear` shows them."""
    columns = [Column(_("NAME"), flexible=True), *_HOLDERS()]
    return table(columns, [[s.display, *_holder_row(s, one, style)] for s, one in rows], width)


def acts(found: Sequence[Act], width: int | None, style: Style) -> list[str]:
    """The acts of operators, the newest first."""
    columns = [
        Column(_("WHEN")),
        Column(_("NAME"), flexible=True),
        Column(_("WHAT"), flexible=True),
        Column(_("WHO"), flexible=True),
        Column(_("WHY"), flexible=True),
    ]
    rows: list[list[str | Cell]] = [
        [
            timezone.localtime(act.at).strftime("%Y-%m-%d %H:%M:%S"),
            act.display,
            act.said,
            act.by,
            act.reason,
        ]
        for act in found
    ]
    return table(columns, rows, width)


def findings(found: Sequence[Finding], width: int | None, style: Style) -> list[str]:
    """Each finding, and the remedies of those that need any; how many there are of each."""
    words = {
        "ok": style.SUCCESS(_("ok")),
        "warning": style.WARNING(_("warning")),
        "error": style.ERROR(_("error")),
    }
    lines, room = [], None if width is None else width - 4
    for one in found:
        lines.append(f"{words[one.level]}: {printable(one.title)} [{one.id}]")
        lines += [f"    {line}" for line in wrap(printable(one.where), room)]
        lines += [f"    {line}" for line in wrap(printable(one.detail), room)]
        lines += [f"    {line}" for line in wrap(printable(one.remedy), room)]
    count = {level: sum(one.level == level for one in found) for level in words}
    said = [
        ngettext("%d error", "%d errors", count["error"]) % count["error"],
        ngettext("%d warning", "%d warnings", count["warning"]) % count["warning"],
        _("%d ok") % count["ok"],
    ]
    return [*lines, "", ", ".join(said)]


def _people(one: Status, width: int | None, style: Style) -> list[str]:
    """The holders and the waiters of a name."""
    lines = []
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
    """The last hour of a name and its keys in a sentence or two: was the limit too small?"""
    histories = [seen.past[s.name, s.key] for s in group.all]
    if group.sums is not None:
        # An advised limit is for a single name: of a policy the limit is each key's.
        histories = [replace(group.sums.history, suggested_limit=None)]
    c, minutes = add(h.total for h in histories), max(len(h.rows) for h in histories)
    suggested = max((h.suggested_limit or 0 for h in histories), default=0)
    of = ""
    if not group.whole:
        of = _(" (of the %d keys used last)") % len(group.children)
    if not any(asdict(c).values()):
        return [_("Last %d min") % minutes + of + ": " + _("nothing happened.")]
    said = [_("granted %d") % (c.granted + c.waited)]
    if c.waited:
        words = {"n": c.waited, "mean": duration(c.wait_seconds / c.waited)}
        said.append(_("of these after waiting %(n)d (%(mean)s on average)") % words)
    if c.released:
        said.append(_("held %s on average") % duration(c.held_seconds / c.released))
    if group.sums is not None:
        said += _quantiles(group.sums)
    said.append(_("at most %d in use") % c.peak)
    trouble = {
        "rejected": _("rejected %d"),
        "shadow_rejected": _("would have rejected %d"),
        "timed_out": _("timed out %d"),
        "reclaimed": _("reclaimed %d"),
        "lost": _("lost %d"),
    }
    bad = [text % getattr(c, name) for name, text in trouble.items() if getattr(c, name)]
    lines = wrap(_("Last %d min") % minutes + of + ": " + ", ".join(said) + ".", width)
    if bad:
        lines += _warn(_("Trouble: ") + ", ".join(bad) + ".", width, style)
    if suggested:
        limits = {"limit": suggested, "now": _limit(group.limit)}
        text = _("A limit of %(limit)d would have been enough; it is %(now)s now.") % limits
        lines += _warn(text, width, style)
    return lines


def _quantiles(sums: Sums) -> list[str]:
    """Upper bounds of half and of nearly all durations of the last hour or two."""
    texts = {
        _("half waited less than %(p50)s, 95 %% less than %(p95)s"): sums.waited,
        _("half held less than %(p50)s, 95 %% less than %(p95)s"): sums.held,
    }
    return [
        text % {"p50": duration(found.p50), "p95": duration(found.p95)}
        for text, found in texts.items()
        if found.p50 is not None and found.p95 is not None
    ]


def _exactness(sums: Sums) -> str:
    """How fresh the sums are, and how much may hide behind the keys that are shown."""
    said = _("Sums are %d s old at most.") % AGAIN
    if sums.refused_off:
        text = _("A key may have been refused %d times more than is known of it.")
        said += " " + text % sums.refused_off
    return said


def _warn(text: str, width: int | None, style: Style) -> list[str]:
    return [style.WARNING(line) for line in wrap(printable(text), width)]


def _HOLDERS() -> list[Column]:
    return [
        Column(_("HOLDER")),
        Column(_("HELD FOR"), right=True),
        Column(_("LEASE LEFT"), right=True),
        Column(_("PERMITS"), right=True),
        Column(_("WHERE"), flexible=True),
        Column(_("WHO"), flexible=True),
    ]


def _WAITERS() -> list[Column]:
    return [
        Column("#", right=True),
        Column(_("WAITER")),
        Column(_("WAITS FOR"), right=True),
        Column(_("PERMITS"), right=True),
        Column(_("WHERE"), flexible=True),
        Column(_("WHO"), flexible=True),
    ]


def _holder_row(one: Status, h: Holder | Waiter, style: Style) -> list[str | Cell]:
    since = duration((one.at - h.since).total_seconds())
    left: str | Cell
    state = ""
    if isinstance(h, Waiter):
        left = _("waits, place %d") % h.position
    elif h.stuck:
        left = Cell(_("permanent"), style.WARNING)
    else:
        left = duration(h.ends_in) + ("*" if h.state == "handed" else "")
        state = _("(released, kept by min_hold)") if h.state == "kept" else ""
    return [h.id, since, left, _permits(h.permits), _where(h.label), _who(h.label, state)]


def _waiter_row(one: Status, w: Waiter, style: Style) -> list[str | Cell]:
    waits = duration((one.at - w.since).total_seconds())
    who = _who(w.label, "" if w.alive else _("(silent)"))
    return [str(w.position), w.id, waits, _permits(w.permits), _where(w.label), who]


def _permits(permits: int) -> str:
    return str(permits) if permits else _("all")


def _where(label: Mapping[str, Any]) -> str:
    parts = [str(label[key]) for key in ("host", "pid") if key in label]
    return ":".join(parts)


def _who(label: Mapping[str, Any], state: str = "") -> str:
    # Oddities come first: the end of a line may be cut.
    parts = [f"{state} {label.get('label', '')}".strip()] if state or "label" in label else []
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
    else:
        state = _("%(used)d of %(limit)s in use") % {"used": one.in_use, "limit": _limit(one.limit)}
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


def _marks(one: Status, width: int | None, style: Style, told: Status | None = None) -> list[str]:
    """An operator's marks on it, and its oddities; not those already `told` of its policy."""
    said = []
    if one.paused_since is not None and not (told and told.paused):
        words = {"for": duration((one.at - one.paused_since).total_seconds()), "name": _words(one)}
        said.append(
            _("Paused for %(for)s: nobody new gets in. Undo: locks resume %(name)s") % words
        )
    if one.override is not None and not (told and told.override == one.override):
        limits = {"limit": one.override, "said": _limit(one.callers_limit)}
        said.append(_("An operator set the limit to %(limit)d; callers say %(said)s.") % limits)
    if one.clash is not None and one is not told:
        before, when = one.clash
        ago = duration((one.at - when).total_seconds())
        clash = {"one": _limit(one.callers_limit), "other": before, "ago": ago}
        said.append(
            _("Callers disagree on the limit: %(one)s and, %(ago)s ago, %(other)d.") % clash
        )
    return [line for text in said for line in _warn(text, width, style)]


def _words(one: Status) -> str:
    """How a command names it."""
    name = shlex.quote(one.name)
    return name if one.key is None else f"{name} --key {shlex.quote(one.key)}"


def _notes(some: Sequence[Status]) -> list[str]:
    notes = []
    if any(s.paused for s in some):
        notes.append(_("paused"))
    if any(s.override is not None for s in some):
        notes.append(_("resized"))
    if any(s.clash is not None for s in some):
        notes.append(_("callers disagree"))
    if any(h.stuck for s in some for h in s.holders):
        notes.append(_("permanent"))
    return notes


def _use(group: Group, style: Style) -> Cell:
    if group.children:
        return Cell(_least(group, group.in_use))
    one = group.all[0]
    if one.exclusive:
        return Cell(_("writer"), style.WARNING)
    if one.limit is None:
        return Cell(str(one.in_use))
    full = one.in_use >= one.limit
    return Cell(f"{one.in_use}/{one.limit}", style.WARNING if full else None)


def _limit(limit: int | None) -> str:
    return "–" if limit is None else str(limit)


def _oldest(some: Sequence[Holder | Waiter], at: datetime) -> str:
    since = min((one.since for one in some), default=None)
    return "" if since is None else duration((at - since).total_seconds())


def _hidden(count: int) -> list[str]:
    return [_("… and %d more") % count] if count > 0 else []
