"""The record of operators' actions, the same for the API, the command, and the admin."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError
from django.utils import timezone

from django_redis_sync import Lock, Semaphore
from django_redis_sync.engine.names import names_key, policy_key
from django_redis_sync.operators import actions
from django_redis_sync.operators.actions import audit_key
from django_redis_sync.operators.doctor.permissions import rules
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.keys import group_keys, groups_key, keys_of, marks_key, quote
from tests.support.operators import locks

pytestmark = pytest.mark.usefixtures("raw")


@pytest.mark.promise(26)
def test_each_action_is_recorded_with_operator_and_reason() -> None:
    lease, other = Semaphore("exports", 2).acquire(), Semaphore("exports", 2, key="7").acquire()
    assert lease is not None and other is not None
    who = {"by": "ada", "reason": "too many"}
    actions.pause("exports", **who)
    actions.resize("exports", None, 7, **who)
    actions.reset("exports", **who)
    actions.resume("exports", **who)
    actions.clear(status_of("exports"), [lease.token], **who)
    actions.clear(status_of("exports", "7"), [other.token], **who)
    key, cleared, *_, resized, paused = actions.acts("exports")
    assert ("exports", "7", "clear", "pause") == (key.name, key.key, key.what, paused.what)
    assert {("ada", "too many")} == {(act.by, act.reason) for act in actions.acts()}
    assert 7 == resized.limit and (lease.token[:8],) == cleared.ids


def test_record_of_clear_lists_at_most_max_ids_and_counts_all(raw: redis.Redis) -> None:
    leases = [Semaphore("exports", 30).acquire() for _ in range(actions.MAX_IDS + 1)]
    actions.clear(status_of("exports"), [lease.token for lease in leases if lease is not None])
    (act,) = actions.acts()
    assert (actions.MAX_IDS, actions.MAX_IDS + 1) == (len(act.ids), act.amount)
    assert f"cleared {actions.MAX_IDS + 1}: {', '.join(act.ids)}, …" == act.text


def test_clear_of_a_released_lease_is_not_recorded() -> None:
    lease = Lock("a").acquire()
    assert lease is not None
    shown = status_of("a")
    lease.release()
    actions.clear(shown, [lease.token])
    assert [] == actions.acts("a")


def test_command_records_the_user_and_the_reason(raw: redis.Redis) -> None:
    with Lock("a"), Lock("b"):
        locks("pause", "a", "--reason", "migration of the 報表")
        locks("pause", "b")
    lines = locks("log").splitlines()
    assert ["WHEN", "NAME", "WHAT", "WHO", "WHY"] == lines[0].split()
    assert 3 == len(lines)
    assert 2 == len(locks("log", "--top", "1").splitlines())
    (line,) = [line for line in lines if " a " in line]
    assert actions.person() in line and line.endswith("migration of the 報表")
    (action,) = json.loads(locks("log", "a", "--format", "json"))
    expected = {"what": "pause", "name": "a", "key": None, "reason": "migration of the 報表"}
    assert expected.items() <= action.items()


@pytest.mark.parametrize(
    ("words", "what", "limit"),
    [
        (("clear", "a", "--no-input"), "clear", None),
        (("pause", "a"), "pause", None),
        (("resume", "a"), "resume", None),
        (("resize", "a", "7"), "resize", 7),
        (("resize", "a", "--reset"), "reset", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_each_subcommand_records_its_action_with_the_reason(
    words: Any, what: str, limit: Any
) -> None:
    with Semaphore("a", 2, raise_on_release_error=False):
        if what in ("resume", "reset"):
            actions.pause("a")
            actions.resize("a", None, 3)
        locks(*words, "--reason", "migration")
    act, *_ = actions.acts("a")
    assert (what, "migration", actions.person()) == (act.what, act.reason, act.by)
    assert limit == act.limit


def test_action_is_dated_by_the_clock_of_the_server(raw: redis.Redis) -> None:
    def now() -> float:
        seconds, micros = raw.time()
        return float(seconds + micros / 1e6)

    before = now()
    actions.pause("a")
    (act,) = actions.acts()
    assert before - 0.001 <= act.at.timestamp() <= now() + 0.001
    dated = locks("log")
    assert timezone.localtime(act.at).strftime("%Y-%m-%d %H:%M:%S") in dated
    assert 1 < locks("log", "--format", "json").count("\n")  # indented, for people


def test_record_of_a_key_contains_the_actions_on_its_policy() -> None:
    with Semaphore("api", 2, key="7"), Semaphore("api", 2, key="8"):
        actions.pause("api", "7")
        actions.pause("api", "8")
        actions.resume("api")
    assert 3 == len(actions.acts("api"))
    assert {None, "7"} == {act.key for act in actions.acts("api", "7")}


def test_log_of_a_name_without_actions_says_that_there_are_none() -> None:
    assert "No operator has acted on this name.\n" == locks("log", "a")
    assert "No operator has acted.\n" == locks("log")


def test_record_is_bounded_and_outlives_the_names(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_KEPT", 3)
    for n in range(5):
        actions.record("pause", f"n{n}", None, None, by="x" * 1000, reason="y" * 1000)
    key = actions.audit_key(settings.PREFIX)
    assert 3 == raw.zcard(key)
    assert raw.pttl(key) > 360 * 86_400_000
    assert {200} == {len(text) for act in actions.acts() for text in (act.by, act.reason)}


def test_invalid_entries_in_the_record_are_skipped(raw: redis.Redis) -> None:
    actions.pause("a", by="me")
    key = actions.audit_key(settings.PREFIX)
    raw.zadd(key, {b"\xff": 1e13, b"{}": 1e13, b"[1]": 2e18, b'{"what": 1, "zzz": 2}': 3})
    assert ["a"] == [act.name for act in actions.acts()]


def test_action_takes_effect_when_it_cannot_be_recorded(
    raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.set(actions.audit_key(settings.PREFIX), "another program's")
    assert ["a"] == actions.pause("a")
    assert status_of("a").paused
    assert "could not record" in caplog.text
    with pytest.raises(CommandError):
        locks("log")


@pytest.mark.parametrize("error", [OSError, KeyError])  # since Python 3.13, and before
def test_person_is_the_user_id_when_the_user_has_no_name(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown() -> str:
        raise error("no such user")

    monkeypatch.setattr(actions.getpass, "getuser", unknown)
    user, _, host = actions.person().partition("@")
    assert (True, socket.gethostname()) == (user.isdigit(), host)


@pytest.mark.parametrize("prefix", ["shop", "a b", "a{b}", "a*[c]", "%:"])
def test_least_acl_covers_all_keys_of_a_prefix(prefix: str) -> None:
    own = quote(prefix)
    keys = [marks_key(prefix), names_key(prefix), policy_key(prefix, "x"), audit_key(prefix)]
    keys += [*group_keys(own, "x"), groups_key(own), *keys_of(prefix, "x").declared]
    assert [] == [key for key in keys if not key.startswith(f"{own}:")]
    assert f"~{own}:* " in rules(prefix)
