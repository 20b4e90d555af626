"""The option `on_lost`."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_redis_sync import Lock
from tests.behaviour.both import MAX_WAIT

pytestmark = pytest.mark.usefixtures("clean_redis")


def test_on_lost_that_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="on_lost must be a callable, not 5"):
        Lock("x", on_lost=5)  # type: ignore[arg-type]


def test_async_on_lost_runs_to_its_end(raw: Any) -> None:
    called = threading.Event()

    async def on_lost(lease: Any) -> None:
        called.set()

    lease = Lock("x", timeout=0.2, on_lost=on_lost).acquire()
    assert lease is not None and called.wait(MAX_WAIT)
