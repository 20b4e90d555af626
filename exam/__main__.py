"""Examine locks under faults, observe them from outside, and print a table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from . import report
from .adapter import find
from .adapters import ADAPTERS, GROUPS
from .checker import PROVEN
from .controls import CONTROLS
from .examine import Seen
from .faults import FAULTS
from .servers import NoServer, find_server

#: Max seconds of a trial.
TRIAL_SECONDS = 240

Trial = tuple[str, str]  # a lock and a fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m exam", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", metavar="LOCK", help="a lock of the list, or module:Class")
    add("--fault", action="append", choices=FAULTS, metavar="FAULT", help="a fault")
    add("--list", action="store_true", help="print the names of locks and faults")
    add("--self", action="store_true", help="examine the exam, by its controls")
    add("--times", type=int, default=1, metavar="N", help="put each fault N times, show the worst")
    add("--at-once", type=int, default=2, metavar="N", help="trials side by side (default: 2)")
    add("--strict", action="store_true", help="exit 1 if a lock of this project fails")
    add("--json", type=Path, metavar="FILE", help="add the findings to this file")
    add("--write", type=Path, action="append", default=[], metavar="PAGE",
        help="put the tables of --json into a page")  # fmt: skip
    options = parser.parse_args()
    if options.list:
        print("locks: ", *ADAPTERS, "\nfaults:", *FAULTS)
        return 0
    try:
        find_server()
    except NoServer as error:
        sys.exit(f"{error}")
    options.fault = options.fault or [*FAULTS]
    return examine_the_exam(options) if options.self else examine_locks(options)


def examine_locks(options: argparse.Namespace) -> int:
    keys, start = options.only or [*ADAPTERS], time.monotonic()
    absent = {key: why for key in keys if (why := find(key).missing())}
    for key, why in absent.items():
        print(f"{key}: skipped, {why}")
    trials = [(key, one) for key in keys if key not in absent for one in options.fault]
    table, shown = report.read(options.json), dict[Trial, Seen]()
    for one in carried_out(trials * options.times, options.at_once):
        print(report.line(one), flush=True)
        pair = one.lock, one.fault
        table[pair] = shown[pair] = min(shown.get(pair, one), one, key=lambda run: run.rank)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps([asdict(one) for one in table.values()], indent=1))
    print(f"\n{report.text(shown, absent)}\n\n{time.monotonic() - start:.0f} s")
    for page in options.write:
        report.write(page, table, absent)
    ours = {one.outcome for one in shown.values() if one.lock in GROUPS["This project"]}
    return int(options.strict and not ours <= {"passed", "seen", "not applicable"})


def examine_the_exam(options: argparse.Namespace) -> int:
    """Examine each broken lock under its own faults, and the correct locks under all faults. Return
    0 if all verdicts are right, else 1.

    Trials that run side by side slow each other down. So if a verdict is wrong, the trial is
    repeated once, alone. The exception is a correct lock with a finding that load can't cause.
    """
    trials = [
        (f"control:{name}", fault)
        for name, lock in CONTROLS.items()
        for fault in lock.faults or FAULTS
        if fault in options.fault
    ]
    again, wrong = list[Trial](), 0
    for one in carried_out(trials, options.at_once):
        if not is_just(one):
            can_be_load = find(one.lock).kinds or not one.kinds & PROVEN
            again += [(one.lock, one.fault)] if can_be_load else []
            wrong += 1
    wrong -= sum(is_just(one) for one in carried_out(again, 1))
    print(f"{len(trials)} trials, {len(again)} repeated, {wrong} wrong")
    return int(wrong > 0)


def is_just(seen: Seen) -> bool:
    """Print a verdict. Return True if a broken lock was convicted for its defect, or a correct one
    acquitted."""
    just = seen.outcome in ("passed", "seen")
    if kinds := find(seen.lock).kinds:
        just = not seen.why and not seen.kinds.isdisjoint(kinds)
    print("just " if just else "WRONG", report.line(seen), flush=True)
    return just


def carried_out(trials: list[Trial], count: int) -> Iterator[Seen]:
    """Carry out trials, `count` of them at the same time, and yield each result."""
    with ThreadPoolExecutor(count) as pool:
        for done in as_completed([pool.submit(examined, *trial) for trial in trials]):
            yield done.result()


def examined(key: str, fault: str) -> Seen:
    """Examine a lock under a fault, in another process."""
    words = [sys.executable, "-m", f"{__package__}.examine", key, fault]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, stdout=pipe, stderr=null, text=True) as process:
        try:
            return Seen.read(json.loads(process.communicate(timeout=TRIAL_SECONDS)[0]))
        except (subprocess.TimeoutExpired, ValueError):
            process.terminate()
            why = f"it did not end within {TRIAL_SECONDS} s, or its examiner ended"
            return Seen(key, fault, "broken off", why=why)


if __name__ == "__main__":
    sys.exit(main())
