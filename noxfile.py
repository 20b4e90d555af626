"""The matrix: `make matrix`, or a line of it, named as `python -m nox -l` names it:
`python -m nox -s "tests(python='3.12', django='6.0', django_redis='7')"`.

Interpreters are looked for on PATH and among pyenv's; one that is missing is skipped with a word.
`-s fast` runs a part of the tests, once per Python; `-s ends` the same part at both ends: the
oldest of everything that setup.cfg admits, and the newest.
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

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
DJANGO_REDIS = ("6", "7")
#: Django, and the oldest Python that it runs on.
DJANGOS = {"5.2": "3.10", "6.0": "3.12", "6.1": "3.12"}
#: What differs between versions: everything that meets Django, django-redis or an event loop. Their
#: protocol, storms and faults are the same everywhere.
FAST = (
    "not browser and not slow",
    "tests/test_checks.py",
    "tests/test_docs.py",
    "tests/test_locks_synchronized.py",
    "tests/test_admin_pages.py",
    "tests/test_admin_host_project.py",
    "tests/test_command_status.py",
    "tests/test_requests_views.py",
    "tests/test_requests_drf.py",
    "tests/test_requests_transactions.py",
    "tests/behaviour/test_configuration.py",
    "tests/behaviour/test_cancellation.py",
)

#: Where pyenv keeps its interpreters; the one that runs this may be one of them.
_PYENVS = (
    Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions",
    Path(sys.base_prefix).parent,
)
for _version in PYTHONS:
    for _found in sorted({bin for root in _PYENVS for bin in root.glob(f"{_version}.*/bin")}):
        # Before pyenv's shims, which answer for versions that nobody chose, too.
        os.environ["PATH"] = f"{_found}{os.pathsep}{os.environ['PATH']}"


# The environments bring no server of their own: they use the one that would be used here.
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


#: For each Python the newest Django that it can have, and django-redis 6 and 7 in turn.
ONE_EACH = [
    (python, max(d for p, d, _ in _lines() if p == python), DJANGO_REDIS[i % 2])
    for i, python in enumerate(PYTHONS)
]


def _here(python: str) -> bool:
    try:
        return not subprocess.run([f"python{python}", "-c", ""], capture_output=True).returncode
    except FileNotFoundError:
        return False


def _lowest() -> list[str]:
    """What setup.cfg requires, each pinned to the oldest release that it admits."""
    found = configparser.ConfigParser()
    found.read(Path(__file__).with_name("setup.cfg"), encoding="utf-8")
    required = found["options"]["install_requires"].split()
    return [re.sub(r">=([\d.]+)$", r"==\1.0", word) for word in required]


def _test(session: nox.Session, versions: list[str], *words: str) -> None:
    session.install("-q", "-e", ".[test]", *versions)
    # No more workers than cores. A server that others use too is not asked by several at once.
    workers = () if os.environ.get("REDIS_URL") else ("-n", "auto", "--dist", "worksteal")
    session.run("python", "-m", "pytest", "-q", *workers, *words, *session.posargs)


def _versions(django: str, django_redis: str) -> list[str]:
    return [f"django~={django}.0", f"django-redis~={django_redis}.0"]


@nox.session
@nox.parametrize("python,django,django_redis", list(_lines()))
def tests(session: nox.Session, django: str, django_redis: str) -> None:
    """All tests but the browser's, on one line of the matrix."""
    _test(session, _versions(django, django_redis), "-m", "not browser and not deep")


@nox.session
@nox.parametrize("python,django,django_redis", ONE_EACH)
def fast(session: nox.Session, django: str, django_redis: str) -> None:
    """A part of them, one line for each Python."""
    marks, *files = FAST
    _test(session, _versions(django, django_redis), "-m", marks, *files)


_HERE = [python for python in PYTHONS if _here(python)]
_ENDS = {}
if _HERE:
    _newest = max(_lines(), key=lambda line: (line[0] == _HERE[-1], *map(_number, line)))
    _ENDS = {"lowest": (_HERE[0], _lowest()), "newest": (_HERE[-1], _versions(*_newest[1:]))}


@nox.session
@nox.parametrize("python,end", [(python, end) for end, (python, _) in _ENDS.items()])
def ends(session: nox.Session, end: str) -> None:
    """The same part, on the oldest Python found here and on the newest."""
    session.log(f"Pythons found here: {', '.join(_HERE)}; looked for {', '.join(PYTHONS)}")
    marks, *files = FAST
    _test(session, _ENDS[end][1], "-m", marks, *files)
