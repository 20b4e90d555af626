"""Run the tests of all rows, and write the results into tests/faults/RESULTS.md:
`python -m tests.faults.report`. With `--print`, print the tables and write nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .rows import FAULTS, INPUT, Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- {}: made by python -m tests.faults.report -->", "<!-- {} ends -->"
MINUTES = 15


@dataclass
class Result:
    """The result of a test with all its parameters. `figures`: the properties it recorded."""

    outcomes: list[str] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)

    def word(self) -> str:
        if "failed" in self.outcomes or not self.outcomes:
            return "failed"
        if "open" in self.outcomes:
            return "open"
        return "passed" if "passed" in self.outcomes else self.outcomes[0]


def run(nodes: list[str]) -> dict[str, Result]:
    """Run the tests with pytest, one after the other so that they don't disturb the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "junit.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"]
        words += [f"--junitxml={path}", "-o", "junit_family=xunit1", *nodes]
        subprocess.run(words, cwd=ROOT, timeout=MINUTES * 60, check=False)
        return read(path) if path.exists() else {}


def read(path: Path) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = str(case.get("name")).partition("[")[0]
        result = found.setdefault(f"{case.get('file')}::{name}", Result())
        result.outcomes.append(next(filter(None, map(outcome, case)), "passed"))
        noted = {str(p.get("name")): str(p.get("value")) for p in case.iter("property")}
        if noted:
            result.figures.append(noted)
    return found


def outcome(element: ElementTree.Element) -> str:
    """Return the outcome that an element of a test case stands for, or an empty string."""
    if element.tag == "skipped" and element.get("type") == "pytest.xfail":
        return "open"  # a known defect
    return {"failure": "failed", "error": "failed", "skipped": "skipped"}.get(element.tag, "")


def span(values: list[str]) -> str:
    """Return the figures of several tests as one number, or as a range."""
    if not values:
        return ""
    ordered = sorted(values, key=float)
    shown = ["<0.01" if v == "0.00" else f"{float(v):g}" for v in (ordered[0], ordered[-1])]
    return shown[0] if shown[0] == shown[1] else "–".join(shown)


def line(name: str, row: Row, results: dict[str, Result]) -> str:
    mine = [results.get(node, Result()) for node in row.tests]
    figures = [noted for result in mine for noted in result.figures]
    words = {result.word() for result in mine}
    worst = next((word for word in ("failed", "open", "passed") if word in words), "skipped")
    count = sum(len(result.outcomes) for result in mine)
    recover, lost = ([f[w] for f in figures if w in f] for w in ("recover", "lost"))
    notes = list(dict.fromkeys(f["said"] for f in figures if "said" in f))
    notes += [row.why_not] if row.why_not else []
    tail = f" ({count} tests)" if count > 1 else ""
    cells = [name, row.title, row.done, row.expected, f"{worst if mine else 'not shown'}{tail}"]
    cells += [span(recover), span(lost), "; ".join(notes)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


FAULT_HEAD = """\
| # | fault | what was done | what is expected | outcome | s to recover | grants lost | notes |
|---|---|---|---|---|---|---|---|"""
INPUT_HEAD = """\
| input | what was done | what is expected | outcome | notes |
|---|---|---|---|---|"""


def tables(results: dict[str, Result]) -> dict[str, str]:
    """Return the two tables by the name of their place in the page."""
    faults = [FAULT_HEAD, *(line(str(n), row, results) for n, row in FAULTS.items())]
    inputs = [INPUT_HEAD]
    for row in INPUT.values():
        cells = line("", row, results).split(" | ")
        inputs.append("| " + " | ".join([*cells[1:5], cells[-1]]))
    return {"faults": "\n".join(faults), "input": "\n".join(inputs)}


def put(text: str, name: str, table: str) -> str:
    """Return the page with one table replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"there is no place for {name}"
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.report", description=__doc__)
    parser.add_argument("--print", action="store_true", help="leave the page alone")
    options = parser.parse_args()
    rows = [*FAULTS.values(), *INPUT.values()]
    results = run(sorted({node for row in rows for node in row.tests}))
    made = tables(results)
    if options.print:
        print("\n\n".join(made.values()))
    else:
        text = PAGE.read_text(encoding="utf-8")
        for name, table in made.items():
            text = put(text, name, table)
        PAGE.write_text(text, encoding="utf-8")
    failed = [node for row in rows for node in row.tests if _failed(results, node)]
    print(*failed, sep="\n", file=sys.stderr)
    return bool(failed)


def _failed(results: dict[str, Result], node: str) -> bool:
    return results.get(node, Result()).word() == "failed"


if __name__ == "__main__":
    sys.exit(main())
