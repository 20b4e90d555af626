"""Plants each defect in a copy of the project and says which ones the tests did not find."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from . import engine
from .plant import Plant

ROOMS = {"engine": engine.PLANTS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plants", description=__doc__)
    parser.add_argument("--room", action="append", choices=ROOMS, help="may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, at random")
    options = parser.parse_args()
    plants: list[Plant] = [one for room in options.room or ROOMS for one in ROOMS[room]]
    if options.sample is not None:
        plants = random.sample(plants, min(options.sample, len(plants)))
    missed = []
    for plant in plants:
        plant.check()
        with tempfile.TemporaryDirectory() as folder:
            found = plant.is_found(Path(folder))
        print(f"{'found' if found else 'NOT FOUND'}: {plant.name}", flush=True)
        if not found:
            missed.append(plant)
    print(f"{len(plants) - len(missed)} of {len(plants)} planted defects were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
