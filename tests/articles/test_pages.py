"""Visit the example site's pages as one visitor, and as many visitors at once.

`python -m tests.articles.test_pages PREFIX ROLE` calls the function ROLE, such as `look`, in a
process with the example site's settings. PREFIX begins the pages' paths: "/" or "/async/".
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.behaviour.both import Async, Sync, until
from tests.support import worker_processes

pytestmark = pytest.mark.tools


@pytest.mark.parametrize("prefix", ["/", "/async/"], ids=["sync", "async"])
@pytest.mark.parametrize("role", ["look", "stand_in_line", "read_prices", "stream"])
def test_demo_page_works_for_one_visitor_and_for_concurrent_visitors(
    redis_url: str, tmp_path: Path, prefix: str, role: str
) -> None:
    visit(redis_url, tmp_path, prefix, role)
    if role == "read_prices":
        with pytest.raises(AssertionError, match="500"):  # without locks, the role must fail
            visit(redis_url, tmp_path, prefix, role, DEMO_WITHOUT_LOCKS="1")


def visit(redis_url: str, folder: Path, prefix: str, role: str, **environment: str) -> None:
    """Run the function `role` in a process with the example site's settings.

    If the process fails, raise AssertionError with the error output of the process."""
    site = {"DJANGO_SETTINGS_MODULE": "example_project.settings", "DEMO_DIR": str(folder)}
    env = {**os.environ, **site, "REDIS_URL": redis_url, **environment}
    done = worker_processes.run("-m", __name__, prefix, role, env=env, timeout=100)
    assert done.returncode == 0, done.stderr


async def get(io: Any, page: str, method: str = "get", **data: str) -> Any:
    """Send a request with Django's test client, and return the response. If `io` is Async, use the
    async test client."""
    from django.test import AsyncClient, Client

    response = getattr((Client if repr(io) == "sync" else AsyncClient)(), method)(page, data)
    return await response if inspect.isawaitable(response) else response


async def parts(response: Any) -> list[bytes]:
    return [part async for part in response] if response.is_async else [*response]


def at_once(io: Any, page: str, *requests: tuple[Callable[[], bool], dict[str, str]]) -> list[Any]:
    """Send requests to a page concurrently, and return the responses in the order of `requests`.

    A request is a tuple (is_time, data). It is sent as soon as `is_time()` returns True. If
    `data` has items, the request is a POST, else a GET."""

    async def visit(is_time: Callable[[], bool], data: dict[str, str]) -> Any:
        await until(io, is_time)
        return await get(io, page, "post" if data else "get", **data)

    return io.run(io.gather(*[visit(*one) for one in requests]))


def look(io: Any, prefix: str) -> None:
    """Check that each page works, and that the index has a link to it."""
    names = ("sale/", "queue/", "prices/", "stream/?seconds=0")
    names += ("exports/now/", "exports/in-line/", "exports/slow/?seconds=0")

    async def visit() -> None:
        index = (await get(io, "/")).content.decode()
        for page in (prefix + name for name in names):
            response = await get(io, page)
            if response.streaming:
                await parts(response)
            assert 200 == response.status_code, page
            assert f'href="{page.partition("?")[0]}"' in index

    io.run(visit())


def stand_in_line(io: Any, prefix: str) -> None:
    """Check that the queue page serves two customers at a time, in the order of arrival."""
    from example_project.shop.tills import AT_THE_TILLS, tills

    def status() -> Any:
        """Read the status in a thread, because `status()` must not block an event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(tills().status).result()

    def is_turn(number: int) -> bool:
        """Return True if customer `number` may arrive. Customer 1 arrives when customer 0 has been
        served for 0.3 s. Each later customer arrives after the previous customer."""
        visits = AT_THE_TILLS.visits()
        if number <= 1:
            return number == 0 or any(time.monotonic() - one.entered > 0.3 for one in visits[:1])
        labels = [one.label.get("label") for one in status().everyone]
        return f"customer {number - 1}" in [*labels, *(visit.who for visit in visits)]

    names = [f"customer {number}" for number in range(8)]
    crowd: list[Any] = [
        (functools.partial(is_turn, number), {"customer": name, "seconds": "0.6"})
        for number, name in enumerate(names)
    ]
    crowd.append((lambda: bool(status().waiting), {}))
    *responses, page = at_once(io, f"{prefix}queue/", *crowd)
    visits, line = AT_THE_TILLS.visits(), page.content.decode().partition("In line")[2]
    assert [200] * 8 == [response.status_code for response in responses]
    served = [visit.who for visit in visits]
    assert served == [visit.who for visit in sorted(visits, key=lambda visit: visit.arrived)]
    assert names == sorted(served)
    assert 2 == max(visit.inside for visit in visits)
    assert "customer" in line, "the page named no waiting customer"
    assert "Thank you, customer 7" in responses[-1].content.decode()


def read_prices(io: Any, prefix: str) -> None:
    """Check that readers see no incomplete change of the price list, and read concurrently."""
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
    codes = {response.status_code for response in responses}
    assert {200} == codes, codes
    assert 1 + 3 == prices.read_one("dollar"), "one of the three changes was lost"
    assert 2 <= max(most), "readers waited for each other"


def stream(io: Any, prefix: str) -> None:
    """Check that a stream holds its permit until its body is sent. The limit is two streams."""
    page = f"{prefix}stream/?seconds=0.1"

    async def visit() -> None:
        responses = [await get(io, page) for _ in range(3)]
        assert [200, 200, 503] == [response.status_code for response in responses]
        assert responses[2].headers.get("Retry-After")
        assert [20, 20] == [len(await parts(response)) for response in responses[:2]]
        last = await get(io, page)
        await parts(last)
        assert 200 == last.status_code

    io.run(visit())


def main() -> None:
    import django
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    django.setup()
    setup_test_environment()  # allows the test client's host
    call_command("migrate", verbosity=0, interactive=False)
    prefix, role = sys.argv[1:]
    globals()[role](Sync() if prefix == "/" else Async(), prefix)


if __name__ == "__main__":
    main()
