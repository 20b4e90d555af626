"""Send many HTTP requests to a server at once."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpx

SECONDS = 25.0  # max seconds that a client waits for data
TOKEN_PAGE = "/sale/"  # a page with a form, so its answer sets the CSRF cookie


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
    """Send all requests, each after its own delay. Call `each` after each answer, in another
    thread."""
    answers: Future[list[Answer]] = Future()

    def run() -> None:
        try:
            answers.set_result(asyncio.run(_burst(url, asks, each)))
        except BaseException as error:
            answers.set_exception(error)

    # Not on the main thread: the demo's signal handlers raise exceptions there. In an event loop,
    # an exception can get lost in a weakref's callback, or leave tasks that never end.
    threading.Thread(target=run, daemon=True).start()
    return answers.result()


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
