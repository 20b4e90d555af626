"""A process composes each of its scripts once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redis_sync.protocol import scripts


@pytest.fixture(autouse=True)
def new() -> Iterator[None]:
    """As in a process that has just begun, and when a test is over."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    scripts.script.cache_clear()
    scripts._composed.cache_clear()


def test_threads_that_come_at_once_compose_a_script_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composed, compose, gate = list[str](), scripts.compose, threading.Barrier(8)

    def counted(verb: str) -> str:
        composed.append(verb)
        time.sleep(0.05)  # the others come meanwhile
        return compose(verb)

    def ask(_: int) -> scripts.Script:
        gate.wait(10)
        return scripts.script("renew")

    monkeypatch.setattr(scripts, "compose", counted)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(ask, range(8))]
    assert ["renew"] == composed
    assert [scripts.script("renew")] * 8 == found


def test_another_way_to_compose_is_taken_after_the_cache_was_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, compose = scripts.script("renew").source, scripts.compose
    monkeypatch.setattr(scripts, "compose", lambda verb: f"-- other\n{compose(verb)}")
    scripts.script.cache_clear()
    assert f"-- other\n{before}" == scripts.script("renew").source


def test_a_fork_that_found_another_thread_composing_composes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripts, "_PATIENCE", 0.01)
    with scripts._composing:
        assert "renew" == scripts.script("renew").verb
