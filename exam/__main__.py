"""Run locks under faults, check the promises of their documentation, and print a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from .adapter import ADAPTERS, GROUPS, find
from .checker import PROVEN
from .controls import EXPECTED, RIGHT
from .faults import FAULTS, Seen
from .lab import find_server

#: Max seconds of a trial. A trial runs one lock under one fault.
TRIAL_SECONDS = 240

#: HTML comments before and after the generated tables in a page of the documentation.
BEGIN, END = re.compile("<!-- exam: (.+) -->\n"), "<!-- exam ends -->"

Trial = tuple[str, str]  # the names of a lock and a fault
Table = Mapping[Trial, Seen]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m exam", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", metavar="LOCK", help="a lock from --list, or module:Class")
    add("--fault", action="append", choices=FAULTS, metavar="FAULT", help="a fault from --list")
    add("--list", action="store_true", help="print the names of locks and faults")
    add("--self", action="store_true", help="test the exam with broken and correct locks")
    add("--times", type=int, default=1, metavar="N", help="run each trial N times, show the worst")
    add("--at-once", type=int, default=2, metavar="N", help="run N trials in parallel (default: 2)")
    add("--strict", action="store_true", help="exit 1 if a lock of this project fails")
    add("--json", type=Path, metavar="FILE", help="add the results of this run to FILE")
    add("--write", type=Path, action="append", default=[], metavar="PAGE",
        help="write the results into PAGE, also the earlier ones in the --json FILE")  # fmt: skip
    options = parser.parse_args()
    if options.list:
        print("locks: ", *ADAPTERS, "\nfaults:", *FAULTS)
        return 0
    find_server()
    options.fault = options.fault or [*FAULTS]
    return examine_the_exam(options) if options.self else examine_locks(options)


def examine_locks(options: argparse.Namespace) -> int:
    keys, start = options.only or [*ADAPTERS], time.monotonic()
    absent = {key: why for key in keys if (why := find(key).missing())}
    for key, why in absent.items():
        print(f"{key}: skipped, {why}")
    trials = [(key, one) for key in keys if key not in absent for one in options.fault]
    table, shown = read(options.json), dict[Trial, Seen]()
    for one in carried_out(trials * options.times, options.at_once):
        print(line(one), flush=True)
        pair = one.lock, one.fault
        table[pair] = shown[pair] = min(shown.get(pair, one), one, key=lambda run: run.rank)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps([asdict(one) for one in table.values()], indent=1))
    print(f"\n{text(shown, absent)}\n\n{time.monotonic() - start:.0f} s")
    for page in options.write:
        write(page, table, absent)
    ours = {one.outcome for one in shown.values() if one.lock in GROUPS["This project"]}
    return int(options.strict and not ours <= {"passed", "seen", "not applicable"})


def examine_the_exam(options: argparse.Namespace) -> int:
    """Test the exam: run each broken lock under its own faults, and the correct locks under all
    faults. Return 0 if all verdicts are right, else 1.

    Trials that run at the same time slow each other down. So a trial with a wrong verdict is
    repeated alone. There is one exception: if a correct lock has a problem of a kind in PROVEN, the
    trial is not repeated, because a slow machine can't cause such a problem.
    """
    each = [(name, fault) for name in RIGHT for fault in FAULTS] + [*EXPECTED]
    trials = [(f"control:{name}", fault) for name, fault in each if fault in options.fault]
    again, wrong = list[Trial](), 0
    for one in carried_out(trials, options.at_once):
        if not is_just(one):
            can_be_load = expected(one) or not one.kinds & PROVEN
            again += [(one.lock, one.fault)] if can_be_load else []
            wrong += 1
    wrong -= sum(is_just(one) for one in carried_out(again, 1))
    print(f"{len(trials)} trials, {len(again)} repeated, {wrong} wrong")
    return int(wrong > 0)


def expected(seen: Seen) -> set[str]:
    """Return the kinds of problems of which a broken lock must have at least one in this trial.
    For a correct lock, return an empty set."""
    return EXPECTED.get((seen.lock.removeprefix("control:"), seen.fault), set())


def is_just(seen: Seen) -> bool:
    """Print the result of a trial of the exam itself. Return True if it is right: a broken lock
    must have a problem of an expected kind, and a correct lock must not break a promise."""
    just = seen.outcome in ("passed", "seen")
    if kinds := expected(seen):
        just = not seen.why and not seen.kinds.isdisjoint(kinds)
    print("just " if just else "WRONG", line(seen), flush=True)
    return just


def carried_out(trials: list[Trial], count: int) -> Iterator[Seen]:
    """Carry out trials, up to `count` at the same time. Yield the result of each trial."""
    with ThreadPoolExecutor(count) as pool:
        for done in as_completed([pool.submit(examined, *trial) for trial in trials]):
            yield done.result()


def examined(key: str, fault: str) -> Seen:
    """Examine a lock under a fault, in a new process. Return the result."""
    words = [sys.executable, "-m", f"{__package__}.faults", key, fault]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, stdout=pipe, stderr=null, text=True) as process:
        try:
            return Seen.read(json.loads(process.communicate(timeout=TRIAL_SECONDS)[0]))
        except (subprocess.TimeoutExpired, ValueError):
            process.terminate()
            why = f"the trial did not end within {TRIAL_SECONDS} s, or its process crashed"
            return Seen(key, fault, "broken off", why=why)


# The table of results, for the terminal and for a page


def read(path: Path | None) -> dict[Trial, Seen]:
    """Return the results of earlier runs from a JSON file: (lock, fault) -> result. Return {} if
    there is no file. Leave out locks and faults that the exam no longer has."""
    if path is None or not path.exists():
        return {}
    seen = [Seen.read(words) for words in json.loads(path.read_text())]
    return {
        (one.lock, one.fault): one for one in seen if one.lock in ADAPTERS and one.fault in FAULTS
    }


def cell(seen: Seen | None) -> str:
    """Return the text of a table cell. docs/exam.md explains how to read it."""
    if seen is None:
        return ""
    if seen.outcome not in ("passed", "failed", "seen"):
        return "n/a" if seen.outcome == "not applicable" else seen.outcome
    after = f" {seen.free:.1f} s" if seen.free >= 0.3 else ""
    if seen.outcome == "passed":
        return f"✓{after}"
    worst = seen.found[0]
    took = f" {worst.seconds:.1f} s" if worst.seconds >= 0.05 else ""
    return f"**{worst.kind}**{took}" if worst.breach else f"({worst.kind}{took})"


def line(seen: Seen) -> str:
    """Return the result of a trial as a line for the terminal."""
    return f"{seen.lock:26} {seen.fault:18} {cell(seen)} {seen.why}".rstrip()


def text(table: Table, absent: Mapping[str, str], groups: Iterable[str] = ()) -> str:
    """Return the results as Markdown: a table for each group of locks, and lists of trials that did
    not pass or don't apply. `absent`: lock that was not examined -> the reason."""
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
    accused, reasons = list[str](), defaultdict[tuple[str, str], list[str]](list)
    for seen in [table[key, name] for key in shown for name in FAULTS if (key, name) in table]:
        title = find(seen.lock).title
        if seen.outcome == "not applicable":
            reasons[title, seen.why].append(f"`{seen.fault}`")
        elif seen.outcome not in ("passed", "seen"):
            what = str(seen.found[0]) if seen.outcome == "failed" else seen.why
            what = re.sub(r"(/tmp/[\w./-]+|unix://\S+|127\.0\.0\.1:\d+)", "…", what)
            what = what.replace("|", "\\|").replace("<", "&lt;")
            accused.append(f"- {title}, `{seen.fault}`: {what}.")
    titles = defaultdict[str, list[str]](list)
    for (title, why), names in reasons.items():
        titles[f"{why} ({', '.join(sorted(names))})"].append(title)
    missed = [f"- {', '.join(each)}: {why}." for why, each in titles.items()]
    for heading, lines in (("Trials that did not pass", accused), ("Not applicable", missed)):
        parts += [f"### {heading}", "", *lines, ""] if lines else []
    parts += [f"- {find(key).title} was not examined: {why}." for key, why in absent.items()]
    server = subprocess.run([find_server(), "--version"], capture_output=True, text=True).stdout
    server = re.sub(r" server v=(\S+).*", r" \1", server, flags=re.DOTALL)
    words = [f"Python {platform.python_version()}", server, *(find(one).version() for one in shown)]
    versions = ", ".join(dict.fromkeys(filter(None, words)))
    run = f"Run on {time.strftime('%Y-%m-%d')} with {versions}; {os.cpu_count()} cores, Linux."
    return "\n".join([*parts, run])


def write(page: Path, table: Table, absent: Mapping[str, str]) -> None:
    """Replace the text between two HTML comments in a page with the tables. The first comment names
    the groups of locks that get a table. `absent`: lock that was not examined -> the reason."""
    old = page.read_text(encoding="utf-8")
    begin, end = BEGIN.search(old), old.find(END)
    if begin is None or end < 0:
        raise SystemExit(f"{page} has no HTML comments that mark the place of the tables")
    absent = {key: why for key, why in absent.items() if key in ADAPTERS}
    made = text(table, absent, begin[1].split(", "))
    page.write_text(f"{old[: begin.end()]}\n{made}\n\n{old[end:]}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
