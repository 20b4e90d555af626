"""The text of `locks history` and of `locks log`, and the events of a name on its page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils.translation import gettext as _

from ..operators.audit import Action
from ..operators.facts import Status
from ..operators.formats import advice, duration, local, moment, parts
from ..operators.history import Counters, History
from ..operators.statistics import REWRITE_AFTER, Statistics
from .terminal import Column, Output, flexible, number

#: The heaviest shares by the quarter of an hour: see `heaviest_shares`.
Shares = Sequence[tuple[datetime, Sequence[tuple[str, float]]]]


def history(found: History, status: Status, shares: Shares, out: Output) -> list[str]:
    """Return sentences about the events of a name, and a table with a row for each period with
    events. `status`: the state of the name now. `shares`: its heaviest shares."""
    rows = [(start, counters) for start, counters in found.rows if counters != Counters()]
    columns = [
        Column(_("FROM"), lambda row: moment(row[0])),
        number(_("AT ONCE"), lambda row: row[1].granted or ""),
        number(_("WAITED"), lambda row: row[1].waited or ""),
        number(_("SKIPPED"), lambda row: row[1].skipped or ""),
        number(_("REJECTED"), lambda row: row[1].rejected or ""),
        number(_("TIMED OUT"), lambda row: row[1].timed_out or ""),
        number(_("RECLAIMED"), lambda row: row[1].reclaimed or ""),
        number(_("LOST"), lambda row: row[1].lost or ""),
        number(_("MEAN WAIT"), lambda row: _mean_wait(row[1]) if row[1].waited else ""),
        number(_("IN USE"), lambda row: row[1].peak),
    ]
    lines = events(found, [status], status.limit, out)
    lines += ["", *out.table(columns, rows)] if rows else []
    if shares:
        columns = [
            Column(_("FROM"), lambda row: moment(row[0])),
            flexible(_("HEAVIEST SHARES"), lambda row: parts(row[1])),
        ]
        lines += ["", *out.table(columns, shares)]
    return lines


def events(
    found: History,
    statuses: Sequence[Status],
    limit: int | None,
    out: Output,
    of: str = "",
    statistics: Statistics | None = None,
) -> list[str]:
    """Return lines with the counts of a history, and with advice. For `statuses` and `limit`, see
    `advice`. `of`: a text that says what was counted, for the first line. `statistics`: the
    statistics of a policy, to add the durations of waits and holds; None for a single name."""
    c, minutes = found.total, len(found.rows) * found.step
    when = _("Last %d min") % minutes if minutes < 180 else _("Last %d h") % round(minutes / 60)
    if c == Counters():
        return [when + of + ": " + _("nothing happened.")]
    parts = [_("granted %d") % (c.granted + c.waited)]
    if c.waited:
        words = {"n": c.waited, "mean": _mean_wait(c)}
        parts.append(_("%(n)d of these after a wait of %(mean)s on average") % words)
    if c.skipped:
        parts.append(_("skipped %d") % c.skipped)
    if c.released:
        parts.append(_("held %s on average") % duration(c.held_seconds / c.released))
    if statistics is not None:
        parts += _quantiles(statistics)
    used = _("at most %d in use") if statistics is None else _("at most %d in use by one key")
    parts.append(used % c.peak)
    trouble = {
        _("rejected %d"): c.rejected,
        _("would have rejected %d"): c.shadow_rejected,
        _("%d of these because of share_limit"): c.share_rejected,
        _("%d of these because of a pause"): c.pause_rejected,
        _("%d of these because max_waiters were waiting"): c.max_waiters_rejected,
        _("%d of these because of the rate"): c.rate_rejected,
        _("timed out %d"): c.timed_out,
        _("reclaimed %d"): c.reclaimed,
        _("lost %d"): c.lost,
    }
    bad = [text % count for text, count in trouble.items() if count]
    lines = out.wrap(when + of + ": " + ", ".join(parts) + ".")
    if bad:
        lines += out.warn(_("Trouble: ") + ", ".join(bad) + ".")
    lines += meanings(c, out)
    for sentence in advice(found, statuses, limit):
        lines += out.warn(sentence)
    return lines


def meanings(counted: Counters, out: Output) -> list[str]:
    """Return sentences that explain the words for those events that were counted."""
    texts = {
        _("Skipped: the caller got no permit at once, and did not want to wait."): counted.skipped,
        _("Would have rejected: enforce=False admitted these callers."): counted.shadow_rejected,
        _(
            "Reclaimed: a lease expired, for example because the process of its holder died, and "
            "another caller got the permit."
        ): counted.reclaimed,
        _(
            "Lost: a lease ended while its holder still worked, so two may have worked at once."
        ): counted.lost,
    }
    return [line for text, count in texts.items() if count for line in out.wrap(text)]


def log(found: Sequence[Action], out: Output) -> list[str]:
    """Return a table of the actions of operators."""
    columns = [
        Column(_("WHEN"), lambda act: f"{local(act.at):%Y-%m-%d %H:%M:%S}"),
        flexible(_("NAME"), lambda act: act.display),
        flexible(_("WHAT"), lambda act: act.text),
        flexible(_("WHO"), lambda act: act.by),
        flexible(_("WHY"), lambda act: act.reason),
    ]
    return out.table(columns, found)


def _mean_wait(counters: Counters) -> str:
    return duration(counters.wait_seconds / counters.waited)


def _quantiles(statistics: Statistics) -> list[str]:
    """Return texts with the median and the 95th percentile of waits and of holds. These numbers are
    upper bounds."""
    texts = {
        _("half waited less than %(p50)s, 95 %% less than %(p95)s"): statistics.waited,
        _("half held less than %(p50)s, 95 %% less than %(p95)s"): statistics.held,
    }
    return [
        text % {"p50": duration(found.p50), "p95": duration(found.p95)}
        for text, found in texts.items()
        if found.p50 is not None and found.p95 is not None
    ]


def exactness(statistics: Statistics) -> str:
    """Return a text that says how old the counts are and how large their error is."""
    text = _("The counts are at most %d s old.") % REWRITE_AFTER
    if statistics.rejected_off:
        error = _("The number of rejections of a key may be too low by up to %d.")
        text += " " + error % statistics.rejected_off
    return text
