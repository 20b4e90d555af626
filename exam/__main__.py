"""Put locks through faults, observe them from outside, and print a table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from . import report
from .adapter import find
from .adapters import ADAPTERS, GROUPS
from .checker import against
from .controls import CONTROLS, RIGHT
from .examine import Seen
from .faults import FAULTS
from .servers import NoServer, find_server

#: Max seconds of a trial.
FAULT_SECONDS = 240

Work = tuple[str, list[str]]  # a lock and its faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m exam", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", metavar="LOCK", help="a lock of the list, or module:Class")
    add("--fault", action="append", choices=FAULTS, metavar="FAULT", help="a fault")
    add("--list", action="store_true", help="print the names of locks and faults")
    add("--self", action="store_true", help="examine the exam, by its controls")
    add("--times", type=int, default=1, metavar="N", help="put each fault N times, show the worst")
    add("--at-once", type=int, default=2, metavar="N", help="locks side by side (default: 2)")
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
        print(error, file=sys.stderr)
        return 1
    faults = (options.fault or list(FAULTS)) * options.times
    if options.self:
        return examine_the_exam(faults, options.at_once)
    return _exam(options, faults)


def _exam(options: argparse.Namespace, faults: list[str]) -> int:
    keys = options.only or list(ADAPTERS)
    absent = {key: why for key in keys if (why := find(key).missing())}
    for key, why in absent.items():
        print(f"{key}: skipped, {why}")
    start = time.monotonic()
    table = report.read(options.json)

    shown: dict[tuple[str, str], Seen] = {}

    def keep(one: Seen) -> str:
        pair = one.lock, one.fault
        table[pair] = shown[pair] = min(shown.get(pair, one), one, key=lambda run: run.rank)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps([asdict(one) for one in table.values()], indent=1))
        return report.line(one)

    seen = at_once([(key, faults) for key in keys if key not in absent], options.at_once, keep)
    print(f"\n{report.text(report.of(table, keys, faults), absent)}\n")
    print(f"{time.monotonic() - start:.0f} s")
    for page in options.write:
        report.write(page, table, absent)
    innocent = ("passed", "seen", "not applicable")
    ours = [one.outcome for one in seen if one.lock in GROUPS["This project"]]
    return int(options.strict and not set(ours) <= set(innocent))


def examine_the_exam(faults: list[str], side_by_side: int) -> int:
    """Put each control to its faults, and the right locks to all faults. Return 0 if all verdicts
    are just, else 1."""
    work = [(f"control:{name}", one.faults) for name, one in CONTROLS.items()]
    work += [(f"control:{name}", [fault]) for name in RIGHT for fault in FAULTS]
    chosen = [(key, [fault for fault in faults if fault in some]) for key, some in work]
    seen = at_once([one for one in chosen if one[1]], side_by_side, _verdict)
    wrong = [one for one in seen if not is_just(one)]
    # Trials that run at the same time slow each other down, and a late kill can miss its holder. So
    # a control that was not convicted is examined again, alone. A right lock is not.
    missed = [(one.lock, [one.fault]) for one in wrong if one.lock.partition(":")[2] in CONTROLS]
    wrong = [one for one in wrong if (one.lock, [one.fault]) not in missed]
    wrong += [one for one in at_once(missed, 1, _verdict) if not is_just(one)]
    print(f"{len(seen)} trials, {len(missed)} examined again, {len(wrong)} wrong")
    return int(bool(wrong))


def is_just(seen: Seen) -> bool:
    """Return True if a control was convicted for its defect, or a right lock was acquitted."""
    control = CONTROLS.get(seen.lock.partition(":")[2])
    if control is None:
        return seen.outcome in ("passed", "seen")
    kinds = {one.kind for one in against(seen.found)}
    return not seen.why and bool(kinds & set(control.kinds))


def _verdict(seen: Seen) -> str:
    return f"{'just ' if is_just(seen) else 'WRONG'} {report.line(seen)}"


def at_once(work: list[Work], count: int, words: Callable[[Seen], str]) -> list[Seen]:
    """Examine `count` locks at the same time, print each trial, and return all results."""
    printing = threading.Lock()
    results: list[Seen] = []

    def one(some: Work) -> None:
        for seen in examined(*some):
            with printing:
                results.append(seen)
                print(words(seen), flush=True)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, work))
    return results


def examined(key: str, faults: list[str]) -> Iterator[Seen]:
    """Put a lock to the faults in another process. If a fault hangs, a new process continues with
    the next fault."""
    left = list(faults)
    while left:
        words = [sys.executable, "-m", f"{__package__}.examine", key, *left]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(words, stdout=pipe, stderr=null, text=True) as process:
            while True:
                hangs = threading.Timer(FAULT_SECONDS, process.terminate)
                hangs.start()
                line = process.stdout.readline()
                hangs.cancel()
                if not line:
                    break
                left.pop(0)
                yield Seen.read(json.loads(line))
        if left:
            why = f"it did not end within {FAULT_SECONDS} s, or its examiner ended"
            yield Seen(key, left.pop(0), "broken off", why=why)


if __name__ == "__main__":
    sys.exit(main())
