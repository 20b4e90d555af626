"""Plants each defect in a copy of the project and says which ones the tests did not find."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import console, engine, limits, locks, operators, protocol, requests, top
from .plant import Plant

ROOMS = {
    "top": top.PLANTS,
    "limits": limits.PLANTS,
    "requests": requests.PLANTS,
    "locks": locks.PLANTS,
    "operators": operators.PLANTS,
    "console": console.PLANTS,
    "engine": engine.PLANTS,
    "protocol": protocol.PLANTS,
}
#: Copies that are tested at the same time.
AT_ONCE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--room", action="append", choices=ROOMS, help="may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, at random")
    parser.add_argument("--seed", type=int, help="which ones that are")
    parser.add_argument("--at-once", type=int, metavar="N", default=AT_ONCE, help=f"({AT_ONCE})")
    options = parser.parse_args()
    plants = chosen(options.room or ROOMS, options.sample, options.seed)
    for plant in plants:
        plant.path()
    missed = 0
    with ThreadPoolExecutor(options.at_once) as threads:
        for plant, found in zip(plants, threads.map(is_found, plants), strict=True):
            print(f"{'found' if found else 'NOT FOUND'}: {plant.name}", flush=True)
            missed += not found
    print(f"{len(plants) - missed} of {len(plants)} planted defects were found")
    return 1 if missed else 0


def chosen(rooms: Iterable[str], sample: int | None, seed: int | None) -> Sequence[Plant]:
    plants = [plant for room in rooms for plant in ROOMS[room]]
    return (
        plants if sample is None else random.Random(seed).sample(plants, min(sample, len(plants)))
    )


def is_found(plant: Plant) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return plant.is_found(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
