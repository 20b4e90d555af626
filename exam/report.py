"""The table of results, for the terminal and for a page."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from .adapter import find
from .adapters import ADAPTERS, GROUPS
from .examine import Seen
from .faults import FAULTS
from .servers import find_server

BEGIN, END = re.compile("<!-- exam: (.+) -->\n"), "<!-- exam ends -->"

Table = Mapping[tuple[str, str], Seen]


def read(path: Path | None) -> dict[tuple[str, str], Seen]:
    """Return the results that earlier runs wrote into a file."""
    if path is None or not path.exists():
        return {}
    seen = [Seen.read(words) for words in json.loads(path.read_text())]
    return {
        (one.lock, one.fault): one for one in seen if one.lock in ADAPTERS and one.fault in FAULTS
    }


def cell(seen: Seen | None) -> str:
    """Return a cell of the table. docs/exam.md has the legend."""
    if seen is None:
        return ""
    if seen.outcome not in ("passed", "failed", "seen"):
        return "n/a" if seen.outcome == "not applicable" else seen.outcome
    after = f" {seen.free:.1f} s" if seen.free >= 0.3 else ""
    if seen.outcome == "passed":
        return f"✓{after}"
    worst = seen.found[0]
    took = f" {worst.seconds:.1f} s" if worst.seconds >= 0.05 else ""
    return f"**{worst.kind}**{took}" if worst.against else f"({worst.kind}{took})"


def line(seen: Seen) -> str:
    """Return a trial as a line for the terminal."""
    return f"{seen.lock:26} {seen.fault:18} {cell(seen)} {seen.why}".rstrip()


def text(table: Table, absent: Mapping[str, str], groups: Iterable[str] = ()) -> str:
    """Return the generated part of a page: the tables of some groups."""
    examined = [*dict.fromkeys(lock for lock, _ in table)]
    others = [key for key in examined if key not in ADAPTERS]
    parts, shown = list[str](), list[str]()
    for group in groups or (*GROUPS, "Others"):
        if locks := [key for key in GROUPS.get(group, others) if key in examined]:
            shown += locks
            titles = " | ".join(find(key).title for key in locks)
            parts += [f"### {group}", "", f"| fault | {titles} |", "|---" * (len(locks) + 1) + "|"]
            for name, fault in FAULTS.items():
                cells = [cell(table.get((key, name))) for key in locks]
                if any(cells):
                    parts.append(f"| {fault.title} (`{name}`) | {' | '.join(cells)} |")
            parts.append("")
    accused, reasons = list[str](), defaultdict[str, list[str]](list)
    for seen in [table[key, name] for key in shown for name in FAULTS if (key, name) in table]:
        title = find(seen.lock).title
        if seen.outcome == "not applicable":
            reasons[f"{title}: {seen.why}"].append(f"`{seen.fault}`")
        elif seen.outcome not in ("passed", "seen"):
            what = str(seen.found[0]) if seen.outcome == "failed" else seen.why
            what = re.sub(r"(/tmp/[\w./-]+|unix://\S+|127\.0\.0\.1:\d+)", "…", what)
            what = what.replace("|", "\\|").replace("<", "&lt;")
            accused.append(f"- {title}, `{seen.fault}`: {what}.")
    missed = [f"- {why} ({', '.join(sorted(names))})." for why, names in reasons.items()]
    for heading, lines in (("What stands against them", accused), ("Not applicable", missed)):
        parts += [f"### {heading}", "", *lines, ""] if lines else []
    parts += [f"- {find(key).title} was not examined: {why}." for key, why in absent.items()]
    server = subprocess.run([find_server(), "--version"], capture_output=True, text=True).stdout
    server = re.sub(r" server v=(\S+).*", r" \1", server, flags=re.DOTALL)
    words = [f"Python {platform.python_version()}", server, *(find(one).version() for one in shown)]
    versions = ", ".join(dict.fromkeys(filter(None, words)))
    run = f"Run on {time.strftime('%Y-%m-%d')} with {versions}; {os.cpu_count()} cores, Linux."
    return "\n".join([*parts, run])


def write(page: Path, table: Table, absent: Mapping[str, str]) -> None:
    """Write the tables into a page, between two comments. The first comment names the groups."""
    old = page.read_text(encoding="utf-8")
    begin, end = BEGIN.search(old), old.find(END)
    if begin is None or end < 0:
        raise SystemExit(f"{page} has no comments that mark the place of the table")
    absent = {key: why for key, why in absent.items() if key in ADAPTERS}
    made = text(table, absent, begin[1].split(", "))
    page.write_text(f"{old[: begin.end()]}\n{made}\n\n{old[end:]}", encoding="utf-8")
