"""Measure how soon the permit of a request is released if the response is discarded.

The measured time starts when the code of the view ends. The site disables the garbage collector.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from devtools.servers import free_port

from .report import Row, Table, median

#: The command line of each server. The benchmark appends the address or the port.
SERVERS = {
    "gunicorn": "gunicorn --no-control-socket -k gthread --threads 8 benchmarks.ends_site:wsgi -b",
    "uvicorn": "uvicorn --lifespan off --log-level critical benchmarks.ends_site:asgi --port",
    "hypercorn": "hypercorn benchmarks.ends_site:asgi -b",
    "daphne": "daphne -v 0 benchmarks.ends_site:asgi -p",
    "granian": "granian --interface asginl benchmarks.ends_site:asgi --port",
}
#: Reason why a response is discarded -> path of a view with this problem.
WAYS = {
    "a template fails": "broken",
    "an outer middleware fails": "outer",
    "the client leaves, then the view ends": "slow",
}
#: Seconds after which the client of the view `slow` disconnects.
LEAVES_AFTER = 0.2
#: Max seconds to wait for a server to start, and for a permit to be released.
TIMEOUT = 30.0
#: Redis key for the time at which the code of the view ended. The view stores this time.
ENDED = "bench:ended"


def ends(url: str, quick: bool) -> Table:
    table = Table(
        "Seconds from the end of a view's code to the release of its permit, if the response is "
        "discarded. No garbage is collected, and no request follows.",
        "at most 1 s",
    )
    for server, command in SERVERS.items():
        if importlib.util.find_spec(server) is None:
            table.notes.append(f"{server} is not installed")
            continue
        with _served(command, url) as port:
            for way, path in WAYS.items():
                delays = [_delay(port, path) for _ in range(3 if quick else 20)]
                row: Row = {"": f"{server}: {way}", "median": median(delays)}
                table.rows.append({**row, "longest": max(delays)})
    return table


def _delay(port: int, path: str) -> float:
    """Request the path of a view. Return the seconds from the end of the view's code to the
    release of its permit."""
    from django_redis_sync import Semaphore

    from .contenders import client

    redis, permits = client(os.environ["BENCHMARKS_URL"]), Semaphore("ends", 1)
    redis.delete(ENDED)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        if path == "slow":
            time.sleep(LEAVES_AFTER)
        else:
            connection.recv(1000)
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and (not redis.exists(ENDED) or permits.status().in_use):
        time.sleep(0.002)
    return time.monotonic() - float(redis.get(ENDED) or 0)


@contextlib.contextmanager
def _served(command: str, url: str) -> Iterator[int]:
    port = free_port()
    where = f"127.0.0.1:{port}" if command.endswith("-b") else str(port)
    os.environ["BENCHMARKS_URL"] = url
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([sys.executable, "-m", *command.split(), where], **quiet)
    try:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait(20)
