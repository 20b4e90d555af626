"""Fixtures for tests of limits."""

import pytest
from django.db import connection

from django_redis_sync import Lock


@pytest.fixture
def held_at_end(monkeypatch):
    """A list with an item for each COMMIT and each rollback: True if the lock "stock" was still
    held right after that."""
    held = []
    for name in ("_commit", "_rollback"):
        method = getattr(connection, name)

        def record(method=method):
            method()
            held.append(Lock("stock").locked())

        monkeypatch.setattr(connection, name, record)
    return held
