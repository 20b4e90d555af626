"""The example site's pages with one visitor, and with many visitors at once.

`python -m tests.test_articles_pages PREFIX ROLES` visits the pages with Django's test client, in a
process with the example site's settings.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from tests.behaviour.both import Async, Sync, until
from tests.support import worker_processes

pytestmark = pytest.mark.tools

#: Prefixes of the same pages in sync and in async code.
PREFIXES = pytest.mark.parametrize("prefix", ["/", "/async/"], ids=["sync", "async"])


@pytest.fixture(scope="module")
def run_roles(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Any:
    """Return a cached function that runs roles in a process and returns the result of each."""

    @functools.cache
    def run(prefix: str, *roles: str, **environment: str) -> Any:
        site = {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "DEMO_DIR": str(tmp_path_factory.mktemp("demo")),
            "REDIS_URL": redis_url,
        }
        words, env = ("-m", __name__, prefix, *roles), {**os.environ, **site, **environment}
        done = worker_processes.run(*words, env=env, timeout=100)
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
    assert seen["shown"], "the page named no waiting customer"
    assert "Thank you, customer 7" in seen["last_answer"]


@PREFIXES
def test_price_list_shows_only_complete_changes_and_others_without_locks(
    run_roles, prefix: str
) -> None:
    seen = run_roles(prefix, *ROLES)["read_prices"]
    assert {200} == set(seen["status"])
    assert 1 + 3 == seen["edition"], "of three changes"
    assert 2 <= seen["together"], "readers waited for each other"
    without = run_roles(prefix, "read_prices", DEMO_WITHOUT_LOCKS="1")["read_prices"]
    assert 500 in without["status"], "this test can't fail"


@PREFIXES
def test_stream_holds_its_permit_until_its_body_is_sent(run_roles, prefix: str) -> None:
    seen = run_roles(prefix, *ROLES)["stream"]
    assert [200, 200, 503] == seen["opened"]
    assert seen["retry_after"]
    assert [20, 20] == seen["lines"]
    assert 200 == seen["afterwards"]


async def get(io: Any, page: str, method: str = "get", **data: str) -> Any:
    """Return the response to a request of a test client, which is sync or async as `io` is."""
    from django.test import AsyncClient, Client

    response = getattr((Client if repr(io) == "sync" else AsyncClient)(), method)(page, data)
    return await response if inspect.isawaitable(response) else response


async def parts(response: Any) -> list[bytes]:
    return [part async for part in response] if response.is_async else [*response]


def at_once(io: Any, page: str, *requests: tuple[Callable[[], bool], dict[str, str]]) -> list[Any]:
    """Send each request when its function returns True. A request with data is a POST, others are a
    GET."""

    async def visit(is_time: Callable[[], bool], data: dict[str, str]) -> Any:
        await until(io, is_time)
        return await get(io, page, "post" if data else "get", **data)

    return io.run(io.gather(*[visit(*one) for one in requests]))


def look(io: Any, prefix: str) -> dict[str, Any]:
    names = ("sale/", "queue/", "prices/", "stream/?seconds=0")
    names += ("exports/now/", "exports/in-line/", "exports/slow/?seconds=0")

    async def visit() -> dict[str, Any]:
        status = {}
        for page in ["/", *(prefix + name for name in names)]:
            response = await get(io, page)
            if response.streaming:
                await parts(response)
            status[page.partition("?")[0]] = response.status_code
        index = (await get(io, "/")).content.decode()
        return {"status": status, "linked": [one for one in status if f'href="{one}"' in index]}

    return io.run(visit())


def stand_in_line(io: Any, prefix: str) -> dict[str, Any]:
    from django_redis_sync.operators.status import status_of
    from example_project.shop.tills import AT_THE_TILLS, tills

    def is_turn(number: int) -> bool:
        """Return True if customer `number` may come. The second customer comes when the first one
        has been served for 0.3 s, and each further customer when the previous one is in line."""
        visits = AT_THE_TILLS.visits()
        if number <= 1:
            return number == 0 or any(time.monotonic() - one.entered > 0.3 for one in visits[:1])
        labels = [one.label.get("label") for one in status_of(tills().name).everyone]
        return f"customer {number - 1}" in [*labels, *(visit.who for visit in visits)]

    crowd: list[Any] = [
        (functools.partial(is_turn, number), {"customer": f"customer {number}", "seconds": "0.6"})
        for number in range(8)
    ]
    crowd.append((lambda: bool(status_of(tills().name).waiting), {}))
    *responses, page = at_once(io, f"{prefix}queue/", *crowd)
    visits, line = AT_THE_TILLS.visits(), page.content.decode().partition("In line")[2]
    return {
        "status": [response.status_code for response in responses],
        "last_answer": responses[-1].content.decode(),
        "served": [visit.who for visit in visits],
        "arrived": [visit.who for visit in sorted(visits, key=lambda visit: visit.arrived)],
        "most_at_once": max(visit.inside for visit in visits),
        "shown": "customer" in line,
    }


def read_prices(io: Any, prefix: str) -> dict[str, Any]:
    from example_project.shop import prices

    look, alook, reading, most = prices._look, prices._alook, list[int](), [0]

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        reading.append(1)
        most.append(len(reading))
        yield
        reading.pop()

    def looking(half: float) -> Any:
        with counted():
            return look(half)

    async def alooking(half: float) -> Any:
        with counted():
            return await alook(half)

    start, data = time.monotonic(), {"seconds": "0.1"}
    delays = [*((0.03 * n, "read") for n in range(10)), (0.05, "change"), (0.15, "change")]
    crowd: list[Any] = [
        (lambda delay=delay: time.monotonic() > start + delay, {"action": action, **data})
        for delay, action in [*delays, (0.2, "downgrade")]
    ]
    with mock.patch.multiple(prices, _look=looking, _alook=alooking):
        responses = at_once(io, f"{prefix}prices/", *crowd)
    return {
        "status": [response.status_code for response in responses],
        "edition": prices.read_one("dollar"),
        "together": max(most),
    }


def stream(io: Any, prefix: str) -> dict[str, Any]:
    """Open three streams, then read two of them."""
    page = f"{prefix}stream/?seconds=0.1"

    async def visit() -> dict[str, Any]:
        responses = [await get(io, page) for _ in range(3)]
        lines = [len(await parts(response)) for response in responses[:2]]
        last = await get(io, page)
        await parts(last)
        return {
            "opened": [response.status_code for response in responses],
            "retry_after": responses[2].headers.get("Retry-After"),
            "lines": lines,
            "afterwards": last.status_code,
        }

    return io.run(visit())


ROLES = {role.__name__: role for role in (look, stand_in_line, read_prices, stream)}


def main() -> None:
    import django
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    django.setup()
    setup_test_environment()  # allows the test client's host
    call_command("migrate", verbosity=0, interactive=False)
    prefix, *roles = sys.argv[1:]
    io = Sync() if prefix == "/" else Async()
    print(json.dumps({role: ROLES[role](io, prefix) for role in roles}))


if __name__ == "__main__":
    main()
