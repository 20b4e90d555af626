"""Send many HTTP requests to a server at once."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

SECONDS = 25.0  # max seconds that a client waits for data
TOKEN_PAGE = "/sale/"  # a page with a form, so its answer sets the CSRF cookie

Result = TypeVar("Result")


@dataclass(frozen=True)
class PageRequest:
    """A request to send `delay` seconds after the start: POST if `form` is given, or else GET."""

    path: str
    form: Mapping[str, str] | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The answer to a request. `status` is 0 if the connection broke."""

    path: str
    status: int
    retry_after: str = ""

    @property
    def says_when_to_retry(self) -> bool:
        """True if the header `Retry-After` is at least 1 second."""
        return self.retry_after.isdecimal() and int(self.retry_after) >= 1


def client_options(url: str) -> dict[str, Any]:
    """Return options for clients of httpx: no proxy, and a new connection for each request."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return {"base_url": url, "trust_env": False, "timeout": SECONDS, "limits": limits}


def answer_of(response: httpx.Response) -> Answer:
    """Convert a response of httpx to an Answer."""
    headers = response.headers
    return Answer(response.request.url.path, response.status_code, headers.get("Retry-After", ""))


def burst(url: str, asks: Sequence[PageRequest], each: Callable[[], None]) -> list[Answer]:
    """Send all requests, each after its own delay. In another thread, call `each` after each
    answer."""
    # The event loop does not run on the main thread, because the demo's signal handlers raise
    # exceptions there. Such an exception can get lost, or leave tasks that never end.
    return in_thread(lambda: asyncio.run(_burst(url, asks, each))).result()


def in_thread(call: Callable[[], Result]) -> Future[Result]:
    """Call a function in a new thread. Return a future of its result, or of its exception."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def _burst(url: str, asks: Sequence[PageRequest], each: Callable[[], None]) -> list[Answer]:
    async with httpx.AsyncClient(**client_options(url)) as client:
        if any(ask.form is not None for ask in asks):
            await client.get(TOKEN_PAGE)
        start = time.monotonic()

        async def send(ask: PageRequest) -> Answer:
            await asyncio.sleep(start + ask.delay - time.monotonic())
            try:
                answer = answer_of(await _send(client, ask))
            except httpx.TransportError:
                answer = Answer(ask.path, 0)
            each()
            return answer

        return await asyncio.gather(*map(send, asks))


async def _send(client: httpx.AsyncClient, ask: PageRequest) -> httpx.Response:
    if ask.form is None:
        return await client.get(ask.path)
    headers = {"X-CSRFToken": client.cookies["csrftoken"]}
    return await client.post(ask.path, data=dict(ask.form), headers=headers)
