"""Operators see a lock on a quorum as one lock. Commands on any alias apply to all servers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.servers import RedisServer
from devtools.topologies import Independent
from django_redis_sync import Lock
from django_redis_sync.engine.server import server_of
from django_redis_sync.protocol.renewals import renewal
from tests.behaviour.both import both, eventually
from tests.support.operators import act, as_json, failed, locks, status_of
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_renewer", "qs")
QUORUM = ["qa", "qb", "qc"]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with Independent(3) as running:
        yield running.servers


@pytest.fixture
def qs(servers: list[RedisServer], settings: Any) -> list[RedisServer]:
    """Return the three servers, all running. QUORUM has their cache aliases."""
    for server in servers:
        if server.pid is None:
            server.start()
    options = {"SOCKET_CONNECT_TIMEOUT": 1, "SOCKET_TIMEOUT": 1}
    like = {"BACKEND": "django_redis.cache.RedisCache", "OPTIONS": options}
    caches = {a: {**like, "LOCATION": s.url} for a, s in zip(QUORUM, servers, strict=True)}
    settings.CACHES = {**settings.CACHES, **caches}
    return servers


@pytest.fixture
def ledger(qs: Any) -> Iterator[Any]:
    """A lease of the lock "ledger" on the quorum. All servers hold it. The registry of each cache
    lists the lock."""
    lock = Lock("ledger", using=QUORUM, raise_on_release_error=False)

    def held_everywhere() -> Any:
        """On a busy machine, a server may answer too late, and still hold a former attempt."""
        lease = lock.acquire()
        assert lease is not None
        holders = [status_of(lock.name, using=alias).holders for alias in QUORUM]
        if all([lease.token] == [one.token for one in of] for of in holders):
            return lease
        return lease.release()

    lease = eventually(held_everywhere)
    for alias in (None, *QUORUM):
        eventually(lambda alias=alias: listed("ledger", using=alias))
    yield lease
    with contextlib.suppress(Exception):  # the test may have stopped servers
        lease.release()


def shown(**options: Any) -> dict[str, Any]:
    (found,) = as_json("status", "ledger", **options)["names"]
    return dict(found)


@pytest.mark.parametrize("using", [None, *QUORUM])
@both
async def test_status_of_a_lock_on_a_quorum_shows_one_holder_and_every_server(
    io: Any, ledger: Any, using: str | None
) -> None:
    status = await io.do(Lock("ledger", using=QUORUM), "status")
    assert (1, QUORUM) == (status.in_use, [member.alias for member in status.members])
    found = shown(using=using)
    assert (1, 1, 1) == (found["in_use"], found["holding"], found["limit"])
    assert [ledger.token[:8]] == [holder["id"] for holder in found["holders"]]
    assert 0 < found["holders"][0]["ends_in_seconds"] <= 31
    assert QUORUM == [member["alias"] for member in found["members"]]
    assert [[ledger.token[:8]]] * 3 == [member["holders"] for member in found["members"]]


def test_lease_of_a_quorum_is_shown_to_end_when_a_majority_has_lost_it(ledger: Any) -> None:
    for alias, longest in (("qa", 31), ("qb", 301)):
        (own,) = status_of("ledger", using=alias).holders
        keys = ledger._settings.keys
        longer = renewal(keys, own.token, own.fence, "set", "300000", 10**6, 0, 5.0)
        assert "ok" == server_of(alias).run(longer).reply[0]
        left = shown()["holders"][0]["ends_in_seconds"]
        assert longest - 31 < left <= longest, f"after a longer lease on {alias}"


def test_status_of_a_quorum_works_while_a_majority_of_the_servers_answers(
    ledger: Any, qs: list[RedisServer]
) -> None:
    qs[2].stop()
    text = locks("status", "ledger")
    assert "ledger: 1 of 1 in use" in text and "On a quorum of 3 servers:" in text
    assert f"qa: held by {ledger.token[:8]}" in text and "qc: no answer" in text
    assert "ledger" in locks("status")
    assert shown()["members"][2]["error"]
    qs[1].stop()
    assert 1 == failed("status", "ledger")[0]


@pytest.mark.parametrize("using", [None, "qa"])
def test_clear_command_ends_the_lease_on_every_server_of_a_quorum(
    ledger: Any, using: str | None
) -> None:
    assert "Cleared 1." in locks("clear", "ledger", "--no-input", using=using)
    assert not ledger.owned()
    assert [[]] * 3 == [member["holders"] for member in shown()["members"]]
    with Lock("ledger", using=QUORUM, blocking=False):
        pass


def test_clear_command_fails_if_most_servers_of_a_quorum_do_not_answer(
    ledger: Any, qs: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_a_majority() -> str:
        for server in qs[1:]:
            server.stop()
        return "y"

    monkeypatch.setattr("builtins.input", stop_a_majority)
    _, error = failed("clear", "ledger")
    assert "qb, qc did not answer, so a majority may still have the lease" in error
    assert [] == as_json("log", "ledger")


def test_pause_and_resume_apply_to_all_servers_of_a_quorum(ledger: Any) -> None:
    assert "is a lock on a quorum: its limit is 1" in failed("resize", "ledger", "3")[1]
    with Lock("other"):
        assert () == status_of("other").members, "it is on the default cache"
        assert 3 == failed("status", "unknown")[0]
    ledger.release()
    assert act("pause", "ledger", "--for", "10m").startswith("Paused ledger until ")
    assert Lock("ledger", using=QUORUM).acquire(blocking=False) is None
    found = shown()
    assert found["paused_since"] and found["paused_until"]
    assert [True] * 3 == [member["paused"] for member in found["members"]]
    assert 3 == locks("status", "ledger").count(": free, paused\n")
    assert "nothing was changed" not in locks("resume", "ledger")
    with Lock("ledger", using=QUORUM, blocking=False):
        assert shown()["paused_since"] is None
