"""The option `on_lost`."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from django_redis_sync import Lock
from tests.behaviour.both import MAX_WAIT

pytestmark = pytest.mark.usefixtures("clean_redis")


def test_on_lost_that_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="on_lost must be a callable, not 5"):
        Lock("x", on_lost=5)  # type: ignore[arg-type]


class Watch:
    def __call__(self, lease: Any) -> None: ...
    def method(self, lease: Any, more: int = 0) -> None: ...


def test_on_lost_that_cannot_take_the_lease_is_refused() -> None:
    """Such as `on_lost=stop.set`. Otherwise, nobody would notice before a lease is lost."""
    wrong = threading.Event().set, lambda: None, lambda lease, more: None, partial(len, ())
    for on_lost in wrong:
        with pytest.raises(TypeError, match="on_lost is called with the lease, but"):
            Lock("x", on_lost=on_lost)  # type: ignore[arg-type]
    right = (Watch(), Watch().method, Mock(), partial(print, "lost"), print, int)
    for on_lost in (*right, lambda *leases: None, lambda lease, more=1: None):
        assert on_lost == Lock("x", on_lost=on_lost).on_lost


def test_async_on_lost_runs_to_its_end(raw: Any) -> None:
    called = threading.Event()

    async def on_lost(lease: Any) -> None:
        called.set()

    lease = Lock("x", timeout=0.2, on_lost=on_lost).acquire()
    assert lease is not None and called.wait(MAX_WAIT)
