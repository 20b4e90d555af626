"""The reasons of rejections: one table, and a fallback for unknown words."""

import ast
from pathlib import Path

import pytest

from django_redis_sync.protocol import reasons
from django_redis_sync.protocol.reasons import REASONS, Rejection

PACKAGE = Path(reasons.__file__).parent.parent


@pytest.mark.parametrize("word", [*REASONS, "asleep {now}"])
def test_reason_has_a_sentence(word: str) -> None:
    rejection = Rejection(word, detail="3")
    assert word == rejection.why.word
    assert str(rejection) and ("{" in word) == ("{" in str(rejection))


def test_reasons_are_quoted_only_in_their_table() -> None:
    words = {reasons.FULL, reasons.CLEARED, reasons.OUTAGE}
    naming = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name != "reasons.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Call, ast.Dict, ast.Compare, ast.Tuple, ast.List))
        for part in ast.iter_child_nodes(node)
        if isinstance(part, ast.Constant) and part.value in words
    }
    # These two use the words with another meaning: a full bar, and a logged action.
    assert {"console/charts.py", "operators/actions.py"} == naming
