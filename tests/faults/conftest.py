"""Private servers to break, and figures for the table in RESULTS.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from devtools.servers import RedisServer
from django_redis_sync import Unavailable
from tests.behaviour.conftest import alias, private, view  # noqa: F401 - fixtures
from tests.behaviour.watching import View

Figure = Callable[..., None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Return a function that records figures for the table of `python -m tests.faults.report`.

    `recover`: seconds until everything worked again, or the holder was notified. `lost`: number of
    grants that were lost. `said`: any further note."""

    def note(recover: float | None = None, lost: int | None = None, said: str = "") -> None:
        for word, value in (("recover", recover), ("lost", lost), ("said", said)):
            if value not in (None, ""):
                record_property(word, f"{value:.2f}" if isinstance(value, float) else value)

    return note


class Watch:
    """A stopwatch."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


@pytest.fixture
def admin(private: RedisServer) -> Iterator[redis.Redis]:  # noqa: F811 - the fixture above
    """A plain client of the private server."""
    with redis.Redis.from_url(private.url) as client:
        yield client


@pytest.fixture
def look(admin: redis.Redis) -> Callable[[str], View]:
    """Return a function that returns the View of a name on the private server."""
    return lambda name: View(admin, name)


def retried(what: Callable[[], Any], seconds: float = 30) -> Any:
    """Call `what()` again while it raises Unavailable, and return its result."""
    end = time.monotonic() + seconds
    while True:
        try:
            return what()
        except Unavailable:
            assert time.monotonic() < end, f"unavailable for {seconds} s"
            time.sleep(0.01)
