"""A new renewal thread and housekeeping thread for tests that read the registry of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redis_sync.engine import renewal
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.protocol.keys import display


@pytest.fixture
def fresh_keeper(raw: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use background threads that have registered no name, and register none after the test."""
    for each in renewal._renewers.values():  # discard pending names of earlier tests
        each.housekeeper.forget()
    mine: dict[str, renewal.LeaseRenewer] = {}
    monkeypatch.setattr(renewal, "_renewers", mine)
    yield
    for each in mine.values():
        each.housekeeper.forget()


def listed(*wanted: str, using: str | None = None) -> bool:
    """Return True if the registry contains these display names."""
    return set(wanted) <= {display(name, key) for name, key in names_in_use(using=using)}
