"""Each numbered promise of docs/promises.md has tests that name it."""

import ast
from pathlib import Path

from tests.conftest import PROMISES

TESTS = Path(__file__).parent


def named_promises(path: Path) -> set[int]:
    """Return the numbers that `pytest.mark.promise(...)` names in a module."""
    return {
        argument.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }


def test_promises_in_the_docs_and_in_the_tests_are_the_same() -> None:
    named = set().union(*(named_promises(path) for path in TESTS.rglob("test_*.py")))
    assert PROMISES.keys() == named
