"""The reasons of a refusal: each stands in one table, and no word is unheard of."""

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
#: Where a reason may be named in quotes: its table, and the scripts that answer it.
TABLE = PACKAGE / "protocol/reasons.py"


def test_a_reason_that_no_table_has_is_a_refusal_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(Semaphore, "_take", lambda *_: Rejection("asleep {now}"))
    with pytest.raises(NotAcquired, match=r"asleep \{now\}") as raised, Semaphore("x", 1):
        pass
    assert "asleep {now}" == raised.value.reason


def test_a_new_reason_needs_its_row_alone(monkeypatch) -> None:
    row = reasons.Reason("tired", "its server is {detail}", crowded=True)
    monkeypatch.setitem(reasons.REASONS, "tired", row)
    monkeypatch.setattr(admission.Take, "do", lambda _: Rejection("tired", "at rest"))
    view = semaphore_required("x", limit=1, key="ip")(lambda request: HttpResponse())
    assert 429 == view(RequestFactory().get("/")).status_code
    raising = semaphore_required("x", limit=1, on_full="raise")(lambda request: HttpResponse())
    with pytest.raises(NotAcquired, match="'x': its server is at rest"):
        raising(RequestFactory().get("/"))


@pytest.mark.parametrize("word", reasons.REASONS)
def test_every_reason_has_a_sentence(word: str) -> None:
    said = str(Rejection(word, detail="3"))
    assert said and "{" not in said
    assert word == Rejection(word).why.word


def test_no_other_module_has_a_list_of_reasons() -> None:
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
    # Words of their own: a bar that is as long as can be, and a log line of an act.
    assert {"console/charts.py", "operators/actions.py"} == naming
