"""`python -m tests.model [--deep] [WORD ...]`: explore the cases whose names contain the words."""

from __future__ import annotations

import argparse
import sys
import time

from . import cases
from .check import Violation, check
from .clients import protocol


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="more faults and time: many minutes")
    parser.add_argument("--most", type=int, default=2_000_000, help="maximum states of a setting")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    failed = 0
    for case in cases.DEEPER if options.deep else cases.CASES:
        setting = case.setting
        if not all(word in setting.name for word in options.words):
            continue
        start = time.perf_counter()
        try:
            found = check(protocol(case.micros, ticks=case.ticks), setting, 20, options.most)
        except Violation as violation:
            failed += 1
            print(f"VIOLATED  {violation}", flush=True)
            continue
        spent = time.perf_counter() - start
        whole = "" if found.whole else " (cut short)"
        print(f"{found.states:>9,} states{whole} {spent:6.1f} s  {setting.name}", flush=True)
        failed += found.states < case.floor
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
