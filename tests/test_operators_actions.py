"""Actions of operators: clear, pause, resume, and resize."""

import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import LeaseLost, Lock, NotAcquired, ReadWriteLock, Semaphore, Unavailable
from django_redis_sync.exceptions import ForeignValue, WrongKind
from django_redis_sync.operators import actions
from django_redis_sync.operators.names import family, names_in_use
from django_redis_sync.operators.status import status_of, statuses
from django_redis_sync.protocol.keys import keys_of, marks_key
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import has_free_permit

pytestmark = pytest.mark.usefixtures("fresh_keeper")

MARKS = marks_key(settings.PREFIX)


@pytest.fixture
def elsewhere() -> Any:
    """Threads for waiters."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


# Clear


def test_clear_removes_the_holder_and_grants_the_permit_to_the_waiter(elsewhere: Any) -> None:
    stuck = Lock("a", timeout=math.inf).acquire()
    assert stuck is not None
    waiting = elsewhere.submit(Lock("a").acquire)
    status = eventually(lambda: (s := status_of("a")).waiting and s)
    (cleared,) = actions.clear(status, [stuck.token])
    given = status_of("a")  # before the waiter asks again
    lease = waiting.result(30)
    assert ([lease.token], 0) == ([one.token for one in given.holders], given.waiting)
    assert (cleared.id, cleared.done) == (stuck.token[:8], True)
    assert cleared.shown == status.holders[0]
    with pytest.raises(LeaseLost):
        stuck.renew()
    assert lease.fence > stuck.fence
    lease.release()


def test_clear_removes_only_the_shown_holder_not_a_newcomer() -> None:
    shown = Lock("a").acquire()
    status = status_of("a")
    shown.release()
    with Lock("a") as newcomer:
        (cleared,) = actions.clear(status, [shown.token[:8]])
        assert not cleared.done
        assert newcomer.owned()


def test_clear_removes_only_the_chosen_holder() -> None:
    first, second = (Semaphore("s", 2).acquire() for _ in range(2))
    actions.clear(status_of("s"), [second.token])
    assert first.owned() and not second.owned()
    first.release()


def test_cleared_waiter_raises_not_acquired(elsewhere: Any) -> None:
    with Lock("a"):
        waiting = elsewhere.submit(Lock("a").__enter__)
        status = eventually(lambda: (s := status_of("a")).waiting and s)
        actions.clear(status, [status.waiters[0].id])
        with pytest.raises(NotAcquired) as caught:
            waiting.result(30)
    assert caught.value.reason == "cleared"


def test_clear_of_a_repeated_token_clears_it_once() -> None:
    lease = Semaphore("s", 2).acquire()
    (cleared,) = actions.clear(status_of("s"), [lease.token, lease.token, lease.token[:8]])
    assert cleared.done


def test_clear_rejects_a_token_that_the_status_does_not_contain() -> None:
    with Lock("a") as lease, pytest.raises(ValueError, match="shows no holder"):
        actions.clear(status_of("b"), [lease.token])


def test_pause_stops_new_grants_and_keeps_the_holders(elsewhere: Any) -> None:
    lease = Semaphore("p", 2).acquire()
    assert actions.pause("p") == ["p"]
    assert not has_free_permit("p", 2)
    waiting = elsewhere.submit(Semaphore("p", 2).acquire)
    lease.renew()
    lease.release()
    status = eventually(lambda: (s := status_of("p")).waiting and s)
    assert status.paused and not status.holding and not waiting.done()
    actions.resume("p")
    assert (1, 0) == (
        (given := status_of("p")).holding,
        given.waiting,
    )  # before the waiter asks again
    waiting.result(30).release()
    assert not status_of("p").paused


def test_pause_of_a_policy_covers_present_and_later_keys(raw: redis.Redis) -> None:
    with Semaphore("api", 2, key="old"):
        eventually(lambda: ("api", "old") in names_in_use())
        assert actions.pause("api") == ["api"]
        assert not has_free_permit("api", 2, key="old") and not has_free_permit("api", 2, key="new")
        assert all(one.paused for one in statuses(family("api")))
        assert actions.resume("api") == ["api"]
        assert has_free_permit("api", 2, key="new") and has_free_permit("api", 2, key="old")
    assert not raw.exists(MARKS)


def test_pause_of_a_key_covers_only_that_key() -> None:
    actions.pause("api", "42")
    assert not has_free_permit("api", 2, key="42")
    assert has_free_permit("api", 2, key="43")
    assert not status_of("api").paused


def test_removed_overrides_leave_no_data(raw: redis.Redis) -> None:
    for key in (None, "7"):
        actions.pause("api", key)
        actions.resume("api", key)
        actions.resize("api", key, 3)
        actions.reset("api", key)
        assert {} == raw.hgetall(MARKS)


def test_resume_and_reset_of_a_policy_keep_overrides_of_other_policies(raw: redis.Redis) -> None:
    for name, key in (("api", "7"), ("other", "8")):
        actions.pause(name, key)
        actions.resize(name, key, 3)
    assert ["api", "api@7"] == actions.resume("api") == actions.reset("api")
    shown = [status_of("api", "7"), status_of("other", "8")]
    assert [(False, None), (True, 3)] == [(one.paused, one.override) for one in shown]


def test_paused_name_stays_listed_and_paused_while_it_is_unused(raw: redis.Redis) -> None:
    actions.pause("idle")
    raw.delete(f"{settings.PREFIX}:names")  # as if the entry were too old
    assert ("idle", None) in names_in_use()
    assert raw.ttl(keys_of(settings.PREFIX, "idle").info) == -1
    actions.resume("idle")
    assert names_in_use() == []
    assert 0 < raw.ttl(keys_of(settings.PREFIX, "idle").info) <= 60


# Resize


def test_resize_overrides_the_limit_of_callers_and_keeps_the_holders(elsewhere: Any) -> None:
    held = [Semaphore("r", 2).acquire() for _ in range(2)]
    assert not has_free_permit("r", 2)
    actions.resize("r", None, 3)
    assert has_free_permit("r", 2)
    actions.resize("r", None, 1)
    assert not has_free_permit("r", 2)
    status = status_of("r")
    assert (status.limit, status.override, status.callers_limit, status.in_use) == (1, 1, 2, 2)
    assert all(lease.owned() for lease in held)
    actions.reset("r")
    assert status_of("r").limit == 2
    for lease in held:
        lease.release()


def test_resize_grants_new_permits_to_the_waiters(elsewhere: Any) -> None:
    with Lock("r"):
        waiting = elsewhere.submit(Lock("r").acquire)
        eventually(lambda: status_of("r").waiting)
        actions.resize("r", None, 2)
        given = status_of("r")
        assert (2, 0) == (given.holding, given.waiting)  # before the waiter asks again
        waiting.result(30).release()


def test_resize_of_a_policy_covers_its_keys() -> None:
    with Semaphore("api", 1, key="42"):
        eventually(lambda: ("api", "42") in names_in_use())
        actions.resize("api", None, 2)
        assert has_free_permit("api", 1, key="42")
        has_free_permit("api", 1, key="new")
        eventually(lambda: status_of("api", "new").override == 2)
        actions.reset("api")
        assert status_of("api", "new").override is None


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3", 2**40])
def test_resize_rejects_an_invalid_limit(limit: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        actions.resize("r", None, limit)


def test_resize_of_a_read_write_lock_raises_wrong_kind() -> None:
    with ReadWriteLock("rw").read, pytest.raises(WrongKind):
        actions.resize("rw", None, 3)


def test_pause_and_limit_are_removed_independently(raw: redis.Redis) -> None:
    actions.pause("b")
    actions.resize("b", None, 5)
    actions.resume("b")
    assert [b"l:b"] == raw.hkeys(MARKS)
    actions.reset("b")
    assert not raw.exists(MARKS)


# Log, status, and errors


def test_each_action_writes_a_structured_log_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_redis_sync")
    actions.pause("p")
    lease = Semaphore("q", 1).acquire()
    actions.clear(status_of("q"), [lease.token])
    records = [r for r in caplog.records if hasattr(r, "sync_event")]
    assert [(r.sync_event, r.sync_name) for r in records] == [("pause", "p"), ("cleared", "q")]
    assert records[1].sync_id == lease.token[:8] and records[1].sync_done is True
    assert (os.uname().nodename, os.getpid()) == (records[1].sync_host, records[1].sync_pid)
    assert lease.token not in caplog.text
    actions.resize("q", None, 7)
    assert ("resize", 7) == (caplog.records[-1].sync_event, caplog.records[-1].sync_limit)
    assert 1 == caplog.records[-1].sync_names
    actions.pause("p", "7")
    actions.pause("p")  # one action, which also covers the key
    assert 1 == caplog.records[-1].sync_names


def test_status_contains_the_start_of_the_pause() -> None:
    actions.pause("p")
    for key in (None, "7"):  # paused itself, and paused with its policy
        shown = status_of("p", key)
        assert shown.paused_since is not None
        assert abs(shown.at - shown.paused_since) < timedelta(minutes=1)


def test_status_shows_a_pause_with_an_impossible_time(raw: redis.Redis) -> None:
    raw.hset(MARKS, "p:p", 10**17)
    shown = status_of("p", "7").paused_since
    assert shown is not None and 9999 == shown.year


@pytest.mark.parametrize(
    "action",
    [
        lambda: actions.pause("p", using="dead"),
        lambda: actions.resume("p", using="dead"),
        lambda: actions.resize("p", None, 3, using="dead"),
        lambda: actions.reset("p", using="dead"),
    ],
)
def test_actions_raise_unavailable_when_redis_is_down(
    settings: Any, action: Callable[[], Any]
) -> None:
    cache = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "dead": cache}
    with pytest.raises(Unavailable):
        action()


@pytest.mark.parametrize(
    "action",
    [
        lambda shown: actions.pause("exports"),
        lambda shown: actions.resume("exports"),
        lambda shown: actions.resize("exports", None, 3),
        lambda shown: actions.reset("exports"),
        lambda shown: actions.clear(shown, [shown.holders[0].token]),
    ],
    ids=["pause", "resume", "resize", "reset", "clear"],
)
def test_action_that_the_server_rejects_is_not_recorded(
    raw: redis.Redis, action: Callable[[Any], Any]
) -> None:
    assert Semaphore("exports", 3, timeout=60, renew=False).acquire()
    shown, keys = status_of("exports"), keys_of(settings.PREFIX, "exports")
    raw.hset(MARKS, mapping={"p:exports": f"1 {10**13}", "l:exports": 4})
    raw.delete(keys.leases, keys.info)
    raw.mset(dict.fromkeys((keys.leases, keys.info), "another program's"))
    with pytest.raises(ForeignValue, match=r"is in one of .*\{exports\}:leases"):
        action(shown)
    assert [] == actions.acts("exports")


@pytest.mark.parametrize(("key", "hours"), [(None, 24), ("7", 1)])
def test_key_of_a_policy_has_one_hour_of_history(
    key: str | None, hours: int, raw: redis.Redis
) -> None:
    with Semaphore("exports", 3, key=key):
        (stats,) = (one for one in raw.scan_iter("*:stats") if b"exports" in one)
        assert hours - 0.1 < raw.pttl(stats) / 3_600_000 < hours + 0.1
