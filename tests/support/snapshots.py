"""Compare texts of many lines with files in `tests/snapshots`."""

import os
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path

WRITTEN = Path(__file__).parents[1] / "snapshots"
#: If this environment variable is set, the files are rewritten, and `git diff` shows the changes.
ANEW = "WRITE_ANEW"


def as_written(name: str, lines: Iterable[str]) -> None:
    """Check that `lines` are the lines of the file `tests/snapshots/NAME.txt`."""
    file, actual = WRITTEN / f"{name}.txt", [*lines]
    if os.environ.get(ANEW):
        file.write_text("".join(f"{line}\n" for line in actual), encoding="utf-8")
    expected = file.read_text(encoding="utf-8").splitlines()
    changed = "\n".join(unified_diff(expected, actual, str(file), "now", lineterm="", n=1))
    assert not changed, f"{changed}\nIf this is intended, run the test with {ANEW}=1."
