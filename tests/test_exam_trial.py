"""The judge is judged: a sample of `make exam ARGS=--self`, which makes twenty trials of each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest

from exam.entries import CORRECT, PLANTED
from exam.trial import EXPECTED, apart

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="a stop is seen in /proc, which is Linux's"
)


def test_every_planted_defect_is_one_that_must_be_caught() -> None:
    assert set(EXPECTED) == set(PLANTED)
    assert len(PLANTED) >= 10
    assert len(CORRECT) >= 3


def some(keys: Iterable[str], *always: str) -> list[Any]:
    """All of them for `make deep`; these few always."""
    deep = pytest.mark.deep
    return [key if key in always else pytest.param(key, marks=deep) for key in keys]


@pytest.mark.parametrize("key", some(CORRECT, "serial"))
def test_a_right_lock_is_not_accused(key: str) -> None:
    assert [] == apart(key).found


@pytest.mark.parametrize("key", some(PLANTED, "one too many", "lost hand-over"))
def test_a_planted_defect_is_caught(key: str) -> None:
    verdict = apart(key)
    assert verdict.just, verdict.found
