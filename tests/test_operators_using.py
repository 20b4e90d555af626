"""Operators of a second cache alias beside the first: what is done there stays there."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any
from unittest import mock

import pytest
import redis
from django.core.management import CommandError, call_command

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
from django_redis_sync.operators.names import (
    Recent,
    count_names,
    is_known,
    marked,
    names_in_use,
)
from django_redis_sync.operators.statistics import counted, groups, heaviest, statistics_of
from django_redis_sync.operators.status import readable, status_of, statuses
from django_redis_sync.protocol.keys import display
from tests.behaviour.both import eventually
from tests.support.caches import OTHER
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")


def there(name: str, key: str | None = None) -> Status:
    return status_of(name, key, **OTHER)


def untouched(raw: redis.Redis, settings: Any) -> bool:
    """Whether nothing of an operator's is under the first alias."""
    return not raw.exists(
        *(f"{settings.PREFIX}:sync:{what}" for what in ("marks", "acts", "names"))
    )


def test_each_act_takes_effect_and_is_recorded_there_alone(
    second: None, raw: redis.Redis, settings: Any
) -> None:
    lease = Semaphore("exports", 3, **OTHER).acquire()
    assert lease
    actions.pause("exports", **OTHER, by="ann", reason="why")
    assert there("exports").paused and not status_of("exports").paused
    assert [("exports", None)] == marked(**OTHER) and [] == marked()
    actions.resume("exports", **OTHER)
    assert not there("exports").paused
    actions.resize("exports", None, 7, **OTHER)
    assert (7, None) == (there("exports").override, status_of("exports").override)
    actions.reset("exports", **OTHER)
    assert there("exports").override is None
    assert [True] == [one.done for one in actions.clear(there("exports"), [lease.token], **OTHER)]
    assert 0 == there("exports").in_use
    acts = actions.acts("exports", **OTHER)
    assert ["clear", "reset", "resize", "resume", "pause"] == [act.what for act in acts]
    assert ("ann", "why") == (acts[-1].by, acts[-1].reason)
    assert [] == actions.acts() and untouched(raw, settings)


def test_a_lock_of_another_kind_there_is_not_resized(second: None) -> None:
    with ReadWriteLock("rows", **OTHER).read:
        with pytest.raises(WrongKind):
            actions.resize("rows", None, 7, **OTHER)
        actions.resize("rows", None, 7)
    actions.reset("rows")


def test_all_that_is_read_is_read_there(
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


def command(*words: str, **options: Any) -> str:
    out = StringIO()
    call_command("locks", *words, stdout=out, **options)
    return out.getvalue()


def test_the_command_acts_and_reads_there(second: None, raw: redis.Redis, settings: Any) -> None:
    lease = Lock("nightly", **OTHER).acquire()
    assert lease
    eventually(lambda: listed("nightly", **OTHER))
    assert "nightly" in command("status", **OTHER)
    assert lease.token[:8] in command("status", "nightly", **OTHER)
    assert "nightly" not in command("status")
    command("pause", "nightly", "--reason", "a deploy", **OTHER)
    assert there("nightly").paused
    command("resume", "nightly", **OTHER)
    command("resize", "nightly", "4", **OTHER)
    assert 4 == there("nightly").override
    command("resize", "nightly", "--reset", **OTHER)
    assert "a deploy" in command("log", "nightly", **OTHER)
    assert "Cleared 1." in command("clear", "nightly", "--no-input", "--reason", "stuck", **OTHER)
    assert ("clear", "stuck") == ((act := actions.acts(**OTHER)[0]).what, act.reason)
    with pytest.raises(CommandError, match="Unknown name: nightly"):
        command("status", "nightly")
    assert untouched(raw, settings)


@pytest.fixture
def alone(second: None, settings: Any) -> None:
    """Of the two aliases only the second one has a server that answers."""
    dead = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": dead}


def test_nothing_that_is_read_there_asks_the_first_alias(alone: None, settings: Any) -> None:
    named = {"of-the-settings": {"limit": 1}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}
    assert [*named] == Recent(**OTHER)[:] and {} == counted(["exports"], **OTHER)
    keys = [Semaphore("exports", 3, key=key, **OTHER) for key in "78"]
    with keys[0], keys[1], Lock("nightly", **OTHER):
        eventually(lambda: listed("exports@7", "exports@8", "nightly", **OTHER))
        actions.pause("exports", "7", **OTHER)
        for order in ("name", "recent", "waiting", "refused", "-oldest", "-name"):
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
            assert command(*words, **OTHER)
        with pytest.raises(CommandError, match="exports"):
            command("status", "export", **OTHER)  # says what is near
        with pytest.raises(CommandError, match="To use it as a glob, add --pattern"):
            command("clear", "night*", **OTHER)
        command("doctor", **OTHER)


def test_nothing_that_is_done_there_asks_the_first_alias(alone: None) -> None:
    lease = Semaphore("exports", 3, key="7", **OTHER).acquire()
    assert lease
    eventually(lambda: listed("exports@7", **OTHER))
    for child in ([], ["--key", "7"]):
        for act in (["pause"], ["resume"], ["resize"], ["resize", "--reset"]):
            limit = ["4"] if act == ["resize"] else []
            command(act[0], "exports", *limit, *act[1:], *child, **OTHER)
    assert 8 == len(actions.acts("exports", **OTHER))
    assert "Cleared 1." in command("clear", "exports", "--no-input", **OTHER)
    assert "cleared 1" in command("log", "exports", "--key", "7", **OTHER)


@contextlib.contextmanager
def each_cut() -> Iterator[list[Any]]:
    """Every ask of this thread finds its connection cut, as who restarts a server or closes what is
    idle does; the next one gets through. An item for each ask; True: it was cut."""
    asks: list[Any] = []
    me, enter = threading.get_ident(), CheckedOut.__enter__

    def entered(self: CheckedOut) -> CheckedOut:
        enter(self)
        if threading.get_ident() == me:
            asks.append(not (asks and asks[-1]))
            if asks[-1]:
                self.connection.connect()  # unless it is
                self.connection._sock.shutdown(socket.SHUT_RDWR)
        return self

    with mock.patch.object(CheckedOut, "__enter__", entered):
        yield asks


def test_who_reads_or_acts_over_a_connection_that_was_disconnected_asks_anew(second: None) -> None:
    child = {"key": "7", **OTHER}
    actions.pause("known", **OTHER)  # the server knows the scripts
    actions.resume("known", **OTHER)
    statuses([("known", None)], **OTHER)
    with Semaphore("exports", 3, **child), Lock("nightly", **OTHER):
        eventually(lambda: listed("exports@7", "nightly", **OTHER))
        for look in (
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
            lambda: "nightly" in command("status", **OTHER),
            lambda: "nightly" in command("status", "nightly", **OTHER),
            lambda: actions.pause("nightly", reason="a deploy", **OTHER),
            lambda: there("nightly").paused and actions.acts(**OTHER)[0].reason == "a deploy",
            lambda: actions.resume("nightly", **OTHER) == ["nightly"],
            lambda: actions.resize("exports", limit=4, **child),
            lambda: there("exports", "7").override == 4,
        ):
            with each_cut() as asks:
                assert look()
            assert any(asks)


def test_metrics_are_those_of_there(alone: None, settings: Any) -> None:
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


def test_a_registry_of_several_chunks_is_read_whole(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "CHUNK", 2)
    for many in range(1, 6):
        raw.zadd(f"{settings.PREFIX}:names", {f"n{many}": many})
        newest = [f"n{n}" for n in range(many, 0, -1)]
        assert newest == [name for name, _ in names_in_use()]
        recent = names.Recent()
        assert (newest, newest[0], newest[-1]) == ([*recent], recent[0], recent[many - 1])
        assert newest[1:3] == recent[1:3]


def test_a_part_of_the_names_is_as_long_as_was_asked(raw: redis.Redis, settings: Any) -> None:
    """Those that only the settings or a mark keep known come first, each once."""
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
def test_a_name_that_was_used_while_the_registry_was_read_is_found(
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


def test_what_can_be_no_name_hides_no_others(raw: redis.Redis, settings: Any) -> None:
    raw.zadd(f"{settings.PREFIX}:names", {"a": 1, "": 2, "b\x07": 3, "c" * 9999: 4, "d": 5})
    assert ["d", "a"] == [name for name, _ in names_in_use()] == [*names.newest(9)]
    assert ["d", "a"] == [group.name for group in Selection("recent").read(0, 9)[0]]
    raw.zadd(policy_key(settings.PREFIX, "a"), {"k": 1, "": 2, "b\x07": 3, "c" * 9999: 4, "l": 5})
    assert {"a": ["l", "k"]} == names.newest_keys({"a": 9})
    assert ["a", "a@l", "a@k"] == [display(*pair) for pair in names.family("a")]


def test_a_key_that_was_taken_out_of_its_policys_mark_is_known() -> None:
    actions.pause("api")
    actions.resume("api", "7")
    assert [True, False] == [is_known("api", key) for key in ("7", "8")]
