"""If a server's memory is full and the server evicts nothing, only requests of new callers fail.

`tests/faults` (row 44) tests this with a real server, and `test_model` tests every order of events.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_protocol_scripts import C, Name

pytestmark = pytest.mark.promise(14)


@pytest.fixture
def x() -> Name:
    return Name(keep=5)


def test_full_memory_denies_a_new_name_and_stores_nothing(x: Name) -> None:
    x.full = True
    assert ["OOM"] * 3 == [x.ask("a", how) for how in ("try", "wait", "shadow")]
    assert ["OOM"] == x.do("visit", "a", place="p")
    assert [] == x.left_keys()


@pytest.mark.parametrize("waiters", ["", "b"])
def test_full_memory_denies_new_callers_and_keeps_the_state(x: Name, waiters: str) -> None:
    x.hold("a", limit=2)
    x.wait(*waiters, limit=2, permits=2)
    before = x.names.copy()
    x.full = True
    assert ["OOM"] * 2 == [x.ask("c", how, limit=2, permits=2) for how in ("wait", "shadow")]
    assert before == x.names


def test_full_memory_allows_an_ordinary_rejection(x: Name) -> None:
    x.hold("a")
    x.full = True
    assert "no full 0  1" == x.ask("b", "try")
    # The limit differs from the last caller's, so it is stored for operators.
    assert "no full 0  2" == x.ask("b", "try", permits=2, limit=2)
    assert "p 2" == x.field("#seen")


#: Each row has a script, its token and arguments, and the expected reply and state. `a` holds the
#: name, and `b` may wait.
ALLOWED: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("renew", "a", {"how": "set", "ms": 60_000, "nth": 1}, "ok 60000", "a | b"),
    ("renew", "a", {"how": "set", "ms": "inf", "nth": 1}, "ok inf", "a | b"),
    ("renew", "a", {"how": "confirm"}, "ok 9000", "a | b"),
    ("renew", "a", {"how": "adopt", "ms": 500, "nth": 7}, "ok 500", "a | b"),
    ("release", "a", {"how": "release"}, "ok", "b |"),
    ("release", "a", {"how": "release", "hold": 60_000}, "ok", "ka | b"),
    ("release", "a", {"how": "release", "tombstone": 1}, "ok", "b |"),
    ("release", "a", {"how": "undo", "tombstone": 1}, "ok", "b |"),
    ("release", "new", {"how": "undo", "tombstone": 1}, "gone", "a | b"),
    ("release", "b", {"how": "undo", "tombstone": 1}, "gone", "a |"),
    ("release", "b", {"how": "giveup"}, "no timeout 0  1", "a |"),
    ("release", "a", {"how": "share"}, "ok", "a | b"),
    ("acquire", "b", {"how": "again"}, "wait", "a | b"),
    ("operate", "", {"how": "pause"}, "ok", "a | b"),
    ("operate", "", {"how": "resume"}, "ok", "a | b"),
    ("operate", "", {"how": "resize", "value": 2}, "ok", "a b |"),
    ("operate", "", {"how": "reset"}, "ok", "a | b"),
    ("clear", "a", {}, "ok", "b |"),
    ("clear", "b", {}, "ok", "a |"),
    ("inspect", "", {}, str(1_700_000_000_500), "a | b"),
]


@pytest.mark.parametrize("waiters", ["b", ""], ids=["a waiter", "no waiter"])
@pytest.mark.parametrize(("verb", "token", "said", "reply", "state"), ALLOWED)
def test_full_memory_allows_calls_of_holders_waiters_and_operators(
    x: Name, verb: str, token: str, said: dict[str, Any], reply: str, state: str, waiters: str
) -> None:
    if token == "b" and not waiters:
        return
    x.hold("a", lease=9500)
    x.wait(*waiters, lease=9500)
    x.pass_time(500)
    x.full = True
    fence = {"fence": x.fences["a"]} if verb in ("release", "renew") else {}
    assert reply == " ".join(map(str, x.do(verb, token, **said, **fence)))[: len(reply)]
    x.full = False
    expected = state if waiters else f"{state.split(' ')[0].strip('b|')} |".strip()
    assert expected == x.state
    if said.get("tombstone"):
        assert "dead" == x.ask(token)
    lasting = reply == "ok inf" or said.get("how") in ("pause", "resize")
    own = {row[3] is None for row in x.names["t:{x}:"] if row[0] in (x.keys.leases, x.keys.info)}
    assert {lasting} == own, "a key does not expire, or an override does"


def test_full_memory_allows_a_release_to_be_counted(x: Name) -> None:
    x.hold("a")
    x.wait("b")
    x.full = True
    assert "ok" == x.end("a")
    counted = {field[-1] for field in x.contents(x.keys, x.keys.stats)}
    assert {"r", "w"} <= counted, "the release or the wait is not counted"


def test_full_memory_allows_a_waiter_to_keep_its_place_and_be_granted(x: Name) -> None:
    x.hold("a", lease=2500)
    x.wait("b", "c")
    x.pass_time(2000)
    x.full = True
    assert f"wait {x.now} 1000 1" == x.ask("c", "again")
    assert C["HEARTBEAT"] + C["PATIENCE"] == x.deadline("c")
    x.pass_time(500)
    assert "ok" == x.ask("b", "again")[:2]
    assert "ok" == x.end("b")
    x.full = True
    assert "ok" == x.ask("c", "again")[:2], "the handoff can't be claimed"
    assert {"leases", "info"} == x.traces("c")


def test_full_memory_allows_a_waiter_to_take_free_permits(x: Name) -> None:
    x.operate("pause")
    x.wait("b")
    x.change("info", _paused=None)
    x.full = True
    assert "ok" == x.ask("b", "again")[:2]
    assert "b |" == x.state
