"""Locks through faults: a sample of `make exam`, the page that explains adapters, and the table."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from devtools.servers import find_server
from exam import report
from exam.entries import ENTRIES
from exam.examine import Seen, _doubtful
from exam.faults import FAULTS
from exam.judge import NOT_GIVEN, TWO_INSIDE, Finding, against
from tests.support import nursery

ROOT = Path(__file__).resolve().parent.parent
OURS = ("lock", "async", "quorum", "requests")

needs_servers = pytest.mark.skipif(
    find_server() is None or not sys.platform.startswith("linux"),
    reason="the exam starts servers of its own, and stops workers on Linux",
)


def examined(key: str, *faults: str, folder: Path | None = None) -> list[Seen]:
    """In a process of its own, as `make exam` does it."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder or ''}"}
    done = nursery.run("-m", "exam.examine", key, *faults, env=env, timeout=110)
    assert done.returncode == 0, done.stderr
    return [Seen.read(json.loads(line)) for line in done.stdout.splitlines()]


# A sample


@needs_servers
def test_a_lock_without_an_owner_check_is_accused() -> None:
    (seen,) = examined("setnx", "late-release")
    assert "failed" == seen.outcome
    assert TWO_INSIDE == seen.found[0].kind


#: What fails today, and is known.
OPEN = {
    "crowd-killed": "waiters on threads give a sign of life each, seldom when deep in the queue: "
    "killed ones look alive for up to 5 s",
}


@pytest.mark.deep
@needs_servers
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("key", OURS)
def test_ours_under_every_fault(key: str, fault: str) -> None:
    (seen,) = examined(key, fault)
    if seen.outcome == "failed" and fault in OPEN:
        pytest.xfail(f"{OPEN[fault]}: {seen.found[0]}")
    assert seen.outcome in ("passed", "seen", "not applicable"), (seen.why, *seen.found)


def test_postgres_is_examined_where_there_is_one() -> None:
    if why := ENTRIES["postgres"].missing():
        pytest.skip(why)
    (seen,) = examined("postgres", "killed")
    assert ("passed", []) == (seen.outcome, seen.found)


# The page that explains adapters


@pytest.fixture
def page_lock(tmp_path: Path) -> Path:
    """The page's file, as its reader has it in the end."""
    page = (ROOT / "docs" / "exam-adapters.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "page_lock.py").write_text("\n\n".join(shown[:2]))
    return tmp_path


@needs_servers
def test_the_page_s_first_lock_fails_and_its_better_one_passes(page_lock: Path) -> None:
    (first,) = examined("page_lock:ENTRY", "late-release", folder=page_lock)
    assert TWO_INSIDE == first.found[0].kind
    (better,) = examined("page_lock:BETTER", "late-release", folder=page_lock)
    assert [] == against(better.found)


@needs_servers
def test_a_lock_may_be_a_program_that_speaks_lines(tmp_path: Path) -> None:
    """And is killed with its worker."""
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import fcntl, json, sys, time

        for line in sys.stdin:
            words, answer = json.loads(line), {}
            if words["do"] == "open":
                path = f"{words['folder']}/{words['name']}"
            elif words["do"] == "acquire":
                file, end, answer = open(path, "w"), time.monotonic() + words["wait"], {"grant": 1}
                while answer["grant"]:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > end:
                            answer = {"grant": None}
                        time.sleep(0.01)
            elif words["do"] == "release":
                file.close()
            print(json.dumps(answer), flush=True)
        """)
    )
    (tmp_path / "lines_lock.py").write_text(
        textwrap.dedent(f"""
        from exam.adapter import Entry
        from exam.judge import Claims

        words = [{sys.executable!r}, {str(tmp_path / "program.py")!r}]
        ENTRY = Entry("a program", words, Claims(lease=0, punctual=True), needs="")
        """)
    )
    for seen in examined("lines_lock:ENTRY", "killed", "time-up", folder=tmp_path):
        assert ("passed", []) == (seen.outcome, seen.found)


# The table


def test_every_lock_of_the_list_stands_in_a_part_of_the_table() -> None:
    assert set(ENTRIES) == {key for keys in report.PARTS.values() for key in keys}
    assert 20 <= len(FAULTS)


def seen(outcome: str, *found: Finding, free: float = 0.0, why: str = "") -> Seen:
    return Seen("lock", "killed", outcome, list(found), free, why=why)


def test_a_cell_says_what_was_seen() -> None:
    two = Finding(TWO_INSIDE, 1.0, 1.23, "a and b")
    excused = Finding(NOT_GIVEN, 1.0, 3.0, "b waited", against=False)
    assert "✓" == report.cell(seen("passed"))
    assert "✓ 2.1 s" == report.cell(seen("passed", free=2.12))
    assert "**two inside** 1.2 s" == report.cell(seen("failed", two))
    assert "(free but nobody got it 3.0 s)" == report.cell(seen("seen", excused))
    assert "n/a" == report.cell(seen("not applicable", why="no"))
    assert "broken off" == report.cell(seen("broken off", why="no"))


def test_waiting_on_a_busy_machine_is_looked_at_again_and_an_overlap_is_not() -> None:
    waited, two = Finding(NOT_GIVEN, 1.0, 3.0, "b waited"), Finding(TWO_INSIDE, 1.0, 1.2, "a and b")

    def doubted(busy: float, *found: Finding) -> bool:
        return _doubtful(Seen("lock", "killed", "failed", list(found), busy=busy))

    assert [True, False] == [doubted(1.0, waited), doubted(0.1, waited)]
    assert [False, False] == [doubted(1.0, waited, two), doubted(1.0)]


def test_the_table_says_what_stands_against_a_lock_and_why_it_was_not_examined() -> None:
    two = Finding(TWO_INSIDE, 1.0, 1.23, "a and b")
    table = {
        ("lock", "killed"): seen("failed", two),
        ("redis-py", "silent"): Seen("redis-py", "silent", "not applicable", why="so it is"),
    }
    text = report.text(table, "6.2", {"postgres": "PostgreSQL is not installed"})
    assert "| holder killed (`killed`) | **two inside** 1.2 s |" in text
    assert "`killed`: two inside for 1.23 s, at 1.00 s: a and b." in text
    assert "redis-py Lock: so it is (`silent`)." in text
    assert "PostgreSQL advisory lock was not examined: PostgreSQL is not installed." in text
    assert "Redis 6.2" in text


def test_the_page_has_a_place_for_the_table() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.BEGIN in page and report.END in page


def test_the_names_of_locks_and_faults_can_be_listed() -> None:
    done = nursery.run("-m", "exam", "--list")
    assert {*ENTRIES, *FAULTS} <= set(done.stdout.split())


def test_what_is_not_installed_is_skipped_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "absent.py").write_text(
        "from exam.adapter import Entry\nENTRY = Entry('absent', 'x:Y', module='no_such_module')\n"
    )
    words = ("-m", "exam", "--only", "absent:ENTRY", "--json", tmp_path / "out.json")
    done = nursery.run(*words, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
    if find_server() is not None:
        assert "absent:ENTRY: skipped, no_such_module is not installed" in done.stdout


def test_the_libraries_of_the_exam_are_in_an_extra() -> None:
    """Whoever has them installed examines them all; without them `make test` needs none."""
    missing = [entry.missing() for entry in ENTRIES.values()]
    assert all(why == "" or "installed" in why for why in missing)
    assert importlib.util.find_spec("redis") is not None
