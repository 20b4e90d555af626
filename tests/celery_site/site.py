"""Start the broker and the workers, from a test."""

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


class Site:
    """A Celery project: `app` is ours, to send with; `workers` are processes."""

    def __init__(self, broker: str, results: str, folder: Path, **conf: Any) -> None:
        self.folder, self.effects = folder, Effects(folder / "effects.sqlite3")
        self.environment = {
            **os.environ,
            "CELERY_SITE_BROKER": broker,
            "CELERY_SITE_RESULTS": results,
            "CELERY_SITE_EFFECTS": str(self.effects.path),
            "CELERY_SITE_CONF": json.dumps(conf),
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, processes: int = 4, pool: str = "prefork", **environment: str) -> Any:
        """Start a worker, in a session of its own."""
        words = ["-A", "tests.celery_site.app", "worker", "-l", "INFO", "-P", pool]
        words += ["-c", str(processes), "--without-gossip", "--without-mingle"]
        words += ["-n", f"w{len(self.workers)}@%h"]
        with open(self.folder / f"worker{len(self.workers)}.log", "wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", *words],
                cwd=ROOT,
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

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
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(10)


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
    """A broker of its own, and its URL."""
    pytest.importorskip("celery", reason="Celery is missing: pip install celery")
    if not RABBITMQ.exists():
        pytest.skip("RabbitMQ is missing: apt-get install rabbitmq-server")
    port, distribution, epmd = free_port(), free_port(), free_port()
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        "RABBITMQ_NODENAME": f"jobs{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "rabbit"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    with open(folder / "rabbitmq.log", "wb") as log:
        server = subprocess.Popen(
            [str(RABBITMQ)], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1) as probe:
                probe.sendall(b"AMQP\0\0\x09\x01")
                if probe.recv(1):
                    break
            assert time.monotonic() < deadline, (folder / "rabbitmq.log").read_text()
            assert server.poll() is None, (folder / "rabbitmq.log").read_text()
            time.sleep(0.3)
        yield f"amqp://guest:guest@{HOST}:{port}//"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)
        subprocess.run(["epmd", "-port", str(epmd), "-kill"], capture_output=True, env=environment)
