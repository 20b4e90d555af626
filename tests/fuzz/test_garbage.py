"""Operators see the readable part of damaged data, or get a SyncError.

Redis is trusted (docs/security.md), but the pages for operators must work with damaged data too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_redis_sync import Lock, SyncError
from django_redis_sync.engine.names import names_key
from django_redis_sync.operators.history import histories
from django_redis_sync.operators.names import names_in_use
from django_redis_sync.operators.status import readable, status_of, statuses
from django_redis_sync.protocol.keys import keys_of, marks_key
from tests.settings import PREFIX
from tests.support.packed import all_keys

SERVER = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NAME = "garbage"
KEYS = keys_of(PREFIX, NAME)

NUMBERS = st.sampled_from(
    ["", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 400, "x", "0x10", "²"]
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
GARBAGE = (NUMBERS | TEXTS).map(str.encode)
RECORDS = GARBAGE | st.lists(NUMBERS, min_size=6, max_size=8).map(
    lambda parts: " ".join(["h", *parts]).encode()
)
FIELDS = st.sampled_from(["#fence", "#expiry", "#extra", "#limit", "#paused", "#seen", "#peak"]) | (
    st.just("#clash")
)
#: A time in ms that is greater than all past SCORES, and less than all future ones.
NOW = 1e12
SCORES = st.sampled_from([0.0, -1.0, 1.5, 1e13, 4e12, 1e300, float("inf"), float("-inf")])
MEMBERS = st.sampled_from([b"t1", b"t2", b"", b"\0\n", b"<b>", b"x" * 300])


@SERVER
@given(
    st.dictionaries(MEMBERS, RECORDS, max_size=3),
    st.dictionaries(FIELDS, GARBAGE, max_size=4),
    st.lists(st.tuples(st.sampled_from(["leases", "queue", "waiters"]), MEMBERS, SCORES)),
)
@example({b"t1": b"h " + b"9" * 400 + b" 1 1 1 - "}, {}, [("leases", b"t1", float("inf"))])
@example({b"t1": b"h 1 1 1 1 - [[[["}, {}, [("leases", b"t1", float("inf"))])
@example({b"t1": b"h -9 1 1 1 - "}, {}, [("leases", b"t1", float("inf"))])
@example({}, {"#seen": b"p x"}, [])
@example({}, {"#clash": b"1 p"}, [])
@example({}, {"#clash": b"x y z"}, [])
@example({}, {"#paused": b"soon"}, [])
@example({}, {"#limit": b"inf"}, [])
@example({}, {"#fence": b"x"}, [])
@example({}, {}, [("queue", b"t1", float("inf"))])
@example({}, {}, [("queue", b"t1", float("-inf"))])
def test_status_of_damaged_data_is_readable_or_a_sync_error(
    raw: redis.Redis,
    records: dict[bytes, bytes],
    fields: dict[str, bytes],
    places: list[tuple[str, bytes, float]],
) -> None:
    raw.delete(*all_keys(KEYS, "t1"))
    for mapping in (records, fields):
        if mapping:
            raw.hset(KEYS.info, mapping=mapping)  # type: ignore[arg-type]
    for part, member, score in places:
        raw.zadd(getattr(KEYS, part), {member: score})
    found, unread = readable([(NAME, None), ("other", None)])
    assert "other" == found[-1].name  # a damaged name doesn't hide others
    if unread:  # the script itself fails on a text that is not a number
        assert fields or records
        assert [NAME] == [status.name for status in unread]
        with pytest.raises(SyncError):
            status_of(NAME)
    else:
        ends = {member: end for part, member, end in places if part == "leases"}
        queued = {member for part, member, _ in places if part == "queue"}
        alive = sum(end > NOW for end in ends.values())
        assert (NAME, alive, len(queued)) == (found[0].name, found[0].holding, found[0].waiting)
        assert (alive, len(queued)) == (len(found[0].holders), len(found[0].waiters))


@SERVER
@given(
    st.dictionaries(
        st.sampled_from([b"1:g", b"total:g", b"total:w:ms", b"tidied", "²:g".encode(), b":", b"1:"])
        | TEXTS.map(str.encode),
        GARBAGE,
        max_size=5,
    )
)
@example({b"1:g": b"x"})
@example({b"total:g": b"1.5"})
@example({"²:g".encode(): b"1"})
@example({b"total:w:ms": b"9" * 400})
def test_history_with_damaged_fields_keeps_the_valid_counts(
    raw: redis.Redis, fields: dict[bytes, bytes]
) -> None:
    raw.delete(KEYS.stats)
    raw.hset(KEYS.stats, mapping={b"total:n": b"7", **fields})  # type: ignore[arg-type]
    (found,) = histories([(NAME, None)])
    assert (NAME, 7, 60) == (found.name, found.ever.rejected, len(found.rows))


@SERVER
@given(st.lists(GARBAGE, min_size=1, max_size=3))
@example([b""])
@example([b"@"])
@example([b"a@b@c"])
@example([b"{"])
@example([b"x\ny"])
@example([b"x" * 1000])
def test_damaged_registry_entries_do_not_hide_other_names(
    raw: redis.Redis, members: list[bytes]
) -> None:
    raw.delete(names_key(PREFIX), marks_key(PREFIX))
    raw.zadd(names_key(PREFIX), dict.fromkeys(members, 1e13))
    raw.zadd(names_key(PREFIX), {"good": 1e13})
    raw.hset(marks_key(PREFIX), mapping={b"p:" + member: b"1" for member in [*members, b"x"]})
    assert "good" in [status.name for status in statuses(names_in_use())]


@pytest.mark.parametrize("where", ["lease", "record", "stats", "registry"])
def test_status_and_history_work_with_bytes_that_are_not_utf8(raw: redis.Redis, where: str) -> None:
    make: dict[str, Callable[[], Any]] = {
        "lease": lambda: raw.zadd(KEYS.leases, {b"\xff": float("inf")}),
        "record": lambda: (
            raw.zadd(KEYS.leases, {b"t": float("inf")})
            and raw.hset(KEYS.info, "t", b"h 1 1 1 1 - \xff")
        ),
        "stats": lambda: raw.hset(KEYS.stats, b"\xff", b"\xff"),
        "registry": lambda: raw.zadd(names_key(PREFIX), {b"\xff": 1e13}),
    }
    raw.zadd(names_key(PREFIX), {"good": 1e13})
    make[where]()
    assert int(where in ("lease", "record")) == status_of(NAME).holding
    assert [NAME] == [history.name for history in histories([(NAME, None)])]
    assert ("good", None) in names_in_use()


@pytest.mark.parametrize("part", ["leases", "queue", "waiters", "info", "stats"])
@pytest.mark.parametrize("kind", ["string", "list", "set", "stream"])
def test_keys_of_another_type_are_named_in_the_error_and_kept(
    raw: redis.Redis, part: str, kind: str
) -> None:
    key = getattr(KEYS, part)
    make: dict[str, Callable[[], Any]] = {
        "string": lambda: raw.set(key, "precious"),
        "list": lambda: raw.rpush(key, "precious"),
        "set": lambda: raw.sadd(key, "precious"),
        "stream": lambda: raw.xadd(key, {"precious": 1}),
    }
    make[kind]()
    before = raw.dump(key)
    calls: list[Callable[[], Any]] = [
        lambda: status_of(NAME),
        lambda: Lock(NAME).acquire(False),
        lambda: histories([(NAME, None)]),
    ]
    errors = []
    for call in calls:
        try:
            call()
        except SyncError as error:
            errors.append(str(error))
    # No call reads the key of waiters while the queue is empty.
    assert any(key in text for text in errors) or part == "waiters"
    assert (before, -1) == (raw.dump(key), raw.pttl(key))
