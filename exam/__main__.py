"""`python -m exam`: puts locks through faults, and prints what was seen."""

from __future__ import annotations

import argparse
import sys

from . import trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m exam", description=__doc__)
    parser.add_argument("--self", action="store_true", help="judge the judge instead")
    parser.add_argument("--times", type=int, default=20, help="--self: trials of each lock")
    parser.add_argument("--at-once", type=int, default=3, help="examinations side by side")
    parser.add_argument("--only", action="append", default=[], help="a lock; may be repeated")
    options = parser.parse_args()
    if options.self:
        return trial.main(options.times, options.at_once, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
