"""The table: what was seen, on the terminal and in docs/exam.md."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from .entries import ENTRIES, find
from .examine import Seen
from .faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "exam.md"
BEGIN, END = "<!-- the table: made by make exam -->", "<!-- the table ends -->"

#: The table in parts that fit a page.
PARTS = {
    "This project": ("lock", "async", "quorum", "requests"),
    "Libraries": (
        "redis-py",
        "python-redis-lock",
        "pottery",
        "redis-semaphore",
        "steindamm",
        "async-redis-rate-limiters",
        "django-smart-ratelimit",
        "cache-add",
        "postgres",
    ),
    "The articles' code": ("setnx", "set-nx-ex", "zset", "zset-fair", "incr"),
}

Table = dict[tuple[str, str], Seen]


def cell(seen: Seen | None) -> str:
    """What one cell says: see the legend in docs/exam.md."""
    if seen is None:
        return ""
    if seen.outcome in ("not applicable", "broken off"):
        return {"not applicable": "n/a"}.get(seen.outcome, seen.outcome)
    after = f" {seen.free:.1f} s" if seen.free >= 0.3 else ""
    if seen.outcome == "passed":
        return f"✓{after}"
    worst = seen.found[0]
    took = f" {worst.seconds:.1f} s" if worst.seconds >= 0.05 else ""
    return f"**{worst.kind}**{took}" if worst.against else f"({worst.kind}{took})"


def rows(table: Table, keys: Iterable[str]) -> list[str]:
    shown = [key for key in keys if any(key == entry for entry, _ in table)]
    if not shown:
        return []
    titles = [find(key).title for key in shown]
    lines = ["| fault | " + " | ".join(titles) + " |", "|---" * (len(shown) + 1) + "|"]
    for name, fault in FAULTS.items():
        cells = [cell(table.get((key, name))) for key in shown]
        if any(cells):
            lines.append(f"| {fault.title} (`{name}`) | " + " | ".join(cells) + " |")
    return lines


def details(table: Table) -> list[str]:
    """Each cell that is bold or broken off, in a sentence."""
    lines = []
    for (key, name), seen in sorted(table.items(), key=lambda one: _place(*one[0])):
        if seen.outcome == "failed":
            lines.append(f"- {find(key).title}, `{name}`: {_escaped(str(seen.found[0]))}.")
        elif seen.outcome == "broken off":
            lines.append(f"- {find(key).title}, `{name}`: broken off, {_escaped(seen.why)}.")
    return lines


def _place(key: str, name: str) -> tuple[int, int]:
    """Where a cell stands in the tables."""
    keys = [one for some in PARTS.values() for one in some]
    return keys.index(key) if key in keys else len(keys), list(FAULTS).index(name)


def reasons(table: Table) -> list[str]:
    """Why cells say n/a."""
    by_reason: dict[str, set[str]] = {}
    for (key, name), seen in table.items():
        if seen.outcome == "not applicable":
            by_reason.setdefault(f"{find(key).title}: {seen.why}", set()).add(f"`{name}`")
    return [f"- {why} ({', '.join(sorted(names))})." for why, names in by_reason.items()]


def _escaped(text: str) -> str:
    return re.sub(r"(/tmp/[\w./-]+|unix://\S+)", "…", text).replace("|", "\\|").replace("<", "&lt;")


def versions(table: Table, server: str) -> str:
    words = [f"Python {platform.python_version()}", f"Redis {server}"]
    for key in dict.fromkeys(key for key, _ in table):
        entry = find(key)
        if version := entry.version():
            words.append(f"{entry.package or entry.module} {version}")
    if any(find(key).needs == "postgres" for key, _ in table):
        from devtools import postgres

        words.append(f"PostgreSQL {postgres.version()}")
    return ", ".join(dict.fromkeys(words)) + f"; {os.cpu_count()} cores."


def text(table: Table, server: str, absent: dict[str, str]) -> str:
    """The generated part of the page."""
    parts: list[str] = []
    for title, keys in PARTS.items():
        if made := rows(table, keys):
            parts += [f"### {title}", "", *made, ""]
    rest = [key for key in dict.fromkeys(k for k, _ in table) if key not in ENTRIES]
    if made := rows(table, rest):
        parts += ["### Others", "", *made, ""]
    if lines := details(table):
        parts += ["### What stands against them", "", *lines, ""]
    if lines := reasons(table):
        parts += ["### Not applicable", "", *lines, ""]
    parts += [f"- {find(key).title} was not examined: {why}." for key, why in absent.items()]
    return "\n".join([*parts, f"Seen with {versions(table, server)}"])


def write(made: str) -> None:
    """Put the generated part into its place in the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"there is no place for the table in {PAGE}"
    PAGE.write_text(f"{before}{begin}\n\n{made}\n\n{end}{after}", encoding="utf-8")
