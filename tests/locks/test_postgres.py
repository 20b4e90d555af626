"""Sell tickets under locks, on a site with PostgreSQL and ATOMIC_REQUESTS. There are more buyers
than tickets."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

import pytest

from devtools import postgres
from tests.support import worker_processes
from tests.tickets.__main__ import BUYERS, TICKETS

REQUIRED = os.environ.get("DJANGO_REDIS_SYNC_POSTGRES_REQUIRED")
SAFE = ("with-release-on-commit", "not-atomic-requests-and-atomic")


@pytest.fixture(scope="module")
def sold(redis_url: str) -> dict[str, Any]:
    """For each way to lock, return the number of sold tickets, the errors, and the log messages."""
    missing = postgres.reason()
    if not missing and importlib.util.find_spec("psycopg") is None:
        missing = "psycopg is not installed"
    if missing and not REQUIRED:
        pytest.skip(missing)
    assert not missing, missing
    with postgres.Postgres() as server:
        words = dict(word.split("=") for word in server.dsn.split())
        command = ("-m", "tests.tickets", redis_url, words["host"], words["port"])
        done = worker_processes.run(*command, timeout=110)
    assert 0 == done.returncode, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def test_lock_released_before_the_commit_lets_callers_sell_too_many_tickets(sold: Any) -> None:
    result = sold["with"]
    assert [] == result["errors"]
    assert TICKETS < result["sold"] <= BUYERS
    (message,) = result["told"]
    assert "before the transaction on 'default' commits" in message
    assert "release_on_commit=True" in message


@pytest.mark.promise(23)
@pytest.mark.parametrize("way", SAFE)
def test_each_ticket_is_sold_once_if_the_lock_is_released_after_commit(sold: Any, way: str) -> None:
    assert {"sold": TICKETS, "errors": [], "told": []} == sold[way]
