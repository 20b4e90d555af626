"""A process's keeper and clerk, made anew for a test that looks at the registry of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redis_sync.engine import housekeeping, renewal
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.protocol.keys import display


@pytest.fixture
def fresh_keeper(raw: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keeper whose clerk has noted no name yet, and that notes none after the test."""
    for (
        each
    ) in housekeeping._housekeepers.values():  # what earlier tests left to write is not this one's
        each.forget()
    mine: dict[str, housekeeping.Housekeeper] = {}
    monkeypatch.setattr(renewal, "_renewers", {})
    monkeypatch.setattr(housekeeping, "_housekeepers", mine)
    yield
    for each in mine.values():
        each.forget()


def listed(*wanted: str, using: str | None = None) -> bool:
    """Whether the registry has these names, as people see them."""
    return set(wanted) <= {display(name, key) for name, key in names_in_use(using=using)}
