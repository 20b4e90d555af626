"""The table of faults is complete, and the tests it names exist."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from .rows import FAULTS, INPUT, Row, every

ROOT = Path(__file__).resolve().parents[2]
#: The number of faults and of bad inputs in the specification. Further faults may have gaps.
FAULT_ROWS, INPUT_ROWS = 40, 21


def test_table_has_all_rows_of_the_specification() -> None:
    assert list(range(1, FAULT_ROWS + 1)) == sorted(FAULTS)[:FAULT_ROWS]
    assert sorted(FAULTS) == list(FAULTS)
    assert INPUT_ROWS == len(INPUT)


@pytest.mark.parametrize("name", every())
def test_row_has_texts_and_tests_or_a_reason(name: str) -> None:
    row = every()[name]
    assert row.title and row.expected and row.done
    assert row.tests or row.why_not
    assert sorted(set(row.tests)) == sorted(row.tests)


@cache
def names_in(path: str) -> set[str]:
    """Return the names of the functions of a file."""
    file = ROOT / path
    if not file.exists():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, found)}


@pytest.mark.parametrize("name", every())
def test_tests_of_a_row_exist(name: str) -> None:
    row: Row = every()[name]
    named = [node.split("::") for node in row.tests]
    assert [] == [f"{file}::{test}" for file, test in named if test not in names_in(file)]


def test_test_named_after_a_row_is_listed_in_it() -> None:
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        file = str(path.relative_to(ROOT))
        for name in names_in(file):
            if name.startswith("test_row_") and name[9:11].isdigit() and name[11] == "_":
                assert f"{file}::{name}" in FAULTS[int(name[9:11])].tests, name


@pytest.mark.timeout(400)
def test_named_tests_of_this_folder_are_collected() -> None:
    """Only tests of this folder are collected; the test above checks the names of all others."""
    here = sorted({t for row in every().values() for t in row.tests if "tests/faults/" in t})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""]
    words += ["-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, *here], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert set(here) == {line.partition("[")[0] for line in lines if "::" in line}
