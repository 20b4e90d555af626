"""The text of `locks status` about the shares, the holders, and the waiters of a name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operators.facts import MAX_RECORDS, Holder, Status, Waiter
from ..operators.formats import duration, handed_over
from .terminal import Cell, Column, Output, flexible, number, printable


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


def people(one: Status, out: Output) -> list[str]:
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
        lines += out.explained(_lease_left(one.holders))
    if one.waiters:
        lines += ["", *out.table(_waiter_columns(), [(one, w) for w in one.waiters])]
        lines += _hidden(one.waiting - len(one.waiters) - one.held)
        if not all(w.alive for w in one.waiters):
            text = _("Silent: the process of the waiter gave no sign of life for some seconds.")
            lines += out.explained(text)
    for worker in one.workers:
        text = ngettext(
            "Celery worker %(worker)s holds %(jobs)d more.",
            "Celery worker %(worker)s holds %(jobs)d more.",
            worker.jobs,
        )
        lines += out.wrap(text % {"worker": printable(worker.name), "jobs": worker.jobs})
    return lines


def _lease_left(holders: Sequence[Holder]) -> str:
    """Return a text that explains the column LEASE LEFT."""
    text = _("LEASE LEFT: after this time, the permit is free again, unless its holder renews it.")
    if any(holder.permanent for holder in holders):
        text += " " + _("Permanent: only the holder or locks clear ends the lease.")
    return text


def _share_columns(out: Output) -> list[Column]:
    return [
        flexible(_("SHARE"), lambda share: share.name or _("(none)")),
        number(_("IN USE"), lambda share: used(share.in_use, share.limit, out)),
        number(_("WAITING"), lambda share: out.cell(share.waiting, trouble=share.waiting)),
    ]


def used(in_use: int, limit: int | None, out: Output) -> Cell:
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
        number(_("HELD FOR"), lambda row: since_of(row[1].since, row[0])),
        number(_("LEASE LEFT"), left),
        *_common_columns(),
    ]


def _waiter_columns() -> list[Column]:
    return [
        number("#", lambda row: row[1].position),
        Column(_("WAITER"), lambda row: row[1].id),
        number(_("WAITS FOR"), lambda row: since_of(row[1].since, row[0])),
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


def since_of(at: datetime, one: Status) -> str:
    return duration((one.at - at).total_seconds())


def _hidden(count: int) -> list[str]:
    return [_("… and %d more") % count] if count > 0 else []
