"""The texts of `locks history`, `log`, and `doctor`, and of errors: events, actions, findings. The
text of `locks status` is in `status_view`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from django.conf import settings
from django.core.management.color import Style
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import OutOfMemoryError, ResponseError

from .. import conf
from ..engine.wire import RIGHTS, configuration_error
from ..exceptions import Unavailable
from ..operators.actions import Action
from ..operators.doctor import Finding
from ..operators.facts import Unread
from ..operators.formats import duration, moment, without_secrets
from ..operators.history import Counters, History
from ..operators.statistics import AGAIN, Statistics
from .terminal import Cell, Column, numbers, printable, table, texts, wrap

#: Max names in the text about names that could not be read.
MAX_UNREAD = 5


def history(found: History, limit: int | None, width: int | None, style: Style) -> list[str]:
    """Return the events of a name in sentences, and a table with a line for each step in which
    something happened."""
    lines = events(found, width, style, limit=limit)
    rows: list[list[str | Cell]] = []
    for start, c in found.rows:
        if c == Counters():
            continue
        wait = duration(c.wait_seconds / c.waited) if c.waited else ""
        figures = [c.granted, c.waited, c.rejected, c.timed_out, c.reclaimed, c.lost]
        counts: list[str | Cell] = [str(n) if n else "" for n in figures]
        rows.append([moment(start), *counts, wait, str(c.peak)])
    titles = (_("AT ONCE"), _("WAITED"), _("REJECTED"), _("TIMED OUT"), _("RECLAIMED"), _("LOST"))
    columns = [Column(_("FROM")), *numbers(*titles, _("MEAN WAIT"), _("IN USE"))]
    return [*lines, "", *table(columns, rows, width)] if rows else lines


def events(
    found: History,
    width: int | None,
    style: Style,
    of: str = "",
    statistics: Statistics | None = None,
    limit: int | None = None,
) -> list[str]:
    """Return the events of a history in sentences, and the suggested limit. `limit`: the current
    one, or None if it is unknown."""
    c, minutes = found.total, len(found.rows) * found.step
    when = _("Last %d min") % minutes if minutes < 180 else _("Last %d h") % round(minutes / 60)
    if not any(asdict(c).values()):
        return [when + of + ": " + _("nothing happened.")]
    parts = [_("granted %d") % (c.granted + c.waited)]
    if c.waited:
        words = {"n": c.waited, "mean": duration(c.wait_seconds / c.waited)}
        parts.append(_("of these after waiting %(n)d (%(mean)s on average)") % words)
    if c.job_delivered:
        words = {"n": c.job_delivered, "copies": c.job_copy_dropped}
        parts.append(_("delivered by the task queue %(n)d (copies dropped: %(copies)d)") % words)
    if c.released:
        parts.append(_("held %s on average") % duration(c.held_seconds / c.released))
    if statistics is not None:
        parts += _quantiles(statistics)
    used = _("at most %d in use") if statistics is None else _("at most %d in use by one key")
    parts.append(used % c.peak)
    trouble = {
        "rejected": _("rejected %d"),
        "share_rejected": _("%d because of share_limit"),
        "shadow_rejected": _("would have rejected %d"),
        "timed_out": _("timed out %d"),
        "reclaimed": _("reclaimed %d"),
        "lost": _("lost %d"),
        "job_place_expired": _("%d jobs did not come back"),
    }
    bad = [text % getattr(c, name) for name, text in trouble.items() if getattr(c, name)]
    lines = wrap(when + of + ": " + ", ".join(parts) + ".", width)
    if bad:
        lines += warn(_("Trouble: ") + ", ".join(bad) + ".", width, style)
    if found.suggested_limit:
        text = _("A limit of %(limit)s would have been large enough.")
        if found.is_estimate:
            text = _(
                "Estimated from rejections and waits, a limit of at least %(limit)s was needed."
            )
        advice = text % {"limit": found.suggested_limit}
        if limit is not None:
            advice += " " + _("It is %d now.") % limit
        lines += warn(advice, width, style)
    return lines


def _quantiles(statistics: Statistics) -> list[str]:
    """Return upper bounds of the median and the 95th percentile of waits and holds."""
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
    """Return how old the counts are, and how large their error is."""
    text = _("The counts are at most %d s old.") % AGAIN
    if statistics.rejected_off:
        error = _("The rejections of a key may be too low by up to %d.")
        text += " " + error % statistics.rejected_off
    return text


def warn(text: str, width: int | None, style: Style) -> list[str]:
    """Return the lines of a warning."""
    return [style.WARNING(line) for line in wrap(printable(text), width)]


def actions(found: Sequence[Action], width: int | None, style: Style) -> list[str]:
    """Return a table of the actions of operators, newest first."""
    columns = [Column(_("WHEN")), *texts(_("NAME"), _("WHAT"), _("WHO"), _("WHY"))]
    rows: list[list[str | Cell]] = []
    for act in found:
        when = timezone.localtime(act.at).strftime("%Y-%m-%d %H:%M:%S")
        rows.append([when, act.display, act.text, act.by, act.reason])
    return table(columns, rows, width)


def findings(found: Sequence[Finding], width: int | None, style: Style) -> list[str]:
    """Return the findings of the doctor with their remedies, and the number of each level."""
    words = {
        "ok": style.SUCCESS(_("ok")),
        "part": style.NOTICE(_("in part")),
        "warning": style.WARNING(_("warning")),
        "error": style.ERROR(_("error")),
    }
    lines, room = [], None if width is None else width - 4
    for one in found:
        lines.append(f"{words[one.level]}: {printable(one.title)} [{one.id}]")
        for text in (one.where, one.detail, one.remedy):
            lines += [f"    {line}" for line in wrap(printable(text), room)]
    count = {level: sum(one.level == level for one in found) for level in words}
    counts = [
        ngettext("%d error", "%d errors", count["error"]) % count["error"],
        ngettext("%d warning", "%d warnings", count["warning"]) % count["warning"],
        _("%d ok") % count["ok"],
        *([_("%d in part") % count["part"]] if count["part"] else []),
    ]
    return [*lines, "", ", ".join(counts)]


def unread(found: Sequence[Unread]) -> str:
    """Return a text about the names that could not be read, or "" if there are none."""
    if not found:
        return ""
    names = ", ".join(printable(one.display) for one in found[:MAX_UNREAD])
    if len(found) > MAX_UNREAD:
        names += ", …"
    text = ngettext(
        "%(n)d name can't be read: %(names)s. %(why)s",
        "%(n)d names can't be read: %(names)s. %(why)s",
        len(found),
    )
    return text % {
        "n": len(found),
        "names": names,
        "why": printable(without_secrets(str(found[0].error))),
    }


def unavailable(error: Unavailable, using: str | None) -> str:
    """Return a line with the error and the remedy."""
    what = " ".join(without_secrets(str(error)).split()).rstrip(".")
    cause = error.__cause__
    if isinstance(cause, OutOfMemoryError) or "OOM" in what:
        return _("%s. The server's memory is full: raise maxmemory, see locks doctor.") % what
    why = configuration_error(error)
    if why and why != RIGHTS:
        return (
            _(
                "%s. The server denies access: see user, password, TLS and database number in "
                "LOCATION and OPTIONS of the cache."
            )
            % what
        )
    if isinstance(cause, ResponseError):  # the server denied the command
        return _("%s. See locks doctor.") % what
    location = settings.CACHES[using or conf.current().cache].get("LOCATION", "")
    if "rediss://" in str(location):
        return (
            _(
                "%s. Is the server running, and does it speak TLS there? Without TLS, LOCATION in "
                "CACHES starts with redis://."
            )
            % what
        )
    return _("%s. Is the server running, and is LOCATION in CACHES its address?") % what
