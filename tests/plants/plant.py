"""What a planted defect is, and how it is planted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "django_redis_sync"
#: What the tests need beside the package.
BESIDE = ("tests", "devtools", "benchmarks", "setup.cfg", "pyproject.toml", "conftest.py")
#: Seconds for the tests of one plant.
PATIENCE = 300


@dataclass(frozen=True)
class Plant:
    """`file`: below the package; `text`: what stands there once, and `instead` what is put there;
    `tests`: node ids below tests/, of `make test`, at least one of which has to fail. `reason`: why
    none of `make test` finds it."""

    name: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]
    reason: str = ""

    def check(self) -> None:
        """AssertionError when it can't be planted any more."""
        found = (ROOT / PACKAGE / self.file).read_text(encoding="utf-8").count(self.text)
        assert found == 1, f"{self.name}: its text stands {found} times in {self.file}"

    def is_found(self, folder: Path) -> bool:
        """Whether a test fails in a copy of the project, made in `folder`, that has this defect."""
        copy_to(folder)
        path = folder / PACKAGE / self.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(self.text, self.instead), encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*words, *(f"tests/{test}" for test in self.tests)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        # 1: tests failed; 2: they could not even be imported. Else it says nothing of the tests.
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
