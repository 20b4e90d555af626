"""The text of `locks status`: a list of names, or the page of a name. `Seen` has the data that is
shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operators.facts import Holder, Status, Unread, Waiter
from ..operators.families import families
from ..operators.formats import cool_down_text, moment, rate_text, without_secrets
from ..operators.groups import Group
from ..operators.history import add, histories_of
from ..operators.listing import INDEX_AGE, Past, Selection, rejected, skipped
from ..operators.names import Recent
from ..operators.statistics import counted
from ..operators.status import readable, status_of
from .arguments import find
from .history_view import events, exactness
from .people_view import people, since_of, used
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
    lines = out.table(_columns(seen.past, out), seen.groups)
    explained: list[str] = []
    if any(skipped(group, seen.past) for group in seen.groups):
        text = _("SKIPPED: calls that got no permit at once, and did not want to wait.")
        explained = out.explained(text)
    return [*lines, *_rest(seen, len(seen.groups), out), *explained]


def _columns(past: Past, out: Output) -> list[Column]:
    """Return the columns of a table with one row for each Group."""

    def bad(group: Group) -> str | Cell:
        figure = rejected(group, past)
        return out.cell(_least(group, figure)) if figure else ""

    def age(group: Group, oldest: Iterable[Holder | Waiter]) -> str:
        since = min((one.since for one in oldest), default=None)
        return "" if since is None else since_of(since, group.all[0])

    return [
        flexible(_("NAME"), lambda group: group.name, own_line="above"),
        number(_("KEYS"), lambda group: _amount(group) if group.is_family else group.keys or ""),
        number(_("IN USE"), lambda group: _use(group, out)),
        number(_("WAITING"), lambda g: out.cell(_least(g, g.waiting), trouble=g.waiting)),
        number(_("SKIPPED"), lambda group: _least(group, n) if (n := skipped(group, past)) else ""),
        number(_("REJECTED"), bad),
        number(_("HELD FOR"), lambda g: age(g, (h for s in g.all for h in s.holders))),
        number(_("WAITING FOR"), lambda g: age(g, (w for s in g.all for w in s.waiters))),
        flexible(_("NOTES"), lambda g: _noted(g, out), own_line="below"),
    ]


def _amount(group: Group) -> str:
    """Return the number of keys of a policy, or of names of a family, as text."""
    if group.is_family:
        return ngettext("%d name", "%d names", group.keys) % group.keys
    return ngettext("%d key", "%d keys", group.keys) % group.keys


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
        return [*head, *_recently(seen, group, out), *people(one, out)]
    own, busy = group.own, [s for s in group.children if _busy(s)]
    lines = [_policy_line(group, out), *(_notices(own, out, of_each=not own.fence) if own else ())]
    lines += _recently(seen, group, out)
    if group.statistics is not None:
        lines += out.wrap(exactness(group.statistics))
    if seen.ordered:
        lines += _rest(seen, len(group.children), out)
    elif min(len(busy), MAX_DETAILED) < group.keys:
        text = _("Only those in use or waited for are listed. To list others, use --sort recent.")
        lines += out.wrap(text)
    if seen.ordered or len(busy) > MAX_DETAILED:
        # With --sort, or if many keys are busy, show one line for each key, without its holders.
        listed = group.children if seen.ordered else busy[:MAX_DETAILED]
        keys = [Group.alone(status) for status in listed]
        return [*lines, "", *out.table(_columns(seen.past, out), keys)]
    for one in group.all:
        notices = _notices(one, out, own) if one is not own else []
        if _busy(one) or notices:  # idle keys are omitted
            lines += ["", _headline(one, out), *notices, *people(one, out)]
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


def _notices(
    one: Status, out: Output, policy: Status | None = None, of_each: bool = False
) -> list[str]:
    """Return lines about the overrides of a name, and about callers with different limits.
    `policy`: if the name is a key, the status of its policy. Overrides that also apply to the
    policy are omitted. `of_each`: True for a policy that was used only with keys."""
    notices = []
    if one.paused_since is not None and not (policy and policy.paused):
        facts = {"for": since_of(one.paused_since, one), "name": _words(one), "until": ""}
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
    if one.cool_down is not None:
        notices.append(cool_down_text(one.cool_down))
    if one.rate is not None:
        notices.append(rate_text(one.rate, of_each))
    if one.conflicting_limit is not None and one.callers_limit is not None:
        before, when = one.conflicting_limit
        limits = {"one": one.callers_limit, "other": before, "ago": since_of(when, one)}
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
        _("resized"): any(s.resized for s in some),
        _("callers disagree"): any(s.conflicting_limit is not None for s in some),
        _("permanent"): any(h.permanent for s in some for h in s.holders),
    }
    return [note for note, applies in notes.items() if applies]


def _noted(group: Group, out: Output) -> Cell:
    return Cell(", ".join(_notes(group)), out.style.NOTICE)


def _use(group: Group, out: Output) -> Cell:
    if group.keys:
        return Cell(_least(group, group.in_use))
    one = group.all[0]
    return out.cell(_("writer")) if one.exclusive else used(one.in_use, one.limit, out)
