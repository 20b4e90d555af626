"""Facts about the package that several files state: the files agree."""

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


def test_version_is_the_newest_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    version = configuration()["metadata"]["version"]
    assert version == versions[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)


@pytest.mark.parametrize(
    ("name", "classifier"),
    [("PYTHONS", "Programming Language :: Python"), ("DJANGOS", "Framework :: Django")],
)
def test_nox_matrix_has_the_versions_of_the_classifiers(name: str, classifier: str) -> None:
    matrix = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (versions,) = re.findall(rf"^{name} = (.*)$", matrix, re.MULTILINE)
    classified = configuration()["metadata"]["classifiers"]
    found = re.findall(rf"^{classifier} :: (\d+\.\d+)$", classified, re.MULTILINE)
    assert found == list(ast.literal_eval(versions))


def test_workflow_runs_existing_commands_at_both_ends_of_the_matrix() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"^ +- run: (.*)$", workflow, re.MULTILINE)
    assert [".ci/run", 'make matrix ARGS="-s ends"'] == commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK) and "matrix" in targets
    pythons = re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE)
    matrix = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (classified,) = re.findall(r"^PYTHONS = (.*)$", matrix, re.MULTILINE)
    assert {ast.literal_eval(classified)[0], ast.literal_eval(classified)[-1]} <= set(pythons)


def test_ci_runs_every_file_with_deep_tests() -> None:
    tests = ROOT / "tests"
    deep = {
        path.relative_to(tests).parts[0]
        for path in tests.rglob("test_*.py")
        if has_deep_tests(path)
    }
    assert {"browser", "test_model.py"} <= deep
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    other_commands = {"soak": "make soak"}
    runs = {name: other_commands.get(name, f"tests/{name}") for name in {*deep, *DEEP}}
    assert set() == {name for name, words in runs.items() if words not in commands}


def has_deep_tests(path: Path) -> bool:
    """Return True if the file marks tests for `make deep`."""
    text, mark = path.read_text(encoding="utf-8"), "pytest.mark.deep"
    return mark in text and any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == mark
        for node in ast.walk(ast.parse(text))
    )


def test_settings_page_is_up_to_date() -> None:
    page = settings_page.PAGE.read_text(encoding="utf-8")
    assert settings_page.page() == page, "to update it, run: python -m devtools.settings_page"


def test_pre_commit_hooks_use_only_tools_of_the_environment() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"repo: (.*)", hooks) == ["local"]
    assert set(re.findall(r"language: (.*)", hooks)) == {"system"}
    modules = set(re.findall(r"entry: \.venv/bin/python -m ([\w.]+)", hooks))
    assert modules == {"ruff", "devtools.settings_page"}
