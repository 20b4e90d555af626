"""The tables of RESULTS.md are complete, the tests that prove their rows exist, and `report.py`
fills them correctly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .report import PAGE, ROOT, Case, cells, columns, filled, read, span
from .rows import PROOFS

#: Number of faults and of bad inputs in the specification. Later rows may skip numbers.
FAULT_ROWS, INPUT_ROWS = 40, 21

XML = """<testsuites><testsuite>
<testcase file="tests/a.py" name="test_x[1-hangs]"><properties>
<property name="recover" value="0.50"/><property name="lost" value="2"/></properties></testcase>
<testcase file="tests/a.py" name="test_x[2]"><properties>
<property name="recover" value="1.50"/><property name="said" value="a | b"/></properties></testcase>
<testcase file="tests/a.py" name="test_y"><failure message="no"/></testcase>
<testcase file="tests/a.py" name="test_z"><skipped message="no compiler"/></testcase>
</testsuite></testsuites>"""


def test_each_specified_row_is_on_the_results_page_and_has_tests() -> None:
    rows = [cells(line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    texts = {row[0]: row[1:4] for row in rows if row and row[0] in PROOFS}
    assert PROOFS.keys() == texts.keys()
    numbers = [int(name) for name in texts if name.isdigit()]
    assert numbers == sorted(numbers) and [*range(1, FAULT_ROWS + 1)] == numbers[:FAULT_ROWS]
    assert INPUT_ROWS == len(texts) - len(numbers)
    assert all(all(row) for name, row in texts.items() if name.isdigit())
    assert all(tests and len(set(tests)) == len(tests) for tests in PROOFS.values())


def test_each_test_named_after_a_row_is_listed_in_that_row() -> None:
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        for name, row in re.findall(r"^(?:async )?def (test_row_(\d\d)_\w+)", text, re.MULTILINE):
            listed = {test.partition("[")[0] for test in PROOFS[str(int(row))]}
            assert f"{path.relative_to(ROOT)}::{name}" in listed, name


@pytest.mark.timeout(400)
def test_pytest_finds_each_test_that_is_listed_for_a_row() -> None:
    """Each entry of PROOFS must match at least one test. The entry `name[word]` matches the runs
    of the test `name` whose parameters contain the word."""
    named = sorted({test for tests in PROOFS.values() for test in tests})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""]
    files = sorted({test.partition("::")[0] for test in named})
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
    assert [] == [test for test in named if not any(case.proves(test) for case in cases)]


def test_results_table_is_filled_with_the_outcomes_and_figures_of_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(XML)
    cases = read(path)
    found = [*columns(("tests/a.py::test_x",), cases).values()]
    assert ["passed (2 tests)", "0.5–1.5", "2", "a \\| b"] == found
    assert ["passed", "0.5", "2", ""] == [*columns(("tests/a.py::test_x[hangs]",), cases).values()]
    for name, outcome in (("y", "failed"), ("z", "skipped"), ("nowhere", "failed")):
        assert outcome == columns((f"tests/a.py::test_{name}",), cases)["outcome"]
    assert ("", "3", "1–3") == (span([]), span(["3.00"]), span(["3", "1.0", "2"]))
    page = "| # | fault | outcome | notes |\n|---|---|---|---|\n| 31 | a | b | c |\n| x | d | e |\n"
    (proof,) = PROOFS["31"]
    passed = [Case(proof, "", "passed", {"said": "well"})]
    assert page.replace("b | c", "passed | well") == filled(page, passed)
