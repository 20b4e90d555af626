"""The exam: a sample of its trials, its evidence, its tables, and a copy of its folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import find_server
from exam import __main__ as main
from exam import report
from exam.adapter import Adapter, Claims, find
from exam.adapters import ADAPTERS, GROUPS
from exam.checker import KINDS, NOT_GIVEN, TWO_INSIDE, Finding, against
from exam.controls import CONTROLS
from exam.examine import Seen, is_doubtful
from exam.faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(
        find_server() is None or not sys.platform.startswith("linux"),
        reason="the exam starts servers, and stops workers on Linux",
    ),
]


def python(*words: str, folder: Path = ROOT, path: Path | None = None) -> str:
    """Run Python in a folder, and return what it printed."""
    env = {**os.environ, "PYTHONPATH": f"{path or ''}"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def examined(key: str, *faults: str, path: Path | None = None) -> list[Seen]:
    lines = python("-m", "exam.examine", key, *faults, path=path).splitlines()
    return [Seen.read(json.loads(line)) for line in lines]


# Evidence and controls


def test_each_fault_has_a_control() -> None:
    assert set(FAULTS) == {fault for one in CONTROLS.values() for fault in one.faults}
    assert {kind for one in CONTROLS.values() for kind in one.kinds} <= set(KINDS)


def test_each_fault_has_evidence() -> None:
    assert [] == [name for name, fault in FAULTS.items() if not fault.evidence]


def examined_without(code: str, *faults: str) -> dict[str, Any]:
    """Run `code`, which empties a part of the exam, and examine a correct lock.

    Return by fault the outcome, and True if the verdict is correct.
    """
    script = f"""
        import json
        from exam import lab
        from exam.__main__ import is_just
        from exam.examine import FAULTS, examine

        nothing = lambda *_, **__: None
        {code}
        seen = [examine("control:right", name) for name in {faults or (*FAULTS,)!r}]
        print(json.dumps({{one.fault: [one.outcome, is_just(one)] for one in seen}}))
    """
    done: dict[str, Any] = json.loads(python("-c", textwrap.dedent(script)))
    return done


def test_fault_that_does_nothing_is_noticed() -> None:
    seen = examined_without("for fault in FAULTS.values(): vars(fault)['put'] = nothing")
    assert {name: ["not reached", False] for name in FAULTS} == seen


def test_instrument_that_does_nothing_is_noticed() -> None:
    seen = examined_without("lab.Crew.kill = nothing", "waiter-killed")
    assert {"waiter-killed": ["not reached", False]} == seen


def test_lock_that_never_uses_its_server_does_not_pass_its_faults(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text(
        textwrap.dedent("""
        import fcntl, os
        from exam.adapter import Adapter, Claims, poll

        class Idle(Adapter):
            title, claims = "idle", Claims(lease=0, punctual=True)

            def acquire(self, wait):
                file = os.open(f"{self.place.folder}/{self.place.name}", os.O_CREAT | os.O_RDWR)
                return poll(lambda: self.once(file), wait)

            def once(self, file):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
                except BlockingIOError:
                    return None

            def release(self, grant):
                os.close(grant)
        """)
    )
    seen = examined("idle:Idle", "killed", "silent", "server-stopped", path=tmp_path)
    expected = {"killed": "passed", "silent": "not reached", "server-stopped": "not reached"}
    assert expected == {one.fault: one.outcome for one in seen}


# Adapters


def test_each_peer_quotes_a_sentence_for_each_claim() -> None:
    plain, missing = Claims(), []
    for key in GROUPS["Libraries"]:
        lock = find(key)
        made = {name for name, value in vars(lock.claims).items() if value != vars(plain)[name]}
        missing += [f"{key}: {name}" for name in made - {*lock.quotes}]
        assert re.search(r"\d", lock.source), f"{key} names no version"
    assert [] == missing


def test_python_redis_lock_keeps_the_claims_of_its_readme() -> None:
    pytest.importorskip("redis_lock")
    assert [[]] == [against(one.found) for one in examined("python-redis-lock", "killed")]


@pytest.fixture
def page_lock(tmp_path: Path) -> Path:
    """The folder with the file that a reader of docs/exam-adapters.md writes."""
    page = (ROOT / "docs" / "exam-adapters.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_lock.py").write_text("\n\n".join(shown[:2]))
    return tmp_path


def test_first_lock_of_the_page_fails_and_the_better_one_passes(page_lock: Path) -> None:
    (first,) = examined("my_lock:MyLock", "late-release", path=page_lock)
    assert TWO_INSIDE == first.found[0].kind
    (better,) = examined("my_lock:MyBetterLock", "late-release", path=page_lock)
    assert [] == against(better.found)


def test_copy_of_the_folder_examines_a_lock_of_its_own(page_lock: Path) -> None:
    """The copy can import nothing else of this repository."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "exam", page_lock / "exam", ignore=ignored)
    for module in ("django_redis_sync", "devtools", "tests", "django"):
        (page_lock / f"{module}.py").write_text("raise ImportError('not here')")
    assert "usage: python -m exam" in python("-m", "exam", "--help", folder=page_lock)
    words = ("--only", "my_lock:MyBetterLock", "--fault", "killed", "--json", "seen.json")
    output = python("-m", "exam", *words, folder=page_lock)
    assert re.search(r"my_lock:MyBetterLock +killed +✓ 1\.\d s", output), output


def test_program_in_another_language_is_killed_with_its_worker(tmp_path: Path) -> None:
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
        from exam.adapter import Claims, Program

        class Lines(Program):
            title, needs, claims = "a program", "", Claims(lease=0, punctual=True)
            command = [{sys.executable!r}, {str(tmp_path / "program.py")!r}]
        """)
    )
    for seen in examined("lines_lock:Lines", "killed", "time-up", path=tmp_path):
        assert ("passed", []) == (seen.outcome, seen.found)


# The table


def seen(outcome: str, *found: Finding, free: float = 0.0, why: str = "") -> Seen:
    return Seen("lock", "killed", outcome, list(found), free, why=why)


def test_cell_shows_the_outcome() -> None:
    two = Finding(TWO_INSIDE, 1.0, 1.23, "a and b")
    excused = Finding(NOT_GIVEN, 1.0, 3.0, "b waited", against=False)
    assert "✓ 2.1 s" == report.cell(seen("passed", free=2.12))
    assert "**two inside** 1.2 s" == report.cell(seen("failed", two))
    assert "(free but not granted 3.0 s)" == report.cell(seen("seen", excused))
    assert "n/a" == report.cell(seen("not applicable", why="no"))
    assert "not reached" == report.cell(seen("not reached", why="no"))


def test_delay_on_a_busy_machine_is_repeated_and_an_overlap_is_not() -> None:
    waited, two = Finding(NOT_GIVEN, 1.0, 3.0, "b waited"), Finding(TWO_INSIDE, 1.0, 1.2, "a and b")

    def doubted(busy: float, *found: Finding) -> bool:
        return is_doubtful(Seen("lock", "killed", "failed", list(found), busy=busy))

    assert [True, False] == [doubted(1.0, waited), doubted(0.1, waited)]
    assert [False, False] == [doubted(1.0, waited, two), doubted(1.0)]


def test_worst_of_several_runs_has_the_lowest_rank() -> None:
    two, late = Finding(TWO_INSIDE, 1.0, 1.2, "a and b"), Finding(NOT_GIVEN, 1.0, 3.0, "b waited")
    runs = [
        seen("failed", two),
        seen("failed", replace(late, seconds=4.0)),
        seen("failed", late),
        seen("broken off", why="it hung"),
        seen("seen", replace(two, against=False)),
        seen("passed", free=2.0),
        seen("passed"),
        seen("not reached", why="no"),
    ]
    ranks = [one.rank for one in runs]
    assert ranks == sorted({*ranks})


def test_table_shows_the_worst_of_several_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Finding(TWO_INSIDE, 1.0, 1.2, "a and b")
    runs = [seen("passed"), seen("failed", two), seen("passed", free=1.0)]
    file = tmp_path / "seen.json"
    file.write_text(json.dumps([asdict(replace(seen("broken off"), lock="lock"))]))
    words = ["exam", "--only", "lock", "--fault", "killed", "--times", "3", "--json", f"{file}"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(main, "examined", lambda *_: iter(runs))
    monkeypatch.setattr(main, "find_server", lambda: "")
    main.main()
    assert [("failed", [two])] == [(one.outcome, one.found) for one in report.read(file).values()]


def test_report_has_the_findings_and_the_reasons_for_missing_locks() -> None:
    table = {
        ("redis-py", "killed"): seen("failed", Finding(TWO_INSIDE, 1.0, 1.23, "a and b")),
        ("redis-py", "silent"): seen("not applicable", why="no server"),
    }
    text = report.text(table, {"pottery": "pottery is not installed"})
    assert "| holder killed (`killed`) | **two inside** 1.2 s |" in text
    assert "`killed`: two inside for 1.23 s, at 1.00 s: a and b." in text
    assert "redis-py Lock: no server (`silent`)." in text
    assert "pottery was not examined: pottery is not installed." in text
    assert re.search(r"Run on \d{4}-\d\d-\d\d with Python [\d.]+, .+ \d", text)


def test_pages_have_places_for_all_groups() -> None:
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in ("exam.md", "articles.md")]
    named = [group for page in pages for group in report.BEGIN.findall(page)[0].split(", ")]
    assert [*GROUPS] == named
    assert all(report.END in page for page in pages)


def test_list_names_all_locks_and_faults() -> None:
    assert {*ADAPTERS, *FAULTS} <= set(python("-m", "exam", "--list").split())
    assert Adapter.missing() == ""
