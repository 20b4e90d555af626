"""The demo passes, fails without locks, and leaves no process behind."""

import fcntl
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from devtools.servers import find_server
from example_project.redis_url import neighbour_database

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 180
TITLES = ("a. Flash sale", "b. Exports", "c. A worker killed")


class Demo:
    """A demo that runs in a folder of its own."""

    def __init__(self, folder: Path, redis_url: str, *flags: str) -> None:
        self.folder = folder
        self.output = folder / "output"
        environment = {
            **os.environ,
            "DEMO_DIR": str(folder),
            "REDIS_URL": redis_url,
            "PYTHONIOENCODING": "utf-8",
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "example_project.demo", *flags],
                cwd=ROOT,
                env=environment,
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
            assert self.process.poll() is None, self.text
            assert time.monotonic() < end, self.text
            time.sleep(0.05)

    def ended(self) -> int:
        """Return the exit code. Check that all processes of the demo have ended."""
        code = self.process.wait(SECONDS)
        assert processes_of(self.folder) == []
        assert [port for port in self.ports if answers(port)] == []
        return code

    def cells(self) -> list[list[str]]:
        """Return the rows of the table: title, gunicorn's cell, and uvicorn's cell."""
        rows: list[list[str]] = []
        for line in self.text.splitlines():
            if line.startswith(("├", "┡", "|-", "+=")):
                rows.append(["", "", ""])
            elif line.startswith("│"):
                parts = [part.strip() for part in line.strip("│").split("│")]
                rows[-1] = [
                    f"{old} {new}".strip() for old, new in zip(rows[-1], parts, strict=True)
                ]
        return rows


@contextmanager
def demo(folder: Path, redis_url: str, *flags: str) -> Iterator[Demo]:
    running = Demo(folder, redis_url, *flags)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(30)
        if redis_url:
            delete_keys_of(folder, redis_url)


def delete_keys_of(folder: Path, redis_url: str) -> None:
    """Delete the counters that a demo leaves. They would expire only after hours."""
    prefix = "shop-" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    with redis.Redis.from_url(neighbour_database(redis_url)) as client:
        for key in client.scan_iter(match=f"{prefix}:*", count=1000):
            client.delete(key)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the demo's living processes (on Linux only)."""
    mark = f"DEMO_DIR={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_demo_passes_with_gunicorn_and_uvicorn(tmp_path: Path, redis_url: str) -> None:
    with demo(tmp_path, redis_url, "--exit") as running:
        code = running.ended()
        rows = running.cells()
        assert (code, len(rows)) == (0, 3), running.text
    for row, title in zip(rows, TITLES, strict=True):
        assert row[0].startswith(title)
        assert [cell.partition(" ")[0] for cell in row[1:]] == ["ok", "ok"]
    sale, exports, kill = (" ".join(row[1:]) for row in rows)
    assert sale.count("10 of 10 tickets sold, none twice") == 2
    assert exports.count("at most 3 inside at any moment") == 2
    assert kill.count("the lease is 5 s") == 2
    assert "All 6 checks hold." in running.text


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_demo_without_locks_fails_and_serves_until_ctrl_c(tmp_path: Path, redis_url: str) -> None:
    with demo(tmp_path, redis_url, "--without-locks") as running:
        running.wait_for("Ctrl-C ends it.")
        for port in running.ports:
            for page in ("", "sale/", "admin/login/", "static/admin/css/base.css"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as response:
                    assert response.status == 200
        assert re.search(r"login admin, password \S+", running.text)
        running.process.send_signal(signal.SIGINT)
        code = running.ended()
        rows = running.cells()
        assert (code, len(rows)) == (1, 3), running.text
    for row, title in zip(rows, TITLES, strict=True):
        assert [cell.partition(" ")[0] for cell in row[1:]] == ["BROKEN", "BROKEN"]
        assert re.search(rf"^BROKEN {title}.*\(gunicorn, uvicorn\)$", running.text, re.MULTILINE)
    assert "tickets sold of 10" in rows[0][1]
    assert "inside at once, the limit is 3" in rows[1][1]


@pytest.mark.deep
@pytest.mark.timeout(200)
def test_terminated_demo_leaves_no_process(tmp_path: Path, redis_url: str) -> None:
    own_redis = "" if find_server() else redis_url
    with demo(tmp_path, own_redis, "--exit") as running:
        running.wait_for("flash sale, gunicorn")
        assert processes_of(tmp_path) or sys.platform != "linux"
        running.process.terminate()
        assert running.ended() == 128 + signal.SIGTERM


@pytest.mark.timeout(200)
def test_second_demo_in_the_same_folder_exits_with_2(tmp_path: Path, redis_url: str) -> None:
    with (tmp_path / "in_use").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with demo(tmp_path, redis_url, "--exit") as running:
            assert running.ended() == 2
            assert "another demo runs in" in running.text


# The database of the locks


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
def test_neighbour_database_differs_from_the_database_of_the_url(url: str, neighbour: str) -> None:
    assert neighbour == neighbour_database(url)
