"""The admin's pages of a large site: Redis commands per page, page numbers, and problems first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from django.conf import settings
from django.test import Client

from django_redis_sync import Semaphore
from django_redis_sync.console import pages
from tests.behaviour.both import eventually
from tests.behaviour.watching import sent
from tests.conftest import clean
from tests.support.pages import get

pytestmark = pytest.mark.django_db

NAMES, POLICIES, KEYS = 2_000, 100, 500
TROUBLE = "zz-last-by-name"


@pytest.fixture(scope="module", autouse=True)
def large(redis_url: str) -> Iterator[redis.Redis]:
    """Register 2,000 names and 50,000 keys. One name has a waiter and a rejection."""
    clean(redis_url)
    raw = redis.Redis.from_url(redis_url)
    now = raw.time()[0] * 1000
    fill = raw.pipeline(transaction=False)
    names = {f"invoice:{n}": now - 60_000 - n for n in range(NAMES - POLICIES)}
    names |= {f"policy-{n}@": now - 70_000 - n for n in range(POLICIES)}
    fill.zadd(f"{settings.PREFIX}:names", names)
    for n in range(POLICIES):
        keys = {str(m): now - 60_000 - m for m in range(KEYS)}
        fill.zadd(f"{settings.PREFIX}:{{policy-{n}}}:keys", keys)
    fill.execute()

    def wait() -> None:
        with Semaphore(TROUBLE, 1, blocking_timeout=600):
            pass

    waiter = threading.Thread(target=wait)
    with ExitStack() as stack, raw:
        stack.callback(clean, redis_url)
        stack.callback(waiter.join)
        stack.enter_context(Semaphore(TROUBLE, 1))
        for key in range(30):
            stack.enter_context(Semaphore("policy-7", 2, key=str(key)))
        assert Semaphore(TROUBLE, 1).acquire(blocking=False) is None
        waiter.start()
        yield raw


def test_list_begins_with_names_that_have_problems(
    large: redis.Redis, admin_client: Client
) -> None:
    def problem_first() -> bool:
        hour_ago = (large.time()[0] - 3600) * 1000
        large.zadd(f"{settings.PREFIX}:names", {TROUBLE: hour_ago})  # other names were used later
        page = get(admin_client)
        return [f"row-{TROUBLE}"] == [*page.cells][:1] and f"{NAMES + 1} names" in page.text

    eventually(problem_first)


def test_links_to_pages_keep_the_search_and_the_order(admin_client: Client) -> None:
    page = get(admin_client, "?q=invoice:1&o=-name")
    assert "Page 1 of 41" in page.text and "page-previous" not in page.parts
    assert "?q=invoice%3A1&o=-name&p=2" in page.links and 25 == len(page.cells)
    page = get(admin_client, "?q=invoice:1&o=-name&p=41")
    assert "Page 41 of 41" in page.text and "page-next" not in page.parts
    assert "?q=invoice%3A1&o=-name&p=40" in page.links
    assert f'data-url="{"/admin/django_redis_sync/name/live/"}?q=invoice%3A1&amp;' in page.html
    keys = get(admin_client, "policy-9/change/?o=name&p=2&history=all")
    assert [f"row-policy-9_40{n}" for n in range(20, 40)] == [*keys.cells]
    assert {"?history=all&o=name&p=3", "?history=all&o=-name"} <= {*keys.links}
    text = get(admin_client, "?o=use").text
    assert "The order compares 60 names: the busiest, then the most recently used." in text


def test_policy_page_shows_the_same_keys_at_each_load(admin_client: Client) -> None:
    page, whole = "policy-7/change/", "30 in use, 0 waiting in all keys"
    eventually(lambda: whole in get(admin_client, page).text)
    loads = [[*get(admin_client, page).cells] for _ in range(5)]
    assert loads[:1] * 5 == loads


@pytest.mark.parametrize(
    ("page", "limit"),
    [
        *((page, 300) for page in ("", "?o=use", "?o=oldest", "?o=name", "?o=recent", "?q=99")),
        *((f"live/{q}", 60) for q in ("", "?p=9", "?o=use", "?o=oldest", "?o=rejected", "?q=99")),
        *((f"policy-7/{page}", 60) for page in ("change/", "live/", "live/?o=-waiting")),
        *((f"{TROUBLE}/{page}", 60) for page in ("change/", "change/?history=all", "live/")),
        ("policy-7_407/live/", 60),
    ],
)
def test_page_sends_a_bounded_number_of_commands(
    admin_client: Client, page: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "HEALTH_LIFETIME", 0)  # examine the server for each list
    get(admin_client, page)  # fill the caches, which last for half a minute
    with sent() as commands:
        get(admin_client, page)
    assert sum(commands.by_name.values()) <= limit, commands.by_name
    assert (limit == 300) == (commands["info"] > 0)
