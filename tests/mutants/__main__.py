"""Plant each defect into a copy of the project, and test the copy. Report the defects that no test
finds."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .mutant import Mutant, read

#: Number of copies that are tested at the same time.
AT_ONCE = 2


def main() -> int:
    mutants = read()
    areas = sorted({mutant.area for mutant in mutants})
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", action="append", choices=areas, help="may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="N random mutants")
    parser.add_argument("--seed", type=int, help="seed of the random choice")
    parser.add_argument("--at-once", type=int, metavar="N", default=AT_ONCE, help=f"({AT_ONCE})")
    options = parser.parse_args()
    mutants = [mutant for mutant in mutants if mutant.area in (options.area or areas)]
    if options.sample is not None:
        count = min(options.sample, len(mutants))
        mutants = random.Random(options.seed).sample(mutants, count)
    missed = 0
    with ThreadPoolExecutor(options.at_once) as threads:
        for mutant, found in zip(mutants, threads.map(is_found, mutants), strict=True):
            print(f"{'found' if found else 'NOT FOUND'}: {mutant.name}", flush=True)
            missed += not found
    print(f"{len(mutants) - missed} of {len(mutants)} mutants were found")
    return 1 if missed else 0


def is_found(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return mutant.is_found(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
