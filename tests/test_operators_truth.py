"""Reports to operators are true for all names, or say how many names they cover."""

import math
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from django.core.management import CommandError

from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine import names
from django_redis_sync.engine.names import holders_key, names_key, policy_key
from django_redis_sync.engine.renewal import renewer
from django_redis_sync.operators import doctor
from django_redis_sync.operators.doctor import servers
from django_redis_sync.operators.facts import Status
from django_redis_sync.operators.listing import groups_of
from django_redis_sync.operators.names import held_since
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.behaviour.watching import sent
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import locks, private_server  # noqa: F401 - a fixture

pytestmark = [pytest.mark.usefixtures("fresh_keeper"), pytest.mark.promise(27)]
DAY = 86_400_000
PREFIX = django_settings.PREFIX


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the index of holders every 0.2 s."""
    monkeypatch.setattr(names, "HOLDERS_INTERVAL", 0.2)


@pytest.fixture
def crowd(raw: redis.Redis) -> Iterator[None]:
    """Register more recent names than a list compares."""
    now = raw.time()[0] * 1000
    raw.zadd(names_key(PREFIX), {f"recent:{n}": now + 60_000 + n for n in range(150)})
    yield


@pytest.fixture
def old(raw: redis.Redis, quick: None) -> Iterator[Any]:
    """A permanent lease that is in the index of holders."""
    lease = Lock("old", timeout=math.inf).acquire()
    assert lease is not None
    eventually(lambda: ("old", None) in held_since())
    yield lease
    lease.release()


def drop(raw: redis.Redis, name: str) -> None:
    """Remove a name from the registry, and move its entry in the index back by a day."""
    raw.zrem(names_key(PREFIX), name)
    raw.zadd(holders_key(PREFIX), {name: raw.time()[0] * 1000 - DAY - 1000})


# The index of holders


def test_held_name_is_listed_after_the_registry_dropped_it(raw: redis.Redis, old: Any) -> None:
    renewer("default").housekeeper.forget()  # as if its process had ended

    def is_listed_when_dropped() -> bool:
        drop(raw, "old")
        return re.search("^old ", locks("status"), re.MULTILINE) is not None

    eventually(is_listed_when_dropped)  # the housekeeper may update the entry a last time
    assert "old: 1 of 1 in use" in locks("status", "old")


def test_held_key_is_listed_after_the_registry_dropped_it(raw: redis.Redis, quick: None) -> None:
    with Semaphore("api", 2, key="7", timeout=math.inf):
        eventually(lambda: ("api", "7") in held_since())
        renewer("default").housekeeper.forget()

        def is_listed_when_dropped() -> bool:
            drop(raw, "api@7")
            raw.delete(policy_key(PREFIX, "api"), names_key(PREFIX))
            return re.search("^api +1 ", locks("status"), re.MULTILINE) is not None

        eventually(is_listed_when_dropped)


def test_oldest_holder_is_listed_first_among_many_names(
    raw: redis.Redis, old: Any, crowd: None
) -> None:
    text = locks("status", "--sort", "oldest", "--top", "3")
    assert "old" == text.splitlines()[1].split()[0]
    assert "The order is that of an index of holders" in text


@pytest.mark.usefixtures("quick")
def test_released_name_is_removed_from_the_index(raw: redis.Redis) -> None:
    with Lock("x"):
        eventually(lambda: ("x", None) in held_since())
    with Lock("other"):  # so that the housekeeper goes on
        eventually(lambda: ("x", None) not in held_since())
        raw.zadd(holders_key(PREFIX), {"killed": 1})
        eventually(lambda: ("killed", None) not in held_since())
    eventually(lambda: not raw.exists(holders_key(PREFIX)))


def test_acquire_and_release_send_no_command_for_the_index(quick: None) -> None:
    with Lock("x"):
        pass
    with sent() as commands, Lock("x"):
        pass
    assert {"evalsha": 2} == commands.by_name


@pytest.mark.usefixtures("quick")
def test_index_contains_the_oldest_of_several_holders() -> None:
    with Semaphore("s", 3) as first:
        time.sleep(0.1)
        with Semaphore("s", 3):
            eventually(lambda: ("s", None) in held_since())
            assert first.fence // 1000 == held_since()["s", None]


# The doctor


def findings() -> dict[str, doctor.Finding]:
    return {finding.id: finding for finding in doctor.examine()}


def test_doctor_finds_a_permanent_holder_of_an_old_name(old: Any, crowd: None) -> None:
    found = findings()["permanent"]
    assert ("warning", True) == (found.level, "They hold old until" in found.detail)


def test_doctor_reports_level_part_when_it_examined_only_some_names(crowd: None) -> None:
    found = findings()
    assert "part" == found["limits"].level
    assert "30 of 150 names were checked" in found["limits"].detail
    assert ("ok", "ok") == (found["permanent"].level, found["marks"].level)


def test_doctor_examines_a_policy_through_its_keys() -> None:
    with Semaphore("api", 2, key="7"), Semaphore("plain", 2):
        eventually(lambda: listed("api@7", "plain"))
        assert "ok" == findings()["limits"].level


def test_doctor_exits_with_an_error_for_errors_only(
    crowd: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "TOO_SLOW", 60.0)  # however slow the machine is
    assert "1 in part" in locks("doctor")  # and warnings: this server has no persistence
    monkeypatch.setattr(servers, "TOO_SLOW", 0.0)
    with pytest.raises(SystemExit) as ended:
        locks("doctor")
    assert 1 == ended.value.code


def test_doctor_prints_the_acl_rules_for_a_user_without_scripts(private: Any) -> None:
    with redis.Redis.from_url(private(login="app:word@")) as client:
        client.execute_command(
            *("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all", "-eval", "-evalsha")
        )
        client.zadd("sync:names", {"x": client.time()[0] * 1000})
        found = {finding.id: finding for finding in doctor.examine(using="private")}
    assert "ACL SETUSER <user> +eval +evalsha" in found["acl"].remedy
    assert not any("password" in finding.remedy for finding in found.values())


def test_status_names_a_wrong_password_as_the_cause(private: Any) -> None:
    private(login="app:wrong@")
    with pytest.raises(CommandError) as caught:
        locks("status", "--using", "private")
    assert "denies access" in str(caught.value) and "running" not in str(caught.value)


def test_status_hints_at_tls_on_a_plain_port(private: Any) -> None:
    private(scheme="rediss")
    with pytest.raises(CommandError, match="Without TLS, LOCATION in CACHES starts with redis://"):
        locks("status", "--using", "private")


# Keys of a policy, and ids


def test_policy_always_shows_its_oldest_and_busiest_keys(quick: None) -> None:
    """Other keys are used in between, so that they are more recent."""
    busy = Semaphore("api", 2, key="busy")
    with Semaphore("api", 2, key="oldest"), busy, busy:
        eventually(lambda: ("api", "oldest") in held_since())
        eventually(lambda: (g := groups_of(["api"])[0][0]).statistics and g.in_use == 3)
        shown = []
        for n in range(3):
            for key in range(10):
                with Semaphore("api", 2, key=f"{n}-{key}"):
                    pass
            eventually(lambda: listed(f"api@{n}-9"))  # noqa: B023
            children = groups_of(["api"])[0][0].children
            shown.append({child.key for child in children})
    assert all({"oldest", "busy"} <= keys for keys in shown)


def test_clear_rejects_an_ambiguous_id(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaaaaaa1" + "0" * 23, "aaaaaaaa2" + "0" * 23])
    monkeypatch.setattr("django_redis_sync.locks.options._token", lambda: next(tokens))
    leases = [Semaphore("s", 2, raise_on_release_error=False).acquire() for _ in range(2)]
    assert all(leases)
    with pytest.raises(CommandError, match="Give more characters: aaaaaaaa1, aaaaaaaa2"):
        locks("clear", "s", "--holder", "aaaaaaaa", "--no-input")
    found: Status = status_of("s")
    assert 2 == found.holding
    assert "Cleared 1." in locks("clear", "s", "--holder", "aaaaaaaa2", "--no-input")
    assert ["aaaaaaaa1"] == [holder.token[:9] for holder in status_of("s").holders]
