"""Threads for a test: new renewal and housekeeping threads, and threads for callers that wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_sync.engine import renewal
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.protocol.keys import display


@pytest.fixture
def fresh_renewer(raw: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a new renewal thread and a new housekeeping thread for the test. The new threads have not
    registered any name.

    After the test, discard the names that the new threads have not yet registered."""
    for each in renewal._renewers.values():  # discard pending names of earlier tests
        each.housekeeper.forget()
    mine: dict[str, renewal.LeaseRenewer] = {}
    monkeypatch.setattr(renewal, "_renewers", mine)
    yield
    for each in mine.values():
        each.housekeeper.forget()


@pytest.fixture(name="threads")
def waiting_threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def listed(*wanted: str, using: str | None = None) -> bool:
    """Return True if the name registry of the cache `using` has the display names `wanted`."""
    return set(wanted) <= {display(name, key) for name, key in names_in_use(using=using)}
