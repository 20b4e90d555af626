"""Run the rows of the field suite. See the docstring of the package."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from devtools import postgres
from tests.field import page
from tests.field.row import INSTALL, folders, missing, rows_of, sites_of, version_of
from tests.support import worker_processes

#: With this environment variable, missing packages and a missing PostgreSQL are errors.
REQUIRED = os.environ.get("DJANGO_REDIS_SYNC_FIELD_REQUIRED")
SITES = [(folder, rows) for folder in folders() for rows in sites_of(folder)]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The connection string of a PostgreSQL server."""
    why = postgres.reason() or ("" if version_of("psycopg") else INSTALL)
    if why and not REQUIRED:
        pytest.skip(why)
    assert not why, why
    with postgres.Postgres() as server:
        yield server.dsn


@pytest.mark.parametrize(
    ("folder", "rows"), SITES, ids=[f"{folder}-{rows[0]}" for folder, rows in SITES]
)
def test_packages_work_as_the_page_says(
    folder: str, rows: list[int], redis_url: str, request: pytest.FixtureRequest
) -> None:
    if names := missing(folder):
        assert not REQUIRED, names
        pytest.skip(INSTALL)
    words = ("--rows", ",".join(map(str, rows)), "--redis", redis_url)
    dsn = ("--postgres", request.getfixturevalue("database"))
    done = worker_processes.run("-m", "tests.field.child", folder, *words, *dsn, timeout=110)
    assert 0 == done.returncode, done.stderr
    failed = json.loads(done.stdout)
    assert not failed, "\n".join(f"{title}\n{text}" for title, text in failed.items())


def test_page_works_with_is_up_to_date() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.page(page.versions_on(text)) == text, "run: python -m tests.field.page"


def test_rows_of_a_project_have_titles_of_their_own() -> None:
    for folder in folders():
        titles = [row.title for row in rows_of(folder).ROWS]
        assert len(titles) == len({*titles}), folder
