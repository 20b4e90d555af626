"""Serve the project of this process on a real WSGI or ASGI server, in a thread."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

START_SECONDS = 30


class Reply(NamedTuple):
    """The response of a server. Names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.contextmanager
def serve(kind: str) -> Iterator[int]:
    """Serve the project until the block ends, and yield the port. `kind`: "WSGI" (the server of
    `runserver`, with a thread for each connection) or "ASGI" (uvicorn)."""
    with {"WSGI": _wsgi, "ASGI": _asgi}[kind]() as port:
        yield port


@contextlib.contextmanager
def _wsgi() -> Iterator[int]:
    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(WSGIHandler())
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def _asgi() -> Iterator[int]:
    import uvicorn

    config = uvicorn.Config(ASGIHandler(), lifespan="off", log_config=None)
    server, listening = uvicorn.Server(config), socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)  # from here on, the socket keeps connections until uvicorn accepts them
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(START_SECONDS)
        listening.close()


def ask(
    port: int,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: Any = None,
) -> Reply:
    """Send a request on a connection of its own. A `body` that is not bytes is sent as JSON."""
    headers = {"Connection": "close", **(headers or {})}
    if body is not None and not isinstance(body, bytes):
        body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, f"/{path}", body, headers)
        got = connection.getresponse()
        found = {name.lower(): value for name, value in got.getheaders()}
        return Reply(got.status, found, got.read())
    finally:
        connection.close()
