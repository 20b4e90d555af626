"""A handle says all that its lease was, to the process that adopts it: without server or clock."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from django_redis_sync import conf
from django_redis_sync.exceptions import LeaseLost
from django_redis_sync.locks import handle
from django_redis_sync.locks.handle import Adoption
from django_redis_sync.locks.lease_state import LeaseSettings, LeaseState
from django_redis_sync.protocol.keys import MOST_BYTES, Token, keys_of
from django_redis_sync.protocol.plans import Answer, Grant, Run

GRANT = Grant(Token("ab" * 16), 1790000000000000, 3, 0.0, 0.0, 0.0, unanswered=True)


def told(*_: Any) -> None:
    """A receiver."""


def terms_of(key: str | None = "4711", **said: Any) -> LeaseSettings:
    config = conf.current()
    keys = keys_of(config.prefix("default"), "exports@{x}", key, config.keep(key))
    given = {"timeout": 12.5, "renew": True, "max_hold": 3600.0, "min_hold": 7.0, **said}
    return LeaseSettings(keys, "default", on_lost=told, **given)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"key": None},
        {"renew": False, "max_hold": math.inf, "min_hold": 0.0},
        {"timeout": math.inf, "renew": False},
    ],
    ids=["a child", "a plain name", "a hard lease", "a permanent one"],
)
def test_the_terms_and_the_grant_arrive_as_they_were(said: Any) -> None:
    terms = terms_of(**said)
    adoption = Adoption(handle.write(terms, GRANT, 9), told)
    assert (terms, GRANT, 9) == (adoption.terms, adoption.grant, adoption.known)
    assert isinstance(adoption.grant.token, Token)


@pytest.mark.parametrize(
    ("most", "held", "left"),
    [(3600.0, 600.0, 3000.0), (3600.0, 9e9, 0.001), (math.inf, 9.0, math.inf)],
)
def test_what_it_was_held_counts_for_its_new_owner(most: float, held: float, left: float) -> None:
    text = handle.write(terms_of(max_hold=most), GRANT, 9, held)
    assert left == Adoption(text, told).terms.max_hold


def test_a_lease_of_the_longest_name_has_a_handle() -> None:
    long, config = "%" * MOST_BYTES, conf.current()
    terms = terms_of()._replace(keys=keys_of(config.prefix("default"), long, long, config.keep("")))
    assert terms == Adoption(handle.write(terms, GRANT, 9), told).terms


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, 2), (1, 7), (2, None), (3, "a b"), (3, "a" * 65), (4, "x"), (5, "3")),
        *((6, -1), (6, "3"), (8, "3"), (9, -1), (9, "3"), (11, "9")),
    ],
)
def test_a_handle_with_something_wrong_in_it_is_none(place: int, value: Any) -> None:
    values = json.loads(base64.urlsafe_b64decode(handle.write(terms_of(), GRANT, 9)))
    values[place] = value
    with pytest.raises(ValueError, match="not the handle of a lease"):
        Adoption(base64.urlsafe_b64encode(json.dumps(values).encode()).decode(), told)


def adopted(terms: LeaseSettings, reply: list[Any]) -> tuple[LeaseSettings, Grant, int, Run]:
    plan = Adoption(handle.write(terms, GRANT, 9), None).plan()
    step = next(plan)
    with pytest.raises(StopIteration) as stop:
        plan.send(Answer(reply, 1000.0, 1000.0))
    return *stop.value.value, step


def test_an_adopter_asks_for_the_whole_lease_under_a_number_of_its_own() -> None:
    first, second = (adopted(terms_of(), ["ok", "12500"]) for _ in range(2))
    for _, grant, nth, step in (first, second):
        assert ("adopt", "12500", nth, 9) == step.argv[2:6]
        assert nth > 9
        assert GRANT[:3] == grant[:3] and grant.unanswered
    assert first[2] != second[2]


def test_an_adopted_lease_that_is_not_renewed_ends_when_the_server_says_so() -> None:
    terms, grant, nth, _ = adopted(terms_of(renew=False, max_hold=math.inf), ["ok", "12500"])
    assert 1012.499 == pytest.approx(grant.until) == pytest.approx(grant.ends)
    assert 1012.499 == pytest.approx(LeaseState(terms, grant, nth, 1000.0).due)


def test_it_is_lost_when_another_adopter_was_faster() -> None:
    plan = Adoption(handle.write(terms_of(), GRANT, 9), None).plan()
    next(plan)
    with pytest.raises(LeaseLost, match="adopted before") as caught:
        plan.send(Answer(["adopted"], 1000.0, 1000.0))
    assert "exports@{x}@4711" == caught.value.lock_name
