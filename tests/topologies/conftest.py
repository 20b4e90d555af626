"""The behaviour suite's fixtures, on Sentinel and on a Cluster.

`make test` runs a part of it. All of it:

    DJANGO_REDIS_SYNC_TOPOLOGIES=all make test ARGS=tests/topologies
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings

from devtools.servers import find_server
from devtools.topologies import Cluster, Sentinels
from django_redis_sync.engine import keeper
from tests.behaviour.watching import View

from .everywhere import Everywhere

ALL = os.environ.get("DJANGO_REDIS_SYNC_TOPOLOGIES") == "all"

#: Of the suites that are borrowed from tests/behaviour, what every run has of each topology.
ALWAYS = {
    "test_of_thirteen_at_once_ten_get_one_and_three_know_at_once",
    "test_permits_are_weighed",
    "test_a_waiter_gets_what_is_released",
    "test_who_waits_in_vain_leaves_the_queue",
    "test_a_with_block_that_gets_nothing_says_why",
    "test_renew_extend_and_reacquire_move_its_end",
    "test_what_is_over_is_neither_renewed_nor_extended",
    "test_renew_can_be_had_with_a_timeout_and_stops_at_max_hold",
    "test_a_permanent_lease_is_handed_over_too",
    "test_one_object_serves_many_at_once",
    "test_a_handle_moves_a_lease",
    "test_a_holder_learns_that_its_lease_was_cleared",
    "test_names_of_all_sorts_work_and_do_not_meet",
}

#: And of our own, what is slow and has a sibling that every run has.
RARELY = {
    "test_a_failover_under_load_stops_nobody_for_good[kill]",
    "test_a_waiter_keeps_its_place_through_a_failover[async]",
    "test_a_demoted_primary_is_left_at_once[sync]",
    "test_a_replica_takes_over_under_load[pause]",
    "test_one_stopped_shard_is_unavailable_and_the_others_go_on[async]",
    "test_two_of_five_killed_do_not_matter_and_three_do[async]",
    "test_one_servers_clock_jumps_by_a_minute[behind]",
}

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most of what is borrowed, unless all is asked for."""
    if ALL:
        return
    left_out = [item for item in items if item.name in RARELY or _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_left_out(item: pytest.Item) -> bool:
    borrowed = "topology" in getattr(item, "fixturenames", ())
    return borrowed and getattr(item, "originalname", item.name) not in ALWAYS


@pytest.fixture(scope="session", params=["sentinel", "cluster"])
def topology(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Servers that the borrowed tests share."""
    _need_servers()
    with Sentinels() if request.param == "sentinel" else Cluster() as started:
        yield started


@pytest.fixture
def clean_redis(topology: Any, settings: Any) -> Iterator[None]:
    """No key there, and the settings name it."""
    alias = type(topology).__name__.lower()
    settings.CACHES = {**settings.CACHES, alias: _cache(topology)}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "CACHE": alias}
    with Everywhere(topology) as everywhere:
        everywhere.flushdb()
        yield
        everywhere.flushdb()


@pytest.fixture
def raw(topology: Any, clean_redis: None) -> Iterator[Everywhere]:
    """A plain client of all that holds data there."""
    with Everywhere(topology) as everywhere:
        yield everywhere


@pytest.fixture
def view(raw: Any) -> Callable[[str], View]:
    return lambda name: View(raw, name)


@pytest.fixture
def alias(settings: Any) -> Iterator[Callable[..., str]]:
    """Adds a cache alias for a test's own servers; `options` go into its OPTIONS."""
    names: list[str] = []

    def add(topology: Any, **options: Any) -> str:
        name = f"own-{next(_numbers)}"
        settings.CACHES = {**settings.CACHES, name: _cache(topology, **options)}
        names.append(name)
        return name

    yield add
    for name in names:
        mine = keeper.keeper(name)
        mine._kept.clear()
        mine._later.clear()


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Starts servers of the test's own, to break: `start(Cluster, replicas=1)`."""
    import contextlib

    _need_servers()
    with contextlib.ExitStack() as stack:
        yield lambda kind, **options: stack.enter_context(kind(**options))


def _need_servers() -> None:
    if find_server() is None:
        pytest.skip("REDIS_URL is all there is, and this test starts servers of its own")


def _cache(topology: Any, **options: Any) -> dict[str, Any]:
    return {**topology.cache(**options), "KEY_PREFIX": django_settings.PREFIX}
