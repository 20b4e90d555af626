"""Shares as operators see them: the heaviest first, bounded in number, and escaped."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_redis_sync import NotAcquired, Semaphore
from django_redis_sync.models import Name
from django_redis_sync.operators.facts import Share
from django_redis_sync.operators.history import Counters, histories, suggest
from django_redis_sync.operators.listing import Selection
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support.operators import locks

pytestmark = [
    pytest.mark.promise(25),
    pytest.mark.usefixtures("clean_redis"),
    pytest.mark.django_db,
]


def semaphore_of(share: Any, limit: int = 3, name: str = "exports") -> Semaphore:
    return Semaphore(name, 9, share=share, share_limit=limit, blocking_timeout=60)


@contextmanager
def held(*shares: Any, waiting: Sequence[Any] = ()) -> Iterator[None]:
    """Hold a permit of each share. `waiting`: shares that have a waiter, with a limit of 1."""
    threads = [threading.Thread(target=_acquire_once, args=(share,)) for share in waiting]
    with ExitStack() as stack:
        for share in shares:
            stack.enter_context(semaphore_of(share))
        for number, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda number=number: status_of("exports").waiting == number)
        yield
    for thread in threads:
        thread.join()


def _acquire_once(share: Any) -> None:
    with semaphore_of(share, 1):
        pass


@pytest.fixture
def page(client: Client) -> Callable[[], str]:
    """Return a function that fetches the admin page of the name."""
    client.force_login(User.objects.create_superuser("root"))
    url = reverse("admin:django_redis_sync_name_change", args=[Name.of("exports").id])
    return lambda: client.get(url).content.decode()


def test_status_lists_the_heaviest_shares_first() -> None:
    with held("acme", "acme", "bolt", None, waiting=["bolt"] * 3):
        status = status_of("exports")
        assert (Share("bolt", 1, 3, 3), Share("acme", 2, 0, 3), Share("", 1, 0, 3)) == status.shares
        assert (3, 1) == (status.share_count, status.shares_waiting)
        assert ["acme", "acme", "bolt", ""] == [holder.share for holder in status.holders]
        assert ["bolt"] * 3 == [waiter.share for waiter in status.waiters]


def test_status_of_a_name_without_shares_has_none() -> None:
    with Semaphore("plain", 2):
        status = status_of("plain")
    assert ((), 0, 0) == (status.shares, status.share_count, status.shares_waiting)


def test_status_lists_at_most_20_shares_and_counts_all() -> None:
    with ExitStack() as stack:
        for number in range(300):
            stack.enter_context(Semaphore("exports", 999, share=f"tenant {number}"))
        stack.enter_context(Semaphore("exports", 999, share="heavy one", share_limit=2))
        stack.enter_context(Semaphore("exports", 999, share="heavy one", share_limit=2))
        status = status_of("exports")
    assert (20, 301) == (len(status.shares), status.share_count)
    assert ("heavy one", 2) == (status.shares[0].name, status.shares[0].in_use)


def test_command_shows_shares_and_escapes_them() -> None:
    with held("acme", "acme", "\N{ZERO WIDTH SPACE}x", None, waiting=["acme"]):
        text = locks("status", "exports")
        found = json.loads(locks("status", "exports", "--format", "json"))["names"][0]
    table = text[text.index("SHARE") :]
    assert re.match(r"SHARE +IN USE +WAITING\nacme +2/3 +1\n", table), text
    assert re.search(r"^\(none\) +1/3 +0$", table, re.MULTILINE)
    assert "share acme" in text and "\N{ZERO WIDTH SPACE}" not in text
    assert {"share": "acme", "in_use": 2, "waiting": 1, "limit": 3} == found["shares"][0]
    assert [3, 1] == [found["share_count"], found["shares_waiting"]]
    assert ["acme"] == [waiter["share"] for waiter in found["waiters"]]
    assert None in [holder["share"] for holder in found["holders"]]


def test_page_shows_shares_and_escapes_them(page: Callable[[], str]) -> None:
    with held("<b>acme</b>", None):
        shown = page()
    assert "Shares: 2, 0 of them waiting" in shown
    assert "<bdi>&lt;b&gt;acme&lt;/b&gt;</bdi>" in shown and "<b>acme" not in shown
    assert "without a share" in shown and "1 of 3" in shown
    with Semaphore("exports", 9):
        assert "Shares:" not in page()


def test_listing_can_be_sorted_by_the_heaviest_share() -> None:
    heavy = semaphore_of("heavy", name="other")
    with held("a", "b", "c"), heavy, heavy:
        eventually(lambda: Selection("name").found == 2)
        for order, names in (("share", ["other", "exports"]), ("-share", ["exports", "other"])):
            assert names == [group.name for group in Selection(order).read(0, 9)[0]]


def test_rejections_by_the_share_limit_are_counted_separately() -> None:
    acme = Semaphore("exports", 9, share="acme", share_limit=3, blocking=False)
    with held("acme", "acme", "acme"):
        for _ in range(2):
            with pytest.raises(NotAcquired, match="of the share are in use") as caught, acme:
                pass
            assert "share" == caught.value.reason
        with held("bolt"):  # granted: this share has free permits
            assert None is Semaphore("exports", 4, blocking=False).acquire()
    total = histories([("exports", None)])[0].total
    assert (3, 2) == (total.rejected, total.share_rejected)


def test_rejections_by_the_share_limit_suggest_no_limit() -> None:
    busy = Counters(granted=90, released=90, held_seconds=90, rejected=50, peak=5)
    assert suggest([busy])[0] is not None
    assert (None, False) == suggest([replace(busy, share_rejected=50)])


def test_metrics_count_waiting_shares_without_a_series_per_share() -> None:
    pytest.importorskip("prometheus_client")
    from tests.test_metrics import scrape

    waiting = ["acme", "acme", "bolt"]
    with held("acme", "acme", "bolt", waiting=waiting), Semaphore("plain", 1):
        eventually(lambda: 'redis_sync_in_use{name="plain"}' in scrape())
        found = scrape()
        assert 2 == found['redis_sync_shares_waiting{name="exports"}']
    assert 'redis_sync_shares_waiting{name="plain"}' not in found
    assert not [series for series in found if "acme" in series or "bolt" in series]
