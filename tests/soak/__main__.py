"""`python -m tests.soak --minutes N --seed S`: run the soak, and exit with 0 if it is good."""

from __future__ import annotations

import argparse
import random
import sys

from .run import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    outcome = soak(options.minutes * 60, seed, lambda text: print(text, file=sys.stderr))
    print(outcome.summary())
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
