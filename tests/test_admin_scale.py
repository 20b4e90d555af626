"""The admin's pages of a large site: Redis commands per page, and problems first."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from django.conf import settings
from django.test import Client

from django_redis_sync import Semaphore
from django_redis_sync.console import pages
from django_redis_sync.engine.names import names_key, policy_key
from django_redis_sync.operators.statistics import SITE, statistics_of
from tests.behaviour.both import eventually
from tests.conftest import clean

pytestmark = pytest.mark.django_db

LIST = "/admin/django_redis_sync/name/"
NAMES, POLICIES, KEYS = 2_000, 100, 500
TROUBLE = "zz-last-by-name"


@pytest.fixture(scope="module")
def raw(redis_url: str) -> Iterator[redis.Redis]:
    clean(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        yield client
    clean(redis_url)


@pytest.fixture(scope="module", autouse=True)
def large(raw: redis.Redis) -> Iterator[None]:
    """2,000 names and 50,000 keys in the registry; one name has a waiter and a rejection."""
    now = raw.time()[0] * 1000
    fill = raw.pipeline(transaction=False)
    names = {f"invoice:{n}": now - 60_000 - n for n in range(NAMES - POLICIES)}
    names |= {f"policy-{n}@": now - 70_000 - n for n in range(POLICIES)}
    fill.zadd(names_key(settings.PREFIX), names)
    for n in range(POLICIES):
        keys = {str(m): now - 60_000 - m for m in range(KEYS)}
        fill.zadd(policy_key(settings.PREFIX, f"policy-{n}"), keys)
    fill.execute()

    def wait() -> None:
        with Semaphore(TROUBLE, 1, blocking_timeout=60):
            pass

    waiter = threading.Thread(target=wait)
    with ExitStack() as stack:
        stack.callback(waiter.join)
        stack.enter_context(Semaphore(TROUBLE, 1))
        for key in range(30):
            stack.enter_context(Semaphore("policy-7", 2, key=str(key)))
        assert Semaphore(TROUBLE, 1).acquire(blocking=False) is None
        waiter.start()
        eventually(lambda: (s := statistics_of([SITE])[0]).waiting and s.rejected)
        raw.zadd(names_key(settings.PREFIX), {TROUBLE: now - 3_600_000})
        yield


def commands_of(raw: redis.Redis, client: Client, page: str) -> list[str]:
    """Return the commands of a request without those in scripts.

    Of three requests, the one with the fewest commands counts, because the housekeeping of this
    process sends commands too.
    """
    return min((_commands_of(raw, client, page) for _ in range(3)), key=len)


def _commands_of(raw: redis.Redis, client: Client, page: str) -> list[str]:
    found = []
    with raw.monitor() as monitor:
        assert 200 == client.get(LIST + page).status_code
        raw.echo("end of page")
        for entry in monitor.listen():
            if entry["command"] == "ECHO end of page":
                return found
            if entry["client_type"] != "lua":
                found.append(entry["command"].split()[0].upper())
    return found


@pytest.mark.parametrize("health", ["examined", "remembered"])
@pytest.mark.parametrize("order", ["", "?o=use", "?o=oldest", "?o=name", "?o=recent", "?q=99"])
def test_list_sends_at_most_300_commands(
    raw: redis.Redis,
    admin_client: Client,
    order: str,
    health: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin_client.get(LIST)
    if health == "examined":
        monkeypatch.setattr(pages, "HEALTH_LIFETIME", 0)
    found = commands_of(raw, admin_client, order)
    assert len(found) <= 300, found


@pytest.mark.parametrize(
    "page",
    [
        "live/",
        "live/?p=9",
        "live/?o=use",
        "live/?o=oldest",
        "live/?o=rejected",
        "live/?o=name",
        "live/?q=99",
        "policy-7/change/",
        "policy-7/live/",
        "policy-7/live/?o=-waiting",
        "policy-7@7/change/",
        "policy-7@7/live/",
        f"{TROUBLE}/change/",
        f"{TROUBLE}/change/?history=all",
        f"{TROUBLE}/live/",
    ],
)
def test_live_refresh_and_name_page_send_at_most_60_commands(
    raw: redis.Redis, admin_client: Client, page: str
) -> None:
    admin_client.get(LIST + page)  # fills caches that live for half a minute
    found = commands_of(raw, admin_client, page)
    assert len(found) <= 60, found


def test_list_begins_with_names_that_have_problems(admin_client: Client) -> None:
    page = admin_client.get(LIST).content.decode()
    assert [TROUBLE] == re.findall(r'id="row-([^"]+)"', page)[:1]
    assert f"{NAMES + 1} names" in page


def test_policy_page_shows_the_same_keys_at_each_load(admin_client: Client) -> None:
    eventually(lambda: statistics_of(["policy-7"])[0].in_use == 30)
    texts = [admin_client.get(f"{LIST}policy-7/change/").content.decode() for _ in range(5)]
    loads = [re.findall(r'id="row-([^"]+)"', text) for text in texts]
    assert loads[:1] * 5 == loads
