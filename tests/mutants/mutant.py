"""A mutant is a defect that is planted into a copy of the project. The tests must find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "django_redis_sync"
#: Files and folders that the copy needs besides the package.
BESIDE = ("docs", "tests", "devtools", "benchmarks", "setup.cfg", "pyproject.toml", "conftest.py")
#: Time limit in seconds for the tests of one mutant.
TIMEOUT = 300


@cache
def sources() -> dict[Path, str]:
    """Return the text of each file of the package, by its path in the project."""
    suffixes = (".py", ".lua", ".html")
    paths = [path for path in (ROOT / PACKAGE).rglob("*") if path.suffix in suffixes]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


class Mutant:
    """A defect: `instead` replaces `text`, which must occur exactly once in the package.

    `tests`: files below tests/. At least one test in these files must fail in `make test`."""

    def __init__(self, name: str, text: str, instead: str, *tests: str) -> None:
        self.name, self.text, self.instead, self.tests = name, text, instead, tests

    def path(self) -> Path:
        """Return the file that contains `text`. Raise AssertionError unless `text` occurs once."""
        counts = {path: text.count(self.text) for path, text in sources().items()}
        found = {path: count for path, count in counts.items() if count}
        assert [1] == [*found.values()], f"{self.name}: its text occurs in {found}"
        return next(iter(found))

    def is_found(self, folder: Path) -> bool:
        """Copy the project to `folder`, add the defect, and return True if a test fails."""
        copy_to(folder)
        path = folder / self.path()
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(self.text, self.instead), encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*words, *(f"tests/{test}" for test in self.tests)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        # Code 1 means that tests failed, and code 2 that tests could not be imported. Other codes
        # are errors of pytest.
        assert done.returncode in (0, 1, 2), done.stdout + done.stderr
        return done.returncode != 0


def copy_to(folder: Path) -> None:
    for name in (PACKAGE, *BESIDE):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, folder / name)
