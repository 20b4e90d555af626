"""Run the site on a real WSGI or ASGI server, in processes of its own."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import httpx

from devtools.servers import free_port
from tests.support import worker_processes

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 60
#: Options of each httpx call. The SSL context is shared, because a new one loads certificates.
PLAIN = {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "timeout": 60}


WSGI, ASGI = "tests.request_site.wsgi:application", "tests.request_site.asgi:application"

#: With the default of 2 s, the server of a busy machine may close a connection on which a client is
#: sending its next request.
GUNICORN = f"gunicorn {WSGI} -b 127.0.0.1:{{port}} --graceful-timeout 2 --keep-alive 60"
#: The command of each server. Its first word is a Python module, except for the program `uwsgi`.
SERVERS = {
    "gunicorn": f"{GUNICORN} --no-control-socket -k gthread --threads {{threads}}",
    "gevent": f"{GUNICORN} --no-control-socket -k gevent --worker-connections {{threads}}",
    "uvicorn": f"uvicorn {ASGI} --host 127.0.0.1 --port {{port}} "
    "--lifespan off --timeout-graceful-shutdown 2 --timeout-keep-alive 60 --log-level warning",
    "daphne": f"daphne -b 127.0.0.1 -p {{port}} -v 0 {ASGI}",
    "hypercorn": f"hypercorn --bind 127.0.0.1:{{port}} --graceful-timeout 2 {ASGI}",
    "granian": f"granian --interface asginl --host 127.0.0.1 --port {{port}} {ASGI}",
    "granian_wsgi": f"granian --interface wsgi --host 127.0.0.1 --port {{port}} "
    f"--blocking-threads {{threads}} {WSGI}",
    "waitress": f"waitress --listen=127.0.0.1:{{port}} --threads={{threads}} {WSGI}",
    "uwsgi": f"uwsgi --http-socket 127.0.0.1:{{port}} --module {WSGI} --master --lazy-apps "
    "--threads {threads} --enable-threads --py-call-uwsgi-fork-hooks "
    "--die-on-term --need-app",
}
#: The servers for ASGI.
ASYNC = ("uvicorn", "daphne", "hypercorn", "granian")


class Site:
    """The site on a server. `kind`: a key of SERVERS. `log`: the file for the server's output.
    `options`: written as JSON to the environment variable SITE, which settings.py reads."""

    def __init__(self, kind: str, log: Path, **options):
        self.kind, self.port, self.log = kind, free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        words = SERVERS[kind].format(port=self.port, threads=64).split()
        if kind == "uwsgi":
            folder = Path(sys.executable).parent
            self.words = [str(folder / "uwsgi"), "--home", str(folder.parent), *words[1:]]
        else:
            self.words = [sys.executable, "-m", *words]
        self.env = {
            **os.environ,
            "SITE": json.dumps(options),
            "DJANGO_SETTINGS_MODULE": "tests.request_site.settings",
        }

    def __enter__(self) -> "Site":
        with self.log.open("wb") as log:
            self.process = self._started(log)
        end = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/free/", **PLAIN).status_code == 200:
                    return self
            if time.monotonic() > end or self.process.poll() is not None:
                self.__exit__()
                raise AssertionError(f"the site did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def _started(self, log: IO[bytes]) -> Any:
        if self.kind in ("gunicorn", "uvicorn"):
            return worker_processes.Process(*self.words[1:], env=self.env, log=log)
        # The tests' fork server can start only these two servers. Others change Python before their
        # first import, or aren't written in Python.
        streams = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(self.words, cwd=ROOT, env=self.env, **streams)

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def get(self, path: str, **options) -> httpx.Response:
        return httpx.get(self.url + path, **{**PLAIN, **options})

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{**PLAIN, **options})

    def connection(self, path: str, receive_buffer: int = 0) -> socket.socket:
        """Return a socket that has sent a GET request. `receive_buffer`: size of the socket's
        receive buffer in bytes, or 0 for the default size."""
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(60)
        client.connect(("127.0.0.1", self.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return client


def read_rest(client: socket.socket) -> int:
    """Read until the connection ends. Return the number of bytes."""
    size = 0
    with contextlib.suppress(OSError):
        while part := client.recv(1 << 20):
            size += len(part)
    return size
