"""The text of `locks status`: a list of names, or the page of a name. `Seen` has the data that is
shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operators.facts import MAX_RECORDS, Holder, Status, Unread, Waiter
from ..operators.families import families
from ..operators.formats import duration, handed_over, moment, without_secrets
from ..operators.groups import Group
from ..operators.history import add, histories_of
from ..operators.listing import INDEX_AGE, Past, Selection, rejected, skipped
from ..operators.names import Recent
from ..operators.statistics import counted
from ..operators.status import readable, status_of
from .arguments import find
from .history_view import events, exactness
from .terminal import Cell, Column, Output, flexible, number, printable

#: Max keys that the page of a policy reads without --sort. If the policy has no statistics, the
#: page counts permits in use and waiters of these keys only.
MAX_SUMMED = 200
#: Max busy keys for which the page of a policy shows holders and waiters. If more keys are busy,
#: the page shows a table instead, with one line for each of MAX_DETAILED busy keys.
MAX_DETAILED = 20


# Data


@dataclass(frozen=True, slots=True)
class Seen:
    """The data of a page or a list. `groups`: the names and policies that were read. `unread`: the
    names that could not be read. `past`: the history of the last hour, by name. `selection`: the
    Selection that sorted the names or keys; None for a single name. `ordered`: True for the page of
    a policy with --sort."""

    groups: Sequence[Group]
    unread: Sequence[Unread]
    past: Past
    selection: Selection | None = None
    ordered: bool = False


def seen(name: str | None, key: str | None, order: str, top: int, using: str | None) -> Seen:
    """Read the list of names, or the single name `name`. `order`: the value of --sort, or "".
    `top`: the value of --top. Raise Unavailable if Redis can't be reached."""
    if name is None:
        selection = Selection(order, using=using)
        return Seen(*selection.read(0, top), selection.past, selection)
    pairs = find(name, key, using, max_keys=MAX_SUMMED)
    if len(pairs) > 1 or (key is None and name in families(using=using)):
        return _policy(name, order, top, using)
    found, unread = readable(pairs, using=using)
    past = {(h.name, h.key): h for h in histories_of(found, using=using)}
    return Seen([Group(one.name, one, ()) for one in found], unread, past)


def _policy(name: str, order: str, top: int, using: str | None) -> Seen:
    """Read a policy and its keys. With an `order`, read the first `top` keys in that order. Without
    an order, read all keys, or the MAX_SUMMED busiest keys if there are more."""
    is_family = name in families(using=using)
    own = None if is_family else status_of(name, using=using)
    many = len(Recent(name, using=using)) > MAX_SUMMED
    selection = Selection(order or ("use" if many else "recent"), policy=name, using=using)
    groups, unread = selection.read(0, top if order else MAX_SUMMED)
    children = [one.children[0] for one in groups]
    if not order:
        children.sort(key=lambda s: (-s.waiting, -s.in_use))
    statistics = counted([name], using=using) if selection.found > len(children) else {}
    shown = own if own is not None and own.used else None
    counts = selection.found, statistics.get(name), is_family
    group = Group(name, shown, tuple(children), *counts)
    past = dict(selection.past)
    if shown is not None:
        past[name, None] = histories_of([shown], using=using)[0]
    return Seen([group], unread, past, selection, bool(order))


# Text


def overview(seen: Seen, out: Output) -> list[str]:
    """Return the list of names, with one line for each name or policy."""
    if not seen.groups:
        return [_("No lock or semaphore was used within the last day.")]
    return [*out.table(_columns(seen.past, out), seen.groups), *_rest(seen, len(seen.groups), out)]


def _columns(past: Past, out: Output) -> list[Column]:
    """Return the columns of a table with one row for each Group."""

    def bad(group: Group) -> str | Cell:
        figure = rejected(group, past)
        return out.cell(_least(group, figure)) if figure else ""

    def age(group: Group, oldest: Iterable[Holder | Waiter]) -> str:
        since = min((one.since for one in oldest), default=None)
        return "" if since is None else _since(since, group.all[0])

    return [
        flexible(_("NAME"), lambda group: group.name),
        number(_("KEYS"), lambda group: _amount(group) if group.is_family else group.keys or ""),
        number(_("IN USE"), lambda group: _use(group, out)),
        number(_("WAITING"), lambda g: out.cell(_least(g, g.waiting), trouble=g.waiting)),
        number(_("SKIPPED"), lambda group: _least(group, n) if (n := skipped(group, past)) else ""),
        number(_("REJECTED"), bad),
        number(_("HELD FOR"), lambda g: age(g, (h for s in g.all for h in s.holders))),
        number(_("WAITING FOR"), lambda g: age(g, (w for s in g.all for w in s.waiters))),
        flexible(_("NOTES"), lambda g: Cell(", ".join(_notes(g)), out.style.NOTICE)),
    ]


def _amount(group: Group) -> str:
    """Return the number of keys of a policy, or of names of a family, as text."""
    if group.is_family:
        return ngettext("%d name", "%d names", group.keys) % group.keys
    return ngettext("%d key", "%d keys", group.keys) % group.keys


def _since(at: datetime, one: Status) -> str:
    return duration((one.at - at).total_seconds())


def _least(group: Group, figure: int) -> str:
    """Return the number `figure` as text. It is a sum over the keys of a group. If only some of the
    keys were read, put "≥" before the number."""
    return str(figure) if group.whole else f"≥{figure}"


def _rest(seen: Seen, shown: int, out: Output) -> list[str]:
    """Return lines that say how many names the list omits, and how the list was sorted."""
    if (selection := seen.selection) is None:
        return []
    facts = {"shown": shown, "found": selection.found, "compared": selection.compared}
    compared = _("To sort, %(compared)s entries were read: the busiest, and those used last.")
    indexed = _("The list is sorted by an index of holders that is at most %d s old.") % INDEX_AGE
    texts = {
        _(
            "%(shown)d of %(found)d entries are shown. For others, use --top and --sort."
        ): selection.found > shown,
        compared: selection.compared is not None,
        indexed: selection.indexed,
    }
    return [line for text, applies in texts.items() if applies for line in out.wrap(text % facts)]


def page(seen: Seen, out: Output) -> list[str]:
    """Return the page of a name or policy: its state, its last hour, holders, and waiters."""
    (group,) = seen.groups
    if not group.children:
        one = group.all[0]
        head = [_headline(one, out), *_members(one), *_notices(one, out)]
        return [*head, *_recently(seen, group, out), *_people(one, out)]
    own, busy = group.own, [s for s in group.children if _busy(s)]
    lines = [_policy_line(group, out), *(_notices(own, out) if own else ())]
    lines += [*_recently(seen, group, out), *_rest(seen, len(group.children), out)]
    if group.statistics is not None:
        lines += out.wrap(exactness(group.statistics))
    if seen.ordered or len(busy) > MAX_DETAILED:
        # With --sort, or if many keys are busy, show one line for each key, without its holders.
        listed = group.children if seen.ordered else busy[:MAX_DETAILED]
        keys = [Group.alone(status) for status in listed]
        return [*lines, "", *out.table(_columns(seen.past, out), keys)]
    for one in group.all:
        notices = _notices(one, out, own) if one is not own else []
        if _busy(one) or notices:  # idle keys are omitted
            lines += ["", _headline(one, out), *notices, *_people(one, out)]
    return lines


def holders_table(rows: Sequence[tuple[Status, Holder | Waiter]], out: Output) -> list[str]:
    """Return a table of holders and waiters of several names, for `clear`."""
    names = flexible(_("NAME"), lambda row: row[0].display)
    return out.table([names, *_holder_columns(out)], rows)


#: A label of a job: the name of its task, and the beginning of its id. A table shows only the last
#: part of the name.
_task = re.compile(r"^[\w.]*\.(\w+\[[^]]*\])$")


def _is_job(one: Holder | Waiter) -> bool:
    """Return True for a job. It always has, or waits for, one permit."""
    return any(_task.search(label) for label in _texts(one.label, "label"))


def _people(one: Status, out: Output) -> list[str]:
    """Return tables of the shares, the holders, and the waiters of a name."""
    lines = []
    if one.shares:
        lines += ["", *out.table(_share_columns(out), one.shares)]
        lines += _hidden(one.share_count - len(one.shares))
        if not one.shares_are_complete:
            text = _("There may be more shares: only about %s holders and waiters were read.")
            lines += out.wrap(text % f"{MAX_RECORDS:,}")
    if one.holders:
        lines += ["", *out.table(_holder_columns(out), [(one, h) for h in one.holders])]
        lines += _hidden(one.holding - len(one.holders))
        if any(h.state == "handed" for h in one.holders):
            lines += out.wrap(f"* {handed_over()}")
    if one.waiters:
        lines += ["", *out.table(_waiter_columns(), [(one, w) for w in one.waiters])]
        lines += _hidden(one.waiting - len(one.waiters) - one.held)
    for worker in one.workers:
        text = ngettext(
            "Celery worker %(worker)s holds %(jobs)d more.",
            "Celery worker %(worker)s holds %(jobs)d more.",
            worker.jobs,
        )
        lines += out.wrap(text % {"worker": printable(worker.name), "jobs": worker.jobs})
    return lines


def _recently(seen: Seen, group: Group, out: Output) -> list[str]:
    """Return lines with the last hour's events of a name, or of a policy and its keys together."""
    histories = [seen.past[s.name, s.key] for s in group.all]
    if group.statistics is not None:
        histories = [group.statistics.history]
    best = max(histories, key=lambda h: h.suggested_limit or 0)
    whole = replace(best, total=add(h.total for h in histories))
    of = "" if group.whole else _(" (of the %d keys used last)") % len(group.children)
    return events(whole, group.all, group.limit, out, of, group.statistics)


def _share_columns(out: Output) -> list[Column]:
    return [
        flexible(_("SHARE"), lambda share: share.name or _("(none)")),
        number(_("IN USE"), lambda share: _used(share.in_use, share.limit, out)),
        number(_("WAITING"), lambda share: out.cell(share.waiting, trouble=share.waiting)),
    ]


def _used(in_use: int, limit: int | None, out: Output) -> Cell:
    if limit is None:
        return Cell(str(in_use))
    return out.cell(f"{in_use}/{limit}", trouble=in_use >= limit)


def _holder_columns(out: Output) -> list[Column]:
    """Return the columns of a table of holders. A row has the status of a name, and a holder of the
    name. For `clear`, a row can have a waiter instead."""

    def left(row: tuple[Status, Holder | Waiter]) -> str | Cell:
        one = row[1]
        if isinstance(one, Waiter):
            return _("waits, place %d") % one.position
        if one.permanent:
            return out.cell(_("permanent"))
        return duration(one.ends_in) + ("*" if one.state == "handed" else "")

    return [
        Column(_("HOLDER"), lambda row: row[1].id),
        number(_("HELD FOR"), lambda row: _since(row[1].since, row[0])),
        number(_("LEASE LEFT"), left),
        *_common_columns(),
    ]


def _waiter_columns() -> list[Column]:
    return [
        number("#", lambda row: row[1].position),
        Column(_("WAITER"), lambda row: row[1].id),
        number(_("WAITS FOR"), lambda row: _since(row[1].since, row[0])),
        *_common_columns(),
    ]


def _common_columns() -> list[Column]:
    return [
        number(_("PERMITS"), lambda row: "" if _is_job(row[1]) else row[1].permits or _("all")),
        flexible(_("WHERE"), lambda row: ":".join(_texts(row[1].label, "host", "pid")), first=True),
        flexible(_("WHO"), lambda row: _who(*row)),
    ]


def _texts(label: Mapping[str, Any], *keys: str) -> list[str]:
    return [str(label[key]) for key in keys if key in label]


def _who(status: Status, one: Holder | Waiter) -> str:
    # The state comes first, because the end of a line may be cut.
    labels = [_task.sub(r"\1", label) for label in _texts(one.label, "label")]
    first = " ".join(filter(None, [_state(status, one), *labels]))
    parts = [first] if first else []
    parts += [_("share %s") % one.share] if one.share else []
    parts += [_("user %s") % user for user in _texts(one.label, "user")]
    parts += [_("request %s") % request for request in _texts(one.label, "request")]
    return ", ".join([*parts, *_texts(one.label, "thread")])


def _state(status: Status, one: Holder | Waiter) -> str:
    """Return a text if the state of a holder or waiter is unusual, else "". Unusual states: a
    permit that min_hold retains, and a waiter without heartbeats."""
    if isinstance(one, Holder):
        return _("(released, retained by min_hold)") if one.state == "kept" else ""
    return "" if one.alive else _("(silent)")


def _busy(one: Status) -> bool:
    return bool(one.holding or one.waiting)


def _headline(one: Status, out: Output) -> str:
    name = out.style.MIGRATE_LABEL(printable(one.display))
    if not _busy(one):
        state = _("free") if one.limit is None else _("free, limit %d") % one.limit
    elif one.exclusive:
        state = _("taken by a writer")
    elif one.kind == "read/write":
        state = ngettext("%d reader", "%d readers", one.in_use) % one.in_use
    elif one.limit is None:
        state = _("%d in use") % one.in_use
    else:
        state = _("%(used)d of %(limit)s in use") % {"used": one.in_use, "limit": one.limit}
    if one.waiting:
        state += ", " + ngettext("%d waits", "%d wait", one.waiting) % one.waiting
    return f"{name}: {state}"


def _policy_line(group: Group, out: Output) -> str:
    name = out.style.MIGRATE_LABEL(printable(group.name))
    figures = {
        "keys": _amount(group),
        "used": _least(group, group.in_use),
        "waiting": _least(group, group.waiting),
    }
    line = f"{name}: " + _("%(keys)s, %(used)s in use, %(waiting)s waiting") % figures
    if group.limit is None:
        return line
    each = _(", limit %d for each name") if group.is_family else _(", limit %d for each key")
    return line + each % group.limit


def _members(one: Status) -> list[str]:
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


def _notices(one: Status, out: Output, policy: Status | None = None) -> list[str]:
    """Return lines about the overrides of a name, and about callers with different limits.
    `policy`: if the name is a key, the status of its policy. Overrides that also apply to the
    policy are omitted."""
    notices = []
    if one.paused_since is not None and not (policy and policy.paused):
        facts = {"for": _since(one.paused_since, one), "name": _words(one), "until": ""}
        if one.paused_until is not None:
            facts["until"] = _(", until %s") % moment(one.paused_until)
        text = _("Paused for %(for)s%(until)s: no permits are granted. Undo: locks resume %(name)s")
        notices.append(text % facts)
    if one.override is not None and not (policy and policy.override == one.override):
        text = _("An operator set the limit to %(limit)s.")
        if one.callers_limit is not None:
            text = _(
                "An operator set the limit to %(limit)s. The callers’ own limit is %(callers)s."
            )
        notices.append(text % {"limit": one.override, "callers": one.callers_limit})
    if one.conflicting_limit is not None and one.callers_limit is not None:
        before, when = one.conflicting_limit
        limits = {"one": one.callers_limit, "other": before, "ago": _since(when, one)}
        text = _("Callers disagree on the limit: %(other)d until %(ago)s ago, %(one)d since then.")
        notices.append(text % limits)
    return [line for text in notices for line in out.warn(text)]


def _words(one: Status) -> str:
    """Return the name, and its key if it has one, as arguments for a shell."""
    name = shlex.quote(one.name)
    return name if one.key is None else f"{name} --key {shlex.quote(one.key)}"


def _notes(group: Group) -> list[str]:
    some, longest = group.all, group.longest_waiting
    notes = {
        _("waiting: %s") % (longest.display if longest else ""): longest is not None,
        _("paused"): any(s.paused for s in some),
        _("resized"): any(s.override is not None for s in some),
        _("callers disagree"): any(s.conflicting_limit is not None for s in some),
        _("permanent"): any(h.permanent for s in some for h in s.holders),
    }
    return [note for note, applies in notes.items() if applies]


def _use(group: Group, out: Output) -> Cell:
    if group.keys:
        return Cell(_least(group, group.in_use))
    one = group.all[0]
    return out.cell(_("writer")) if one.exclusive else _used(one.in_use, one.limit, out)


def _hidden(count: int) -> list[str]:
    return [_("… and %d more") % count] if count > 0 else []
