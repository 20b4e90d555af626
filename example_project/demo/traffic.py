"""Real HTTP requests at a server, many at once."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

SECONDS = 25.0  # how long any one answer may take
TOKEN_PAGE = "/sale/"  # a page with a form: it sets the CSRF cookie


@dataclass(frozen=True)
class AcquireRequest:
    """A request to send: GET, or POST when there is a form, `delay` seconds after the start."""

    path: str
    form: Mapping[str, str] | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Answer:
    """What came back; status 0 when the connection broke."""

    path: str
    status: int
    retry_after: str = ""

    @property
    def says_when_to_retry(self) -> bool:
        """Whether its `Retry-After` is a number of seconds, at least one."""
        return self.retry_after.isdecimal() and int(self.retry_after) >= 1


def client_options(url: str) -> dict[str, Any]:
    """For httpx: no proxy from the environment, a new connection for each request."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return {"base_url": url, "trust_env": False, "timeout": SECONDS, "limits": limits}


def answer_of(response: httpx.Response) -> Answer:
    """What matters of a response."""
    headers = response.headers
    return Answer(response.request.url.path, response.status_code, headers.get("Retry-After", ""))


def burst(url: str, asks: Sequence[AcquireRequest], each: Callable[[], None]) -> list[Answer]:
    """Send all of it at once, or as late as each says; `each` is called at every answer."""
    return asyncio.run(_burst(url, asks, each))


async def _burst(
    url: str, asks: Sequence[AcquireRequest], each: Callable[[], None]
) -> list[Answer]:
    async with httpx.AsyncClient(**client_options(url)) as client:
        if any(ask.form is not None for ask in asks):
            await client.get(TOKEN_PAGE)
        start = time.monotonic()

        async def send(ask: AcquireRequest) -> Answer:
            await asyncio.sleep(start + ask.delay - time.monotonic())
            try:
                answer = answer_of(await _send(client, ask))
            except httpx.TransportError:
                answer = Answer(ask.path, 0)
            each()
            return answer

        return await asyncio.gather(*map(send, asks))


async def _send(client: httpx.AsyncClient, ask: AcquireRequest) -> httpx.Response:
    if ask.form is None:
        return await client.get(ask.path)
    headers = {"X-CSRFToken": client.cookies["csrftoken"]}
    return await client.post(ask.path, data=dict(ask.form), headers=headers)
