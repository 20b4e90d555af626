"""The demo fails without locks, and leaves no process behind. CI also runs the demo with locks."""

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from devtools.servers import find_server, free_port
from example_project.demo.traffic import PageRequest, burst
from example_project.redis_url import neighbour_database
from tests.support.commands import accepts

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 180


class Demo:
    """A process that runs the demo in `folder`."""

    def __init__(self, folder: Path, redis_url: str, *flags: str) -> None:
        self.folder, self.output = folder, folder / "output"
        own = {"DEMO_DIR": str(folder), "REDIS_URL": redis_url, "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "example_project.demo", *flags]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    @property
    def ports(self) -> list[int]:
        """The ports of gunicorn and uvicorn."""
        return [int(port) for port in re.findall(r"workers at http://127.0.0.1:(\d+)", self.text)]

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + SECONDS
        while text not in self.text:
            assert self.process.poll() is None and time.monotonic() < end, self.text
            time.sleep(0.05)

    def ended(self) -> int:
        """Wait until the demo ends, and return its exit code. Check that no process is left."""
        code = self.process.wait(SECONDS)
        assert [] == processes_of(self.folder)
        assert [] == [port for port in self.ports if accepts(port)]
        return code


@contextmanager
def demo(folder: Path, redis_url: str, *flags: str) -> Iterator[Demo]:
    running = Demo(folder, redis_url, *flags)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(30)
        if redis_url:  # delete counters, which expire only after hours
            prefix = "shop-" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
            with redis.Redis.from_url(neighbour_database(redis_url)) as client:
                for key in client.scan_iter(match=f"{prefix}:*", count=1000):
                    client.delete(key)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the demo's living processes (on Linux only)."""
    mark, found = f"DEMO_DIR={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_demo_exits_with_1_on_ctrl_c_if_it_ran_without_locks(
    tmp_path: Path, redis_url: str
) -> None:
    with demo(tmp_path, redis_url, "--without-locks") as running:
        running.wait_for("Ctrl-C ends it.")
        for port in running.ports:
            for page in ("", "sale/", "admin/login/", "static/admin/css/base.css"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as response:
                    assert 200 == response.status
        assert re.search(r"login admin, password \S+", running.text)
        running.process.send_signal(signal.SIGINT)
        assert 1 == running.ended(), running.text
    for title in ("a. Flash sale", "b. Exports", "c. A worker killed"):
        assert re.search(rf"^BROKEN {title}.*\(gunicorn, uvicorn\)$", running.text, re.MULTILINE)


@pytest.mark.deep
@pytest.mark.timeout(200)
def test_terminated_demo_leaves_no_process(tmp_path: Path, redis_url: str) -> None:
    with demo(tmp_path, "" if find_server() else redis_url, "--exit") as running:
        running.wait_for("flash sale, gunicorn")
        assert processes_of(tmp_path) or sys.platform != "linux"
        running.process.terminate()
        assert 128 + signal.SIGTERM == running.ended(), running.text


def test_signal_is_not_lost_while_the_demo_sends_requests() -> None:
    class Request:
        def __del__(self) -> None:  # an exception that is raised in here would be lost
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)

    def stop(*_: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(SystemExit):
            burst(f"http://127.0.0.1:{free_port()}", [PageRequest("/")], Request)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(200)
def test_second_demo_in_the_same_folder_exits_with_2(tmp_path: Path, redis_url: str) -> None:
    with (tmp_path / "in_use").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with demo(tmp_path, redis_url, "--exit") as running:
            assert 2 == running.ended()
            assert "another demo runs in" in running.text


@pytest.mark.parametrize(
    ("url", "neighbour"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0?db=1"),
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379?db=1"),
        ("redis://:secret@host:1/3?db=5&protocol=2", "redis://:secret@host:1/3?protocol=2&db=4"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=1"),
        ("unix:///run/redis.sock?db=15", "unix:///run/redis.sock?db=14"),
    ],
)
def test_neighbour_database_function_returns_the_url_of_another_redis_database(
    url: str, neighbour: str
) -> None:
    assert neighbour == neighbour_database(url)
