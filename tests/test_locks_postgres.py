"""Fifteen buyers, eight tickets, ATOMIC_REQUESTS, a real PostgreSQL: what each lock sells."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from devtools import postgres
from tests.support import worker_processes

from .tickets.__main__ import BUYERS, TICKETS

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = os.environ.get("DJANGO_REDIS_SYNC_POSTGRES_REQUIRED")


@pytest.fixture(scope="module")
def sold(redis_url: str) -> dict[str, Any]:
    """By way: how many tickets were sold, what was raised, and what the log said."""
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
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("way", ["with", "synchronized"])
def test_a_plain_lock_gives_back_too_early_and_says_so_once(sold: Any, way: str) -> None:
    result = sold[way]
    assert [] == result["errors"]
    assert TICKETS < result["sold"] <= BUYERS  # that is what is said
    (told,) = result["told"]
    assert "before the transaction on 'default' commits" in told
    assert "release_on_commit=True" in told


def test_atomic_inside_of_the_requests_transaction_is_refused_with_the_cure(sold: Any) -> None:
    result = sold["atomic"]
    assert BUYERS == len(result["errors"])
    assert all("@transaction.non_atomic_requests" in error for error in result["errors"])
    assert 0 == result["sold"]


@pytest.mark.parametrize(
    "way",
    [
        "with-release-on-commit",
        "synchronized-release-on-commit",
        "not-atomic-requests-and-atomic",
        "savepoint-release-on-commit",
    ],
)
def test_the_safe_ways_sell_what_there_is(sold: Any, way: str) -> None:
    assert {"sold": TICKETS, "errors": [], "told": []} == sold[way]
