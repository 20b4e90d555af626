"""Run the tests on combinations of versions: `make matrix`. `python -m nox -l` lists all of them.
To run one: `python -m nox -s "tests(python='3.12', django='6.0', django_redis='7')"`.

`-s ends` runs the tests of `make test` twice: on the oldest versions that setup.cfg admits, and on
the newest versions. `-s between` runs only tests/behaviour, on combinations between these.

nox looks for each Python version on PATH and in pyenv. It skips a combination whose version it does
not find, and prints a message.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nox

from devtools.servers import find_server

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
DJANGO_REDIS = ("6", "7")
#: Each version of Django, and the oldest version of Python that supports it.
DJANGOS = {"5.2": "3.10", "6.0": "3.12", "6.1": "3.12"}
#: Environment variable with the folder of a newer `redis-server`, such as that of redis-tools.
NEWER_REDIS = "DJANGO_REDIS_SYNC_NEWER_REDIS"

#: Environment variable with the cache backend of the tests.
BACKEND = "DJANGO_REDIS_SYNC_TEST_BACKEND"

#: Folders with pyenv's interpreters. The interpreter that runs this file may be one of them.
_PYENVS = (
    Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions",
    Path(sys.base_prefix).parent,
)
for _version in PYTHONS:
    for _found in sorted({bin for root in _PYENVS for bin in root.glob(f"{_version}.*/bin")}):
        # Put interpreters before pyenv's shims. A shim exists even if its version is not enabled.
        os.environ["PATH"] = f"{_found}{os.pathsep}{os.environ['PATH']}"


# The environments contain no Redis server. Add the folder of the server of `make test` to PATH.
_server = find_server()
if _server is not None:
    os.environ["PATH"] += f"{os.pathsep}{_server.parent}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _lines() -> Iterator[tuple[str, str, str]]:
    for python in PYTHONS:
        for django, oldest in DJANGOS.items():
            if _number(python) >= _number(oldest):
                for django_redis in DJANGO_REDIS:
                    yield python, django, django_redis


def _here(python: str) -> bool:
    try:
        return not subprocess.run([f"python{python}", "-c", ""], capture_output=True).returncode
    except FileNotFoundError:
        return False


def _lowest() -> list[str]:
    """Return the requirements of setup.cfg, each pinned to the oldest release that it admits."""
    found = configparser.ConfigParser()
    found.read(Path(__file__).with_name("setup.cfg"), encoding="utf-8")
    required = found["options"]["install_requires"].split()
    return [re.sub(r">=([\d.]+)$", r"==\1.0", word) for word in required]


def _test(session: nox.Session, versions: list[str], *words: str) -> None:
    session.install("-q", "-e", ".[test]", *versions)
    # With REDIS_URL, other programs may use the server, so run only one worker.
    workers = () if os.environ.get("REDIS_URL") else ("-n", "10", "--dist", "worksteal")
    session.run("python", "-m", "pytest", "-q", *workers, *words, *session.posargs)


def _versions(django: str, django_redis: str) -> list[str]:
    return [f"django~={django}.0", f"django-redis~={django_redis}.0"]


@nox.session
@nox.parametrize("python,django,django_redis", list(_lines()))
def tests(session: nox.Session, django: str, django_redis: str) -> None:
    """Run the tests on one combination, except the tests marked browser, deep, or tools."""
    _test(session, _versions(django, django_redis), "-m", "not browser and not deep and not tools")


_HERE = [python for python in PYTHONS if _here(python)]
_ENDS = {}
if _HERE:
    _newest = max(_lines(), key=lambda line: (line[0] == _HERE[-1], *map(_number, line)))
    _ENDS = {"lowest": (_HERE[0], _lowest()), "newest": (_HERE[-1], _versions(*_newest[1:]))}


@nox.session
@nox.parametrize("python,end", [(python, end) for end, (python, _) in _ENDS.items()])
def ends(session: nox.Session, end: str) -> None:
    """Run the tests of `make test` on the oldest or on the newest versions, except tests/model: its
    imitation of Redis is the same with all versions."""
    session.log(f"Pythons found here: {', '.join(_HERE)}; looked for {', '.join(PYTHONS)}")
    newer = os.environ.get(NEWER_REDIS)
    if end == "newest" and newer:
        session.env["PATH"] = f"{newer}{os.pathsep}{session.env.get('PATH', os.environ['PATH'])}"
    _test(session, _ENDS[end][1], "--ignore", "tests/model")


_BETWEEN = [("3.12", "5.2", "7"), ("3.13", "6.0", "6"), ("3.14", "6.1", "7")]


@nox.session
@nox.parametrize("python,django,django_redis", _BETWEEN)
def between(session: nox.Session, django: str, django_redis: str) -> None:
    """Run tests/behaviour on a combination between the oldest and the newest versions. With Django
    6.0, the locks are in a cache of Django's own backend, not of django-redis."""
    if django == "6.0":
        session.env[BACKEND] = "django.core.cache.backends.redis.RedisCache"
    _test(session, _versions(django, django_redis), "tests/behaviour")
