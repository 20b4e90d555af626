"""Plant each mutant in a copy of the project, and test the copy. Report undetected mutants.

A mutant is a defect. mutants.diff lists all mutants.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "django_redis_sync"
#: Files and folders that a copy contains besides the package.
BESIDE = ("docs", "tests", "devtools", "benchmarks", "setup.cfg", "pyproject.toml", "conftest.py")
#: Number of copies that are tested at the same time.
AT_ONCE = 2
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

    `test`: the path, relative to tests/, of the file whose tests must detect the defect."""

    def __init__(self, name: str, test: str, text: str, instead: str) -> None:
        self.name, self.test, self.text, self.instead = name, test, text, instead

    def path(self) -> Path:
        """Return the file that contains `text`. Raise AssertionError unless `text` occurs once."""
        counts = {path: text.count(self.text) for path, text in sources().items()}
        found = {path: count for path, count in counts.items() if count}
        assert [1] == [*found.values()], f"{self.name}: its text occurs in {found}"
        return next(iter(found))

    @property
    def area(self) -> str:
        """The subfolder of the package with the file that contains `text`. "top" if the file is
        directly in the package."""
        folder = self.path().parts[1]
        return "top" if "." in folder else folder

    def is_found(self) -> bool:
        """Return True if a test fails in a copy of the project with the defect."""
        with tempfile.TemporaryDirectory() as folder:
            return self._is_found(Path(folder))

    def _is_found(self, folder: Path) -> bool:
        ignored = shutil.ignore_patterns("__pycache__")
        for source in (ROOT / name for name in (PACKAGE, *BESIDE)):
            if source.is_dir():
                shutil.copytree(source, folder / source.name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder)
        path = folder / self.path()
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(self.text, self.instead), encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*words, f"tests/{self.test}"],
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


def read() -> list[Mutant]:
    """Return the mutants of mutants.diff.

    A line `## FILE` names a test file, relative to tests/. Its tests must detect the mutants that
    follow, up to the next `##` line. A line `# NAME` begins a mutant. The `-` lines after it are
    the original code of the package. The `+` lines are the code that replaces it."""
    found, test = list[tuple[str, str, list[str], list[str]]](), ""
    for line in Path(__file__).with_name("mutants.diff").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            test = line[3:]
        elif line.startswith("# "):
            found.append((line[2:], test, [], []))
        else:
            found[-1][3 if line[0] == "+" else 2].append(line[1:])
    return [Mutant(name, test, "\n".join(old), "\n".join(new)) for name, test, old, new in found]


def main() -> int:
    mutants = read()
    areas = sorted({mutant.area for mutant in mutants})
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", action="append", choices=areas, help="may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="N random mutants")
    parser.add_argument("--seed", type=int, help="seed of the random choice")
    parser.add_argument("--at-once", type=int, metavar="N", default=AT_ONCE, help=f"({AT_ONCE})")
    options = parser.parse_args()
    mutants = [mutant for mutant in mutants if mutant.area in (options.area or areas)]
    if options.sample is not None:
        count = min(options.sample, len(mutants))
        mutants = random.Random(options.seed).sample(mutants, count)
    missed = 0
    with ThreadPoolExecutor(options.at_once) as threads:
        for mutant, found in zip(mutants, threads.map(Mutant.is_found, mutants), strict=True):
            print(f"{'found' if found else 'NOT FOUND'}: {mutant.name}", flush=True)
            missed += not found
    print(f"{len(mutants) - missed} of {len(mutants)} mutants were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
