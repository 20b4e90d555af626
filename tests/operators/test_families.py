"""Names that are made from values: lists, pages, histories, and metrics show their family."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client

from django_redis_sync import Lock, Semaphore, metrics, synchronized
from django_redis_sync.operators.names import names_in_use
from tests.behaviour.both import eventually
from tests.support.operators import as_json, failed, locks
from tests.support.pages import get
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture
from tests.support.screens import by_name, rows

pytestmark = pytest.mark.usefixtures("raw", "fresh_renewer")
WEBHOOK, INVOICE = "webhook:{id}", "invoice:*"


@synchronized(WEBHOOK, on_full="skip")
def webhook(id: object, inside: Any = None) -> object:
    return inside and inside()


def take_and_leave(name: str) -> None:
    with Lock(name):
        pass


def known() -> list[str]:
    return [*by_name(locks("status"))]


def series(name: str, **options: Any) -> list[str]:
    """Return the series whose label `name` begins with `name`."""
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    metrics.register(registry=registry, **options)
    lines = prometheus.generate_latest(registry).decode().splitlines()
    return [line for line in lines if f'name="{name}' in line]


@pytest.fixture
def webhooks(raw: redis.Redis) -> Iterator[None]:
    """Handle 300 webhooks. Then handle two more, and skip one of them."""
    for id in range(300):
        webhook(id)
    with ExitStack() as stack:
        stack.enter_context(Lock("nightly"))
        webhook("held", lambda: webhook("held"))
        stack.enter_context(Lock("webhook:other"))
        eventually(lambda: listed("webhook:299", "webhook:held", "nightly"))
        eventually(
            lambda: WEBHOOK in known() and "1" == by_name(locks("status"))[WEBHOOK].get("SKIPPED")
        )
        yield


@pytest.mark.usefixtures("webhooks")
def test_names_of_a_template_are_one_row_and_few_series_but_each_is_still_found() -> None:
    assert {WEBHOOK, "webhook:other", "nightly"} == {*known()}
    assert "301 names" == by_name(locks("status"))[WEBHOOK]["KEYS"]
    assert 303 == len(names_in_use())
    assert 0 < len(series("webhook:{id}")) <= 20
    assert not series("webhook:9"), "a name of a family has no series of its own"
    assert series("webhook:9", names=["webhook:9*"]), "unless it was asked for"
    assert "webhook:77: free" in locks("status", "webhook:77")
    assert "webhook:held" in locks("status", WEBHOOK, "--sort", "name", "--top", "301")
    assert "skipped 1" in locks("status", WEBHOOK)
    assert "skipped 1" in locks("history", WEBHOOK)


@pytest.mark.usefixtures("webhooks")
@pytest.mark.django_db
def test_admin_list_shows_a_template_as_a_link_to_its_names(admin_client: Client) -> None:
    page = get(admin_client)
    row = "row-webhook_3A_257Bid_257D"
    assert row in page.cells and "0 in 301 names" in page.text
    assert not any("webhook_3A7" in one for one in page.cells)
    inner = get(admin_client, "webhook_3A_257Bid_257D/change/?o=name")
    assert ["row-webhook_3A0", "row-webhook_3A1"] == [*inner.cells][:2]
    assert "act-pause" not in inner.parts and "act-resize" not in inner.parts
    assert "act-pause" in get(admin_client, "webhook_3A0/change/").parts
    found = get(admin_client, "?q=webhook:27")
    assert "row-webhook_3A277" in found.cells, "a search also finds the names of a family"


def test_name_with_waiters_or_a_long_hold_is_found_by_its_family() -> None:
    for id in range(30):
        webhook(id)
    done = threading.Event()
    held = threading.Thread(target=webhook, args=("stuck", done.wait))
    held.start()
    # Only then: the name of the waiter, a plain lock, has no template.
    eventually(lambda: listed("webhook:stuck"))
    waiter = threading.Thread(target=take_and_leave, args=("webhook:stuck",))
    waiter.start()
    try:
        row = {"IN USE": "1", "WAITING": "1"}
        eventually(lambda: row.items() <= by_name(locks("status")).get(WEBHOOK, {}).items())
        eventually(lambda: WEBHOOK == next(iter(known())))
        eventually(lambda: "WAITING FOR" in by_name(locks("status"))[WEBHOOK])
        assert next(iter(by_name(locks("status", WEBHOOK, "--sort", "waiting")))) == "webhook:stuck"
        assert "webhook:stuck: 1 of 1 in use, 1 waits" in locks("status", WEBHOOK)
    finally:
        done.set()
        held.join()
        waiter.join()


# Names of plain locks


@pytest.mark.parametrize("count", [19, 20])
def test_plain_names_with_the_same_beginning_are_a_family_from_20_names_on(count: int) -> None:
    for n in range(count):
        with Lock(f"invoice:{n}"):
            eventually(lambda n=n: listed(f"invoice:{n}"))
    with Lock("exports"):
        eventually(lambda: listed("exports"))
    expected = {f"invoice:{n}" for n in range(count)} if count < 20 else {INVOICE}
    assert {"exports"} | expected == {*known()}
    assert count + 1 == len(names_in_use())
    assert "invoice:7: free" in locks("status", "invoice:7")


def test_plain_names_that_are_used_later_join_their_family(raw: redis.Redis) -> None:
    for n in range(25):
        with Lock(f"invoice:{n}"):
            pass
    eventually(lambda: listed(*(f"invoice:{n}" for n in range(25))))
    with Lock("invoice:late"):
        eventually(lambda: listed("invoice:late"))
        eventually(lambda: by_name(locks("status"))[INVOICE]["IN USE"] == "1")
    assert "26 names" == by_name(locks("status"))[INVOICE]["KEYS"]
    # The names of a registry that other processes wrote are found as well, however many.
    now = raw.time()[0] * 1000
    raw.zadd(f"{settings.PREFIX}:names", {f"order:{n}": now - 60_000 - n for n in range(3000)})
    with Lock("order:new"):
        eventually(lambda: {INVOICE, "order:*"} == {*known()})
    assert "3001 names" == by_name(locks("status"))["order:*"]["KEYS"]


def test_names_in_the_settings_stay_out_of_families(settings: Any) -> None:
    names = {f"shop:{n}": {"limit": 1} for n in range(25)}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": names}
    for name in names:
        with Semaphore(name):
            pass
    for n in range(25):
        with Lock(f"shop:order{n}"):
            pass
    eventually(lambda: listed(*names, "shop:order24"))
    assert {*names, "shop:*"} == {*known()}
    assert len(series("shop:1")) > 20


def test_clear_of_a_family_ends_the_leases_of_its_names_and_pause_refuses() -> None:
    leases = [Lock(f"invoice:{n}", timeout=600).acquire() for n in range(25)]
    eventually(lambda: INVOICE in known())
    assert "stands for all names" in failed("pause", INVOICE)[1]
    assert "stands for all names" in failed("resize", INVOICE, "3")[1]
    locks("pause", "invoice:3")
    assert "Cleared 25." in locks("clear", INVOICE, "--no-input")
    assert not any(lease.owned() for lease in leases)


def test_json_of_a_family_lists_its_names() -> None:
    for n in range(25):
        with Lock(f"invoice:{n}"):
            pass
    eventually(lambda: INVOICE in known())
    found = as_json("status", INVOICE)
    assert 25 == found["found"] == len(found["names"])
    assert rows(locks("status", INVOICE, "--sort", "name"))[0]["NAME"] == "invoice:0"
