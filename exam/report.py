"""The table of results, for the terminal and for a page."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import subprocess
import time
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


def of(table: Table, keys: Iterable[str], faults: Iterable[str]) -> Table:
    """Return the part of a table for these locks and faults."""
    pairs = [(key, fault) for key in keys for fault in dict.fromkeys(faults)]
    return {pair: table[pair] for pair in pairs if pair in table}


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
    text = f"{seen.lock:26} {seen.fault:18} {cell(seen)}"
    return f"{text} {seen.why}" if seen.why else text


def text(table: Table, absent: Mapping[str, str], groups: Iterable[str] = ()) -> str:
    """Return the generated part of a page: the tables of some groups."""
    parts: list[str] = []
    others = [key for key in dict.fromkeys(key for key, _ in table) if key not in ADAPTERS]
    of_groups = {title: [*GROUPS.get(title, others)] for title in groups or (*GROUPS, "Others")}
    table = of(table, itertools.chain(*of_groups.values()), FAULTS)
    for title, keys in of_groups.items():
        if made := _rows(table, keys):
            parts += [f"### {title}", "", *made, ""]
    if lines := [*_details(table)]:
        parts += ["### What stands against them", "", *lines, ""]
    if lines := [*_reasons(table)]:
        parts += ["### Not applicable", "", *lines, ""]
    parts += [f"- {find(key).title} was not examined: {why}." for key, why in absent.items()]
    return "\n".join([*parts, f"Run on {time.strftime('%Y-%m-%d')} with {_versions(table)}"])


def _rows(table: Table, keys: Iterable[str]) -> list[str]:
    shown = [key for key in keys if any(key == lock for lock, _ in table)]
    if not shown:
        return []
    titles = [find(key).title for key in shown]
    lines = ["| fault | " + " | ".join(titles) + " |", "|---" * (len(shown) + 1) + "|"]
    for name, fault in FAULTS.items():
        cells = [cell(table.get((key, name))) for key in shown]
        if any(cells):
            lines.append(f"| {fault.title} (`{name}`) | " + " | ".join(cells) + " |")
    return lines


def _details(table: Table) -> Iterable[str]:
    """Yield a line for each failure, and for each trial that did not count."""
    for (key, name), seen in table.items():
        if seen.outcome in ("failed", "broken off", "not reached"):
            what = str(seen.found[0]) if seen.outcome == "failed" else seen.why
            what = re.sub(r"(/tmp/[\w./-]+|unix://\S+|127\.0\.0\.1:\d+)", "…", what)
            what = what.replace("|", "\\|").replace("<", "&lt;")
            yield f"- {find(key).title}, `{name}`: {what}."


def _reasons(table: Table) -> Iterable[str]:
    """Return a line for each reason why a fault is not applicable."""
    by_reason: dict[str, set[str]] = {}
    for (key, name), seen in table.items():
        if seen.outcome == "not applicable":
            by_reason.setdefault(f"{find(key).title}: {seen.why}", set()).add(f"`{name}`")
    return (f"- {why} ({', '.join(sorted(names))})." for why, names in by_reason.items())


def _versions(table: Table) -> str:
    words = [f"Python {platform.python_version()}", _server_version()]
    for key in dict.fromkeys(key for key, _ in table):
        lock = find(key)
        if version := lock.version():
            words.append(f"{lock.package or lock.module} {version}")
    return ", ".join(dict.fromkeys(words)) + f"; {os.cpu_count()} cores, Linux."


def _server_version() -> str:
    words = [find_server(), "--version"]
    output = subprocess.run(words, capture_output=True, text=True).stdout
    return re.sub(r" server v=(\S+).*", r" \1", output, flags=re.DOTALL)


def write(page: Path, table: Table, absent: Mapping[str, str]) -> None:
    """Write the tables into a page, between two comments, of which the first names the groups."""
    old = page.read_text(encoding="utf-8")
    begin, end = BEGIN.search(old), old.find(END)
    if begin is None or end < 0:
        raise SystemExit(f"{page} has no comments that mark the place of the table")
    absent = {key: why for key, why in absent.items() if key in ADAPTERS}
    made = text(table, absent, begin[1].split(", "))
    page.write_text(f"{old[: begin.end()]}\n{made}\n\n{old[end:]}", encoding="utf-8")
