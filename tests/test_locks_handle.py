"""Handles: they pass the settings of a lease to the adopting process. No server or clock."""

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


def callback(*_: Any) -> None:
    """An `on_lost` callback."""


def settings_of(key: str | None = "4711", **options: Any) -> LeaseSettings:
    config = conf.current()
    keys = keys_of(config.prefix("default"), "exports@{x}", key, config.keep(key))
    values = {"timeout": 12.5, "renew": True, "max_hold": 3600.0, "min_hold": 7.0, **options}
    return LeaseSettings(keys, "default", on_lost=callback, **values)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key": None},
        {"renew": False, "max_hold": math.inf, "min_hold": 0.0},
        {"timeout": math.inf, "renew": False},
    ],
    ids=["key", "plain name", "not renewed", "permanent"],
)
def test_handle_restores_the_settings_and_the_grant(options: Any) -> None:
    terms = settings_of(**options)
    adoption = Adoption(handle.write(terms, GRANT, 9), callback)
    assert (terms, GRANT, 9) == (adoption.terms, adoption.grant, adoption.known)
    assert isinstance(adoption.grant.token, Token)


@pytest.mark.parametrize(
    ("max_hold", "held", "left"),
    [(3600.0, 600.0, 3000.0), (3600.0, 9e9, 0.001), (math.inf, 9.0, math.inf)],
)
def test_time_held_so_far_shortens_the_max_hold_of_the_adopter(
    max_hold: float, held: float, left: float
) -> None:
    text = handle.write(settings_of(max_hold=max_hold), GRANT, 9, held)
    assert left == Adoption(text, callback).terms.max_hold


def test_handle_can_contain_the_longest_name() -> None:
    longest, config = "%" * MOST_BYTES, conf.current()
    terms = settings_of()._replace(
        keys=keys_of(config.prefix("default"), longest, longest, config.keep(""))
    )
    assert terms == Adoption(handle.write(terms, GRANT, 9), callback).terms


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, 2), (1, 7), (2, None), (3, "a b"), (3, "a" * 65), (4, "x"), (5, "3")),
        *((6, -1), (6, "3"), (8, "3"), (9, -1), (9, "3"), (11, "9")),
    ],
)
def test_handle_with_a_wrong_value_is_rejected(place: int, value: Any) -> None:
    values = json.loads(base64.urlsafe_b64decode(handle.write(settings_of(), GRANT, 9)))
    values[place] = value
    with pytest.raises(ValueError, match="not the handle of a lease"):
        Adoption(base64.urlsafe_b64encode(json.dumps(values).encode()).decode(), callback)


def adopted(terms: LeaseSettings, reply: list[Any]) -> tuple[LeaseSettings, Grant, int, Run]:
    plan = Adoption(handle.write(terms, GRANT, 9), None).plan()
    step = next(plan)
    with pytest.raises(StopIteration) as stop:
        plan.send(Answer(reply, 1000.0, 1000.0))
    return *stop.value.value, step


def test_adopter_requests_the_whole_timeout_under_its_own_number() -> None:
    first, second = (adopted(settings_of(), ["ok", "12500"]) for _ in range(2))
    for _, grant, nth, step in (first, second):
        assert ("adopt", "12500", nth, 9) == step.argv[2:6]
        assert nth > 9
        assert GRANT[:3] == grant[:3] and grant.unanswered
    assert first[2] != second[2]


def test_adopted_lease_without_renewal_ends_at_the_end_in_redis() -> None:
    terms, grant, nth, _ = adopted(settings_of(renew=False, max_hold=math.inf), ["ok", "12500"])
    assert 1012.499 == pytest.approx(grant.until) == pytest.approx(grant.ends)
    assert 1012.499 == pytest.approx(LeaseState(terms, grant, nth, 1000.0).due)


def test_adoption_raises_lease_lost_after_another_adoption() -> None:
    plan = Adoption(handle.write(settings_of(), GRANT, 9), None).plan()
    next(plan)
    with pytest.raises(LeaseLost, match="adopted before") as caught:
        plan.send(Answer(["adopted"], 1000.0, 1000.0))
    assert "exports@{x}@4711" == caught.value.lock_name
