"""Run the soak test (see tests/soak/run.py). Exit with 0 if it finds no error."""

import argparse
import random
import sys

from .run import soak

parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
parser.add_argument("--minutes", type=float, default=10.0)
parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
options = parser.parse_args()
print(f"seed {options.seed}", file=sys.stderr)
outcome = soak(options.minutes * 60, options.seed)
print(outcome.summary())
sys.exit(not outcome.good)
