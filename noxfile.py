"""The matrix: `make matrix`, or `python -m nox -s "tests-3.12(django='6.0', django_redis='7')"`.

Interpreters are looked for on PATH and among pyenv's; one that is missing is skipped with a word.
`-s fast` runs a part of the tests, once per Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import nox

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests"]

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
DJANGO_REDIS = ("6", "7")
#: Django, and the oldest Python that it runs on.
DJANGOS = {"5.2": "3.10", "6.0": "3.12", "6.1": "3.12"}
#: What differs between versions: everything that meets Django, django-redis or an event loop. Their
#: protocol, storms and faults are the same everywhere.
FAST = (
    "not browser and not slow",
    "tests/test_checks.py",
    "tests/test_admin_pages.py",
    "tests/test_admin_host_project.py",
    "tests/test_command_status.py",
    "tests/test_requests_views.py",
    "tests/test_requests_drf.py",
    "tests/test_requests_transactions.py",
    "tests/behaviour/test_configuration.py",
    "tests/behaviour/test_cancellation.py",
)

_PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
for _version in PYTHONS:
    for _found in sorted(_PYENV.glob(f"{_version}.*/bin")):
        os.environ["PATH"] += f"{os.pathsep}{_found}"


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


def _test(session: nox.Session, django: str, django_redis: str, *words: str) -> None:
    versions = (f"django~={django}.0", f"django-redis~={django_redis}.0")
    session.install("-q", "-e", ".[test]", *versions)
    workers = () if os.environ.get("REDIS_URL") else ("-n", "4", "--dist", "worksteal")
    session.run("python", "-m", "pytest", "-q", *workers, *words, *session.posargs)


@nox.session
@nox.parametrize("python,django,django_redis", list(_lines()))
def tests(session: nox.Session, django: str, django_redis: str) -> None:
    """All tests but the browser's, on one line of the matrix."""
    _test(session, django, django_redis, "-m", "not browser")


@nox.session
@nox.parametrize("python,django,django_redis", ONE_EACH)
def fast(session: nox.Session, django: str, django_redis: str) -> None:
    """A part of them, one line for each Python."""
    marks, *files = FAST
    _test(session, django, django_redis, "-m", marks, *files)
