"""Set up the example site for the demo: a folder, a database, and two servers."""

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command

from example_project.shop.sales import open_sale

HOST = "127.0.0.1"
ADMIN = "admin"
START_SECONDS = 30
STOP_SECONDS = 6
WORKERS = {"gunicorn": 3, "uvicorn": 2}


class SiteError(Exception):
    """The site can't be set up. The message says why."""


@dataclass(frozen=True)
class Server:
    """A running server of the example site."""

    name: str
    port: int
    workers: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The base URL of the server."""
        return f"http://{HOST}:{self.port}"

    @property
    def prefix(self) -> str:
        """The start of all paths that scenarios request: "/async" for uvicorn, else ""."""
        return "/async" if self.name == "uvicorn" else ""

    @property
    def log_end(self) -> str:
        """The last 2,000 characters of the server's log."""
        return self.log.read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """Lock the demo's folder during the `with` block, so that no second demo uses the folder. Raise
    SiteError if another demo uses it."""
    (settings.DEMO_DIR / ".gitignore").write_text("*\n")
    with (settings.DEMO_DIR / "in_use").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SiteError(
                f"another demo runs in {settings.DEMO_DIR}; end it, or set DEMO_DIR to a new folder"
            ) from None
        yield


def make_database() -> str:
    """Create a database with an open sale and an admin account. Return the account's password."""
    for file in Path(settings.DEMO_DIR).glob("shop.sqlite3*"):
        file.unlink()
    call_command("migrate", verbosity=0, interactive=False)
    password = secrets.token_urlsafe(9)
    get_user_model().objects.create_superuser(ADMIN, "", password)
    open_sale()
    return password


@contextlib.contextmanager
def serve(workers: int | None, port: int | None) -> Iterator[Sequence[Server]]:
    """Run the site under gunicorn and under uvicorn during the `with` block."""
    ports = _free_ports([port, port + 1] if port else [0, 0])
    with contextlib.ExitStack() as stack:
        servers = []
        for (name, usual), number in zip(WORKERS.items(), ports, strict=True):
            server = _start(name, number, workers or usual)
            stack.callback(_stop, server)
            servers.append(server)
        for server in servers:
            _wait_until_ready(server)
        yield servers


def stay_up(servers: Sequence[Server]) -> None:
    """Open a new sale, and wait for Ctrl-C. Raise SiteError if a server ends."""
    open_sale()
    while True:
        for server in servers:
            _must_run(server)
        time.sleep(0.5)


def _command(name: str, port: int, workers: int) -> list[str]:
    if name == "gunicorn":
        words = ["--config", "python:example_project.gunicorn_conf", "--bind", f"{HOST}:{port}"]
        application = "example_project.wsgi:application"
    else:
        words = ["--host", HOST, "--port", str(port), "--no-access-log"]
        words += ["--timeout-graceful-shutdown", "2"]
        application = "example_project.asgi:application"
    return [sys.executable, "-m", name, *words, "--workers", str(workers), application]


def _start(name: str, port: int, workers: int) -> Server:
    """Start a server in its own process group, so that Ctrl-C reaches only the demo."""
    log = Path(settings.DEMO_DIR) / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(name, port, workers),
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Server(name, port, workers, process, log)


def _stop(server: Server) -> None:
    """Send SIGTERM to a server's main process. Then kill the server's process group."""
    try:
        server.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_SECONDS)
    finally:  # kill the group even if Ctrl-C interrupts the wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def _wait_until_ready(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    with httpx.Client(trust_env=False, timeout=5) as client:
        while time.monotonic() < end:
            _must_run(server)
            with contextlib.suppress(httpx.TransportError):
                if client.get(server.url).status_code == 200:
                    return
            time.sleep(0.05)
    raise SiteError(f"{server.name} did not answer in {START_SECONDS} s:\n{server.log_end}")


def _must_run(server: Server) -> None:
    if server.process.poll() is not None:
        raise SiteError(f"{server.name} ended unexpectedly:\n{server.log_end}")


def _free_ports(wanted: Sequence[int]) -> list[int]:
    """Return the `wanted` ports, and a free port instead of each 0. Raise SiteError if a `wanted`
    port is not free."""
    with contextlib.ExitStack() as stack:
        ports = []
        for port in wanted:
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise SiteError(f"port {port} is not free: {error.strerror}") from error
            ports.append(probe.getsockname()[1])
        return ports
