"""Start brokers and Celery workers for a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import HOST, free_port
from tests.support import worker_processes

from .effects import Effects

ROOT = Path(__file__).resolve().parents[2]


def started(words: list[str], environment: dict[str, str], output: Path) -> Any:
    """Start a process in a session of its own, so that `kill()` also ends its children."""
    with open(output, "wb") as log:
        return subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def waiting(name: str) -> Any:
    """Wait until there is a waiter of `name`. Return the status of `name`."""
    from django_redis_sync.operators.status import status_of

    while not (status := status_of(name)).waiters:
        time.sleep(0.1)
    return status


def no_longer_waiting(name: str) -> None:
    """Wait until there is no waiter of `name`."""
    from django_redis_sync.operators.status import status_of

    while status_of(name).waiters:
        time.sleep(0.1)


def clear_waiters(name: str) -> None:
    """Wait until there is a waiter of `name`, and clear it as an operator does."""
    from django_redis_sync.operators.actions import clear

    status = waiting(name)
    clear(status, [waiter.token for waiter in status.waiters])


def kill(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


class Site:
    """A Celery project with workers that a test starts. `stop()` kills the workers."""

    def __init__(self, broker: str, results: str, folder: Path, **conf: Any) -> None:
        self.folder, self.effects = folder, Effects(folder / "effects")
        self.environment = {
            **os.environ,
            "CELERY_SITE_BROKER": broker,
            "CELERY_SITE_RESULTS": results,
            "CELERY_SITE_EFFECTS": str(self.effects.path),
            "CELERY_SITE_CONF": json.dumps(conf),
        }
        self.workers: list[Any] = []

    def start(self, processes: int = 4, pool: str = "prefork") -> Any:
        """Start a worker that runs `processes` tasks at once, and return its main process."""
        number = len(self.workers)
        words = f"-m celery -A tests.celery_site.app worker -l INFO -P {pool} -c {processes}"
        words += f" --without-gossip --without-mingle -n w{number}@%h"
        with open(self.folder / f"worker{number}.log", "wb") as log:
            process = worker_processes.Process(*words.split(), env=self.environment, log=log)
        self.workers.append(process)
        return process

    def send(self, code: str) -> str:
        """Run `code` in a process of the project, and return what it printed."""
        code = f"from tests.celery_site.app import *\n{code}"
        done = worker_processes.run("-c", code, env=self.environment, timeout=280)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def until(self, condition: Callable[[], Any], seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def ended(self, jobs: range | list[int], seconds: float = 150) -> None:
        """Wait until each of these jobs has ended."""
        self.until(lambda: set(jobs) <= set(self.effects.jobs("end")), seconds)

    def wait_for(self, word: str, count: int, seconds: float = 150) -> None:
        """Wait until `count` jobs have begun (if `word` is "begin") or ended (if it is "end")."""
        self.until(lambda: len(self.effects.jobs(word)) >= count, seconds)

    def logs(self) -> str:
        texts = (path.read_text(errors="replace") for path in self.folder.glob("worker*.log"))
        return "\n".join(text[-6000:] for text in texts)

    def stop(self) -> None:
        for worker in self.workers:
            kill(worker)


RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMQ:
    """A RabbitMQ server with a folder of its own. `url`: its address for Celery."""

    def __init__(self, folder: Path) -> None:
        if not RABBITMQ.exists():
            pytest.skip("RabbitMQ is missing: apt-get install rabbitmq-server")
        self.port, distribution, self.epmd = free_port(), free_port(), free_port()
        self.folder, self.url = folder, f"amqp://guest:guest@{HOST}:{self.port}//"
        self.environment = {
            **os.environ,
            **dict.fromkeys(("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE"), str(folder)),
            "ERL_EPMD_PORT": str(self.epmd),
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
            "RABBITMQ_NODENAME": f"jobs{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        self.start()

    def start(self) -> None:
        """Start the server, also again after `kill()`. It then has the messages that it had."""
        output = self.folder / "rabbitmq.log"
        self.server = started([str(RABBITMQ)], self.environment, output)
        deadline = time.monotonic() + 90
        while not _speaks_amqp(self.port):
            assert time.monotonic() < deadline and self.server.poll() is None, output.read_text()
            time.sleep(0.3)

    def kill(self) -> None:
        kill(self.server)

    def stop(self) -> None:
        self.kill()
        words = ["epmd", "-port", str(self.epmd), "-kill"]
        subprocess.run(words, capture_output=True, env=self.environment)


@contextlib.contextmanager
def rabbitmq(folder: Path) -> Iterator[RabbitMQ]:
    """Run a RabbitMQ server during the block."""
    server = RabbitMQ(folder)
    try:
        yield server
    finally:
        server.stop()


def _speaks_amqp(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1) as probe:
        probe.sendall(b"AMQP\0\0\x09\x01")
        return bool(probe.recv(1))
    return False
