"""Texts of many lines that stand in files of `tests/snapshots`, to be read in a diff."""

import os
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path

WRITTEN = Path(__file__).parents[1] / "snapshots"
#: With this in the environment they are written anew, to be read in `git diff`.
ANEW = "WRITE_ANEW"


def as_written(name: str, lines: Iterable[str]) -> None:
    """Lines that are those of the file of this name."""
    file, said = WRITTEN / f"{name}.txt", [*lines]
    if os.environ.get(ANEW):
        file.write_text("".join(f"{line}\n" for line in said), encoding="utf-8")
    read = file.read_text(encoding="utf-8").splitlines()
    changed = "\n".join(unified_diff(read, said, str(file), "now", lineterm="", n=1))
    assert not changed, f"{changed}\nIf it is meant so, run this test with {ANEW}=1."
