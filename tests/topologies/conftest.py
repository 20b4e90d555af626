"""Fixtures that start Redis servers with Sentinel or as a Cluster.

Some modules of this folder borrow tests of another folder with `from tests.… import *`. pytest runs
the borrowed tests again on both topologies. They use the fixtures below instead of those of the
other folder.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from devtools.servers import find_server
from devtools.topologies import Cluster, Sentinels
from tests.behaviour import child
from tests.behaviour.conftest import alias, figure, losses  # noqa: F401 - fixtures
from tests.conftest import forget_leases
from tests.support import journal

from .everywhere import Everywhere, Journals, by_name

HERE = Path(__file__).parent
#: Environment variable for child processes: the topology's cache alias, and its entry in CACHES.
ELSEWHERE = "DJANGO_REDIS_SYNC_TEST_ELSEWHERE"

#: Fixtures that start a single server. A borrowed test that uses one of them can't run on a
#: topology, so it is left out.
OWN_SERVER = {"alias", "bench", "new_bench", "new_server", "private"}
#: Tests that skip Sentinel: they count a server's PUBLISH commands, and sentinels publish too.
NOT_BESIDE_SENTINELS = {
    "test_waiters_send_no_polling_commands",
    "test_release_wakes_one_waiter_per_freed_permit",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.path.parent == HERE and _is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _is_left_out(item: Any) -> bool:
    if inspect.unwrap(item.function).__module__ == item.module.__name__:
        return False
    if OWN_SERVER & set(item.fixturenames) or "topology" not in item.fixturenames:
        return True
    beside = item.callspec.params["topology"] is Sentinels
    return beside and item.originalname in NOT_BESIDE_SENTINELS


def start_servers(kind: Any, **options: Any) -> Any:
    """Return `kind(**options)`, a context manager that starts servers. Skip the test if this
    machine has no Redis server program."""
    if find_server() is None:
        pytest.skip("this test starts its own servers, but there is only REDIS_URL")
    return kind(**options)


@pytest.fixture(scope="session", params=[Sentinels, Cluster], ids=["sentinel", "cluster"])
def topology(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The Sentinel or Cluster servers that all borrowed tests share."""
    with start_servers(request.param) as started:
        yield started


@pytest.fixture(scope="module")
def redis_url(topology: Any) -> Iterator[str]:
    """The URL of one server of the topology. While the tests of a module run, this fixture also
    makes child processes and journals use the topology."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ELSEWHERE, json.dumps([type(topology).__name__.lower(), _cache(topology)]))
        patch.setattr(child, "SETTINGS", "tests.topologies.settings")
        if isinstance(topology, Cluster):
            patch.setattr(journal, "CODA", by_name(journal.CODA))
            patch.setattr(journal, "Journal", type("_", (Journals,), {"topology": topology}))
        yield topology.url


@pytest.fixture
def clean_redis(topology: Any, redis_url: str, settings: Any) -> Iterator[None]:
    """Let the settings use the cache alias of the topology. Delete all keys of the topology before
    and after the test."""
    name = type(topology).__name__.lower()
    settings.CACHES = {**settings.CACHES, name: _cache(topology)}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": name}
    with Everywhere(topology) as everywhere:
        everywhere.flushdb()
        yield
        everywhere.flushdb()
    forget_leases(name)


@pytest.fixture
def raw(topology: Any, clean_redis: None) -> Iterator[Everywhere]:
    """A plain client of all servers that hold data."""
    with Everywhere(topology) as everywhere:
        yield everywhere


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Return a function that starts servers for this test only: `start(Cluster, replicas=1)`."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, **options: stack.enter_context(start_servers(kind, **options))


def _cache(topology: Any) -> dict[str, Any]:
    return {**topology.cache(), "KEY_PREFIX": django_settings.PREFIX}
