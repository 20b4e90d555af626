"""A process composes each of its scripts once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redis_sync.protocol import scripts


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    _clear_caches()
    yield
    _clear_caches()


def _clear_caches() -> None:
    scripts.script.cache_clear()
    scripts._composed.cache_clear()


def test_concurrent_threads_compose_a_script_once(monkeypatch: pytest.MonkeyPatch) -> None:
    composed, compose, gate = list[str](), scripts.compose, threading.Barrier(8)

    def counted(verb: str) -> str:
        composed.append(verb)
        time.sleep(0.05)  # until all threads have asked
        return compose(verb)

    def ask(_: int) -> scripts.Script:
        gate.wait(10)
        return scripts.script("renew")

    monkeypatch.setattr(scripts, "compose", counted)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(ask, range(8))]
    assert ["renew"] == composed
    assert [scripts.script("renew")] * 8 == found


def test_script_is_composed_again_after_its_cache_was_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, compose = scripts.script("renew").source, scripts.compose
    monkeypatch.setattr(scripts, "compose", lambda verb: f"-- other\n{compose(verb)}")
    scripts.script.cache_clear()
    assert f"-- other\n{before}" == scripts.script("renew").source


def test_script_is_composed_when_the_lock_was_held_during_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripts, "_PATIENCE", 0.01)
    with scripts._composing:
        assert "renew" == scripts.script("renew").verb
