"""`locks status` shows the readable part of damaged data in Redis.

The library trusts the data in Redis (docs/security.md). But one damaged name must not hide the
others from an operator.
"""

from __future__ import annotations

import contextlib
import json
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_redis_sync import Semaphore, SyncError
from django_redis_sync.protocol.keys import keys_of
from tests.settings import PREFIX
from tests.support.commands import locks
from tests.support.packed import all_keys

pytestmark = pytest.mark.promise(25)

SERVER = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
FIELDS = st.sampled_from(
    ["#fence", "#expiry", "#extra", "#limit", "#paused", "#seen", "#peak", "#clash"]
)
#: A time in ms. Lower numbers in SCORES are in the past, and higher numbers in the future.
NOW = 1e12
SCORES = st.sampled_from([0.0, -1.0, 1.5, 1e13, 4e12, 1e300, float("inf"), float("-inf")])
MEMBERS = st.sampled_from([b"t1", b"t2", b"", b"\0\n", b"<b>", b"x" * 300])
COUNTS = st.sampled_from([b"1:g", b"total:g", b"total:w:ms", b"tidied", "²:g".encode(), b":"])


def shown() -> tuple[dict[str, Any], list[str]]:
    """Return the entries of `locks status` by name, and a list of names that it could not read."""
    out = StringIO()
    with contextlib.suppress(CommandError):  # raised if the command could not read a name
        call_command("locks", "status", "--format", "json", stdout=out)
    table = json.loads(out.getvalue())
    return {one["name"]: one for one in table["names"]}, [one["name"] for one in table["unread"]]


@SERVER
@given(
    st.dictionaries(MEMBERS, RECORDS, max_size=3),
    st.dictionaries(FIELDS, GARBAGE, max_size=4),
    st.lists(st.tuples(st.sampled_from(["leases", "queue", "waiters"]), MEMBERS, SCORES)),
    st.dictionaries(COUNTS | TEXTS.map(str.encode), GARBAGE, max_size=5),
)
@example({b"t1": b"h " + b"9" * 400 + b" 1 1 1 - "}, {}, [("leases", b"t1", 1e300)], {})
@example({b"t1": b"h 1 1 1 1 - [[[["}, {}, [("leases", b"t1", 1e300)], {})
@example({b"t1": b"h -9 1 1 1 - "}, {}, [("leases", b"t1", 1e300)], {})
@example({}, {"#seen": b"p x", "#clash": b"1 p"}, [], {b"1:g": b"x"})
@example({}, {"#clash": b"x y z", "#paused": b"soon"}, [], {b"total:g": b"1.5"})
@example({}, {"#limit": b"inf"}, [], {"²:g".encode(): b"1"})
@example({}, {"#fence": b"x"}, [("queue", b"t1", float("inf"))], {})
@example({}, {}, [("queue", b"t1", float("-inf"))], {b"total:w:ms": b"9" * 400})
@example({b"t": b"h 1 1 1 1 - \xff"}, {}, [("leases", b"\xff", 1e300)], {b"\xff": b"\xff"})
def test_locks_status_shows_the_readable_part_of_damaged_data(
    raw: redis.Redis,
    records: dict[bytes, bytes],
    fields: dict[str, bytes],
    places: list[tuple[str, bytes, float]],
    counts: dict[bytes, bytes],
) -> None:
    raw.delete(*all_keys(KEYS, "t1"))
    raw.zadd(f"{PREFIX}:names", {NAME: 1e13, "good": 1e13})
    for mapping in (records, fields):
        if mapping:
            raw.hset(KEYS.info, mapping=mapping)  # type: ignore[arg-type]
    for part, member, score in places:
        raw.zadd(getattr(KEYS, part), {member: score})
    raw.hset(KEYS.stats, mapping={b"total:n": b"7", **counts})  # type: ignore[arg-type]
    found, unread = shown()
    assert "good" in found, "a damaged name hides others"
    if NAME in unread:  # the script fails if it finds a text where it needs a number
        assert fields or records
        with pytest.raises(SyncError):
            Semaphore(NAME, 1).status()
    else:
        ends = {member: end for part, member, end in places if part == "leases"}
        queued = {member for part, member, _ in places if part == "queue"}
        alive, seen = sum(end > NOW for end in ends.values()), found[NAME]
        assert (alive, len(queued)) == (seen["holding"], seen["waiting"])
        assert (alive, len(queued)) == (len(seen["holders"]), len(seen["waiters"]))
        assert 7 == seen["ever"]["rejected"]
        assert NAME == json.loads(locks("history", NAME, "--format", "json"))["name"]
