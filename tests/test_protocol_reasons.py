"""The reasons of rejections: one table, and a fallback for unknown words."""

import ast
from pathlib import Path

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_sync import NotAcquired, Semaphore, semaphore_required
from django_redis_sync.limits import admission
from django_redis_sync.protocol import reasons
from django_redis_sync.protocol.plans import Rejection

PACKAGE = Path(reasons.__file__).parent.parent
#: The only Python file that may quote a reason.
TABLE = PACKAGE / "protocol/reasons.py"


def test_reason_without_a_row_is_raised_as_not_acquired(monkeypatch) -> None:
    monkeypatch.setattr(Semaphore, "_take", lambda *_: Rejection("asleep {now}"))
    with pytest.raises(NotAcquired, match=r"asleep \{now\}") as raised, Semaphore("x", 1):
        pass
    assert "asleep {now}" == raised.value.reason


def test_new_reason_needs_only_a_row_in_the_table(monkeypatch) -> None:
    row = reasons.Reason("tired", "its server is {detail}", crowded=True)
    monkeypatch.setitem(reasons.REASONS, "tired", row)
    monkeypatch.setattr(admission.Take, "do", lambda _: Rejection("tired", "at rest"))
    view = semaphore_required("x", limit=1, key="ip")(lambda request: HttpResponse())
    assert 429 == view(RequestFactory().get("/")).status_code
    raising = semaphore_required("x", limit=1, on_full="raise")(lambda request: HttpResponse())
    with pytest.raises(NotAcquired, match="'x': its server is at rest"):
        raising(RequestFactory().get("/"))


@pytest.mark.parametrize("word", reasons.REASONS)
def test_reason_has_a_sentence(word: str) -> None:
    sentence = str(Rejection(word, detail="3"))
    assert sentence and "{" not in sentence
    assert word == Rejection(word).why.word


def test_reasons_are_quoted_only_in_their_table() -> None:
    words = {reasons.FULL, reasons.CLEARED, reasons.OUTAGE}
    naming = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path != TABLE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Call, ast.Dict, ast.Compare, ast.Tuple, ast.List))
        for part in ast.iter_child_nodes(node)
        if isinstance(part, ast.Constant) and part.value in words
    }
    # These two use the words with another meaning: a full bar, and a logged action.
    assert {"console/charts.py", "operators/actions.py"} == naming
