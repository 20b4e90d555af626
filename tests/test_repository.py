"""If several files of the repository state a fact, it is the same in all of them."""

import ast
import configparser
import os
import re
from pathlib import Path

import pytest

from devtools import settings_page
from tests.conftest import DEEP, PROMISES
from tests.mutants.__main__ import Mutant, read

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = read()


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named(pattern: str, text: str) -> list[str]:
    return re.findall(pattern, text, re.MULTILINE)


def setup(section: str, key: str) -> str:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf-8")
    return found[section][key]


def test_version_is_the_newest_in_the_changelog() -> None:
    version = setup("metadata", "version")
    assert version == named(r"^## \[(\d[^\]]*)\]", text_of("CHANGELOG.md"))[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)


def test_nox_and_ci_use_the_python_and_django_versions_of_setup_cfg() -> None:
    classified, matrix = setup("metadata", "classifiers"), text_of("noxfile.py")
    versions = {}
    for name, label in {
        "PYTHONS": "Programming Language :: Python",
        "DJANGOS": "Framework :: Django",
    }.items():
        (given,) = named(rf"^{name} = (.*)$", matrix)
        versions[name] = [*ast.literal_eval(given)]
        assert versions[name] == named(rf"^{label} :: (\d+\.\d+)$", classified)
    workflow = text_of(".github/workflows/ci.yml")
    assert 'make matrix ARGS="-s ends"' in named(r"^ +- run: (.*)$", workflow)
    oldest, *_, newest = versions["PYTHONS"]
    assert {oldest, newest} <= set(named(r"^ +(3\.\d+)$", workflow))


def test_jobs_of_the_workflow_run_every_part_of_ci_once() -> None:
    script, workflow = ROOT / ".ci" / "run", text_of(".github/workflows/ci.yml")
    assert os.access(script, os.X_OK), "not executable"
    parts = named(r"^part_(\w+)\(\)", text_of(".ci/run"))
    (lines,) = named(r"^PARTS=\(\n((?:.+\n)+)\)$", text_of(".ci/run"))
    assert sorted(parts) == sorted(lines.replace('"', "").split())
    assert ".ci/run ${{ matrix.parts }}" in named(r"^ +- run: (.*)$", workflow)
    (jobs,) = named(r"^ +parts:\n((?: +- [a-z ]+\n)+)", workflow)
    assert sorted(parts) == sorted(jobs.replace("- ", "").split())


def test_ci_runs_every_test_file_that_contains_deep_tests() -> None:
    deep = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if named(r"^[^#\"]*pytest\.mark\.deep", path.read_text(encoding="utf-8"))
    }
    assert {"tests/browser/test_layout.py", "tests/model/test_model.py"} <= deep
    # CI runs a file by its own path or by the path of its folder.
    runs = [*named(r"(tests/[\w/.]+)", text_of(".ci/run")), "tests/soak"]
    assert "make soak" in text_of(".ci/run")
    wanted = deep | {f"tests/{name}" for name in DEEP}
    assert [] == sorted(path for path in wanted if not path.startswith(tuple(runs)))


def test_settings_page_is_up_to_date() -> None:
    page = settings_page.PAGE.read_text(encoding="utf-8")
    assert settings_page.page() == page, "to update it, run: python -m devtools.settings_page"


def test_pre_commit_hooks_run_only_tools_of_the_virtualenv() -> None:
    hooks = text_of(".pre-commit-config.yaml")
    assert ["local"] == named(r"repo: (.*)", hooks)
    assert {"system"} == set(named(r"language: (.*)", hooks))
    modules = named(r"entry: \.venv/bin/python -m ([\w.]+)", hooks)
    assert {"ruff", "devtools.settings_page"} == set(modules)


def test_each_promise_in_the_docs_has_a_test_that_is_marked_with_its_number() -> None:
    """Tests name promises of docs/promises.md by number, with the mark `promise`."""
    marks = r"pytest\.mark\.promise\(([\d, ]+)\)"
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    numbers = {int(n) for text in texts for mark in named(marks, text) for n in mark.split(",")}
    assert PROMISES.keys() == numbers


@pytest.mark.tools
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_can_be_applied_and_has_a_test_file(mutant: Mutant) -> None:
    mutant.path()
    assert mutant.text != mutant.instead
    assert mutant.test.split("/")[0] not in DEEP, "make test has to find it"
    assert (ROOT / "tests" / mutant.test).is_file(), mutant.test
    assert 1 == [other.name for other in MUTANTS].count(mutant.name)
