"""What is said of the package in several files is the same in each."""

from __future__ import annotations

import ast
import configparser
import os
import re
from pathlib import Path

import pytest

from devtools import settings_page
from tests.conftest import DEEP

ROOT = Path(__file__).resolve().parent.parent


def configuration() -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf-8")
    return found


def test_the_version_is_the_newest_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    version = configuration()["metadata"]["version"]
    assert version == versions[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)


@pytest.mark.parametrize(
    ("name", "classifier"),
    [("PYTHONS", "Programming Language :: Python"), ("DJANGOS", "Framework :: Django")],
)
def test_the_matrix_has_every_version_that_is_classified(name: str, classifier: str) -> None:
    matrix = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (versions,) = re.findall(rf"^{name} = (.*)$", matrix, re.MULTILINE)
    classified = configuration()["metadata"]["classifiers"]
    said = re.findall(rf"^{classifier} :: (\d+\.\d+)$", classified, re.MULTILINE)
    assert said == list(ast.literal_eval(versions))


def test_the_workflow_runs_what_is_here_at_both_ends_of_the_matrix() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"^ +- run: (.*)$", workflow, re.MULTILINE)
    assert [".ci/run", 'make matrix ARGS="-s ends"'] == commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK) and "matrix" in targets
    pythons = re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE)
    matrix = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (classified,) = re.findall(r"^PYTHONS = (.*)$", matrix, re.MULTILINE)
    assert {ast.literal_eval(classified)[0], ast.literal_eval(classified)[-1]} <= set(pythons)


def test_what_make_test_leaves_out_is_run_by_ci() -> None:
    tests = ROOT / "tests"
    deep = {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py") if marks(path)}
    assert {"browser", "test_model.py"} <= deep
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    elsewhere = {  # what they are a part of is run as it is
        "soak": "make soak",
    }
    runs = {name: elsewhere.get(name, f"tests/{name}") for name in {*deep, *DEEP}}
    assert set() == {name for name, words in runs.items() if words not in commands}


def marks(path: Path) -> bool:
    """Whether tests of this file are for `make deep`."""
    text, mark = path.read_text(encoding="utf-8"), "pytest.mark.deep"
    return mark in text and any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == mark
        for node in ast.walk(ast.parse(text))
    )


def test_the_settings_page_says_what_the_defaults_say() -> None:
    page = settings_page.PAGE.read_text(encoding="utf-8")
    assert settings_page.page() == page, "python -m devtools.settings_page writes it anew"


def test_the_hooks_run_what_is_in_the_environment() -> None:
    """Nothing is fetched for a commit, and each hook's module is there after make lint."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"repo: (.*)", hooks) == ["local"]
    assert set(re.findall(r"language: (.*)", hooks)) == {"system"}
    modules = set(re.findall(r"entry: \.venv/bin/python -m ([\w.]+)", hooks))
    assert modules == {"ruff", "devtools.settings_page"}
