"""The tables of faults are complete, the tests that prove them exist, and the report fills them."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from .report import PAGE, ROOT, Case, cells, columns, filled, read, span
from .rows import PROOFS

#: The number of faults and of bad inputs in the specification. Greater numbers may be missing.
FAULT_ROWS, INPUT_ROWS = 40, 21

XML = """<testsuites><testsuite>
<testcase file="tests/a.py" name="test_x[1-hangs]"><properties>
<property name="recover" value="0.50"/><property name="lost" value="2"/></properties></testcase>
<testcase file="tests/a.py" name="test_x[2]"><properties>
<property name="recover" value="1.50"/><property name="said" value="a | b"/></properties></testcase>
<testcase file="tests/a.py" name="test_y"><failure message="no"/></testcase>
<testcase file="tests/a.py" name="test_z"><skipped message="no compiler"/></testcase>
</testsuite></testsuites>"""


def test_page_has_all_rows_of_the_specification_with_tests() -> None:
    rows = [cells(line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    texts = {row[0]: row[1:4] for row in rows if row and row[0] in PROOFS}
    assert PROOFS.keys() == texts.keys()
    numbers = [int(name) for name in texts if name.isdigit()]
    assert numbers == sorted(numbers) and [*range(1, FAULT_ROWS + 1)] == numbers[:FAULT_ROWS]
    assert INPUT_ROWS == len(texts) - len(numbers)
    assert all(all(row) for name, row in texts.items() if name.isdigit())
    assert all(tests and len(set(tests)) == len(tests) for tests in PROOFS.values())


@cache
def names_in(path: str) -> set[str]:
    """Return the names of the functions of a file."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")
    found = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, found)}


@pytest.mark.parametrize("name", PROOFS)
def test_tests_of_a_row_exist(name: str) -> None:
    named = [test.partition("[")[0].split("::") for test in PROOFS[name]]
    assert [] == [f"{file}::{test}" for file, test in named if test not in names_in(file)]


def test_test_named_after_a_row_is_listed_in_it() -> None:
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        file = str(path.relative_to(ROOT))
        for name in names_in(file):
            if name.startswith("test_row_") and name[9:11].isdigit() and name[11] == "_":
                listed = {test.partition("[")[0] for test in PROOFS[str(int(name[9:11]))]}
                assert f"{file}::{name}" in listed, name


@pytest.mark.timeout(400)
def test_named_tests_of_three_folders_are_collected() -> None:
    """Each entry of PROOFS means at least one test. `name[word]` means the runs whose parameters
    contain the word."""
    here = ("tests/faults/", "tests/behaviour/", "tests/topologies/")
    mine = sorted({t for tests in PROOFS.values() for t in tests if t.startswith(here)})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""]
    files = sorted({test.partition("::")[0] for test in mine})
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    found = [line.partition("[") for line in done.stdout.splitlines() if "::" in line]
    cases = [Case(node, parameters, "", {}) for node, _, parameters in found]
    assert [] == [test for test in mine if not any(case.proves(test) for case in cases)]


def test_report_shows_outcomes_figures_and_notes_of_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(XML)
    cases = read(path)
    found = [*columns(("tests/a.py::test_x",), cases).values()]
    assert ["passed (2 tests)", "0.5–1.5", "2", "a \\| b"] == found
    assert ["passed", "0.5", "2", ""] == [*columns(("tests/a.py::test_x[hangs]",), cases).values()]
    for name, outcome in (("y", "failed"), ("z", "skipped"), ("nowhere", "failed")):
        assert outcome == columns((f"tests/a.py::test_{name}",), cases)["outcome"]
    assert ("", "3", "1–3") == (span([]), span(["3.00"]), span(["3", "1.0", "2"]))
    page = (
        "| # | fault | outcome | notes |\n|---|---|---|---|\n| 4 | a | b | c |\n| other | d | e |\n"
    )
    (proof,) = PROOFS["4"]
    passed = [Case(proof, "", "passed", {"said": "well"})]
    assert page.replace("b | c", "passed | well") == filled(page, passed)
