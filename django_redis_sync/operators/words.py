"""Texts for people, in the terminal and on the pages alike."""

from __future__ import annotations

import math
import re

from django.utils.translation import gettext as _

from ..protocol.scripts import CONSTANTS

_PASSWORD = re.compile(r"(\w+://)[^/\s]*@")


def display(name: str, key: str | None) -> str:
    """A name, or a child, as people see it."""
    return name if key is None else f"{name}@{key}"


def duration(seconds: float) -> str:
    """A time span with its two largest units."""
    if seconds == math.inf:
        return _("for ever")
    if seconds < 1:
        return _("%d ms") % max(0, round(seconds * 1000))
    if seconds < 10:
        return _("%.1f s") % seconds
    whole = int(seconds)
    if whole < 60:
        return _("%d s") % whole
    if whole < 3600:
        return _("%(m)d min %(s)d s") % {"m": whole // 60, "s": whole % 60}
    if whole < 86400:
        return _("%(h)d h %(m)d min") % {"h": whole // 3600, "m": whole % 3600 // 60}
    return _("%(d)d d %(h)d h") % {"d": whole // 86400, "h": whole % 86400 // 3600}


def handed_over() -> str:
    """The text about holders in state "handed"."""
    return _(
        "Just handed over: it waited, and got its permit a moment ago. If its process is dead, the "
        "permit goes to the next by itself within %d s."
    ) % (CONSTANTS["FIRST"] // 1000)


def without_secrets(text: str) -> str:
    """`text` without the user and password of a URL."""
    return _PASSWORD.sub(r"\1***@", text)
