"""The example site's pages with one visitor, and with many visitors at once.

`python -m tests.test_articles_pages PREFIX ROLES` visits the pages with Django's test client, in a
process with the example site's settings.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import worker_processes

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parent.parent
#: The same pages in sync and in async code.
PREFIXES = pytest.mark.parametrize("prefix", ["/", "/async/"], ids=["sync", "async"])


@pytest.fixture(scope="module")
def run_roles(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Any:
    """Return a cached function that runs roles in a process and returns the result of each."""

    @functools.cache
    def run(prefix: str, *roles: str, **environment: str) -> Any:
        done = worker_processes.run(
            *("-m", __name__, prefix, *roles),
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "example_project.settings",
                "DEMO_DIR": str(tmp_path_factory.mktemp("demo")),
                "REDIS_URL": redis_url,
                **environment,
            },
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@PREFIXES
def test_each_page_is_shown_and_linked_from_the_index(run_roles, prefix: str) -> None:
    seen = run_roles(prefix, *ROLES)["look"]
    assert {200} == set(seen["status"].values())
    assert 6 <= len(seen["status"])
    assert set() == set(seen["status"]) - set(seen["linked"]) - {"/"}


@PREFIXES
def test_queue_page_serves_customers_in_the_order_of_arrival(run_roles, prefix: str) -> None:
    seen = run_roles(prefix, *ROLES)["stand_in_line"]
    assert [200] * 8 == seen["status"]
    assert seen["arrived"] == seen["served"]
    assert {f"customer {number}" for number in range(8)} == set(seen["served"])
    assert 2 == seen["most_at_once"]
    assert seen["shown"]  # the page named a waiting customer
    assert "Thank you, customer 7" in seen["answers"][7]


@PREFIXES
def test_price_list_shows_its_readers_only_complete_changes(run_roles, prefix: str) -> None:
    seen = run_roles(prefix, *ROLES)["read_prices"]
    assert {200} == set(seen["status"])
    assert 1 + seen["changes"] == seen["edition"]
    assert 2 <= seen["together"]  # readers don't wait for each other


@PREFIXES
def test_price_list_shows_incomplete_changes_without_locks(run_roles, prefix: str) -> None:
    """This shows that the other test can fail."""
    assert 500 in run_roles(prefix, "read_prices", DEMO_WITHOUT_LOCKS="1")["read_prices"]["status"]


@PREFIXES
def test_stream_holds_its_permit_until_its_body_is_sent(run_roles, prefix: str) -> None:
    seen = run_roles(prefix, *ROLES)["stream"]
    assert [200, 200, 503] == seen["opened"]
    assert seen["retry_after"]
    assert [20, 20] == seen["lines"]
    assert 200 == seen["afterwards"]


# Roles


def client() -> Any:
    from django.test import Client

    return Client()


def aclient() -> Any:
    from django.test import AsyncClient

    return AsyncClient()


Delay = float | Callable[[], bool]


def _pauses(delay: Delay) -> Iterator[float]:
    """Yield seconds to sleep until `delay` has passed or, if it is callable, returns True."""
    if not callable(delay):
        yield delay
        return
    end = time.monotonic() + 30
    while not delay():
        assert time.monotonic() < end
        yield 0.01


class Visitors:
    """Test clients, for sync pages in threads and for async ones in tasks."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def at_once(self, *requests: tuple[Delay, str, str, dict[str, Any]]) -> list[Any]:
        """Send requests, each after its delay, and return the responses.

        A delay is a number of seconds, or a function that returns True when the time has come.
        """
        if self.prefix == "/":
            with ThreadPoolExecutor(len(requests)) as pool:
                return list(pool.map(lambda request: self._visit(*request), requests))

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*[self._avisit(*request) for request in requests])

        return asyncio.run(all_of_them())

    def _visit(self, delay: Delay, method: str, page: str, data: dict[str, Any]) -> Any:
        for seconds in _pauses(delay):
            time.sleep(seconds)
        return getattr(client(), method)(self.prefix + page, data)

    async def _avisit(self, delay: Delay, method: str, page: str, data: dict[str, Any]) -> Any:
        for seconds in _pauses(delay):
            await asyncio.sleep(seconds)
        return await getattr(aclient(), method)(self.prefix + page, data)


def look(prefix: str) -> dict[str, Any]:
    pages = [f"{prefix}{page}" for page in ("sale/", "queue/", "prices/", "stream/?seconds=0")]
    pages += [f"{prefix}exports/{page}" for page in ("now/", "in-line/", "slow/?seconds=0")]
    status = {}
    for page in ["/", *pages]:
        response = client().get(page)
        if response.streaming:
            _sync_parts(response)
        status[page.partition("?")[0]] = response.status_code
    index = client().get("/").content.decode()
    return {"status": status, "linked": [page for page in status if f'href="{page}"' in index]}


def _sync_parts(response: Any) -> list[bytes]:
    return asyncio.run(_async_parts(response)) if response.is_async else [*response]


async def _async_parts(response: Any) -> list[bytes]:
    return [part async for part in response]


def stand_in_line(prefix: str) -> dict[str, Any]:
    from django_redis_sync.operators.status import status_of
    from example_project.shop.tills import AT_THE_TILLS, tills

    def has_arrived(number: int) -> bool:
        status = status_of(tills().name)
        labels = [one.label.get("label") for one in status.everyone]
        return f"customer {number}" in [*labels, *(visit.who for visit in AT_THE_TILLS.visits())]

    def turn(number: int) -> bool:
        """Let customers arrive one by one, the second 0.3 s after the first is served.

        So customers also leave one by one.
        """
        if number == 1:
            entered = [visit.entered for visit in AT_THE_TILLS.visits()]
            return bool(entered) and time.monotonic() - entered[0] > 0.3
        return number == 0 or has_arrived(number - 1)

    def customer(number: int) -> tuple[Delay, str, str, dict[str, Any]]:
        data = {"customer": f"customer {number}", "seconds": "0.6"}
        return partial(turn, number), "post", "queue/", data

    look_around = (lambda: bool(status_of(tills().name).waiting), "get", "queue/", {})
    *responses, page = Visitors(prefix).at_once(*map(customer, range(8)), look_around)
    visits, text = AT_THE_TILLS.visits(), page.content.decode()
    return {
        "status": [response.status_code for response in responses],
        "answers": [response.content.decode() for response in responses],
        "served": [visit.who for visit in visits],
        "arrived": [visit.who for visit in sorted(visits, key=lambda visit: visit.arrived)],
        "most_at_once": max(visit.inside for visit in visits),
        "shown": "In line" in text and "customer" in text.partition("In line")[2],
    }


def read_prices(prefix: str) -> dict[str, Any]:
    from example_project.shop import prices

    reading, most_at_once, changes, guard = [0], [0], 3, threading.Lock()
    look, alook = prices._look, prices._alook

    def count(step: int) -> None:
        with guard:
            reading[0] += step
            most_at_once[0] = max(most_at_once[0], reading[0])

    def looking(half: float) -> Any:
        count(1)
        try:
            return look(half)
        finally:
            count(-1)

    async def alooking(half: float) -> Any:
        count(1)
        try:
            return await alook(half)
        finally:
            count(-1)

    prices._look, prices._alook = looking, alooking
    data = {"read": {"action": "read", "seconds": "0.1"}}
    data |= {word: {"action": word, "seconds": "0.1"} for word in ("change", "downgrade")}
    crowd = [(0.03 * n, "post", "prices/", data["read"]) for n in range(10)]
    crowd += [(0.05 + 0.1 * n, "post", "prices/", data["change"]) for n in range(changes - 1)]
    crowd += [(0.2, "post", "prices/", data["downgrade"])]
    responses = Visitors(prefix).at_once(*crowd)
    return {
        "status": [response.status_code for response in responses],
        "changes": changes,
        "edition": prices.read_one("dollar"),
        "together": most_at_once[0],
    }


def stream(prefix: str) -> dict[str, Any]:
    """Open three streams, then read two of them."""
    page = f"{prefix}stream/?seconds=0.1"
    return asyncio.run(_astream(page)) if prefix != "/" else _stream(page)


def _stream(page: str) -> dict[str, Any]:
    responses = [client().get(page) for _ in range(3)]
    lines = [len(_sync_parts(response)) for response in responses[:2]]
    last = client().get(page)
    _sync_parts(last)
    return _summary(responses, lines, last)


async def _astream(page: str) -> dict[str, Any]:
    responses = [await aclient().get(page) for _ in range(3)]
    lines = [len(await _async_parts(response)) for response in responses[:2]]
    last = await aclient().get(page)
    await _async_parts(last)
    return _summary(responses, lines, last)


def _summary(responses: list[Any], lines: list[int], last: Any) -> dict[str, Any]:
    return {
        "opened": [response.status_code for response in responses],
        "retry_after": responses[2].headers.get("Retry-After"),
        "lines": lines,
        "afterwards": last.status_code,
    }


ROLES = {role.__name__: role for role in (look, stand_in_line, read_prices, stream)}


def main() -> None:
    import django
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    django.setup()
    setup_test_environment()  # allows the test client's host
    call_command("migrate", verbosity=0, interactive=False)
    prefix, *roles = sys.argv[1:]
    print(json.dumps({role: ROLES[role](prefix) for role in roles}))


if __name__ == "__main__":
    main()
