"""Operators with `using`: queries and actions concern only the given cache alias."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import redis
from django.core.management import CommandError

from django_redis_sync import Lock, ReadWriteLock, Semaphore
from django_redis_sync.engine import statistics
from django_redis_sync.engine.names import policy_key
from django_redis_sync.engine.pools import CheckedOut
from django_redis_sync.exceptions import WrongKind
from django_redis_sync.metrics import SyncCollector
from django_redis_sync.operators import actions, names
from django_redis_sync.operators.doctor import examine
from django_redis_sync.operators.facts import Status
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.listing import Selection, keys_like
from django_redis_sync.operators.names import Recent, count_names, is_known, marked, names_in_use
from django_redis_sync.operators.statistics import counted, groups, heaviest, statistics_of
from django_redis_sync.operators.status import readable, status_of, statuses
from django_redis_sync.protocol.keys import display
from tests.behaviour.both import eventually
from tests.support.caches import OTHER
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import locks

pytestmark = pytest.mark.usefixtures("fresh_keeper")


def on_other(name: str, key: str | None = None) -> Status:
    return status_of(name, key, **OTHER)


def default_has_no_operator_keys(raw: redis.Redis, settings: Any) -> bool:
    # In these tests, the prefix is that of the cache, with ":sync".
    keys = (f"{settings.PREFIX}:sync:{part}" for part in ("marks", "acts", "names"))
    return not raw.exists(*keys)


def test_actions_take_effect_and_are_recorded_only_on_their_alias(
    second: None, raw: redis.Redis, settings: Any
) -> None:
    lease = Semaphore("exports", 3, **OTHER).acquire()
    assert lease
    actions.pause("exports", **OTHER, by="ann", reason="why")
    assert on_other("exports").paused and not status_of("exports").paused
    assert [("exports", None)] == marked(**OTHER) and [] == marked()
    actions.resume("exports", **OTHER)
    assert not on_other("exports").paused
    actions.resize("exports", None, 7, **OTHER)
    assert (7, None) == (on_other("exports").override, status_of("exports").override)
    actions.reset("exports", **OTHER)
    assert on_other("exports").override is None
    (cleared,) = actions.clear(on_other("exports"), [lease.token], **OTHER)
    assert cleared.done
    assert 0 == on_other("exports").in_use
    acts = actions.acts("exports", **OTHER)
    assert ["clear", "reset", "resize", "resume", "pause"] == [act.what for act in acts]
    assert ("ann", "why") == (acts[-1].by, acts[-1].reason)
    assert [] == actions.acts() and default_has_no_operator_keys(raw, settings)


def test_resize_is_rejected_only_on_the_alias_with_a_read_write_lock(second: None) -> None:
    with ReadWriteLock("rows", **OTHER).read:
        with pytest.raises(WrongKind):
            actions.resize("rows", None, 7, **OTHER)
        actions.resize("rows", None, 7)
    actions.reset("rows")


def test_every_query_reads_only_its_alias(
    second: None, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(statistics, "EVERY", 0.05)
    with Semaphore("exports", 3, key="7", **OTHER):
        eventually(lambda: listed("exports@7", **OTHER))
        assert [("exports", "7")] == names_in_use(**OTHER)
        assert [] == names_in_use()
        assert (1, 0) == (count_names(**OTHER), count_names())
        assert is_known("exports", **OTHER) and not is_known("exports")
        assert is_known("exports", "7", **OTHER) and not is_known("exports", "7")
        assert 1 == statuses([("exports", "7")], **OTHER)[0].in_use
        assert 0 == statuses([("exports", "7")])[0].in_use
        assert 1 == histories([("exports", "7")], **OTHER)[0].ever.granted
        assert 0 == histories([("exports", "7")])[0].ever.granted
        assert (1, 0) == (Selection("name", **OTHER).found, Selection("name").found)
        eventually(lambda: groups(**OTHER) == ["exports"])
        assert [] == groups()
        assert 1 == statistics_of(["exports"], **OTHER)[0].history.ever.granted
        eventually(lambda: heaviest("exports", **OTHER) == ["7"] and heaviest(**OTHER))
        assert [] == heaviest("exports") == heaviest()
        shown = [SyncCollector(names=["*"], using=using)._shown() for using in ("other", None)]
        assert [["exports"], []] == shown
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"exports": {"limit": 3}}}
        shown = [SyncCollector(using=using)._shown() for using in ("other", None)]
        assert [["exports"], []] == shown
        assert ([("exports", "7")], []) == (keys_like(["7"], **OTHER), keys_like(["7"]))
        assert 0 == statistics_of(["exports"])[0].history.ever.granted


def test_command_acts_and_reads_only_on_its_alias(
    second: None, raw: redis.Redis, settings: Any
) -> None:
    lease = Lock("nightly", **OTHER).acquire()
    assert lease
    eventually(lambda: listed("nightly", **OTHER))
    assert "nightly" in locks("status", **OTHER)
    assert lease.token[:8] in locks("status", "nightly", **OTHER)
    assert "nightly" not in locks("status")
    locks("pause", "nightly", "--reason", "a deploy", **OTHER)
    assert on_other("nightly").paused
    locks("resume", "nightly", **OTHER)
    locks("resize", "nightly", "4", **OTHER)
    assert 4 == on_other("nightly").override
    locks("resize", "nightly", "--reset", **OTHER)
    assert "a deploy" in locks("log", "nightly", **OTHER)
    assert "Cleared 1." in locks("clear", "nightly", "--no-input", "--reason", "stuck", **OTHER)
    assert ("clear", "stuck") == ((act := actions.acts(**OTHER)[0]).what, act.reason)
    with pytest.raises(CommandError, match="Unknown name: nightly"):
        locks("status", "nightly")
    assert default_has_no_operator_keys(raw, settings)


@pytest.fixture
def default_down(second: None, settings: Any) -> None:
    """Make the server of the default alias unreachable."""
    dead = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": dead}


def test_queries_work_when_the_default_alias_is_down(default_down: None, settings: Any) -> None:
    named = {"of-the-settings": {"limit": 1}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}
    assert [*named] == Recent(**OTHER)[:] and {} == counted(["exports"], **OTHER)
    keys = [Semaphore("exports", 3, key=key, **OTHER) for key in "78"]
    with keys[0], keys[1], Lock("nightly", **OTHER):
        eventually(lambda: listed("exports@7", "exports@8", "nightly", **OTHER))
        actions.pause("exports", "7", **OTHER)
        for order in ("name", "recent", "waiting", "rejected", "-oldest", "-name"):
            for more in ({}, {"query": "e"}, {"policy": "exports"}):
                found, unread = Selection(order, **more, **OTHER).read(0, 9)
                assert found and not unread
        for words in (
            ["status", "exports"],
            ["status", "exports", "--key", "7", "--format", "json"],
            ["status", "--sort", "rejected", "--top", "1"],
            ["status", "--format", "json"],
            ["status", "exports", "--sort", "use", "--top", "1"],
            ["clear", "*", "--pattern", "--dry-run", "--no-input"],
        ):
            assert locks(*words, **OTHER)
        with pytest.raises(CommandError, match="exports"):
            locks("status", "export", **OTHER)  # suggests similar names
        with pytest.raises(CommandError, match="To use it as a glob, add --pattern"):
            locks("clear", "night*", **OTHER)
        locks("doctor", **OTHER)


def test_actions_work_when_the_default_alias_is_down(default_down: None) -> None:
    lease = Semaphore("exports", 3, key="7", **OTHER).acquire()
    assert lease
    eventually(lambda: listed("exports@7", **OTHER))
    for child in ([], ["--key", "7"]):
        for act in (["pause"], ["resume"], ["resize"], ["resize", "--reset"]):
            limit = ["4"] if act == ["resize"] else []
            locks(act[0], "exports", *limit, *act[1:], *child, **OTHER)
    assert 8 == len(actions.acts("exports", **OTHER))
    assert "Cleared 1." in locks("clear", "exports", "--no-input", **OTHER)
    assert "cleared 1" in locks("log", "exports", "--key", "7", **OTHER)


@contextlib.contextmanager
def cut_connections() -> Iterator[list[Any]]:
    """Cut every other connection that this thread checks out, as a restart of the server does.
    Yield a list with an item per checkout, True if its connection was cut."""
    checkouts: list[Any] = []
    me, enter = threading.get_ident(), CheckedOut.__enter__

    def entered(self: CheckedOut) -> CheckedOut:
        enter(self)
        if threading.get_ident() == me:
            checkouts.append(not (checkouts and checkouts[-1]))
            if checkouts[-1]:
                self.connection.connect()  # if it is not connected
                self.connection._sock.shutdown(socket.SHUT_RDWR)
        return self

    with mock.patch.object(CheckedOut, "__enter__", entered):
        yield checkouts


def test_queries_and_actions_retry_over_a_new_connection(second: None) -> None:
    child = {"key": "7", **OTHER}
    actions.pause("known", **OTHER)  # so that the server has the scripts
    actions.resume("known", **OTHER)
    statuses([("known", None)], **OTHER)
    with Semaphore("exports", 3, **child), Lock("nightly", **OTHER):
        eventually(lambda: listed("exports@7", "nightly", **OTHER))
        for call in (
            lambda: len(names_in_use(**OTHER)) >= 2 <= count_names(**OTHER),
            lambda: is_known("nightly", **OTHER) and not marked(**OTHER),
            lambda: keys_like(["7"], **OTHER) == [("exports", "7")],
            lambda: counted(["exports"], **OTHER) is not None,
            lambda: [one.holding for one in statuses([("nightly", None)], **OTHER)] == [1],
            lambda: len(readable([("nightly", None), ("exports", "7")], **OTHER)[0]) == 2,
            lambda: len(Selection("waiting", **OTHER).read(0, 9)[0]) >= 2,
            lambda: histories([("nightly", None)], **OTHER),
            lambda: groups(**OTHER) is not None and statistics_of(["exports"], **OTHER),
            lambda: SyncCollector(names=["*"], using="other")._shown() is not None,
            lambda: not [one for one in examine(**OTHER) if one.level == "error"],
            lambda: "nightly" in locks("status", **OTHER),
            lambda: "nightly" in locks("status", "nightly", **OTHER),
            lambda: actions.pause("nightly", reason="a deploy", **OTHER),
            lambda: on_other("nightly").paused and actions.acts(**OTHER)[0].reason == "a deploy",
            lambda: actions.resume("nightly", **OTHER) == ["nightly"],
            lambda: actions.resize("exports", limit=4, **child),
            lambda: on_other("exports", "7").override == 4,
        ):
            with cut_connections() as checkouts:
                assert call()
            assert any(checkouts)


def test_metrics_read_only_their_alias(default_down: None, settings: Any) -> None:
    pytest.importorskip("prometheus_client")
    from tests.test_metrics import scrape

    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "SEMAPHORES": {"exports": {"limit": 3}, "api": {"limit": 1}},
    }
    with Semaphore("exports", **OTHER), Semaphore("api", key="7", **OTHER):
        eventually(lambda: listed("exports", "api@7", **OTHER))
        found = scrape(using="other")
        assert (1, 1) == (found['redis_sync_in_use{name="exports"}'], found["redis_sync_up"])
        assert (1, 2) == (found['redis_sync_in_use{name="api"}'], found["redis_sync_names"])
        assert 0 == scrape()["redis_sync_up"]


# The registry


def test_registry_is_read_completely_in_chunks(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "CHUNK", 2)
    for count in range(1, 6):
        raw.zadd(f"{settings.PREFIX}:names", {f"n{count}": count})
        newest = [f"n{n}" for n in range(count, 0, -1)]
        assert newest == [name for name, _ in names_in_use()]
        recent = names.Recent()
        assert (newest, newest[0], newest[-1]) == ([*recent], recent[0], recent[count - 1])
        assert newest[1:3] == recent[1:3]


def test_recent_returns_slices_of_the_requested_length(raw: redis.Redis, settings: Any) -> None:
    """Names known only from the settings or an override come first."""
    ranks = {f"n{n}": n for n in range(4)}
    raw.zadd(f"{settings.PREFIX}:names", ranks)
    raw.zadd(policy_key(settings.PREFIX, "api"), ranks)
    for key in ("vip", "n2"):
        actions.pause("api", key)
    actions.pause("other", "7")
    named = {name: {"limit": 3} for name in ("s1", "s2", "n1")}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}
    for recent, first in (
        (names.Recent(), ["api", "other", "s1", "s2"]),
        (names.Recent("api"), ["vip"]),
    ):
        whole = [*first, "n3", "n2", "n1", "n0"]
        assert (whole, len(whole)) == ([*recent], len(recent))
        parts = [(start, stop) for stop in range(7) for start in range(stop)]
        assert [whole[start:stop] for start, stop in parts] == [
            recent[start:stop] for start, stop in parts
        ]


@pytest.mark.parametrize("chunk", [2, 4])
def test_name_used_while_the_registry_is_read_is_found(
    chunk: int, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "CHUNK", chunk)
    registry, command = f"{settings.PREFIX}:names", names.command
    raw.zadd(registry, {f"n{n}": n for n in range(1, 6)})

    def used_meanwhile(alias: str, *words: Any) -> Any:
        found = command(alias, *words)
        if words[:4] == ("ZREVRANGE", registry, 4 - chunk, 3):  # down to n2; n1 is not read yet
            raw.zadd(registry, {"n1": 9})
        return found

    monkeypatch.setattr(names, "command", used_meanwhile)
    assert {f"n{n}" for n in range(1, 6)} == {name for name, _ in names_in_use()}


def test_invalid_names_in_the_registry_are_skipped(raw: redis.Redis, settings: Any) -> None:
    raw.zadd(f"{settings.PREFIX}:names", {"a": 1, "": 2, "b\x07": 3, "c" * 9999: 4, "d": 5})
    assert ["d", "a"] == [name for name, _ in names_in_use()] == [*names.newest(9)]
    assert ["d", "a"] == [group.name for group in Selection("recent").read(0, 9)[0]]
    raw.zadd(policy_key(settings.PREFIX, "a"), {"k": 1, "": 2, "b\x07": 3, "c" * 9999: 4, "l": 5})
    assert {"a": ["l", "k"]} == names.newest_keys({"a": 9})
    assert ["a", "a@l", "a@k"] == [display(*pair) for pair in names.family("a")]


def test_key_exempted_from_the_pause_of_its_policy_is_known() -> None:
    actions.pause("api")
    actions.resume("api", "7")
    assert [True, False] == [is_known("api", key) for key in ("7", "8")]
