"""Plant each defect into a copy of the project, and test the copy. Report the defects that no test
finds."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import console, engine, limits, locks, operators, protocol, requests, top
from .mutant import Mutant

AREAS = {
    "top": top.MUTANTS,
    "limits": limits.MUTANTS,
    "requests": requests.MUTANTS,
    "locks": locks.MUTANTS,
    "operators": operators.MUTANTS,
    "console": console.MUTANTS,
    "engine": engine.MUTANTS,
    "protocol": protocol.MUTANTS,
}
#: Number of copies that are tested at the same time.
AT_ONCE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", action="append", choices=AREAS, help="may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="N random mutants")
    parser.add_argument("--seed", type=int, help="seed of the random choice")
    parser.add_argument("--at-once", type=int, metavar="N", default=AT_ONCE, help=f"({AT_ONCE})")
    options = parser.parse_args()
    mutants = chosen(options.area or AREAS, options.sample, options.seed)
    for mutant in mutants:
        mutant.path()
    missed = 0
    with ThreadPoolExecutor(options.at_once) as threads:
        for mutant, found in zip(mutants, threads.map(is_found, mutants), strict=True):
            print(f"{'found' if found else 'NOT FOUND'}: {mutant.name}", flush=True)
            missed += not found
    print(f"{len(mutants) - missed} of {len(mutants)} mutants were found")
    return 1 if missed else 0


def chosen(areas: Iterable[str], sample: int | None, seed: int | None) -> Sequence[Mutant]:
    mutants = [mutant for area in areas for mutant in AREAS[area]]
    return (
        mutants
        if sample is None
        else random.Random(seed).sample(mutants, min(sample, len(mutants)))
    )


def is_found(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return mutant.is_found(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
