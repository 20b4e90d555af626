"""docs/tutorial.md, executed step by step in a new environment.

The first line of a python block names the file to write, or the file to append to. In a console
block, the lines below a command must be the output of the command, with the same numbers and in the
same order. Only ids, durations, and names of processes may differ. `...` stands for any lines, or
for the rest of its line. The test uses its own port and Redis.
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
from typing import Any

import pytest
import redis

from devtools.servers import free_port

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
FILE = re.compile(r"# (?P<path>[\w./]+\.py)(?P<end>, at the end)?\n")
SERVE = "python manage.py runserver"
INSTALL = "python -m pip install ../django_redis_sync"
#: After INSTALL, the test replaces the clone by a wheel, so that the tutorial can't use files that
#: only the clone has.
FROM_A_WHEEL = (
    "python -m pip wheel -q --no-deps -w ../dist ../django_redis_sync && rm -r ../django_redis_sync"
    " && python -m pip install -q --no-deps --force-reinstall ../dist/*.whl"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Reader:
    """Does what a reader of the tutorial does in an editor and in two terminals."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder, self.port, self.log = folder, free_port(), folder / "runserver.log"
        self.log.touch()
        inherited = ("DJANGO_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "DEMO_")
        own = {k: v for k, v in os.environ.items() if not k.startswith(inherited)}
        self.environment = own | {
            "REDIS_URL": redis_url,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        self.terminal = self.start(["bash", "--norc"], stdin=subprocess.PIPE)
        self.server: Any = None

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **options)

    def type(self, command: str) -> str:
        """Run a command in the terminal, check that it succeeds, and return its output. If the
        command is SERVE, run it in another terminal, and return "" when the site responds."""
        if command.startswith(SERVE):
            shell = f"cd mysite; . .venv/bin/activate; exec {command} {self.port} > {self.log} 2>&1"
            self.server = self.start(["bash", "-c", shell], start_new_session=True)
            self.wait_for_starts(1)
            return ""
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        self.terminal.stdin.write(f"{command}\nended=$?; echo; echo ended: $ended\n")
        self.terminal.stdin.flush()
        output = ""
        for line in self.terminal.stdout:
            if line.startswith("ended: "):
                assert "ended: 0\n" == line, f"$ {command}\n{output}"
                break
            output += line
        return output

    def write(self, text: str) -> None:
        """Write `text` to the file that the first line of `text` names. Append `text` if that line
        says "at the end". If a running site uses settings.py, wait until the site has reloaded."""
        head = FILE.match(text)
        assert head, f"no file name: {text[:80]}"
        path = self.folder / "mysite" / head["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        starts = self.starts
        path.write_text((path.read_text() if head["end"] else "") + text)
        if self.server is not None and "settings" in path.name:
            self.wait_for_starts(starts + 1)

    @property
    def starts(self) -> int:
        return self.log.read_text().count("Quit the server with")

    def wait_for_starts(self, count: int) -> None:
        """Wait until the site has started `count` times, and responds."""
        end = time.monotonic() + 120
        while True:
            try:
                assert self.starts >= count
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/admin/login/", timeout=30)
                return
            except (AssertionError, OSError):
                assert time.monotonic() < end, self.log.read_text()
                time.sleep(0.05)

    def close(self) -> None:
        self.terminal.kill()
        self.terminal.communicate()
        if self.server is not None:
            os.killpg(self.server.pid, 15)  # end the reloader and the site
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
    clone = tmp_path / "django_redis_sync"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "django_redis_sync", clone / "django_redis_sync", ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    reader = Reader(tmp_path, redis_url)
    yield reader
    reader.close()
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter("mysite:*"):
            client.delete(key)


#: What differs from run to run: ids of leases, durations, and processes.
DIFFERS = [
    (re.compile(r"\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\b[\w.-]+:\d+\b"), "HOST:PROCESS"),
]


def normalized(line: str) -> str:
    line = " ".join(line.split())
    for pattern, name in DIFFERS:
        line = pattern.sub(name, line)
    return line


def pattern(line: str) -> str:
    if line == "...":
        return "(?:.*\n)*?"
    start = line.removesuffix(" ...")
    return re.escape(start) + ("\n" if start == line else " .*\n")


def check(command: str, expected: list[str], output: str) -> None:
    """Compare all lines, and their order, unless the page shows no output."""
    shown = "".join(f"{normalized(line)}\n" for line in output.splitlines() if line.strip())
    wanted = "".join(pattern(normalized(line)) for line in expected if line.strip())
    said = "\n".join(expected)
    assert not wanted or re.fullmatch(wanted, shown), f"$ {command}\n{output}\nThe page: {said}"


@pytest.mark.parametrize(
    ("expected", "output", "equal"),
    [
        (["503", "200"], "503\n200\n", True),
        (["200", "503"], "503\n200\n", False),
        (["granted 2, held 2.0 s"], "granted 2, held 2.1 s\n", True),
        (["granted 4, held 2.0 s"], "granted 2, held 2.0 s\n", False),
        (["first", "..."], "first\nsecond\nthird\n", True),
        (["first"], "first\nsecond\n", False),
        (["?: (W021) it ..."], "?: (W021) it is so.\n", True),
        (["?: (W021) it ..."], "?: (W022) it is so.\n", False),
    ],
)
def test_output_must_have_the_numbers_and_the_order_of_the_page(
    expected: list[str], output: str, equal: bool
) -> None:
    if equal:
        check("command", expected, output)
    else:
        with pytest.raises(AssertionError):
            check("command", expected, output)


def test_tutorial_works_as_written(reader: Reader) -> None:
    for language, text in STEPS:
        if language == "python":
            reader.write(text)
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *expected = part.splitlines()
            check(command, expected, reader.type(command))
            if command == INSTALL:
                reader.type(FROM_A_WHEEL)
    assert not (reader.folder / "django_redis_sync").exists(), f"no {INSTALL} on the page"
    # Log in as the user of the tutorial. The admin page must show the name of the limit.
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    site = f"http://127.0.0.1:{reader.port}/admin/"
    browser.open(f"{site}login/").read()
    token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": "admin", "password": "try-it-out", "csrfmiddlewaretoken": token}
    form["next"] = "/admin/django_redis_sync/name/"
    page = browser.open(f"{site}login/", urllib.parse.urlencode(form).encode()).read().decode()
    assert ">exports<" in page
    log = reader.log.read_text()
    assert "Traceback" not in log and "Error" not in log, log
