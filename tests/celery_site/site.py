"""Start brokers and Celery workers for a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import HOST, RedisServer, free_port

from .effects import Effects

ROOT = Path(__file__).resolve().parents[2]


def started(words: list[str], environment: dict[str, str], output: Path) -> Any:
    """Start a process in a session of its own, so that `kill()` also ends its children."""
    with open(output, "wb") as log:
        return subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def kill(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


class Site:
    """A Celery project with workers that a test starts."""

    def __init__(self, broker: str, results: str, folder: Path, **conf: Any) -> None:
        self.folder, self.effects = folder, Effects(folder / "effects.sqlite3")
        self.environment = {
            **os.environ,
            "CELERY_SITE_BROKER": broker,
            "CELERY_SITE_RESULTS": results,
            "CELERY_SITE_EFFECTS": str(self.effects.path),
            "CELERY_SITE_CONF": json.dumps(conf),
        }
        self.workers: list[Any] = []

    def start(self, processes: int = 4, pool: str = "prefork") -> Any:
        """Start a worker with a pool of `processes`, and return its main process."""
        words = [sys.executable, "-m", "celery", "-A", "tests.celery_site.app", "worker"]
        words += ["-l", "INFO", "-P", pool, "-c", str(processes), "--without-gossip"]
        words += ["--without-mingle", "-n", f"w{len(self.workers)}@%h"]
        output = self.folder / f"worker{len(self.workers)}.log"
        self.workers.append(started(words, self.environment, output))
        return self.workers[-1]

    def send(self, code: str) -> str:
        """Run `code` in a process of the project, and return what it printed."""
        words = [sys.executable, "-c", f"from tests.celery_site.app import *\n{code}"]
        done = subprocess.run(
            words, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def ended(self, jobs: range | list[int], seconds: float = 60) -> None:
        """Wait until each of these jobs has ended."""
        self.until(lambda: set(jobs) <= set(self.effects.jobs("end")), seconds)

    def logs(self) -> str:
        texts = (path.read_text(errors="replace") for path in self.folder.glob("worker*.log"))
        return "\n".join(text[-6000:] for text in texts)

    def stop(self) -> None:
        for worker in self.workers:
            kill(worker)


@contextlib.contextmanager
def site_with_redis(folder: Path, **conf: Any) -> Iterator[tuple[Site, RedisServer]]:
    pytest.importorskip("celery", reason="Celery is missing: pip install celery")
    with RedisServer() as broker:
        site = Site(broker.url, broker.url[:-1] + "1", folder, **conf)
        try:
            yield site, broker
        finally:
            site.stop()


RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """Run a RabbitMQ server during the block. Yield its URL."""
    pytest.importorskip("celery", reason="Celery is missing: pip install celery")
    if not RABBITMQ.exists():
        pytest.skip("RabbitMQ is missing: apt-get install rabbitmq-server")
    port, distribution, epmd = free_port(), free_port(), free_port()
    environment = {
        **os.environ,
        **dict.fromkeys(("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE"), str(folder)),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        "RABBITMQ_NODENAME": f"jobs{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    output = folder / "rabbitmq.log"
    server = started([str(RABBITMQ)], environment, output)
    try:
        deadline = time.monotonic() + 90
        while not _speaks_amqp(port):
            assert time.monotonic() < deadline and server.poll() is None, output.read_text()
            time.sleep(0.3)
        yield f"amqp://guest:guest@{HOST}:{port}//"
    finally:
        kill(server)
        subprocess.run(["epmd", "-port", str(epmd), "-kill"], capture_output=True, env=environment)


def _speaks_amqp(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1) as probe:
        probe.sendall(b"AMQP\0\0\x09\x01")
        return bool(probe.recv(1))
    return False
