"""Servers behind Sentinel and as a Cluster, for the tests of this folder and for borrowed tests.

A module here that does `from tests.… import *` runs the tests of another folder again, on both. The
fixtures below replace those of the other folder, and `lead` replaces the names that it imports.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from devtools.servers import find_server
from devtools.topologies import Cluster, Sentinels
from django_redis_sync.engine import renewal
from tests.behaviour.watching import View
from tests.faults.conftest import figure  # noqa: F401 - a fixture

from .everywhere import Everywhere
from .stand_ins import ELSEWHERE, alias_of, lead

HERE = Path(__file__).parent

#: A borrowed test that uses one of these fixtures starts its own server, so it isn't run again.
OWN_SERVER = {"alias", "bench", "new_server", "private"}

#: These tests count PUBLISH commands by the server's statistics, but sentinels publish there too.
NOT_BESIDE_SENTINELS = {
    "test_waiters_send_no_polling_commands",
    "test_release_wakes_one_waiter_per_freed_permit",
}

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _is_borrowed(item) and _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_borrowed(item: Any) -> bool:
    return item.path.parent == HERE and _origin(item.function) != item.module.__name__


def _origin(test: Any) -> str:
    return str(inspect.unwrap(test).__module__)


def _is_left_out(item: Any) -> bool:
    if OWN_SERVER & set(item.fixturenames) or "topology" not in item.fixturenames:
        return True
    beside = item.callspec.params["topology"] == "sentinel"
    return beside and item.originalname in NOT_BESIDE_SENTINELS


@pytest.fixture(scope="session", params=["sentinel", "cluster"])
def topology(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The servers that borrowed tests share."""
    _need_servers()
    with Sentinels() if request.param == "sentinel" else Cluster() as started:
        yield started


@pytest.fixture(scope="module")
def redis_url(topology: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of one of the servers. While a module runs, its borrowed tests use the topology."""
    tests = [test for name, test in vars(request.module).items() if name.startswith("test_")]
    origins = [sys.modules[name] for name in {_origin(test) for test in tests}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ELSEWHERE, json.dumps([alias_of(topology), _cache(topology)]))
        lead(origins, topology, patch)
        yield topology.url


@pytest.fixture
def clean_redis(topology: Any, redis_url: str, settings: Any) -> Iterator[None]:
    """Delete all keys of the topology, and let the settings use its alias."""
    alias = alias_of(topology)
    settings.CACHES = {**settings.CACHES, alias: _cache(topology)}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": alias}
    with Everywhere(topology) as everywhere:
        everywhere.flushdb()
        yield
        everywhere.flushdb()
    _forget(alias)


@pytest.fixture
def raw(topology: Any, clean_redis: None) -> Iterator[Everywhere]:
    """A plain client of all servers that hold data."""
    with Everywhere(topology) as everywhere:
        yield everywhere


@pytest.fixture
def view(raw: Any) -> Callable[[str], View]:
    return lambda name: View(raw, name)


@pytest.fixture
def alias(settings: Any) -> Iterator[Callable[..., str]]:
    """Return a function that adds a cache alias for a topology, with `options` as its OPTIONS."""
    names: list[str] = []

    def add(topology: Any, **options: Any) -> str:
        name = f"own-{next(_numbers)}"
        settings.CACHES = {**settings.CACHES, name: _cache(topology, **options)}
        names.append(name)
        return name

    yield add
    for name in names:
        _forget(name)


def _forget(alias: str) -> None:
    """Clear the renewals of an alias, which would go on after the alias is removed."""
    renewal.renewer(alias).clear()


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Return a function that starts servers for this test only: `start(Cluster, replicas=1)`."""
    _need_servers()
    with contextlib.ExitStack() as stack:
        yield lambda kind, **options: stack.enter_context(kind(**options))


def _need_servers() -> None:
    if find_server() is None:
        pytest.skip("this test starts its own servers, but there is only REDIS_URL")


def _cache(topology: Any, **options: Any) -> dict[str, Any]:
    return {**topology.cache(**options), "KEY_PREFIX": django_settings.PREFIX}
