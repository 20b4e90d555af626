"""Run the tests that prove the claims in the tables of tests/faults/RESULTS.md, and write their
results into the tables.

Usage: `python -m tests.faults.report`. With `--print`, print the new page, and leave the file
unchanged.

This program writes only the columns in COLUMNS. The other columns are written by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from .rows import PROOFS

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("RESULTS.md")
COLUMNS = ("outcome", "s to recover", "grants lost", "notes")
MINUTES = 30


class Case(NamedTuple):
    """A test with its parameters, its outcome, and the figures that it recorded."""

    node: str
    parameters: str
    outcome: str
    figures: dict[str, str]

    def proves(self, test: str) -> bool:
        """Return True if this case is a run of `test`, which is ID or ID[WORD] as in rows.py."""
        node, _, word = test.rstrip("]").partition("[")
        return node == self.node and word in self.parameters


def run(tests: list[str]) -> list[Case]:
    """Run the tests with pytest, one after the other, because parallel tests would disturb the
    figures."""
    nodes = sorted({test.partition("[")[0] for test in tests})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "junit.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"]
        words += [f"--junitxml={path}", "-o", "junit_family=xunit1", *nodes]
        subprocess.run(words, cwd=ROOT, timeout=MINUTES * 60, check=False)
        return read(path) if path.exists() else []


def read(path: Path) -> list[Case]:
    found = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, _, parameters = str(case.get("name")).partition("[")
        noted = {str(p.get("name")): str(p.get("value")) for p in case.iter("property")}
        outcome = next(filter(None, map(_outcome, case)), "passed")
        found.append(Case(f"{case.get('file')}::{name}", parameters, outcome, noted))
    return found


def _outcome(element: ElementTree.Element) -> str:
    """Return the outcome for a child element of a <testcase>: "failed" or "skipped". Return "" if
    the element is of another kind, such as <system-out>."""
    return {"failure": "failed", "error": "failed", "skipped": "skipped"}.get(element.tag, "")


def span(values: list[str]) -> str:
    """Return the range of the figures, such as "0.5–1.5". Equal figures give one number."""
    if not values:
        return ""
    ordered = sorted(values, key=float)
    shown = ["<0.01" if v == "0.00" else f"{float(v):g}" for v in (ordered[0], ordered[-1])]
    return shown[0] if shown[0] == shown[1] else "–".join(shown)


def columns(tests: tuple[str, ...], cases: list[Case]) -> dict[str, str]:
    """Return the text of each column in COLUMNS for one table row.

    `tests`: the entries of PROOFS that prove the row. `cases`: all cases that have run."""
    by_test = [[case for case in cases if case.proves(test)] for test in tests]
    mine = list(dict.fromkeys(case.node + case.parameters for some in by_test for case in some))
    all_of_them = [case for some in by_test for case in some]
    words = {case.outcome for case in all_of_them} | ({"failed"} if [] in by_test else set())
    worst = next((word for word in ("failed", "passed") if word in words), "skipped")
    tail = f" ({len(mine)} tests)" if len(mine) > 1 else ""
    recover, lost, said = (
        [case.figures[word] for case in all_of_them if word in case.figures]
        for word in ("recover", "lost", "said")
    )
    texts = (worst + tail, span(recover), span(lost), "; ".join(dict.fromkeys(said)))
    return {c: text.replace("|", "\\|") for c, text in zip(COLUMNS, texts, strict=True)}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def filled(page: str, cases: list[Case]) -> str:
    """Return the text `page` with the results of `cases` in its table rows."""
    lines, head = [], list[str]()
    for line in page.splitlines():
        row = cells(line)
        if "outcome" in row:
            head = row
        elif row and row[0] in PROOFS:
            made = columns(PROOFS[row[0]], cases)
            row = [made.get(name, cell) for name, cell in zip(head, row, strict=True)]
            line = "| " + " | ".join(row) + " |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.report", description=__doc__)
    parser.add_argument("--print", action="store_true", help="leave the page alone")
    options = parser.parse_args()
    tests = sorted({test for some in PROOFS.values() for test in some})
    cases = run(tests)
    page = filled(PAGE.read_text(encoding="utf-8"), cases)
    if options.print:
        print(page)
    else:
        PAGE.write_text(page, encoding="utf-8")
    failed = [test for test in tests if columns((test,), cases)["outcome"].startswith("failed")]
    print(*failed, sep="\n", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
