"""Who looks is told what can be read, or gets an error of ours, whatever lies under our keys.

Redis is trusted (docs/threat-model.md), but a page for operators has to work when things are odd.
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
from django_redis_sync.operators.names import marked_key, names_in_use
from django_redis_sync.operators.status import status_of, statuses
from django_redis_sync.protocol.keys import keys_of
from tests.settings import PREFIX

SERVER = settings(
    max_examples=60,
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
SCORES = st.sampled_from([0.0, -1.0, 1.5, 1e13, 4e12, 1e300, float("inf"), float("-inf")])
MEMBERS = st.sampled_from([b"t1", b"t2", b"", b"\0\n", b"<b>", b"x" * 300])


@pytest.fixture
def look(raw: redis.Redis) -> Callable[[Callable[[], Any]], Any]:
    """Runs what looks; an error of ours is fine, any other is not."""

    def run(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except SyncError:
            return None

    return run


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
def test_inspection_of_garbage(
    raw: redis.Redis,
    look: Any,
    records: dict[bytes, bytes],
    fields: dict[str, bytes],
    places: list[tuple[str, bytes, float]],
) -> None:
    raw.delete(*KEYS.of("t1"))
    for mapping in (records, fields):
        if mapping:
            raw.hset(KEYS.info, mapping=mapping)  # type: ignore[arg-type]
    for part, member, score in places:
        raw.zadd(getattr(KEYS, part), {member: score})
    found = look(lambda: status_of(NAME))
    assert found is None or NAME == found.name
    look(lambda: statuses([(NAME, None), ("other", None)]))


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
def test_history_of_garbage(raw: redis.Redis, look: Any, fields: dict[bytes, bytes]) -> None:
    raw.delete(KEYS.stats)
    if fields:
        raw.hset(KEYS.stats, mapping=fields)  # type: ignore[arg-type]
    found = look(lambda: histories([(NAME, None)]))
    assert found is None or NAME == found[0].name


@SERVER
@given(st.lists(GARBAGE, min_size=1, max_size=3))
@example([b""])
@example([b"@"])
@example([b"a@b@c"])
@example([b"{"])
@example([b"x\ny"])
@example([b"x" * 1000])
def test_a_registry_of_garbage(raw: redis.Redis, look: Any, members: list[bytes]) -> None:
    """One odd entry does not hide the others."""
    raw.delete(names_key(PREFIX), marked_key(PREFIX))
    raw.zadd(names_key(PREFIX), dict.fromkeys(members, 1e13))
    raw.zadd(names_key(PREFIX), {"good": 1e13})
    raw.zadd(marked_key(PREFIX), dict.fromkeys(members, 1e13))
    found = look(lambda: statuses(names_in_use()))
    assert found is not None and "good" in [one.name for one in found]


@pytest.mark.parametrize("where", ["lease", "record", "stats", "registry"])
def test_bytes_that_are_no_utf8(raw: redis.Redis, look: Any, where: str) -> None:
    make: dict[str, Callable[[], Any]] = {
        "lease": lambda: raw.zadd(KEYS.leases, {b"\xff": float("inf")}),
        "record": lambda: (
            raw.zadd(KEYS.leases, {b"t": float("inf")})
            and raw.hset(KEYS.info, "t", b"h 1 1 1 1 - \xff")
        ),
        "stats": lambda: raw.hset(KEYS.stats, b"\xff", b"\xff"),
        "registry": lambda: raw.zadd(names_key(PREFIX), {b"\xff": 1e13}),
    }
    make[where]()
    look(lambda: status_of(NAME))
    look(lambda: histories([(NAME, None)]))
    look(names_in_use)


@pytest.mark.parametrize("part", ["leases", "queue", "waiters", "info", "stats"])
@pytest.mark.parametrize("kind", ["string", "list", "set", "stream"])
def test_keys_of_another_kind_are_named_and_left_alone(
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
    asks: list[Callable[[], Any]] = [
        lambda: status_of(NAME),
        lambda: Lock(NAME).acquire(False),
        lambda: histories([(NAME, None)]),
    ]
    errors = []
    for ask in asks:
        try:
            ask()
        except SyncError as error:
            errors.append(str(error))
    # Of the waiters nothing is asked while nobody waits.
    assert any(key in text for text in errors) or part == "waiters"
    assert (before, -1) == (raw.dump(key), raw.pttl(key))
