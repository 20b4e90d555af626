"""The tables in RESULTS.md are generated from the tables in the code."""

from __future__ import annotations

from pathlib import Path

from .report import PAGE, Result, line, put, read, span, tables
from .rows import FAULTS, INPUT, Row

XML = """<testsuites><testsuite>
<testcase file="tests/a.py" name="test_x[1]"><properties>
<property name="recover" value="0.50"/><property name="lost" value="2"/></properties></testcase>
<testcase file="tests/a.py" name="test_x[2]"><properties>
<property name="recover" value="1.50"/><property name="said" value="a | b"/></properties></testcase>
<testcase file="tests/a.py" name="test_y"><failure message="no"/></testcase>
<testcase file="tests/a.py" name="test_z"><skipped message="no compiler"/></testcase>
</testsuite></testsuites>"""


def test_line_shows_outcomes_figures_and_notes_of_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(XML)
    results = read(path)
    row = Row("fault", "expected", "done", ("tests/a.py::test_x",), "a reason")
    cells = "| 1 | fault | done | expected | passed (2 tests) | 0.5–1.5 | 2 | a \\| b; a reason |"
    assert cells == line("1", row, results)
    for name, outcome in (("y", "failed"), ("z", "skipped"), ("nowhere", "failed")):
        assert f" {outcome} " in line(
            "1", row._replace(tests=(f"tests/a.py::test_{name}",)), results
        )
    assert "not shown" in line("1", row._replace(tests=()), results)
    assert ["passed", "passed"] == results["tests/a.py::test_x"].outcomes
    assert "failed" == Result().word()


def test_span_is_one_number_or_a_range() -> None:
    assert ("", "3", "1–3") == (span([]), span(["3.00"]), span(["3", "1.0", "2"]))


def test_results_page_contains_each_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    made = tables({})
    assert len(FAULTS) + 2 == len(made["faults"].splitlines())
    assert len(INPUT) + 2 == len(made["input"].splitlines())
    for number, row in FAULTS.items():
        assert f"| {number} | {row.title} |" in text
    for row in INPUT.values():
        assert f"| {row.title} |" in text
    for name in made:
        assert put(text, name, made[name]).count(made[name]) == 1
