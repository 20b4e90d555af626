"""How a policy reaches its semaphore, its key, its label and its receivers: the plans alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import RequestFactory
from django.views import View

from django_redis_sync import Semaphore, SemaphoreRequiredMixin, semaphore_required
from django_redis_sync.engine import labels
from django_redis_sync.exceptions import LeaseLost, Unavailable
from django_redis_sync.limits import enforcement, holding, identity
from django_redis_sync.limits import rooms as rooms_module
from django_redis_sync.limits.decorator import marks_of, name_of
from django_redis_sync.limits.enforcement import (
    Counted,
    Refused,
    RequestSemaphore,
    _Pressure,
    aadmit,
    admit,
    enter,
    key_of,
)
from django_redis_sync.limits.holding import Hold, Permit
from django_redis_sync.limits.outage import Breaker
from django_redis_sync.limits.policy import Place, Policy, parse
from django_redis_sync.limits.refusal import aanswer
from django_redis_sync.limits.rooms import Rooms, rooms
from django_redis_sync.limits.seats import Seated, Seats
from django_redis_sync.limits.steps import Call, Take, arun, run
from django_redis_sync.locks.waiting import may_wait
from django_redis_sync.middleware import (
    ConcurrencyLimitMiddleware,
    _is_of_admin,
    _sees_the_view,
    is_atomic,
    policies_of,
)
from django_redis_sync.operators.status import status_of
from django_redis_sync.protocol.plans import Refusal
from django_redis_sync.signals import acquire_rejected
from tests.behaviour.both import eventually
from tests.test_requests_breaker import Quiet


def policy_of(**options: Any) -> Policy:
    return parse("exports", {"limit": 3, **options})


def request_of(**meta: Any) -> Any:
    return RequestFactory().get("/", **meta)


# Its semaphore


def test_a_policy_with_one_semaphore_looks_it_up_once(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    made: list[Any] = []
    look_up = enforcement._semaphore

    def noted(*args: Any) -> Any:
        made.append(look_up(*args))
        return made[-1]

    def asks(policy: Policy) -> int:
        """How often it looked, for three requests."""
        made.clear()
        for _ in range(3):
            hold = run(enter([policy], request_of()))
            assert isinstance(hold, Hold) and [made[0].place] == [*hold.note]
            hold.release()
        return len(made)

    monkeypatch.setattr(enforcement, "_semaphore", noted)
    one = policy_of()
    assert [1, 3, 3] == [
        asks(policy) for policy in (one, policy_of(key="ip"), policy_of(limit=lambda request: 3))
    ]
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": 7}
    assert 1 == asks(one)  # changed settings may say another cache


def test_of_very_many_policies_the_semaphores_are_not_all_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enforcement, "_MOST_SEMAPHORES", 5)
    kept: list[dict[Any, Any]] = [{}, {}]
    for name, empty in zip(("_semaphores", "_only"), kept, strict=True):
        monkeypatch.setattr(enforcement, name, empty)
    for n in range(20):
        enforcement._semaphore(policy_of(), Place("default", f"n{n}", None), 3)
        assert [n % 5 + 1] * 2 == [len(one) for one in kept]


OPTIONS = {"max_hold": 77.0, "min_hold": 7.0, "timeout": 17.0, "fair": False}


@pytest.mark.parametrize("option", [*OPTIONS, "blocking_timeout", "max_waiters", "enforce"])
def test_each_option_of_a_policy_reaches_its_semaphore(option: str) -> None:
    def asked(policy: Policy) -> dict[str, Any]:
        place = Place("default", policy.name, None)
        semaphore = RequestSemaphore(policy, place, 3)
        terms, ask = semaphore._terms_and_ask(True, None, 1)
        times = {"timeout": terms.timeout, "max_hold": terms.max_hold, "min_hold": terms.min_hold}
        wait = round(ask.give_up_at - enforcement.clock(), 1) if ask.wait else 0.0
        said = {"fair": ask.fair, "max_waiters": ask.max_waiters, "enforce": not ask.shadow}
        assert terms.renew, "a request's permit is renewed"
        attempts = ask.budget, ask.attempt, terms.attempt
        assert attempts == (enforcement.ATTEMPT,) * 3 < (1,), "on_outage decides soon"
        return {**times, **said, "blocking_timeout": wait}

    others = {**OPTIONS, "blocking_timeout": 4.0, "max_waiters": 5, "enforce": False}
    usual, mine = asked(policy_of()), asked(policy_of(**{option: others[option]}))
    assert {**usual, option: others[option]} == mine
    assert usual[option] != mine[option]


def test_the_place_of_a_policy_is_that_of_its_semaphore() -> None:
    semaphore = RequestSemaphore(policy_of(), Place("default", "exports", "7"), 3)
    assert ("default", "exports", "7", 3) == (
        semaphore.alias(),
        semaphore.name,
        semaphore.key,
        semaphore.limit,
    )


def test_of_very_many_keys_some_are_counted_and_others_an_hour_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(enforcement, "clock", lambda: now[0])
    counted = Counted()
    places = [Place("default", "x", str(n)) for n in range(counted.MOST + 1)]
    assert [True] * counted.MOST + [False] == [counted.has(place) for place in places]
    assert counted.has(places[0]) and not counted.has(places[-1])
    now[0] += counted.HOUR
    assert counted.has(places[-1])


def test_a_name_without_keys_is_counted_however_many_keys_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enforcement, "counted", counted := Counted())
    monkeypatch.setattr(counted, "MOST", 0)
    kept = [
        RequestSemaphore(policy_of(), Place("default", "x", key), 3)._asked(False, "")[0].keys.keep
        for key in (None, "7")
    ]
    assert [360, 0] == kept


# Its label


def test_a_label_says_the_view_the_user_and_the_id_of_the_request() -> None:
    request = request_of(HTTP_X_REQUEST_ID="r-1")
    assert labels.write("/", "", "r-1") == enforcement.label_of(request)
    request._cached_user = SimpleNamespace(pk=42)
    request.resolver_match = SimpleNamespace(view_name="reports:export")
    assert labels.write("reports:export", "42", "r-1") == enforcement.label_of(request)


def test_a_label_asks_nobody_for_the_user() -> None:
    class Request:
        resolver_match, path, META = None, "/", {}

        @property
        def user(self) -> Any:
            raise AssertionError("a query for the sake of a label")

    assert labels.write("/") == enforcement.label_of(Request())  # type: ignore[arg-type]


# Its key


def test_an_address_is_told_by_as_many_proxies_as_are_trusted() -> None:
    request = request_of(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="1.1.1.1, 2.2.2.2, 3.3.3.3")
    for proxies, address in ((0, "10.0.0.1"), (1, "3.3.3.3"), (2, "2.2.2.2"), (9, "10.0.0.1")):
        policy = policy_of(key="ip", trusted_proxies=proxies)
        assert identity.digest("ip", address) == run(key_of(policy, request, request))


def test_a_network_is_as_large_as_the_policy_says() -> None:
    request = request_of(REMOTE_ADDR="2001:db8:1:2:3::1")
    for bits, network in ((64, "2001:db8:1:2::"), (48, "2001:db8:1::")):
        policy = policy_of(key="ip", ipv6_prefix=bits)
        assert identity.digest("ip", network) == run(key_of(policy, request, request))


@pytest.mark.parametrize("zone", ["", "%eth0", "%1"])
def test_a_zone_is_no_part_of_an_address(zone: str) -> None:
    for address in ("fe80::", "fe80::1"):
        assert "fe80::" == identity.network(f"{address}{zone}")


@pytest.mark.parametrize("runs", [run, lambda plan: asyncio.run(arun(plan))], ids=["sync", "async"])
def test_who_is_anonymous_is_told_by_address(runs: Any) -> None:
    """Also where a middleware of the project's own sets the user, and no auser."""
    request = request_of(REMOTE_ADDR="10.0.0.1")
    policy = policy_of(key="user")
    request.user = SimpleNamespace(pk=None)
    assert identity.digest("ip", "10.0.0.1") == runs(key_of(policy, request, request))
    request.user = SimpleNamespace(pk=42)
    assert "42" == runs(key_of(policy, request, request))


def test_the_projects_own_callables_get_the_request_as_the_view_sees_it() -> None:
    seen, asked = object(), list[Any]()

    def says(value: Any) -> Any:
        return lambda request: asked.append(request) or value

    policy = policy_of(when=says(True), key=says("k"), limit=says(0))
    with pytest.raises(ValueError, match="limit must be from 1"):
        run(enter([policy], request_of(), seen))
    assert [seen] * 3 == asked


# Its receivers


def carried_out(plan: Any, answers: dict[type, Any]) -> Any:
    """The plan's result; steps of a type in `answers` are answered so."""
    try:
        step = next(plan)
        while True:
            step = plan.send(answers[type(step)] if type(step) in answers else step.do())
    except StopIteration as stop:
        return stop.value


def test_receivers_of_a_refusal_get_all_there_is_to_say() -> None:
    heard: list[dict[str, Any]] = []

    def receiver(**said: Any) -> None:
        heard.append(said)

    policy, request = policy_of(key=lambda _: "k"), request_of()
    answers = {Call: "k", Take: Refusal("full", waiting=3)}
    acquire_rejected.connect(receiver)
    try:
        refused = carried_out(enter([policy], request), answers)
    finally:
        acquire_rejected.disconnect(receiver)
    assert isinstance(refused, Refused)
    (said,) = heard
    refusal = said["refusal"]
    assert ("full", 3) == (refusal.reason, refusal.waiting)
    assert (policy, request, True) == (said["policy"], said["request"], said["enforced"])
    assert identity.of_value("k") == said["key"]


WAYS = pytest.mark.parametrize(
    "asks", [admit, lambda *said: asyncio.run(aadmit(*said))], ids=["sync", "async"]
)


@WAYS
def test_a_preflight_takes_no_permit_also_where_one_is_free(asks: Any, clean_redis: None) -> None:
    policy = policy_of(limit=1)
    for preflight in (False, True):
        hold = asks([policy], request_of(), None, preflight)
        assert (0 if preflight else 1) == status_of("exports").in_use
        hold.release()


@WAYS
def test_a_receiver_that_fails_stops_no_refusal(asks: Any) -> None:
    def receiver(**said: Any) -> None:
        raise KeyError("the receiver's own")

    acquire_rejected.connect(receiver)
    try:
        with Semaphore("exports", 1):
            assert isinstance(asks([policy_of(limit=1)], request_of()), Refused)
    finally:
        acquire_rejected.disconnect(receiver)


@WAYS
def test_a_plain_function_may_give_what_is_to_be_awaited(asks: Any) -> None:
    async def later(value: Any) -> Any:
        return value

    def says(value: Any) -> Any:
        return lambda request: later(value)

    assert not asks([policy_of(when=says(False))], request_of())
    hold = asks([policy_of(key=says("k"), limit=says(3))], request_of())
    assert {identity.of_value("k")} == {place.key for place in hold.note}
    hold.release()


@pytest.mark.parametrize(("enforce", "word"), [(True, "refused"), (False, "would have refused")])
def test_the_log_says_which_path_was_refused_by_what_and_why(
    enforce: bool, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = enter([policy_of(enforce=enforce)], RequestFactory().get("/reports/"))
    with caplog.at_level(logging.INFO, logger="django_redis_sync"):
        carried_out(plan, {Take: Refusal("full")})
    assert [f"{word} /reports/: 'exports' is full"] == [r.getMessage() for r in caplog.records]


def test_a_limit_without_a_name_is_known_from_outside_by_the_name_that_it_has() -> None:
    class Pages(View):
        @semaphore_required(limit=3)
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse()

    page = Pages()
    for method in ("GET", None):
        ((_, name),) = marks_of(Pages.as_view(), method)
        assert name == name_of(page.get, (page,)) and name.endswith(".Pages.get")


def test_a_request_may_be_given_by_its_name() -> None:
    @semaphore_required("exports", limit=1)
    def view(request: Any) -> HttpResponse:
        return HttpResponse(f"{Semaphore('exports', 1).status().in_use} in")

    assert b"1 in" == view(request=request_of()).content
    with pytest.raises(TypeError, match="got no request"):
        view(7)


def test_a_preflight_to_a_method_of_a_class_that_is_no_view_counts() -> None:
    class Pages:
        @semaphore_required("exports", limit=1)
        def show(self, request: Any) -> HttpResponse:
            return HttpResponse(f"{Semaphore('exports', 1).status().in_use} in")

    assert b"1 in" == Pages().show(RequestFactory().options("/")).content


def test_what_gets_no_request_is_refused_also_where_it_has_no_name() -> None:
    class Callable:
        def __call__(self, pk: int) -> HttpResponse:
            return HttpResponse()

    with pytest.raises(TypeError, match=r"Callable object at .* got no request"):
        semaphore_required("exports", limit=1)(Callable())(7)


OPTIONS_OF_REQUESTS: dict[str, tuple[dict[str, Any], Any]] = {
    "when": ({"when": lambda request: "all" in request.GET}, (False, [])),
    "methods": ({"methods": ["POST"]}, (False, [])),
    "blocking_timeout": ({"blocking_timeout": 0.05}, ("timeout", ["timeout"])),
    "enforce": ({"enforce": False}, (True, ["full"])),
    "shadow": ({"enforce": False, "blocking_timeout": 0.05}, (True, ["full"])),
    "none": ({}, ("full", ["full"])),
}


@WAYS
@pytest.mark.parametrize("option", OPTIONS_OF_REQUESTS)
def test_an_option_of_requests_counts_from_the_second_request_on_as_well(
    option: str, asks: Any, clean_redis: None
) -> None:
    heard: list[str] = []

    def receiver(refusal: Refusal, **_: Any) -> None:
        heard.append(refusal.reason)

    given, expected = OPTIONS_OF_REQUESTS[option]
    policy = policy_of(limit=1, **given)
    first = asks([policy], RequestFactory().post("/?all"))
    assert 1 == len(first.note)
    first.release()
    acquire_rejected.connect(receiver)
    try:
        with Semaphore("exports", 1):
            got = asks([policy], request_of())
    finally:
        acquire_rejected.disconnect(receiver)
    assert expected == (got.refusal.reason if isinstance(got, Refused) else bool(got), heard)
    if isinstance(got, Hold):
        got.release()
    third = asks([policy], request_of())
    assert (option not in ("when", "methods")) == bool(third)
    third.release()


@WAYS
def test_who_is_refused_asked_redis_once(
    asks: Any, clean_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, asked, settle = policy_of(limit=1), list[str](), RequestSemaphore._settle

    def noted(semaphore: RequestSemaphore, *said: Any) -> Any:
        asked.append(semaphore.name)
        return settle(semaphore, *said)

    with Semaphore("exports", 1):
        monkeypatch.setattr(RequestSemaphore, "_settle", noted)
        for nth in (1, 2):  # the second goes the straight way
            assert isinstance(asks([policy], request_of()), Refused)
            assert nth == len(asked)


def test_a_request_that_is_dropped_on_the_straight_way_asks_no_more(
    clean_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of()
    admit([policy], request_of()).release()  # type: ignore[union-attr]

    async def asks(*_: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(RequestSemaphore, "atake_for", asks)
    request = aadmit([policy], request_of())
    request.send(None)
    request.close()


@WAYS
@pytest.mark.parametrize("options", [{}, {"key": "ip"}, {"blocking_timeout": 3}], ids=str)
def test_whoever_redis_let_in_is_known_here_for_as_long_as_it_is_inside(
    options: Any, asks: Any
) -> None:
    policy = policy_of(**options)
    for _ in range(2):  # the second may go the straight way
        hold = asks([policy], request_of())
        (place,), (permit,) = hold.note, hold._permits
        assert hold.has(permit.lease) and not hold.has(None)
        assert 1 == rooms().inside(place)
        hold.release()
        assert 0 == rooms().inside(place)


@WAYS
def test_a_request_takes_one_permit_of_a_name_and_one_of_each_other(asks: Any) -> None:
    policies = [policy_of(), parse("others", {"limit": 3})]
    for _ in range(2):  # the second may go the straight way
        both = asks(policies, request_of())
        assert 2 == len(both._permits)
        both.release()
        request = request_of()
        hold = asks(policies[:1], request)
        assert hold and not asks(policies[:1], request)
        other = asks(policies, request)
        assert 1 == len(other._permits) and 2 == len(hold.note)
        hold.release()
        other.release()


# Several policies


def test_permits_of_several_policies_are_taken_by_name_whoever_says_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two views that say them the other way round wait for each other."""
    asked, take = list[str](), RequestSemaphore.take_for

    def noted(semaphore: RequestSemaphore, *said: Any) -> Any:
        asked.append(semaphore.name)
        return take(semaphore, *said)

    monkeypatch.setattr(RequestSemaphore, "take_for", noted)
    some = [parse(name, {"limit": 3}) for name in ("b", "c", "a")]
    for policies in (some, some[::-1]):
        hold = run(enter(policies, request_of()))
        assert isinstance(hold, Hold)
        hold.release()
    assert ["a", "b", "c"] * 2 == asked


def test_a_request_that_is_dropped_gives_back_what_it_has(clean_redis: None) -> None:
    """As by a loop that ends with requests of its own."""
    plan = enter([policy_of(), parse("later", {"limit": 1, "when": bool})], request_of())
    step = plan.send(lease := next(plan).do())
    assert (True, False) == (isinstance(step, Call), lease.ended)
    plan.close()
    eventually(lambda: lease.ended)
    assert 0 == rooms().inside(Place("default", "exports", None))


@WAYS
@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, asyncio.CancelledError])
def test_whoever_fails_between_two_permits_gives_the_first_back(
    asks: Any, kind: type[BaseException], clean_redis: None
) -> None:
    def fails(request: Any) -> str:
        raise kind

    with pytest.raises(kind):
        asks([policy_of(), parse("others", {"limit": 1, "key": fails})], request_of())
    assert 0 == Semaphore("exports", 3).status().in_use


@WAYS
def test_who_is_refused_one_permit_gives_the_others_back(asks: Any, clean_redis: None) -> None:
    with Semaphore("others", 1):
        refused = asks([policy_of(), parse("others", {"limit": 1})], request_of())
    assert "others" == refused.policy.name
    assert 0 == Semaphore("exports", 3).status().in_use


def test_a_response_of_the_projects_own_may_wait_though_the_view_is_async() -> None:
    free: list[bool] = []

    def own(request: Any, said: Any) -> HttpResponse:
        free.append(may_wait())
        return HttpResponse(status=said.status)

    refused = Refused(policy_of(response=own), 3, Refusal("full"))
    assert 503 == asyncio.run(aanswer(request_of(), refused)).status_code
    assert [True] == free


# Waiting


def test_a_place_that_was_waited_for_in_vain_is_under_pressure_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(enforcement, "clock", lambda: now[0])
    pressure, mine = _Pressure(), Place("default", "x", None)
    pressure.note(mine)
    assert [True, False] == [pressure.on(mine), pressure.on(mine._replace(key="7"))]
    now[0] += pressure.MOMENT
    assert not pressure.on(mine)
    assert {} == pressure._until
    monkeypatch.setattr(pressure, "MOST", 3)
    for n in range(20):
        pressure.note(mine._replace(key=str(n)))
        assert 0 < len(pressure._until) <= 3


@pytest.mark.parametrize("pressed", [False, True], ids=["at first", "after a wait in vain"])
def test_who_has_to_wait_looks_for_a_seat_and_who_asked_already_is_patient(
    pressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enforcement, "pressure", pressure := _Pressure())
    if pressed:
        pressure.note(Place("default", "exports", None))
    plan, steps = enter([policy_of(blocking_timeout=9)], request_of()), list[Any]()
    with contextlib.suppress(StopIteration):
        steps.append(next(plan))
        while True:  # there is no seat, and no permit
            steps.append(plan.send(None if isinstance(steps[-1], Seated) else Refusal("full")))
    assert [False] == [step.blocking for step in steps if isinstance(step, Take)]
    seats = [step.patient for step in steps if isinstance(step, Seated)]
    assert ([True] if pressed else [False, True]) == seats


@pytest.mark.parametrize(("most", "seats"), [(0, 0), (2, 2), (None, 9)])
def test_there_are_as_many_seats_as_the_settings_say(
    most: int | None, seats: int, settings: Any
) -> None:
    settings.REDIS_SYNC = {
        **settings.REDIS_SYNC,
        "REQUESTS": {"max_waiting_threads": most, "max_waiting_tasks": 1},
    }
    some = Seats("max_waiting_threads")
    taken = [seat for _ in range(9) if (seat := some.take()) is not None]
    assert seats == len(taken)
    if most:
        some.leave(taken.pop())
        assert some.take() is not None


def test_a_seat_is_left_however_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Seats("max_waiting_threads")
    monkeypatch.setattr("django_redis_sync.limits.seats.threads", some)

    def fail() -> None:
        assert 1 == len(some._taken)
        raise KeyError

    with pytest.raises(KeyError):
        Seated(SimpleNamespace(do=fail)).do()  # type: ignore[arg-type]
    assert 0 == len(some._taken)


# Holding

PLACE = Place("default", "held", None)


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Of a request that was let in without Redis."""
    made = Hold(request_of())
    made.add(Permit(PLACE, None, Breaker("default")))
    rooms().enter(PLACE, made, alone=True)
    yield made
    made.release()


def test_a_response_that_is_still_to_be_rendered_keeps_its_permit(hold: Hold) -> None:
    response = SimpleTemplateResponse("404.html")
    assert hold.goes_with(response)
    assert (1, {PLACE}) == (rooms().inside(PLACE), hold.note)
    for after in response._post_render_callbacks:
        after(response)
    assert (0, set()) == (rooms().inside(PLACE), hold.note)


def test_what_would_cut_a_stream_off_is_let_go_of_with_its_last_part(
    hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task or the connection may serve another request by then."""

    async def parts() -> AsyncIterator[str]:
        yield "part"

    async def read() -> None:
        async for _ in hold._awatched(parts()):
            assert hold._hang_up is not None
        assert hold._hang_up is None

    asyncio.run(read())
    monkeypatch.setattr(hold, "_hang_up", print)
    assert ["part"] == [*hold._watched(["part"])]
    assert hold._hang_up is print  # a thread's connection is this response's until it is sent
    monkeypatch.setattr(Hold, "_asgi", True)
    assert ["part"] == [*hold._watched(["part"])] and hold._hang_up is None


@pytest.mark.parametrize("of_a_file", [False, True])
@pytest.mark.parametrize("asgi", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_stream_can_be_ended_but_where_the_server_sends_a_file_by_itself(
    of_a_file: bool, asgi: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    made = Hold(request_of(**({"gunicorn.socket": ours} if known else {})))
    monkeypatch.setattr(Hold, "_asgi", asgi)
    response: Any = SimpleNamespace(is_async=False, _iterator=iter(()))
    if of_a_file:
        response.file_to_stream = None
    with ours, theirs:
        made._watch(response)
        assert made.hang_up() == (known or asgi or not of_a_file)
        theirs.setblocking(False)
        if known:
            assert b"" == theirs.recv(1)
        else:
            with pytest.raises(BlockingIOError):
                theirs.recv(1)


@pytest.mark.parametrize(("most", "lead"), [(3600.0, 0.5), (2.0, 0.2)])
def test_a_stream_ends_a_moment_before_its_lease_does(most: float, lead: float) -> None:
    made = run(enter([policy_of(max_hold=most)], request_of()))
    lease, response = made._permits[0].lease, StreamingHttpResponse(iter(["part"]))
    assert (math.inf, lease._state.due) == (lease._hang_up_at, lease.due)
    assert made.goes_with(response)
    assert pytest.approx(most - lead) == lease._hang_up_at - lease._state.grant.began
    assert lease.due == lease._state.due < lease._hang_up_at
    lease._hang_up_at = lease._state.grant.began
    assert lease.due == lease._hang_up_at
    made.release()


def test_whoever_is_on_a_loop_that_is_over_is_told_nothing_and_stops_nobody() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    holding._cancel(loop, SimpleNamespace(cancel=None))  # type: ignore[arg-type]
    rooms_module._wake(loop, None)  # type: ignore[arg-type]


def test_a_stream_whose_connection_is_closed_already_stops_nobody() -> None:
    connection = socket.socket()
    connection.close()
    assert holding._shut(connection)


def test_a_stream_that_is_gone_is_not_ended(caplog: pytest.LogCaptureFixture) -> None:
    made = run(enter([policy_of(max_hold=60)], request_of()))
    lease = made._permits[0].lease
    lease.ends_stream(Hold(request_of()))  # nobody refers to it
    lease._hang_up_at = now = lease._state.grant.began
    assert lease.tend(now) is None
    assert (math.inf, []) == (lease._hang_up_at, caplog.records)
    made.release()


def test_a_stream_of_a_thread_is_ended_at_its_next_part(caplog: pytest.LogCaptureFixture) -> None:
    hold = run(enter([policy_of(max_hold=60)], RequestFactory().get("/export/")))
    lease, response = hold._permits[0].lease, StreamingHttpResponse(iter(["one", "two"]))
    assert hold.goes_with(response)
    parts = iter(response)
    lease._hang_up_at = now = lease._state.grant.began
    assert (b"one", None) == (next(parts), lease.tend(now))
    with pytest.raises(ConnectionResetError, match="max_hold"):
        next(parts)
    assert lease.ended
    assert lease.tend(now) is None  # it is said once
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the stream of /export/ is ended: it held its permit of 'exports'")


def test_a_stream_of_a_task_is_ended_by_cancelling_that(hold: Hold) -> None:
    async def parts() -> AsyncIterator[str]:
        yield "part"
        await asyncio.sleep(60)

    async def read() -> None:
        async for _ in hold._awatched(parts()):
            assert hold.hang_up()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
    assert not hold.hang_up()


def test_a_permit_that_is_lost_is_told_by_the_path_of_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = run(enter([policy_of()], RequestFactory().get("/reports/")))
    also = asyncio.run(aadmit([policy_of()], RequestFactory().get("/other/")))
    for hold in (made, also):
        hold._permits[0].lease.say_lost("it expired")
        hold.release()
    said = "a request to {} goes on, and its permit of 'exports' is lost: it expired"
    assert [said.format("/reports/"), said.format("/other/")] == [
        one.getMessage() for one in caplog.records
    ]


def test_a_response_that_is_dropped_gives_back_though_no_thread_can_be_started_by_then(
    hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(holding, "_reapers", {})
    response = StreamingHttpResponse(iter(["part"]))
    assert hold.goes_with(response)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    del response
    eventually(lambda: not rooms().inside(PLACE))


def test_what_fails_off_the_request_is_said_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reaper = holding._Reaper()
    for release in ((lambda: 1 / 0), print):
        reaper._dropped.append(SimpleNamespace(release=release))  # type: ignore[arg-type]
    assert -math.inf == reaper._earliest()
    assert math.inf == reaper._turn() == reaper._earliest()
    assert ["releasing what was dropped without an end failed"] == caplog.messages


def test_a_response_that_is_whole_goes_without_it(hold: Hold) -> None:
    assert not hold.goes_with(HttpResponse("whole"))
    hold.release()
    assert (0, False) == (rooms().inside(PLACE), bool(hold))


class Failing:
    """A view's end that is no response."""

    def __call__(self, request: Any) -> Any:
        request._redis_sync_hold = self.hold
        raise KeyboardInterrupt

    def __init__(self, hold: Hold) -> None:
        self.hold = hold


def test_the_middleware_keeps_nothing_when_what_is_inside_raises(hold: Hold) -> None:
    with pytest.raises(KeyboardInterrupt):
        ConcurrencyLimitMiddleware(Failing(hold))(request_of())
    assert 0 == rooms().inside(PLACE)


async def awaits(request: Any) -> Any:
    raise asyncio.CancelledError


def with_awaitable(request: Any) -> Any:
    return awaits(request)


def interrupted(request: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_of_wrong_settings_the_middleware_says_what_is_wrong(asgi: bool, settings: Any) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"x": {"limit": 0}}}
    request = request_of()
    request.resolver_match = SimpleNamespace(view_name="x")
    middleware = ConcurrencyLimitMiddleware(awaits if asgi else interrupted)
    with pytest.raises(ImproperlyConfigured, match="limit must be"):
        came = middleware.process_view(request, interrupted, (), {})
        asyncio.run(came)


@pytest.mark.parametrize("of_an_async_view", [True, False])
def test_on_a_loop_the_middleware_keeps_nothing_when_what_is_inside_raises(
    of_an_async_view: bool, hold: Hold
) -> None:
    async def fails(request: Any) -> Any:
        request._redis_sync_hold, request._redis_sync_async_view = hold, of_an_async_view
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ConcurrencyLimitMiddleware(fails)(request_of()))
    assert 0 == rooms().inside(PLACE)


@pytest.mark.parametrize(
    ("atomic", "skipped", "found"),
    [(True, (), True), (False, (), False), (True, ("default",), False), (True, ("other",), True)],
)
def test_a_view_is_atomic_where_django_wraps_it(
    atomic: bool, skipped: tuple[str, ...], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = {"default": {"ATOMIC_REQUESTS": atomic}, "other": {"ATOMIC_REQUESTS": False}}
    monkeypatch.setattr(
        "django_redis_sync.middleware.connections", SimpleNamespace(settings=databases)
    )

    def view(request: Any) -> None: ...

    if skipped:
        view._non_atomic_requests = set(skipped)  # type: ignore[attr-defined]
    assert found == is_atomic(view)


@pytest.mark.parametrize("on_a_loop", [True, False])
def test_a_stream_that_breaks_gives_back_its_permit(on_a_loop: bool, hold: Hold) -> None:
    def parts_of_a_thread() -> Any:
        yield b"part"
        raise ConnectionResetError

    async def parts() -> Any:
        for part in parts_of_a_thread():
            yield part

    async def main() -> None:
        response = StreamingHttpResponse(parts())
        assert hold.goes_with(response)
        with pytest.raises(ConnectionResetError):
            async for part in response:
                assert (b"part", 1) == (part, rooms().inside(PLACE))
        assert 0 == rooms().inside(PLACE)  # while there is a response

    if on_a_loop:
        asyncio.run(main())
    else:
        response = StreamingHttpResponse(parts_of_a_thread())
        assert hold.goes_with(response)
        with pytest.raises(ConnectionResetError):
            list(response)
    assert 0 == rooms().inside(PLACE)


@pytest.mark.usefixtures("clean_redis")
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "at the door"])
@pytest.mark.parametrize("view", [with_awaitable, awaits, interrupted])
def test_a_permit_is_given_back_though_somebody_keeps_the_error(
    view: Any, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a debugger or a reporter of errors does, and with it the frames that know the permit."""
    limited = semaphore_required("exports", 3)(view)

    async def awaited(asked: Any) -> None:
        await asked

    kept: list[BaseException] = []
    for _ in range(2):  # the second goes the straight way
        if kept and not inside:
            monkeypatch.setattr(enforcement, "_let_in", lambda *_: interrupted(_))
        try:
            asyncio.run(awaited(limited(request_of())))
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            kept.append(error)
        eventually(lambda: not Semaphore("exports", 3).status().in_use)
    assert 2 == len(kept)


class Fails:
    """In the place of a lease: it is given back in no way."""

    name = "exports"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def release(self) -> None:
        raise self.error

    release_later = release

    async def arelease(self) -> None:
        raise self.error


@pytest.mark.parametrize("how", ["release", "arelease", "release_later"])
@pytest.mark.parametrize(
    ("error", "told", "down"),
    [
        (LeaseLost("gone"), "nothing to release: gone", False),
        (Unavailable("down"), "'exports' will be released when Redis is back: down", True),
        (ValueError("odd"), "releasing 'exports' failed", False),
    ],
    ids=["lost", "unavailable", "odd"],
)
def test_a_permit_that_cannot_be_given_back_breaks_no_response_and_is_told(
    how: str, error: Exception, told: str, down: bool, caplog: Any
) -> None:
    breaker: Any = Quiet()
    permit = Permit(PLACE, Fails(error), breaker)  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG, logger="django_redis_sync"):
        done = getattr(permit, how)()
        if done is not None:
            asyncio.run(done)
    said = [one for one in caplog.records if "release" in one.getMessage() or one.exc_info]
    level = "ERROR" if type(error) is ValueError else "DEBUG"
    assert [(level, told)] == [(one.levelname, one.getMessage()) for one in said]
    assert down == breaker.down


@pytest.mark.parametrize("down", [False, True])
def test_a_permit_waits_for_no_server_that_is_down(down: bool) -> None:
    done: list[str] = []
    redis = Breaker("default")
    redis._era = int(down)
    lease: Any = SimpleNamespace(
        release=lambda: done.append("now"), release_later=lambda: done.append("later")
    )
    mine = Hold(request_of())
    mine._permits.append(Permit(PLACE, lease, redis))
    mine.release()
    assert ["later" if down else "now"] == done


class Limited(SemaphoreRequiredMixin, View):
    semaphore_name = "exports"
    semaphore_limit = 3

    def semaphore_key(request: Any) -> str:
        return "k"


def test_a_function_of_the_mixin_is_a_policys_callable_and_no_method() -> None:
    assert Limited.__dict__["semaphore_key"] is Limited().get_semaphore_key()  # type: ignore[attr-defined]
    assert 3 == Limited().get_semaphore_limit()  # type: ignore[attr-defined]


class Keeps:
    """A base of a project's own that is told something by its subclasses."""

    kept = 0

    def __init_subclass__(cls, kept: int = 0, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.kept = kept


def test_the_mixin_takes_nothing_from_other_bases() -> None:
    class Both(SemaphoreRequiredMixin, Keeps, View, kept=7):
        semaphore_limit = 3

    assert 7 == Both.kept


# Outages

HERE = Place("default", "exports", None)


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    """The breaker of this test; its rooms are empty."""
    made = Quiet()
    monkeypatch.setattr(enforcement, "breaker", lambda alias: made)
    empty = Rooms()
    monkeypatch.setattr(enforcement, "rooms", lambda: empty)
    monkeypatch.setattr("django_redis_sync.limits.holding.rooms", lambda: empty)
    return made


def entered(answer: Any, **options: Any) -> Any:
    """A Hold or a Refused; asking Redis comes to `answer`, raised if it is an exception. Of what
    else is waited for, nothing comes."""
    plan = enter([policy_of(**options)], request_of())
    try:
        step = next(plan)
        while True:
            if not isinstance(step, Take):
                step = plan.send(step.do())
            elif isinstance(answer, BaseException):
                step = plan.throw(answer)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value


def inside() -> tuple[int, bool]:
    return enforcement.rooms().inside(HERE), enforcement.rooms().alone(HERE)


DOWN = Unavailable("down")


@pytest.mark.parametrize(
    ("options", "lets_in"),
    [
        ({}, True),
        ({"on_outage": "open"}, True),
        ({"on_outage": "closed"}, False),
        ({"on_outage": "closed", "enforce": False}, True),
        ({"on_outage": "local", "limit": 1, "enforce": False}, True),
    ],
    ids=str,
)
def test_when_redis_fails_on_outage_rules_and_the_breaker_opens(
    options: Any, lets_in: bool, redis: Quiet
) -> None:
    got = entered(DOWN, **options)
    assert (True, lets_in) == (redis.down, isinstance(got, Hold))
    assert (int(lets_in), lets_in) == inside()
    if lets_in:
        got.release()
    else:
        assert ("outage", 503) == (got.refusal.reason, got.status)
    assert (0, False) == inside()


def test_while_it_is_down_the_limit_is_that_of_this_process(redis: Quiet) -> None:
    redis.failed(redis.era, DOWN)
    first = entered(AssertionError("Redis was asked"), limit=1)
    second = entered(AssertionError("Redis was asked"), limit=1)
    assert isinstance(first, Hold)
    assert ("full", 503, 1) == (second.refusal.reason, second.status, second.limit)
    first.release()
    assert isinstance(entered(AssertionError("Redis was asked"), limit=1), Hold)


def test_who_waits_in_an_outage_is_patient_with_those_who_need_no_seat(redis: Quiet) -> None:
    redis.failed(redis.era, DOWN)
    first = entered(AssertionError("Redis was asked"), limit=1)
    step = next(enter([policy_of(limit=1, blocking_timeout=9)], request_of()))
    assert isinstance(step, Seated) and step.patient
    waits = Hold(request_of())
    turn = enforcement.rooms().ask(HERE, waits, 1, 9, 9)
    plan = enter([policy_of(limit=1, blocking_timeout=9)], request_of())
    answers = {Seated: None}  # there is none
    refused = carried_out(plan, answers)
    assert ("waiters", 2) == (refused.refusal.reason, refused.refusal.waiting) and turn
    first.release()


def test_who_is_refused_in_an_outage_is_told_of_those_who_wait(redis: Quiet) -> None:
    redis.failed(redis.era, DOWN)
    first = entered(AssertionError("Redis was asked"), limit=1)
    waits = Hold(request_of())
    turn = enforcement.rooms().ask(HERE, waits, 1, 9, 1.0)
    assert turn not in (True, False)
    refused = entered(AssertionError("Redis was asked"), limit=1)
    assert ("full", 1) == (refused.refusal.reason, refused.refusal.waiting)
    enforcement.rooms().leave(HERE, waits)
    first.release()


@pytest.mark.parametrize("answer", [Refusal("full"), DOWN, KeyboardInterrupt()], ids=repr)
def test_what_the_trial_comes_to_decides(answer: Any, redis: Quiet) -> None:
    redis.failed(redis.era, DOWN)
    redis.probe_answered()
    era = redis.era
    if isinstance(answer, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            entered(answer)
        assert [era, None] == [redis.ask(), redis.ask()]  # another one tries
    else:
        entered(answer, on_outage="closed")
        assert (answer is DOWN) == redis.down
        assert (None if answer is DOWN else redis.era) == redis.ask()
    assert (0, False) == inside()


@WAYS
@pytest.mark.parametrize("answer", [Refusal("full"), DOWN], ids=repr)
def test_what_the_trial_comes_to_decides_on_the_straight_way_too(
    answer: Any, asks: Any, redis: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Refusal("full"), answer]

    def ask(*_: Any) -> Any:
        if isinstance(said := answers.pop(0), BaseException):
            raise said
        return said

    async def aask(*_: Any) -> Any:
        return ask()

    monkeypatch.setattr(RequestSemaphore, "take_for", ask)
    monkeypatch.setattr(RequestSemaphore, "atake_for", aask)
    policy = policy_of(on_outage="closed")
    assert "full" == asks([policy], request_of()).refusal.reason
    redis.failed(redis.era, DOWN)
    redis.probe_answered()
    reason = asks([policy], request_of()).refusal.reason
    assert ([], answer is DOWN) == (answers, redis.down)
    assert ("outage" if redis.down else "full") == reason
    assert (0, False) == inside()


def test_those_let_in_during_an_outage_count_when_it_is_over(redis: Quiet) -> None:
    redis.failed(redis.era, DOWN)
    stays = entered(None, limit=1)
    redis.probe_answered()
    era = redis.era
    refused = entered(AssertionError("Redis was asked"), limit=1)
    assert "full" == refused.refusal.reason
    assert era == redis.ask()  # it did not try, so another one may
    redis.succeeded(era)
    stays.release()
    assert isinstance(entered(Refusal("full"), limit=1), Refused)
    assert (0, False) == inside()


def test_in_shadow_mode_redis_alone_says_who_is_in_when_an_outage_is_over(redis: Quiet) -> None:
    redis.failed(redis.era, DOWN)
    stays = entered(None, limit=1, enforce=False)
    redis.probe_answered()
    with pytest.raises(AssertionError, match="Redis was asked"):
        entered(AssertionError("Redis was asked"), limit=1, enforce=False)
    stays.release()
    assert (0, False) == inside()


@WAYS
def test_those_let_in_during_an_outage_count_on_the_straight_way_too(
    asks: Any, redis: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*said: Any) -> Any:
        raise AssertionError("Redis was asked")

    policy = policy_of(limit=1)
    for way in ("take_for", "atake_for"):
        monkeypatch.setattr(RequestSemaphore, way, ask)
    redis.failed(redis.era, DOWN)
    stays = asks([policy], request_of())
    redis.probe_answered()
    redis.succeeded(redis.era)
    assert "full" == asks([policy], request_of()).refusal.reason
    stays.release()


@pytest.mark.parametrize(
    ("options", "sees"),
    [
        ({}, False),
        ({"key": "ip"}, False),
        ({"key": "user"}, True),
        ({"key": len}, True),
        ({"when": bool}, True),
        ({"limit": len}, True),
    ],
    ids=str,
)
def test_some_policies_need_the_views_own_request(options: Any, sees: bool) -> None:
    assert sees == _sees_the_view(policy_of(**options))


@pytest.mark.parametrize(
    ("drf", "options", "taken"),
    [(False, {}, 1), (False, {"key": "user"}, 1), (True, {}, 1), (True, {"key": "user"}, 0)],
)
def test_before_a_transaction_all_is_taken_but_what_needs_the_view_of_rest_framework(
    drf: bool, options: Any, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, so in (("is_atomic", True), ("is_drf", drf)):
        monkeypatch.setattr(f"django_redis_sync.middleware.{name}", lambda view, so=so: so)
    request = request_of()
    for name in ("exports", None):
        view = semaphore_required(name, limit=1, **options)(is_atomic)
        named = name or "django_redis_sync.middleware.is_atomic"
        assert [named] * taken == [one.name for one in policies_of(request, view, (), {})]


def test_a_limit_of_the_same_name_in_another_cache_is_another_limit(settings: Any) -> None:
    elsewhere = {"name": "exports", "limit": 1, "using": "elsewhere"}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ENDPOINTS": {"x": elsewhere}}
    request = request_of()
    request.resolver_match = SimpleNamespace(view_name="x")
    for using, taken in (("elsewhere", []), ("default", ["elsewhere"])):
        view = semaphore_required("exports", limit=1, using=using)(lambda request: HttpResponse())
        assert taken == [policy.using for policy in policies_of(request, view, (), {})]


def test_pages_of_the_admin_are_known() -> None:
    def view(request: Any) -> None: ...

    assert not _is_of_admin(view)
    assert _is_of_admin(admin.site.login)
    for mark in ("admin_site", "model_admin"):
        page = SimpleNamespace(**{mark: None})
        assert _is_of_admin(page)
