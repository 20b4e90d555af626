"""The text of `locks doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..operators import doctor
from .terminal import Output, printable


def report(found: Sequence[doctor.Finding], out: Output) -> list[str]:
    """Return lines with the findings of the doctor, each with its remedy. The last line has the
    number of findings of each level."""
    words = {
        "ok": out.style.SUCCESS(_("ok")),
        "part": out.style.NOTICE(_("in part")),
        "warning": out.style.WARNING(_("warning")),
        "error": out.style.ERROR(_("error")),
    }
    lines, narrower = [], replace(out, width=out.width and out.width - 4)
    for one in found:
        lines.append(f"{words[one.level]}: {printable(one.title)} [{one.id}]")
        for text in (one.where, one.detail, one.remedy):
            lines += [f"    {line}" for line in narrower.wrap(printable(text))]
    count = Counter(one.level for one in found)
    counts = [
        ngettext("%d error", "%d errors", count["error"]) % count["error"],
        ngettext("%d warning", "%d warnings", count["warning"]) % count["warning"],
        _("%d ok") % count["ok"],
        *([_("%d in part") % count["part"]] if count["part"] else []),
    ]
    return [*lines, "", ", ".join(counts)]
