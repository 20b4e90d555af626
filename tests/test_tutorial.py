"""docs/tutorial.md, executed step by step in a new environment.

The first line of a python block names the file to write, or the file to append to. The lines below
a command of a console block must be in its output. Numbers and ids may differ, except HTTP statuses
(lines of three digits). A line `...` stands for further output. The test uses its own port and
Redis.
"""

from __future__ import annotations

import http.cookiejar
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from devtools.servers import free_port

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (?P<path>[\w./]+\.py)(?P<end>, at the end)?\n")
SERVE = "python manage.py runserver"
INSTALL = "python -m pip install ../django_redis_sync"
#: The test runs this after INSTALL. It installs a wheel of the clone, and deletes the clone, so
#: that the tutorial can't use a file of the clone.
FROM_A_WHEEL = (
    "python -m pip wheel -q --no-deps -w ../dist ../django_redis_sync && rm -r ../django_redis_sync"
    " && python -m pip install -q --no-deps --force-reinstall ../dist/*.whl"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Reader:
    """A reader of the tutorial: an editor, a terminal, and a terminal that runs the site."""

    def __init__(self, folder: Path, redis_url: str, port: int) -> None:
        self.folder, self.port, self.log = folder, port, folder / "runserver.log"
        inherited = ("DJANGO_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "DEMO_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(inherited)}
        self.environment |= {"REDIS_URL": redis_url, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.environment |= {"PYTHONUNBUFFERED": "1"}
        self.environment |= {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        self.terminal = self._start(["bash", "--norc"], stdin=subprocess.PIPE)
        self.server: subprocess.Popen[str] | None = None

    def _start(self, command: list[str], **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )  # type: ignore[call-overload]

    def type(self, command: str) -> str:
        """Run a command in the first terminal, which must succeed. Return its output."""
        if command.startswith(SERVE):
            return self._serve(command)
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        assert self.terminal.stdin and self.terminal.stdout
        self.terminal.stdin.write(f"{command}\nended=$?; echo; echo ended: $ended\n")
        self.terminal.stdin.flush()
        lines = []
        for line in self.terminal.stdout:
            if line.startswith("ended: "):
                assert "ended: 0\n" == line, f"$ {command}\n{''.join(lines)}"
                break
            lines.append(line)
        return "".join(lines)

    def _serve(self, command: str) -> str:
        shell = f"cd mysite; . .venv/bin/activate; exec {command} {self.port} > {self.log} 2>&1"
        self.server = self._start(["bash", "-c", shell], start_new_session=True)
        self._wait_for_reloads(1)
        return ""

    def write(self, text: str) -> None:
        """Write a file, or append to one. If it is the settings, wait until the site reloads."""
        head = FILE.match(text)
        assert head, f"no file name: {text[:80]}"
        path = self.folder / "mysite" / head["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if head["end"] else ""
        starts = self._starts()
        path.write_text(before + text)
        if self.server is not None and "settings" in path.name:
            self._wait_for_reloads(starts + 1)

    def _starts(self) -> int:
        text = self.log.read_text() if self.log.exists() else ""
        return text.count("Quit the server with")

    def _wait_for_reloads(self, count: int) -> None:
        end = time.monotonic() + 120
        while self._starts() < count:
            assert time.monotonic() < end, self.log.read_text() if self.log.exists() else "no log"
            time.sleep(0.05)
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/admin/login/", timeout=30)
                return
            except OSError:
                assert time.monotonic() < end, self.log.read_text()
                time.sleep(0.05)

    def close(self) -> None:
        self.terminal.kill()
        self.terminal.communicate()
        if self.server is not None:
            os.killpg(self.server.pid, 15)  # the reloader and the site
            self.server.communicate(timeout=60)


@pytest.fixture
def reader(tmp_path: Path, redis_url: str) -> Iterator[Reader]:
    for tool in ("bash", "curl"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    if find_spec("ensurepip") is None:
        pytest.skip("this Python can't make an environment: Debian has python3-venv")
    (tmp_path / "bin").mkdir()
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    (tmp_path / "bin" / "python3").symlink_to(base)
    _clone(tmp_path / "django_redis_sync")
    reader = Reader(tmp_path, redis_url, free_port())
    yield reader
    reader.close()
    with redis.Redis.from_url(redis_url) as client:
        if keys := list(client.scan_iter("mysite:*")):
            client.delete(*keys)


def _clone(to: Path) -> None:
    """Copy the files that a build reads."""
    to.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to)
    (to / "devtools").mkdir()
    shutil.copy(ROOT / "devtools" / "build_backend.py", to / "devtools")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "django_redis_sync", to / "django_redis_sync", ignore=ignored)


def _normalized(line: str) -> str:
    """Return a line of output with its numbers, ids, and spaces normalized."""
    line = re.sub(r"\b[0-9a-f]{8}\b", "ID", " ".join(line.split()))
    return re.sub(r"\d+(\.\d+)?", "N", line)


def _check(command: str, expected: list[str], output: str) -> None:
    lines = [line for line in output.splitlines() if line.strip()]
    wanted = [line for line in expected if line.strip() not in ("", "...")]
    statuses = [line for line in wanted if re.fullmatch(r"\d{3}", line)]
    if statuses:
        assert sorted(statuses) == sorted(lines), f"$ {command}\n{output}"
        return
    found = [_normalized(line) for line in lines]
    missing = [line for line in wanted if _normalized(line) not in found]
    assert [] == missing, f"$ {command}\n{output}"


def _steps() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def test_tutorial_works_as_written(reader: Reader) -> None:
    for language, text in _steps():
        if language == "python":
            reader.write(text)
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *expected = part.splitlines()
            _check(command, expected, reader.type(command))
            if command == INSTALL:
                reader.type(FROM_A_WHEEL)
    assert not (reader.folder / "django_redis_sync").exists(), f"no {INSTALL} on the page"
    _admin_shows(reader, "exports")
    log = reader.log.read_text()
    assert "Traceback" not in log and "Error" not in log, log


def _admin_shows(reader: Reader, name: str) -> None:
    """Log in with the tutorial's password, and check that the list shows `name`."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    admin = f"http://127.0.0.1:{reader.port}/admin/"
    browser.open(f"{admin}login/").read()
    token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": "admin", "password": "try-it-out", "next": "/admin/"}
    form["csrfmiddlewaretoken"] = token
    index = browser.open(f"{admin}login/", urllib.parse.urlencode(form).encode()).read().decode()
    assert "Locks and semaphores" in index
    page = browser.open(f"{admin}django_redis_sync/name/").read().decode()
    assert f">{name}<" in page


def test_pages_that_the_tutorial_links_to_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([\w./-]+)\)", text)
    assert links and [] == [link for link in links if not (PAGE.parent / link).exists()]
