"""The exam examines lock libraries under faults. These tests check some trials and tables."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import find_server
from exam import __main__ as main
from exam.adapter import ADAPTERS, GROUPS, find
from exam.checker import KINDS, NOT_GIVEN, TWO_INSIDE, Problem, Promises
from exam.controls import EXPECTED
from exam.faults import FAULTS, Script, Seen, examine
from exam.lab import Team

ROOT = Path(__file__).resolve().parent.parent
#: The code of a correct lock that uses a file instead of a server. If SIGALRM is due, an acquire
#: waits. Every second acquire is interrupted by the signal. The others end 1 µs before the signal.
FILE_LOCK = '''
import contextlib, fcntl, os, signal, sys, time
from exam.adapter import Adapter, Promises, Program, poll

class FileLock(Adapter):
    title, promises, late = "a file", Promises(lease=0, punctual=True), 0

    def acquire(self, wait):
        file = os.open(f"{self.place.folder}/{self.place.name}", os.O_CREAT | os.O_RDWR)
        try:
            grant = poll(lambda: self.once(file), wait)
            left, self.late = signal.getitimer(signal.ITIMER_REAL)[0], 0.01 - self.late
            end = time.monotonic() + left + self.late - 1e-6
            while left and time.monotonic() < end:
                pass
            return grant
        except BaseException:
            os.close(file)
            raise

    def once(self, file):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file

    def release(self, grant):
        os.close(grant)

class Lines(Program):
    """A program that grants everything."""

    title, needs, promises = "lines", "", Promises(lease=0, punctual=True)
    code = "import json, sys\\nfor line in sys.stdin: print(json.dumps(dict(grant=1)))"
    command = [sys.executable, "-uc", code]
'''

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(
        find_server() is None or not sys.platform.startswith("linux"),
        reason="the exam starts servers, and stops workers on Linux",
    ),
]


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two files of locks. docs/exam-adapters.md shows one of the files."""
    page = (ROOT / "docs" / "exam-adapters.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    folder = tmp_path_factory.mktemp("locks")
    (folder / "my_lock.py").write_text("\n\n".join(shown[:2]))
    (folder / "file_lock.py").write_text(FILE_LOCK)
    return folder


@pytest.mark.parametrize(
    ("lock", "fault", "expected"),
    [
        ("my_lock:MyLock", "late-release", r"\*\*two inside\*\*"),
        ("my_lock:MyBetterLock", "late-release", r"✓ 1\.\d s"),
        ("file_lock:Lines", "killed", r"\*\*two inside\*\*"),
        ("file_lock:FileLock", "signal", "✓"),
        ("file_lock:FileLock", "silent", "not reached"),
        ("file_lock:FileLock", "server-stopped", "not reached"),
        ("python-redis-lock", "killed", r"✓ \d\.\d s"),  # the library is used as its docs say
    ],
)
def test_result_of_a_trial_is_shown_as_the_expected_table_cell(
    monkeypatch: pytest.MonkeyPatch, locks: Path, lock: str, fault: str, expected: str
) -> None:
    monkeypatch.syspath_prepend(locks)
    if why := find(lock).missing():
        pytest.skip(why)
    seen = examine(lock, fault)
    assert re.match(expected, main.cell(seen)), seen


def test_copied_exam_folder_can_examine_a_lock_of_another_project(locks: Path) -> None:
    """The copied folder can import no other module of this repository."""

    env, command = {**os.environ, "PYTHONPATH": ""}, [sys.executable, "-m", "exam"]

    def exam(*words: str) -> str:
        done = subprocess.run(
            [*command, *words], cwd=locks, env=env, stdout=-1, text=True, check=True
        )
        return done.stdout

    shutil.copytree(ROOT / "exam", locks / "exam", ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("django_redis_sync", "devtools", "tests", "django"):
        (locks / f"{module}.py").write_text("raise ImportError('not here')")
    assert {*ADAPTERS, *FAULTS} <= {*exam("--list").split()}
    output = exam("--only", "my_lock:MyBetterLock", "--fault", "killed", "--json", "seen.json")
    assert re.search(r"my_lock:MyBetterLock +killed +✓ 1\.\d s", output), output


# Checks of the exam itself


def test_each_fault_of_the_exam_has_a_control_lock() -> None:
    assert {*FAULTS} == {fault for _, fault in EXPECTED}
    assert {kind for kinds in EXPECTED.values() for kind in kinds} <= {*KINDS}


@pytest.mark.parametrize(
    ("emptied", "faults"), [((Script, "play"), [*FAULTS]), ((Team, "kill"), ["waiter-killed"])]
)
def test_exam_trial_is_not_passed_if_its_fault_did_not_happen(
    monkeypatch: pytest.MonkeyPatch, emptied: tuple[type, str], faults: list[str]
) -> None:
    monkeypatch.setattr(*emptied, lambda *_: None)
    seen = [examine("control:right", name) for name in faults]
    outcomes = ["not applicable" if FAULTS[name].without else "not reached" for name in faults]
    assert outcomes == [one.outcome for one in seen]
    assert not any(map(main.is_just, seen))


def test_each_library_in_the_exam_has_a_source_and_a_version() -> None:
    assert [] == [key for key in GROUPS["Libraries"] if not re.search(r"\d", find(key).source)]
    # The adapter class of the lock "postgres" has its promises, and locks.ini has the quotes.
    postgres = find("postgres")
    assert replace(Promises(), lease=0, punctual=True) == postgres.promises
    assert {"lease", "punctual"} == {*postgres.quotes}


# The table


TWO, LATE = Problem(TWO_INSIDE, 1.0, 1.23, "a and b"), Problem(NOT_GIVEN, 1.0, 3.0, "b waited")


def seen(outcome: str, *found: Problem, lock: str = "lock", **more: Any) -> Seen:
    return Seen(lock, "killed", outcome, [*found], **more)


def test_each_exam_result_has_the_expected_table_cell_and_rank() -> None:
    runs = {
        "**two inside** 1.2 s": seen("failed", TWO),
        "**free but not granted** 4.0 s": seen("failed", replace(LATE, seconds=4.0)),
        "**free but not granted** 3.0 s": seen("failed", LATE),
        "broken off": seen("broken off", why="it hung"),
        "(free but not granted 3.0 s)": seen("seen", replace(LATE, breach=False)),
        "✓ 2.1 s": seen("passed", free=2.12),
        "✓": seen("passed"),
        "not reached": seen("not reached", why="no"),
        "n/a": seen("not applicable", why="no"),
    }
    assert [*runs] == [main.cell(one) for one in runs.values()]
    ranks = [one.rank for one in runs.values()]
    assert sorted({*ranks}) == ranks


@pytest.fixture
def exam(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function `run(results, *words)`. It runs the exam's command with the arguments
    `words`, and returns the exit code. Instead of a trial, the command uses the next result."""

    def run(results: list[Seen], *words: str) -> int:
        left = [*results]
        monkeypatch.setattr(sys, "argv", ["exam", "--fault", "killed", "--at-once", "1", *words])
        monkeypatch.setattr(main, "examined", lambda *_: left.pop(0))
        code = main.main()
        assert [] == left
        return code

    return run


def test_exam_page_shows_the_worst_of_several_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exam: Any
) -> None:
    file, page = tmp_path / "seen.json", tmp_path / "page.md"
    page.write_text("before\n<!-- exam: This project -->\nstale\n<!-- exam ends -->\nafter")
    file.write_text(json.dumps([asdict(seen("broken off"))]))
    runs = [seen("passed"), seen("failed", TWO), seen("passed", free=1.0)]
    none = seen("not applicable", lock="async", why="no server")
    monkeypatch.setattr(find("pottery"), "missing", lambda: "it is not installed")
    words = ["--json", f"{file}", "--write", f"{page}", "--strict", "--times", "3"]
    words += ["--only", "lock", "--only", "async", "--only", "pottery"]
    assert 1 == exam([one for run in runs for one in (run, none)], *words), (
        "the exit code must report the failure"
    )
    worst = main.read(file)["lock", "killed"]
    assert ("failed", [TWO]) == (worst.outcome, worst.found)
    text = page.read_text()
    assert "| holder killed (`killed`) | **two inside** 1.2 s | n/a |" in text
    assert "- Lock, `killed`: two inside for 1.23 s, at 1.00 s: a and b." in text
    assert "- … in async code: no server (`killed`)." in text
    assert "- pottery was not examined: it is not installed." in text
    assert re.search(r"Run on \d{4}-\d\d-\d\d with Python [\d.]+, .+ \d", text), text
    assert "stale" not in text


RIGHT, ACCUSED = (seen(one, lock="control:right") for one in ("passed", "failed"))
BROKEN, MISSED = (seen(one, lock="control:endless") for one in ("failed", "passed"))
BROKEN.found, ACCUSED.found = [LATE], [LATE]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([RIGHT, BROKEN], 0),
        ([RIGHT, MISSED, BROKEN], 0),
        ([RIGHT, MISSED, MISSED], 1),
        ([ACCUSED, BROKEN, RIGHT], 0),
        ([ACCUSED, BROKEN, ACCUSED], 1),
        ([replace(ACCUSED, found=[TWO]), BROKEN], 1),  # not repeated: load can't cause TWO
    ],
)
def test_self_option_of_the_exam_repeats_a_trial_if_load_may_explain_its_result(
    exam: Any, monkeypatch: pytest.MonkeyPatch, results: list[Seen], expected: int
) -> None:
    monkeypatch.setattr(main, "RIGHT", ["right"])
    monkeypatch.setattr(main, "EXPECTED", {("endless", "killed"): {NOT_GIVEN}})
    assert expected == exam(results, "--self")


def test_exam_pages_have_a_table_for_each_group_of_locks() -> None:
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in ("exam.md", "articles.md")]
    named = [group for page in pages for group in main.BEGIN.findall(page)[0].split(", ")]
    assert [*GROUPS] == named
    assert all(main.END in page for page in pages)
