"""Scripts on a server whose memory is full. The server denies requests of new callers, or evicts
keys.

`test_protocol_history` checks every script on a server whose memory is full at times, and
`tests/faults` (rows 23 and 44) tests real servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocol.test_scripts import Name


@pytest.fixture
def x() -> Name:
    """A name that `a` holds, and for which `b` and `c` wait."""
    x = Name(keep=5)
    x.hold("a", limit=2, permits=2)
    x.wait("b", "c", limit=2)
    return x


# Full memory


@pytest.mark.promise(14)
def test_acquire_of_a_new_name_is_denied_when_the_memory_of_redis_is_full() -> None:
    x = Name(keep=5)
    x.full = True
    assert ["OOM"] * 3 == [x.ask("a", how) for how in ("try", "wait", "shadow")]
    assert [] == x.left_keys()


@pytest.mark.promise(14)
def test_caller_is_rejected_as_usual_when_memory_is_full_and_no_permit_is_free(x: Name) -> None:
    x.full = True
    assert "no full 2  2" == x.ask("d", "try", limit=2)
    # This caller has another limit than the callers before it. The script stores the new limit.
    assert "no full 2  3" == x.ask("d", "try", permits=2, limit=3)
    assert "p 3" == x.field("#seen")


@pytest.mark.promise(14)
@pytest.mark.parametrize(
    ("verb", "said", "reply", "state"),
    [
        ("renew", {"how": "set", "ms": "inf", "nth": 1}, "ok inf", "a |"),
        ("renew", {"how": "adopt", "ms": 500, "nth": 7}, "ok 500", "a |"),
        ("release", {"how": "release"}, "ok", "|"),
        ("release", {"how": "release", "hold": 60_000}, "ok", "ka |"),
        ("release", {"how": "undo", "tombstone": 1}, "ok", "|"),
        ("operate", {"how": "pause"}, "ok", "a |"),
        ("clear", {}, "ok", "|"),
    ],
)
def test_holder_of_a_compact_name_can_renew_and_release_when_memory_is_full(
    verb: str, said: dict[str, Any], reply: str, state: str
) -> None:
    x = Name(keep=5)
    x.hold("a")
    x.full = bool(x.packed)
    said = said | ({"fence": x.fences["a"]} if verb in ("release", "renew") else {})
    assert reply == " ".join(x.do(verb, "" if verb == "operate" else "a", **said))
    assert state == x.state


@pytest.mark.promise(14)
@pytest.mark.parametrize("waiters", ["", "b"])
def test_release_is_counted_in_the_statistics_even_if_memory_is_full(waiters: str) -> None:
    x = Name(keep=5)
    x.hold("a")
    x.wait(*waiters)
    x.full = True
    assert "ok" == x.end("a")
    counted = {field[-1] for field in x.stats}
    assert {"r", *("w" * len(waiters))} <= counted, "the release or the wait is not counted"


@pytest.mark.promise(14)
def test_new_holder_replaces_an_expired_holder_when_memory_is_full() -> None:
    x = Name(keep=5)
    x.hold("a", lease=1000)
    x.pass_time(1000)
    x.full = bool(x.packed)
    assert "ok" == x.ask("b", "try")[:2]
    assert "b |" == x.state


# Evicted keys

CALLS: dict[str, Callable[[Name], object]] = {
    "ask": lambda x: x.ask("d"),
    "try": lambda x: x.ask("e", "try"),
    "ask again": lambda x: x.ask("b", "again"),
    "release": lambda x: x.end("a"),
    "renew": lambda x: x.renew("a", ms=1000, nth=1),
    "undo": lambda x: x.end("b", "undo", tombstone=1),
    "give up": lambda x: x.end("c", "giveup"),
    "clear": lambda x: x.do("clear", "c"),
    "resume": lambda x: x.operate("resume"),
    "inspect": lambda x: x.do("inspect"),
}


@pytest.mark.promise(3, 9)
@pytest.mark.parametrize("part", ["leases", "queue", "waiters", "info", "record"])
@pytest.mark.parametrize("then", CALLS)
def test_name_works_again_after_one_of_its_keys_was_evicted(x: Name, part: str, then: str) -> None:
    if part == "record":
        x.change("info", b=None)
    else:
        x.lose(part)
    CALLS[then](x)
    assert not x.entries[-1].error
    x.pass_time(1000)  # let leases expire, as a lease without a record can't be released
    for token in "abcde":
        x.end(token, "undo", tombstone=1)
    assert "b" not in x.state, "a waiter without a record blocks the queue"
    x.hold("new", limit=2, permits=2)
    assert int(x.fences["new"]) > int(x.fences["a"])


@pytest.mark.parametrize("how", ["wait", "try"])
def test_permits_of_evicted_leases_are_free(x: Name, how: str) -> None:
    x.lose("queue")
    assert "gone" == x.ask("b", "again")
    x.end("c", "giveup")
    x.lose("leases")
    assert "ok" == x.ask("d", how, limit=2, permits=2)[:2]
    assert "no full 0  2" == x.ask("e", "try", limit=2)


@pytest.mark.promise(3)
def test_lease_of_a_waiter_expires_even_if_the_record_of_the_waiter_was_lost(x: Name) -> None:
    x.end("a")
    x.change("info", b=None)
    x.ask("c", "again", limit=2)
    x.renew("c", ms=60_000)
    x.pass_time(1000)
    assert "ok" == x.ask("d", "try", limit=2)[:2]
    assert "c d |" == x.state
