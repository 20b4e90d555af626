"""What `manage.py locks` shows on a terminal of 80 columns: no text is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis

from django_redis_sync import Lock, Semaphore
from tests.support.operators import locks
from tests.support.screens import columns, on_terminal

LABEL = "shop.reports.tasks.build_the_monthly_export_of[0c3f9d2e]"
SHARE = "tenant-of-a-large-customer-4711"
LONG = "nightly-" + "report-" * 8 + "end"


@pytest.fixture
def held(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "80")
    with ExitStack() as stack:
        for _ in range(3):
            options = {"label": LABEL, "share": SHARE, "share_limit": 3}
            stack.enter_context(Semaphore("exports", 4, **options))
        stack.enter_context(Lock(LONG, label="rebuild " * 8))
        yield


def joined(text: str) -> str:
    """Return the text without spaces and line breaks."""
    return "".join(text.split())


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("name", ["exports", LONG, None])
def test_no_text_is_cut_on_80_columns(name: str | None) -> None:
    text = on_terminal("status", *filter(None, [name]))
    assert "…" not in text
    assert [] == [line for line in text.splitlines()[bool(name) :] if columns(line) > 80]
    if name == "exports":
        seen = joined(text)
        assert 3 == seen.count("0c3f9d2e") and 3 <= seen.count(f"share{SHARE}"[:12])
    if name is None:
        first = [line.split("  ")[0] for line in text.splitlines()]
        assert LONG in joined("".join(first))


@pytest.mark.usefixtures("held")
def test_words_are_explained_where_they_are_shown() -> None:
    assert "LEASE LEFT: after this time" in locks("status", "exports")
    dead = Semaphore("dead", 1, timeout=0.1, renew=False, raise_on_release_error=False)
    lease = dead.acquire()
    with Semaphore("dead", 1, blocking_timeout=60):
        assert not lease.owned()
    text = " ".join(locks("status", "dead").split())
    assert "reclaimed 1" in text and "Reclaimed: a lease expired" in text
    assert "Skipped:" not in text, "a word that is not shown is not explained"
    assert Lock(LONG, thread_local=False).acquire(blocking=False) is None
    assert "Skipped: the caller got no permit at once" in locks("status", LONG)
