"""Operators see a lock on a quorum as one lock, from every alias, and act on it as one."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError

from devtools.servers import RedisServer
from devtools.topologies import Independent
from django_redis_sync import Lock, Unavailable
from django_redis_sync.exceptions import WrongKind
from django_redis_sync.operators import actions
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import status_of, statuses
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper  # noqa: F401 - a fixture
from tests.support.operators import locks

pytestmark = pytest.mark.usefixtures("fresh_keeper", "qs")
QUORUM = ["qa", "qb", "qc"]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with Independent(3) as running:
        yield running.servers


@pytest.fixture
def qs(servers: list[RedisServer], settings: Any) -> list[RedisServer]:
    """The running servers, with the cache aliases of QUORUM."""
    for server in servers:
        if server.pid is None:
            server.start()
    caches = {
        alias: {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.url,
            "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 1, "SOCKET_TIMEOUT": 1},
        }
        for alias, server in zip(QUORUM, servers, strict=True)
    }
    settings.CACHES = {**settings.CACHES, **caches}
    return servers


@pytest.fixture
def ledger(qs: Any) -> Iterator[Any]:
    """A lease of "ledger", after all aliases list the name."""
    lease = Lock("ledger", using=QUORUM, raise_on_release_error=False).acquire()
    assert lease is not None
    for alias in (None, *QUORUM):
        eventually(lambda alias=alias: ("ledger", None) in names_in_use(using=alias))
    yield lease
    with contextlib.suppress(Exception):  # the test may have stopped servers
        lease.release()


@pytest.mark.parametrize("using", [None, *QUORUM])
def test_status_shows_one_holder_and_its_members(ledger: Any, using: str | None) -> None:
    (status,) = statuses([("ledger", None)], using=using)
    assert (1, 1, 1) == (status.in_use, status.holding, status.limit)
    assert [ledger.token[:8]] == [holder.id for holder in status.holders]
    assert QUORUM == [member.alias for member in status.members]
    assert {(ledger.token[:8],)} == {member.holders for member in status.members}


def test_status_of_the_lock_object_contains_the_members(ledger: Any) -> None:
    status = Lock("ledger", using=QUORUM).status()
    assert (1, QUORUM) == (status.in_use, [member.alias for member in status.members])


def test_command_status_shows_the_members(ledger: Any, qs: list[RedisServer]) -> None:
    qs[2].stop()
    text = locks("status", "ledger")
    assert "ledger: 1 of 1 in use" in text
    assert f"qa: held by {ledger.token[:8]}" in text and "qc: no answer" in text
    assert "ledger" in locks("status")
    (found,) = json.loads(locks("status", "ledger", "--format", "json"))["names"]
    assert [ledger.token[:8]] == found["members"][0]["holders"]
    assert found["members"][2]["error"]


def test_statuses_raises_when_no_majority_answers(ledger: Any, qs: list[RedisServer]) -> None:
    for server in qs[1:]:
        server.stop()
    with pytest.raises(Unavailable):
        statuses([("ledger", None)])


@pytest.mark.parametrize("using", [(), ("--using", "qa")])
def test_command_clear_ends_the_lease_on_every_member(ledger: Any, using: Any) -> None:
    assert "Cleared 1." in locks("clear", "ledger", "--no-input", *using)
    assert not ledger.owned()
    (status,) = statuses([("ledger", None)])
    assert {()} == {member.holders for member in status.members}
    with Lock("ledger", using=QUORUM, blocking=False):
        pass


def test_clear_raises_while_a_majority_may_hold(ledger: Any, qs: list[RedisServer]) -> None:
    (status,) = statuses([("ledger", None)])
    for server in qs[1:]:
        server.stop()
    with pytest.raises(Unavailable, match=r"qb, qc did not answer: a majority"):
        actions.clear(status, [ledger.token])


def test_pause_and_resume_apply_to_the_whole_quorum(ledger: Any) -> None:
    ledger.release()
    assert ["ledger"] == actions.pause("ledger", seconds=600)
    assert Lock("ledger", using=QUORUM).acquire(blocking=False) is None
    (status,) = statuses([("ledger", None)])
    assert status.paused and status.paused_until is not None
    assert {True} == {member.paused for member in status.members}
    assert [] == actions.resume("other") and ["ledger"] == actions.resume("ledger")
    with Lock("ledger", using=QUORUM, blocking=False):
        assert not statuses([("ledger", None)])[0].paused


def test_resize_of_a_quorum_raises_wrong_kind(ledger: Any) -> None:
    with pytest.raises(WrongKind, match="its limit is 1"):
        actions.resize("ledger", None, 3)


def test_status_of_a_name_on_the_default_cache_has_no_members(ledger: Any) -> None:
    with Lock("other"):
        assert () == status_of("other").members
        with pytest.raises(CommandError, match="Unknown name"):
            locks("status", "unknown")
