"""Measure how many requests per second gunicorn answers.

A child process sends the requests: `python -m benchmarks.serving PORT PATH CLIENTS SECONDS`. It
uses keep-alive connections, and prints the number of responses. To leave the CPU to the server, the
child process parses only the status and the length of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from devtools.servers import free_port

from .cycles import FLOOR
from .project import MIDDLEWARE
from .report import Row, Table, median, ratios

CLIENTS = 8
BARE, UNLIMITED, LIMITED = "no middleware", "middleware, unlimited", "middleware, limited"
#: The sites to measure: name -> (path, entry of the setting MIDDLEWARE or "")
SITES = {
    BARE: ("/unlimited", ""),
    UNLIMITED: ("/unlimited", MIDDLEWARE),
    LIMITED: ("/limited", MIDDLEWARE),
    "decorator": ("/decorated", ""),
    FLOOR: ("/floor", ""),
    "django-smart-ratelimit's decorator": ("/peer", ""),
}
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def gunicorn(url: str, quick: bool) -> Table:
    table = Table(
        "Requests per second, and CPU time of the server: gunicorn, 1 worker of 8 threads, "
        f"{CLIENTS} clients"
    )
    if importlib.util.find_spec("gunicorn") is None:
        table.notes.append("gunicorn is not installed")
        return table
    sites = dict(SITES)
    if importlib.util.find_spec("django_smart_ratelimit") is None:
        del sites["django-smart-ratelimit's decorator"]
    rates: dict[str, list[float]] = {name: [] for name in sites}
    cpu: dict[str, list[float]] = {name: [] for name in sites}
    with contextlib.ExitStack() as stack:
        served = {
            middleware: stack.enter_context(_served(url, middleware))
            for middleware in dict.fromkeys(m for _, m in sites.values())
        }
        seconds = 0.5 if quick else 1.0
        for nth in range(-1, 3 if quick else 5):
            for name, (path, middleware) in sites.items():
                port, pid = served[middleware]
                before = _cpu(pid)
                rate = _drive(port, path, seconds)
                if nth >= 0:  # the first round is a warm-up
                    rates[name].append(rate)
                    cpu[name].append((_cpu(pid) - before) / (rate * seconds))
    for name, own in rates.items():
        row: Row = {"": name, "per s": median(own)}
        for base in (BARE, UNLIMITED):
            row[f"× {base}"] = ratios(rates, base)[name]
        row["CPU µs"] = median(cpu[name]) * 1e6
        table.rows.append(row)
    return table


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children. Return 0 if there is no /proc."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            _, parent, *rest = stat.read_text().rpartition(")")[2].split()
            if pid in (int(parent), int(stat.parent.name)):
                ticks += int(rest[9]) + int(rest[10])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _served(url: str, middleware: str) -> Iterator[tuple[int, int]]:
    """Run gunicorn during the `with` block. Yield two numbers: its port and its process id."""
    port = free_port()
    words = ["gunicorn", "-k", "gthread", "--threads", "8", "--keep-alive", "60"]
    own = {"BENCHMARKS_URL": url, "BENCHMARKS_MIDDLEWARE": middleware}
    command = [sys.executable, "-m", *words, "-b", f"127.0.0.1:{port}", "benchmarks.site:wsgi"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env={**os.environ, **own}, **quiet)  # type: ignore[call-overload]
    try:
        _wait_for(port, server)
        yield port, server.pid
    finally:
        server.terminate()
        server.wait(20)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {server.returncode}")
        time.sleep(0.1)
    raise RuntimeError(f"the server runs, but does not answer on port {port}")


def _drive(port: int, path: str, seconds: float) -> float:
    words = [sys.executable, "-m", "benchmarks.serving", port, path, CLIENTS, seconds]
    done = subprocess.run(
        list(map(str, words)), stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    return int(done.stdout) / seconds


class _Client(asyncio.Protocol):
    """A client of the server. It repeats the same request after each response."""

    def __init__(self, request: bytes) -> None:
        self._request, self._read = request, b""
        self.done, self.odd = 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return
        if b" 200 " not in head[:16]:
            self.odd = head
        self._read, self.done = b"", self.done + 1
        self._transport.write(self._request)


async def _drives(port: int, path: str, clients: int, seconds: float) -> int:
    loop = asyncio.get_running_loop()
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    made = [
        await loop.create_connection(lambda: _Client(request), "127.0.0.1", port)
        for _ in range(clients)
    ]
    start = [client.done for _, client in made]
    await asyncio.sleep(seconds)
    done = sum(client.done - before for (_, client), before in zip(made, start, strict=True))
    for transport, client in made:
        transport.abort()
        if client.odd:
            raise RuntimeError(client.odd.decode(errors="replace"))
    return done


if __name__ == "__main__":
    _port, _path, _clients, _seconds = sys.argv[1:]
    print(asyncio.run(_drives(int(_port), _path, int(_clients), float(_seconds))))
